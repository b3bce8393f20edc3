//! Permits: what settling, refunding, keeping and dropping one does to the count that was charged, also beside
//! fallbacks and waits. Units that no call uses go back to their charge as well.

use std::time::Duration;

use futures::executor::block_on;
use futures::future::join_all;
use ratelimit_runtime::{
    Limit, OnError, Part, Permit, RateLimiter, Rejection, Scope, Source, StoreError,
};
use support::limits::{MINUTE, SECOND, is_bucket, limits};
use support::proxy::{Network, Proxy};
use support::server::Server;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{acquire, remaining};
use crate::{decision, on_both_stores, wait_until, wait_until_idle};

on_both_stores! {
    /// A meter settles to what it has counted, also if its call panics or is cancelled.
    async fn a_meter_settles_what_it_has_counted_when_it_is_dropped(test: TestLimiter) {
        for limit in limits("meters", 100, MINUTE) {
            let left = async || remaining(&test.limiter, &limit).await;
            let mut meter = test.acquire(&limit, 40).await.meter();
            meter.add(4);
            meter.add(6);
            assert_eq!((meter.used(), meter.decision().remaining), (10, 60));
            drop(meter);
            assert_eq!(left().await, 90, "{limit:?}");

            let mut meter = test.acquire(&limit, 20).await.meter();
            meter.add(10);
            let panics = async move {
                let _meter = meter;
                panic!("the call fails");
            };
            tokio::spawn(panics).await.expect_err("a panic");
            assert_eq!(left().await, 80, "{limit:?}");

            let charge = test.acquire(&limit, 20).await.refund_on_drop();
            let cancelled = tokio::spawn(async move {
                let _charge = charge;
                std::future::pending::<()>().await;
            });
            tokio::task::yield_now().await;
            cancelled.abort();
            cancelled.await.expect_err("cancelled");
            assert_eq!(left().await, 80, "{limit:?}");

            test.acquire(&limit, 20).await.refund_on_drop().keep();
            test.acquire(&limit, 20).await.refund();
            assert_eq!(left().await, 60, "{limit:?}");
        }
    }

    /// Each part of a call has a permit. Those of one count share its charge.
    async fn each_of_several_limits_has_its_permit(test: TestLimiter) {
        let requests = Limit::fixed("requests", 5, MINUTE);
        let tokens = Limit::token_bucket("tokens", 1_000, MINUTE);
        let of = |key, cost| Part::new(&tokens, key, cost);
        let request = Part::new(&requests, &"key", 1);
        let parts = [request, of(&"key", 300), of(&"key", 200), of(&"other", 0)];
        let permits = test.limiter.acquire_all(&parts).await.expect("admitted");
        let left: Vec<_> = permits.iter().map(|permit| permit.decision().remaining).collect();
        assert_eq!(left, [4, 500, 500, 1_000]);
        for (permit, used) in permits.into_iter().zip([1, 100, 250, 7]) {
            permit.settle(used);
        }
        test.limiter.flush().await.expect("a reply");
        for (limit, key, left) in
            [(&requests, "key", 4), (&tokens, "key", 650), (&tokens, "other", 993)]
        {
            assert_eq!(decision(test.limiter.peek(limit, key, 1).await).remaining, left);
        }
    }

    async fn what_a_shadow_does_not_charge_is_not_settled(test: TestLimiter) {
        let limit = Limit::fixed("shadow", 10, MINUTE);
        let shadow = limit.shadow(true);
        test.acquire(&limit, 10).await.keep();
        let permit = test.acquire(&shadow, 5).await;
        assert!(!permit.decision().allowed);
        permit.refund();
        test.acquire(&shadow, 5).await.settle(100);
        test.acquire(&shadow, 11).await.settle(100);
        assert_eq!(remaining(&test.limiter, &limit).await, 0);
        assert!(test.peek(&limit, 1).await.retry_after <= MINUTE);
    }

    async fn calls_that_wait_have_permits(test: TestLimiter) {
        for limit in limits("permits", 100, MINUTE) {
            let waiting = limit.wait(5 * MINUTE);
            let first = test.acquire(&waiting, 100).await;
            let mut calls: JoinSet<_> =
                (0..2).map(|_| test.limiter.acquire(&waiting, "key", 10)).collect();
            wait_until_idle(&test.limiter).await;
            assert!(calls.try_join_next().is_none(), "{limit:?}: the calls wait");
            // The units go to the calls that wait.
            test.settle(first, 0).await;
            for permit in timeout(20 * SECOND, calls.join_all()).await.expect("soon") {
                permit.expect("admitted").refund();
            }
            // A bucket kept room for the moment that a call had reserved.
            let least = if is_bucket(limit.algorithm()) { 90 } else { 100 };
            let left = remaining(&test.limiter, &limit).await;
            assert!((least..=100).contains(&left), "{limit:?}: {left}");
        }
    }
}

#[tokio::test]
async fn calls_that_are_not_charged_have_empty_permits() {
    let builder = RateLimiter::builder().redis("redis://127.0.0.1:1").deadline(SECOND / 20);
    let limiter = builder.on_error(OnError::Allow).build().expect("valid settings");
    let limit = Limit::fixed("allowed", 10, MINUTE);
    let permit = acquire(&limiter, &limit, 5).await;
    assert_eq!(permit.decision().source, Source::Fallback);
    permit.settle(100);
    let local = limit.on_error(OnError::Local);
    assert_eq!(decision(limiter.peek(&local, "key", 1).await).remaining, 10);
    let denied = limiter.acquire(&limit.on_error(OnError::Deny), "key", 1).await;
    assert!(matches!(denied, Err(Rejection::Unavailable { .. })), "{denied:?}");
}

/// Settling does not wait for Redis, which executes no script until all permits are settled. It needs no runtime.
#[test]
fn nobody_waits_for_settlements() {
    let (server, limiter) = Server::with_limiter();
    let limit = Limit::sliding("nobody", 10_000, MINUTE);
    let calls = (0..500).map(|_| limiter.acquire(&limit, "key", 10));
    let permits = support::runtime().block_on(join_all(calls));
    let before = server.script_calls();
    server.pause_writes();
    for permit in permits {
        permit.expect("admitted").settle(1);
    }
    server.resume();
    block_on(limiter.shutdown()).expect("all settled");
    // 64 in a script, and the first one alone.
    let scripts = server.script_calls() - before;
    assert!(scripts <= 12, "{scripts} scripts");
    assert_eq!(limiter.check_blocking(&limit, "key", 1).expect("admitted").remaining, 9_499);
}

#[tokio::test]
async fn a_dropped_limiter_sends_its_settlements() {
    let server = Server::start();
    let limit = Limit::fixed("dropped", 100, MINUTE);
    let [limiter, other] = [(); 2].map(|()| server.builder().build().expect("valid settings"));
    acquire(&limiter, &limit, 50).await.refund();
    drop(limiter);
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
    assert!(decision(limiter.peek(&limit, "key", 2).await).retry_after <= MINUTE);
}

#[tokio::test]
async fn a_charge_is_settled_where_it_was_made() {
    let server = Server::start();
    let proxy = Proxy::start(server.port(), Duration::ZERO);
    let builder = proxy.builder().deadline(SECOND / 5).instances(2);
    let limiter = builder.build().expect("valid settings");
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
