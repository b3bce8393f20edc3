//! Permits beside fallbacks, waits and leases: each charge is settled where it was made.

use std::time::Duration;

use ratelimit_runtime::{
    Limit, Mistake, Part, Permit, RateLimiter, Rejection, Scope, Source, StoreError,
};
use support::limits::{MINUTE, SECOND, is_bucket, limits};
use support::proxy::{Network, Proxy};
use support::server::Server;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{acquire, limiters, remaining};
use crate::{decision, wait_until_idle};

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
            let mut permits = Vec::new();
            for _ in 0..200 {
                wait_until_idle(limiter).await;
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
            wait_until_idle(limiter).await;
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

    let process = limit.scope(Scope::Process);
    acquire(&limiter, &process, 40).await.settle(10);
    assert_eq!(decision(limiter.peek(&process, "key", 1).await).remaining, 90);
}

#[tokio::test]
async fn leased_units_cannot_be_settled() {
    let limit = Limit::fixed("leased", 10, MINUTE).lease(5);
    let limiter = RateLimiter::embedded();
    let alone = limiter.acquire(&limit, "key", 1).await.expect_err("leased");
    let parts = [Part::new(&limit, &"key", 1)];
    let several = limiter.acquire_all(&parts).await.expect_err("leased");
    for rejection in [alone, several] {
        let Rejection::Mistake { mistake, .. } = rejection else { panic!("{rejection}") };
        assert_eq!(mistake, Mistake::Leased);
    }
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
