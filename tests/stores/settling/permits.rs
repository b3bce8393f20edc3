//! Permits: where a charge is settled, and what settling it does beside the other features.

use std::collections::VecDeque;
use std::time::Duration;

use ratelimit_runtime::{
    Clock, Limit, OnError, Part, Permit, RateLimiter, Rejection, Scope, Source, StoreError,
    VirtualClock,
};
use support::ALGORITHMS;
use support::clocks::embedded_on;
use support::limits::{MINUTE, SECOND, is_bucket, limits};
use support::proxy::{Network, Proxy};
use support::server::Server;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::{decision, settle_lines};

/// A limiter on the embedded store and one on Redis, on one virtual clock.
fn limiters(server: &Server) -> ([RateLimiter; 2], VirtualClock) {
    let clock = VirtualClock::at(Duration::from_secs(1_800_000_000));
    let virtual_clock = || Clock::Virtual(clock.clone());
    let embedded = RateLimiter::builder().clock(virtual_clock()).build().expect("valid");
    let redis = server.builder().clock(virtual_clock()).deadline(MINUTE).build().expect("valid");
    ([embedded, redis], clock)
}

async fn acquire(limiter: &RateLimiter, limit: &Limit, cost: u32) -> Permit {
    limiter.acquire(limit, "key", cost).await.expect("admitted")
}

async fn remaining(limiter: &RateLimiter, limit: &Limit) -> u32 {
    limiter.flush().await.expect("a reply");
    decision(limiter.peek(limit, "key", 1).await).remaining
}

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

/// A debt holds until it has left the window or drained. The wait is tight.
#[tokio::test]
async fn units_beyond_the_charge_are_a_debt() {
    let server = Server::start();
    let (limiters, clock) = limiters(&server);
    for limiter in &limiters {
        for limit in limits("permits", 100, MINUTE) {
            acquire(limiter, &limit, 40).await.settle(150);
            assert_eq!(remaining(limiter, &limit).await, 0, "{limit:?}");
            let rejected = decision(limiter.peek(&limit, "key", 1).await);
            assert!(!rejected.allowed);
            clock.advance(rejected.retry_after - Duration::from_micros(1));
            assert!(!decision(limiter.peek(&limit, "key", 1).await).allowed, "{limit:?}");
            clock.advance(Duration::from_micros(1));
            acquire(limiter, &limit, 1).await.keep();
            clock.advance(10 * MINUTE);
        }
    }
}

/// The largest debts neither wrap nor live for ever.
#[tokio::test]
async fn a_debt_saturates() {
    let server = Server::start();
    let (limiters, clock) = limiters(&server);
    for limit in limits("permits", 1_000, MINUTE) {
        let mut resets = Vec::new();
        for limiter in &limiters {
            for _ in 0..3 {
                // The permit of a call that costs nothing can be settled as well.
                acquire(limiter, &limit, 0).await.settle(u32::MAX);
                assert_eq!(remaining(limiter, &limit).await, 0, "{limit:?}");
            }
            resets.push(decision(limiter.peek(&limit, "key", 1).await).reset_after);
        }
        assert_eq!(resets[0], resets[1], "{limit:?}");
        assert!(resets[0] <= Duration::from_secs(36_525 * 86_400), "{limit:?}: {resets:?}");
        clock.advance(resets[0]);
        for limiter in &limiters {
            assert_eq!(remaining(limiter, &limit).await, 1_000, "{limit:?}");
        }
    }
    server.assert_all_keys_expire();
}

/// A debt of the largest size in a log whose ring is full: a further debt changes nothing.
#[tokio::test]
async fn a_saturated_log_keeps_its_entries() {
    let server = Server::start();
    let (limiters, _) = limiters(&server);
    let limit = Limit::sliding("saturated", 100_000, MINUTE);
    for limiter in &limiters {
        for _ in 0..63 {
            acquire(limiter, &limit, 1).await.keep();
        }
        for _ in 0..2 {
            acquire(limiter, &limit, 0).await.settle(u32::MAX);
            assert_eq!(remaining(limiter, &limit).await, 0);
        }
    }
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
async fn calls_that_wait_have_permits() {
    let server = Server::start();
    let (limiters, clock) = limiters(&server);
    for limiter in &limiters {
        for limit in limits("permits", 100, MINUTE) {
            let waiting = limit.clone().wait(5 * MINUTE);
            let first = acquire(limiter, &waiting, 100).await;
            let mut calls: JoinSet<_> =
                (0..2).map(|_| limiter.acquire(&waiting, "key", 10)).collect();
            settle_lines(limiter).await;
            assert!(calls.try_join_next().is_none(), "{limit:?}: the calls wait");
            // The units go to the calls that wait.
            first.settle(0);
            limiter.flush().await.expect("a reply");
            let mut permits = Vec::new();
            for _ in 0..200 {
                settle_lines(limiter).await;
                while let Some(permit) = calls.try_join_next() {
                    permits.push(permit.expect("no panic").expect("admitted"));
                }
                if permits.len() == 2 {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert_eq!(permits.len(), 2, "{limit:?}");
            permits.into_iter().for_each(Permit::refund);
            // A bucket kept room for the moment that a call had reserved.
            let least = if is_bucket(limit.algorithm()) { 90 } else { 100 };
            let left = remaining(limiter, &limit).await;
            assert!((least..=100).contains(&left), "{limit:?}: {left}");
            clock.advance(10 * MINUTE);
        }
    }
}

/// A call that waited for a reserved moment of a bucket settles it.
#[tokio::test]
async fn reservations_are_settled() {
    let server = Server::start();
    let (limiters, clock) = limiters(&server);
    let limit = Limit::leaky_bucket("reserved", 10, SECOND).wait(MINUTE);
    for limiter in &limiters {
        let mut calls: JoinSet<_> = (0..3).map(|_| limiter.acquire(&limit, "key", 1)).collect();
        for left in [2, 1, 0] {
            settle_lines(limiter).await;
            calls.join_next().await.expect("a call").expect("no panic").expect("admitted").refund();
            assert_eq!(calls.len(), left);
            clock.advance(SECOND / 10);
        }
        // The third call was refunded within the tenth of a second that it takes.
        limiter.flush().await.expect("a reply");
        assert!(decision(limiter.peek(&limit, "key", 1).await).allowed);
        clock.advance(MINUTE);
    }
}

#[tokio::test]
async fn a_charge_is_settled_where_it_was_made() {
    let server = Server::start();
    let proxy = Proxy::start(server.port(), Duration::ZERO);
    let url = format!("redis://127.0.0.1:{}", proxy.port);
    let builder = RateLimiter::builder().redis(url).deadline(SECOND / 5);
    let limiter = builder.instances(2).build().expect("valid settings");
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
    timeout(5 * SECOND, async {
        while limiter.ping().await.is_err() {
            tokio::time::sleep(SECOND / 20).await;
        }
    })
    .await
    .expect("Redis replies again");
    assert_eq!(remaining(&limiter, &limit).await, 100);

    let process = limit.clone().scope(Scope::Process);
    acquire(&limiter, &process, 40).await.settle(10);
    assert_eq!(decision(limiter.peek(&process, "key", 1).await).remaining, 90);
}

#[tokio::test]
async fn calls_that_are_not_charged_have_empty_permits() {
    let server = Server::start();
    let (limiters, _) = limiters(&server);
    for limiter in &limiters {
        let limit = Limit::fixed("shadow", 10, MINUTE);
        let shadow = limit.clone().shadow(true);
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
    let local = limit.clone().on_error(OnError::Local);
    assert_eq!(decision(limiter.peek(&local, "key", 1).await).remaining, 10);
    let denied = limit.on_error(OnError::Deny);
    let rejection = limiter.acquire(&denied, "key", 1).await.expect_err("no Redis");
    assert!(matches!(rejection, Rejection::Unavailable { .. }));
}

#[tokio::test]
async fn leased_units_cannot_be_settled() {
    let limit = Limit::fixed("leased", 10, MINUTE).lease(5);
    let limiter = RateLimiter::embedded();
    let alone = limiter.acquire(&limit, "key", 1).await.expect_err("leased");
    let parts = [Part::new(&limit, &"key", 1)];
    let several = limiter.acquire_all(&parts).await.expect_err("leased");
    for rejection in [alone, several] {
        let Rejection::Unavailable { error, .. } = rejection else { panic!("{rejection}") };
        assert_eq!(error, StoreError::Leased);
    }
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
    let client = |command: &[&str]| {
        redis::cmd("CLIENT").arg(command).exec(&mut server.connection()).expect("a reply");
    };
    client(&["PAUSE", "600000", "WRITE"]);
    for permit in permits {
        permit.settle(1);
    }
    client(&["UNPAUSE"]);
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

/// A hundred calls at once with an estimate of a tenth: ten start. Nine tenths are back once they are settled.
#[tokio::test]
async fn only_estimates_that_fit_start() {
    let server = Server::start();
    let (limiters, _) = limiters(&server);
    for limiter in &limiters {
        for limit in limits("permits", 10_000, MINUTE) {
            let calls: JoinSet<_> =
                (0..100).map(|_| limiter.acquire(&limit, "key", 1_000)).collect();
            let permits: Vec<_> =
                calls.join_all().await.into_iter().filter_map(Result::ok).collect();
            assert_eq!(permits.len(), 10, "{limit:?}");
            for permit in permits {
                permit.settle(100);
            }
            assert_eq!(remaining(limiter, &limit).await, 9_000, "{limit:?}");
        }
    }
}

/// A stream of calls that use a tenth of their estimates is admitted at the rate of what they use. The burst is well
/// above what the running calls hold.
#[tokio::test]
async fn a_steady_stream_uses_the_whole_limit() {
    const CALLS: u32 = 1_000;
    let clock = VirtualClock::at(Duration::from_secs(1_800_000_000));
    let limiter = embedded_on(&clock);
    for limit in limits("permits", CALLS * 100, MINUTE) {
        // Each call takes two ticks. A tick is a thousandth of a period.
        let (mut running, mut used, mut ticks) = (VecDeque::new(), 0_u32, 0_u32);
        // The first two periods fill the bucket or the window.
        while ticks < 22 * 1_000 {
            while let Ok(permit) = limiter.acquire(&limit, "key", 1_000).await {
                running.push_back((ticks + 2, permit));
            }
            while running.front().is_some_and(|(end, _)| *end <= ticks) {
                let (_, permit) = running.pop_front().expect("a call");
                permit.settle(100);
                used += if ticks >= 2_000 { 100 } else { 0 };
            }
            clock.advance(MINUTE / 1_000);
            ticks += 1;
        }
        let share = f64::from(used) / f64::from(20 * CALLS * 100);
        assert!((0.95..=1.001).contains(&share), "{limit:?}: {share}");
    }
}

/// A call can get the units that were charged for a call before it, which does not settle. It can be charged a debt,
/// and gives nothing back, because nothing tells its charge from others.
#[tokio::test]
async fn a_passed_grant_can_be_settled() {
    let server = Server::start();
    let ([_, limiter], clock) = limiters(&server);
    let limit = Limit::fixed("passed", 100, MINUTE);
    let waiting = limit.clone().wait(10 * MINUTE);
    for (used, left) in [(0, 100), (500, 0)] {
        acquire(&limiter, &limit, 100).await.keep();
        let mut first = Box::pin(limiter.check(&waiting, "key", 10));
        assert!(timeout(SECOND / 20, first.as_mut()).await.is_err());
        clock.advance(MINUTE);
        // The background thread charges the units of the first call, which is not polled.
        settle_lines(&limiter).await;
        acquire(&limiter, &limit, 90).await.keep();
        let mut second = Box::pin(limiter.acquire(&waiting, "key", 10));
        assert!(timeout(SECOND / 20, second.as_mut()).await.is_err());
        drop(first);
        second.await.expect("admitted").settle(used);
        assert_eq!(remaining(&limiter, &limit).await, 0);
        // A debt of 490 units is left over.
        limiter.refund(&limit, "key", 100).await.expect("refunded");
        assert_eq!(remaining(&limiter, &limit).await, left);
        clock.advance(10 * MINUTE);
    }
}
