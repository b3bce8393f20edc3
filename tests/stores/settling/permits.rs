//! Permits: what settling, refunding, keeping and dropping one does to the count that was charged, also beside
//! fallbacks and waits. Units that no call uses go back to their charge as well.

use std::time::Duration;

use futures::FutureExt;
use ratelimit_runtime::{
    Limit, OnError, Part, Permit, RateLimiter, Rejection, Scope, Source, StoreError, VirtualClock,
};
use support::limits::{MINUTE, SECOND, is_bucket, limits};
use support::proxy::{Network, Proxy};
use support::server::Server;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{acquire, limiters, remaining};
use crate::leases::TERM;
use crate::{decision, wait_until, wait_until_idle};

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
    let (server, limiter) = Server::with_limiter();
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

#[tokio::test]
async fn a_dropped_limiter_sends_its_settlements() {
    let server = Server::start();
    let limit = Limit::fixed("dropped", 100, MINUTE);
    let limiter = server.builder().build().expect("valid settings");
    acquire(&limiter, &limit, 50).await.refund();
    drop(limiter);
    let other = server.builder().build().expect("valid settings");
    wait_until(async || decision(other.peek(&limit, "key", 1).await).remaining == 100).await;
}

/// Parts of one count share what a fallback has charged. None gives back the units of another.
#[tokio::test]
async fn parts_of_a_fallback_give_back_what_it_has_charged() {
    let builder = RateLimiter::builder().redis("redis://127.0.0.1:1").deadline(SECOND / 20);
    let limiter = builder.instances(10).build().expect("valid settings");
    // The share of this process is two units.
    let limit = Limit::fixed("parts", 20, MINUTE);
    let parts = [Part::new(&limit, &"key", 3), Part::new(&limit, &"key", 4)];
    let permits = limiter.acquire_all(&parts).await.expect("admitted");
    let [first, second] = <[Permit; 2]>::try_from(permits).expect("two");
    first.settle(1);
    assert_eq!(remaining(&limiter, &limit).await, 1);
    limiter.check(&limit, "key", 1).await.expect("admitted");
    second.refund();
    assert_eq!(remaining(&limiter, &limit).await, 0);
    limiter.reset(&limit, "key").await.expect_err("no Redis");
    // Less than the estimate is no debt.
    acquire(&limiter, &limit, 10).await.settle(9);
    assert_eq!(remaining(&limiter, &limit).await, 0);
    let wait = decision(limiter.peek(&limit, "key", 2).await);
    assert!(wait.retry_after <= MINUTE);
}

#[tokio::test]
async fn calls_that_wait_have_permits() {
    let server = Server::start();
    let (limiters, clock) = limiters(&server);
    for limiter in &limiters {
        for limit in limits("permits", 100, MINUTE) {
            let waiting = limit.wait(5 * MINUTE);
            let first = acquire(limiter, &waiting, 100).await;
            let mut calls: JoinSet<_> =
                (0..2).map(|_| limiter.acquire(&waiting, "key", 10)).collect();
            wait_until_idle(limiter).await;
            assert!(calls.try_join_next().is_none(), "{limit:?}: the calls wait");
            // The units go to the calls that wait.
            first.settle(0);
            limiter.flush().await.expect("a reply");
            let permits = timeout(20 * SECOND, calls.join_all()).await.expect("soon");
            for permit in permits {
                permit.expect("admitted").refund();
            }
            // A bucket kept room for the moment that a call had reserved.
            let least = if is_bucket(limit.algorithm()) { 90 } else { 100 };
            let left = remaining(limiter, &limit).await;
            assert!((least..=100).contains(&left), "{limit:?}: {left}");
            clock.advance(10 * MINUTE);
        }
    }
}

#[tokio::test]
async fn a_charge_is_settled_where_it_was_made() {
    let server = Server::start();
    let proxy = Proxy::start(server.port(), Duration::ZERO);
    let limiter =
        proxy.builder().deadline(SECOND / 5).instances(2).build().expect("valid settings");
    let limit = Limit::fixed("where", 100, MINUTE);

    let shared = acquire(&limiter, &limit, 40).await;
    assert_eq!(shared.decision().source, Source::Redis);
    proxy.set(Network::Cut);
    // Of two processes, each has half.
    let local = acquire(&limiter, &limit, 40).await;
    assert_eq!((local.decision().source, local.decision().remaining), (Source::Fallback, 10));
    local.settle(10);
    let peeked = decision(limiter.peek(&limit, "key", 1).await);
    assert_eq!((peeked.source, peeked.remaining), (Source::Fallback, 40));
    // Redis does not reply: the settlement waits.
    shared.refund();
    let error = limiter.flush().await.expect_err("no Redis");
    assert!(matches!(error, StoreError::Timeout { .. }), "{error:?}");
    proxy.set(Network::Up);
    wait_until(async || limiter.ping().await.is_ok()).await;
    assert_eq!(remaining(&limiter, &limit).await, 100);

    let process = limit.scope(Scope::Process);
    acquire(&limiter, &process, 40).await.settle(10);
    assert_eq!(decision(limiter.peek(&process, "key", 1).await).remaining, 90);
}

/// A call can get the units that were charged for a call before it, which does not settle.
#[tokio::test]
async fn a_passed_grant_can_be_settled() {
    let server = Server::start();
    let ([_, limiter], clock) = limiters(&server);
    let limit = Limit::fixed("passed", 100, MINUTE);
    let waiting = limit.wait(10 * MINUTE);
    for (used, free, left) in [(0, 10, 100), (500, 0, 0)] {
        acquire(&limiter, &limit, 100).await.keep();
        let mut first = Box::pin(limiter.check(&waiting, "key", 10));
        assert!(timeout(SECOND / 20, first.as_mut()).await.is_err());
        clock.advance(MINUTE);
        // The background thread charges the units of the first call, which is not polled.
        wait_until_idle(&limiter).await;
        acquire(&limiter, &limit, 90).await.keep();
        let mut second = Box::pin(limiter.acquire(&waiting, "key", 10));
        assert!(timeout(SECOND / 20, second.as_mut()).await.is_err());
        drop(first);
        second.await.expect("admitted").settle(used);
        assert_eq!(remaining(&limiter, &limit).await, free);
        // A debt of 490 units is left over.
        limiter.credit(&limit, "key", 100).await.expect("refunded");
        assert_eq!(remaining(&limiter, &limit).await, left);
        clock.advance(10 * MINUTE);
    }
}

/// The clock of a process is behind that of another, and a count records its charges at the later time.
#[tokio::test]
async fn units_return_to_their_charge_although_the_clock_lags() {
    let server = Server::start();
    // A bucket gives back a little less, for the time of the lag.
    for limit in limits("lagging", 1_000, MINUTE).filter(|limit| !is_bucket(limit.algorithm())) {
        // The clock of `early` is at the beginning of a window and of a term, and that of `late` is not.
        let begin = Duration::from_secs(6_060) * 300_000;
        let clocks = [begin, begin - Duration::from_millis(5)].map(VirtualClock::at);
        let [early, late] = [server.limiter_on(&clocks[0]), server.limiter_on(&clocks[1])];
        let (waiting, leased) = (limit.wait(MINUTE), limit.lease(50));
        let left =
            async |limit: &Limit, key: &str| decision(early.peek(limit, key, 1).await).remaining;

        // The units that were granted to a call which is dropped.
        early.check(&waiting, "waits", 1).await.expect("admitted");
        let mut check = Box::pin(late.check(&waiting, "waits", 10));
        assert!(check.as_mut().now_or_never().is_none());
        wait_until_idle(&late).await;
        assert_eq!(left(&waiting, "waits").await, 1_000 - 11, "{limit:?}");
        drop(check);
        wait_until_idle(&late).await;
        assert_eq!(left(&waiting, "waits").await, 1_000 - 1, "{limit:?}");

        // The units of a lease that ends.
        early.check(&leased, "leases", 1).await.expect("admitted");
        for _ in 0..20 {
            late.check(&leased, "leases", 1).await.expect("admitted");
        }
        assert!(left(&leased, "leases").await < 1_000 - 21, "units are leased");
        for clock in &clocks {
            clock.advance(TERM);
        }
        wait_until(async || left(&leased, "leases").await == 1_000 - 21).await;
    }
}
