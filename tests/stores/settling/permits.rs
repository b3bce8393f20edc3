//! Permits: what settling, refunding, keeping and dropping one does to the count that was charged.

use ratelimit_runtime::{Limit, OnError, Part, Permit, RateLimiter, Rejection, Source};
use support::limits::{MINUTE, SECOND, is_bucket, limits};
use support::server::Server;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{acquire, limiters, remaining};
use crate::decision;

#[tokio::test]
async fn a_permit_is_settled_refunded_kept_or_dropped() {
    let server = Server::start();
    let (limiters, _) = limiters(&server);
    for limiter in &limiters {
        for limit in limits("permits", 100, MINUTE) {
            let permit = acquire(limiter, &limit, 40).await;
            assert_eq!(permit.decision().remaining, 60);
            permit.settle(10);
            assert_eq!(remaining(limiter, &limit).await, 90, "{limit:?}");
            acquire(limiter, &limit, 20).await.refund();
            assert_eq!(remaining(limiter, &limit).await, 90, "{limit:?}");
            acquire(limiter, &limit, 20).await.keep();
            drop(acquire(limiter, &limit, 20).await);
            assert_eq!(remaining(limiter, &limit).await, 50, "{limit:?}");
            acquire(limiter, &limit, 20).await.settle(20);
            assert_eq!(remaining(limiter, &limit).await, 30, "{limit:?}");
        }
    }
    server.assert_all_keys_expire();
}

/// A meter settles to what it has counted, also if its call panics or is cancelled.
#[tokio::test]
async fn a_meter_settles_what_it_has_counted_when_it_is_dropped() {
    let server = Server::start();
    let (limiters, _) = limiters(&server);
    for limiter in &limiters {
        for limit in limits("meters", 100, MINUTE) {
            let mut meter = acquire(limiter, &limit, 40).await.meter();
            meter.add(4);
            meter.add(6);
            assert_eq!((meter.used(), meter.decision().remaining), (10, 60));
            drop(meter);
            assert_eq!(remaining(limiter, &limit).await, 90, "{limit:?}");

            let mut meter = acquire(limiter, &limit, 20).await.meter();
            meter.add(10);
            let panics = tokio::spawn(async move {
                let _meter = meter;
                panic!("the call fails");
            });
            panics.await.expect_err("a panic");
            assert_eq!(remaining(limiter, &limit).await, 80, "{limit:?}");

            let charge = acquire(limiter, &limit, 20).await.refund_on_drop();
            let cancelled = tokio::spawn(async move {
                let _charge = charge;
                std::future::pending::<()>().await;
            });
            tokio::task::yield_now().await;
            cancelled.abort();
            cancelled.await.expect_err("cancelled");
            assert_eq!(remaining(limiter, &limit).await, 80, "{limit:?}");

            acquire(limiter, &limit, 20).await.refund_on_drop().keep();
            assert_eq!(remaining(limiter, &limit).await, 60, "{limit:?}");
        }
    }
    server.assert_all_keys_expire();
}

/// Nothing is given back to a count that is not the one that was charged, also at the same moment.
#[tokio::test]
async fn a_permit_of_a_lost_count_gives_nothing_back() {
    let server = Server::start();
    let (limiters, _) = limiters(&server);
    for limiter in &limiters {
        for limit in limits("permits", 100, MINUTE) {
            let permit = acquire(limiter, &limit, 40).await;
            limiter.reset(&limit, "key").await.expect("a reply");
            acquire(limiter, &limit, 40).await.keep();
            permit.refund();
            assert_eq!(remaining(limiter, &limit).await, 60, "{limit:?}");
        }
    }
    let permit = acquire(&limiters[1], &Limit::fixed("flushed", 100, MINUTE), 40).await;
    let _: () = redis::cmd("FLUSHALL").query(&mut server.connection()).expect("a reply");
    let limit = Limit::fixed("flushed", 100, MINUTE);
    acquire(&limiters[1], &limit, 40).await.keep();
    permit.refund();
    assert_eq!(remaining(&limiters[1], &limit).await, 60);
}

/// A permit that is settled after its window gives nothing back. A later window keeps its charges.
#[tokio::test]
async fn a_late_permit_gives_nothing_back() {
    let server = Server::start();
    let (limiters, clock) = limiters(&server);
    for limit in limits("permits", 100, MINUTE) {
        for limiter in &limiters {
            let permit = acquire(limiter, &limit, 40).await;
            clock.advance(2 * MINUTE);
            acquire(limiter, &limit, 40).await.keep();
            permit.refund();
            assert_eq!(remaining(limiter, &limit).await, 60, "{limit:?}");
            clock.advance(10 * MINUTE);
        }
    }
}

#[tokio::test]
async fn a_threshold_that_shrinks_or_grows_keeps_the_charges() {
    let server = Server::start();
    let (limiters, _) = limiters(&server);
    for (before, after) in [(100, 50), (50, 100)] {
        for (old, new) in limits("permits", before, MINUTE).zip(limits("permits", after, MINUTE)) {
            for limiter in &limiters {
                let (first, second) =
                    (acquire(limiter, &old, 20).await, acquire(limiter, &old, 20).await);
                first.settle(10);
                assert_eq!(remaining(limiter, &new).await, after - 30, "{new:?}");
                acquire(limiter, &new, 10).await.settle(30);
                assert_eq!(remaining(limiter, &new).await, after.saturating_sub(60), "{new:?}");
                second.settle(0);
                // A bucket whose rate has changed gives nothing back to charges before.
                let is_bucket = is_bucket(new.algorithm());
                let used = if is_bucket { 60 } else { 40 };
                assert_eq!(remaining(limiter, &new).await, after.saturating_sub(used), "{new:?}");
                limiter.reset(&new, "key").await.expect("a reply");
            }
        }
    }
}

/// Each part of a call has a permit. Those of one count share its charge.
#[tokio::test]
async fn each_of_several_limits_has_its_permit() {
    const REQUESTS: Limit = Limit::fixed("requests", 5, MINUTE);
    const TOKENS: Limit = Limit::token_bucket("tokens", 1_000, MINUTE);
    let server = Server::start();
    let (limiters, _) = limiters(&server);
    for limiter in &limiters {
        let parts = [
            Part::new(&REQUESTS, &"team", 1),
            Part::new(&TOKENS, &"team", 300),
            Part::new(&TOKENS, &"team", 200),
            Part::new(&TOKENS, &"other", 0),
        ];
        let permits = limiter.acquire_all(&parts).await.expect("admitted");
        let [requests, first, second, free] = <[Permit; 4]>::try_from(permits).expect("four");
        assert_eq!(requests.decision().remaining, 4);
        assert_eq!((first.decision().remaining, second.decision().remaining), (500, 500));
        requests.keep();
        first.settle(100);
        second.settle(250);
        free.settle(7);
        limiter.flush().await.expect("a reply");
        let left = |limit: &'static Limit, key| limiter.peek(limit, key, 1);
        assert_eq!(decision(left(&REQUESTS, "team").await).remaining, 4);
        assert_eq!(decision(left(&TOKENS, "team").await).remaining, 650);
        assert_eq!(decision(left(&TOKENS, "other").await).remaining, 993);
        // If one limit rejects the call, none is charged.
        let parts = [Part::new(&REQUESTS, &"team", 5), Part::new(&TOKENS, &"team", 100)];
        let rejection = limiter.acquire_all(&parts).await.expect_err("five of four");
        assert!(matches!(rejection, Rejection::Limited { .. }));
        assert_eq!(decision(left(&TOKENS, "team").await).remaining, 650);
    }
}

#[tokio::test]
async fn calls_that_are_not_charged_have_empty_permits() {
    let server = Server::start();
    let (limiters, _) = limiters(&server);
    for limiter in &limiters {
        let limit = Limit::fixed("shadow", 10, MINUTE);
        let shadow = limit.shadow(true);
        acquire(limiter, &limit, 10).await.keep();
        let permit = acquire(limiter, &shadow, 5).await;
        assert!(!permit.decision().allowed);
        permit.refund();
        acquire(limiter, &shadow, 5).await.settle(100);
        acquire(limiter, &shadow, 11).await.settle(100);
        assert_eq!(remaining(limiter, &limit).await, 0);
        let wait = decision(limiter.peek(&limit, "key", 1).await).retry_after;
        assert!(wait <= MINUTE);
    }
    let builder = RateLimiter::builder().redis("redis://127.0.0.1:1").deadline(SECOND / 20);
    let limiter = builder.on_error(OnError::Allow).build().expect("valid settings");
    let limit = Limit::fixed("allowed", 10, MINUTE);
    let permit = acquire(&limiter, &limit, 5).await;
    assert_eq!(permit.decision().source, Source::Fallback);
    permit.settle(100);
    let local = limit.on_error(OnError::Local);
    assert_eq!(decision(limiter.peek(&local, "key", 1).await).remaining, 10);
    let denied = limit.on_error(OnError::Deny);
    let rejection = limiter.acquire(&denied, "key", 1).await.expect_err("no Redis");
    assert!(matches!(rejection, Rejection::Unavailable { .. }));
}

/// Settling does not wait for Redis, which executes no script until all permits are settled. It needs no runtime.
#[test]
fn nobody_waits_for_settlements() {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid");
    let limit = Limit::sliding("nobody", 10_000, MINUTE);
    let runtime = || tokio::runtime::Runtime::new().expect("a runtime");
    let permits: Vec<_> = runtime().block_on(async {
        let calls: JoinSet<_> = (0..500).map(|_| limiter.acquire(&limit, "key", 10)).collect();
        calls.join_all().await.into_iter().map(|permit| permit.expect("admitted")).collect()
    });
    let before = server.script_calls();
    server.pause_writes();
    for permit in permits {
        permit.settle(1);
    }
    server.resume();
    runtime().block_on(async {
        limiter.shutdown().await.expect("all settled");
        // 64 in a script, and the first one alone.
        let scripts = server.script_calls() - before;
        assert!(scripts <= 12, "{scripts} scripts");
        assert_eq!(decision(limiter.peek(&limit, "key", 1).await).remaining, 9_500);
    });
}

/// A limiter that is dropped settles what is pending.
#[tokio::test]
async fn a_dropped_limiter_sends_its_settlements() {
    let server = Server::start();
    let limit = Limit::fixed("dropped", 100, MINUTE);
    let limiter = server.builder().build().expect("valid settings");
    acquire(&limiter, &limit, 50).await.refund();
    drop(limiter);
    let other = server.builder().build().expect("valid settings");
    timeout(5 * SECOND, async {
        while decision(other.peek(&limit, "key", 1).await).remaining < 100 {
            tokio::time::sleep(SECOND / 100).await;
        }
    })
    .await
    .expect("the units are back");
}
