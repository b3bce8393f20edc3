//! `max_waiting`: how many calls wait at most, and what happens to the calls beyond.

use std::pin::Pin;
use std::time::Duration;

use futures::FutureExt;
use ratelimit_runtime::{Check, Clock, Decision, Limit, RateLimiter, Rejection, VirtualClock};
use support::limits::{MINUTE, SECOND};
use support::server::Server;

use crate::wait_until_idle;

/// Limiters on both stores in which one call may wait.
fn limiters(server: &Server) -> [(RateLimiter, VirtualClock); 2] {
    [RateLimiter::builder(), server.builder()].map(|builder| {
        let clock = VirtualClock::new();
        let builder = builder.clock(Clock::Virtual(clock.clone())).max_waiting(1);
        (builder.build().expect("valid settings"), clock)
    })
}

/// Polls a call until it waits.
async fn waiting(limiter: &RateLimiter, limit: &Limit, cost: u64) -> Pin<Box<Check>> {
    let mut call = Box::pin(limiter.check(limit, "key", cost));
    assert!(call.as_mut().now_or_never().is_none(), "the call waits");
    wait_until_idle(limiter).await;
    call
}

#[track_caller]
fn limited(result: Result<Decision, Rejection>) -> Duration {
    match result {
        Err(Rejection::Limited { decision, .. }) => decision.retry_after,
        other => panic!("the call is not limited: {other:?}"),
    }
}

#[tokio::test]
async fn a_call_beyond_the_bound_is_decided_at_once_if_no_call_waits_for_its_counts() {
    let server = Server::start();
    for (limiter, clock) in limiters(&server) {
        for limit in [Limit::sliding("bound", 1, SECOND), Limit::leaky_bucket("bound", 1, SECOND)] {
            let limit = limit.wait(MINUTE);
            limiter.check(&limit, "key", 1).await.expect("a new key");
            let first = waiting(&limiter, &limit, 1).await;
            limiter.check(&limit, "other key", 1).await.expect("a new key");
            assert_eq!(limited(limiter.check(&limit, "other key", 1).await), SECOND);
            // A call that is dropped makes room.
            drop(first);
            wait_until_idle(&limiter).await;
            let second = waiting(&limiter, &limit, 1).await;
            clock.advance(SECOND);
            second.await.expect("admitted");
            drop(waiting(&limiter, &limit, 1).await);
            wait_until_idle(&limiter).await;
            clock.advance(MINUTE);
        }
    }
}

#[tokio::test]
async fn a_call_beyond_the_bound_does_not_overtake() {
    let server = Server::start();
    for (limiter, clock) in limiters(&server) {
        let limit = Limit::sliding("bound", 10, SECOND).wait(MINUTE);
        limiter.check(&limit, "key", 5).await.expect("a new key");
        let first = waiting(&limiter, &limit, 8).await;
        // Five units are free, and the first call waits for eight. Both fit into the next window.
        assert_eq!(limited(limiter.check(&limit, "key", 1).await), SECOND);
        assert_eq!(limited(limiter.check(&limit, "key", 3).await), 2 * SECOND);
        clock.advance(SECOND);
        first.await.expect("admitted");
        limiter.check(&limit, "key", 2).await.expect("no call waits");

        let bucket = Limit::leaky_bucket("bound", 10, SECOND).wait(MINUTE);
        limiter.check(&bucket, "key", 1).await.expect("a new key");
        let first = waiting(&limiter, &bucket, 1).await;
        assert_eq!(limited(limiter.check(&bucket, "key", 1).await), SECOND / 5);
        clock.advance(SECOND / 10);
        first.await.expect("admitted");
    }
}

#[tokio::test]
async fn no_call_waits_with_a_bound_of_zero() {
    let limiter = RateLimiter::builder().max_waiting(0).build().expect("valid settings");
    let limit = Limit::sliding("bound", 1, MINUTE).wait(2 * MINUTE);
    limiter.check(&limit, "key", 1).await.expect("a new key");
    assert!(limited(limiter.check(&limit, "key", 1).await) <= MINUTE);
}
