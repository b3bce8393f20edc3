//! `wait` and calls that are rejected: because they cannot be admitted in time, or by `on_error`.

use std::pin::Pin;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::executor::block_on;
use ratelimit_runtime::{
    Check, Clock, Decision, Limit, OnError, RateLimiter, Rejection, Source, VirtualClock,
};
use support::limits::{MINUTE, SECOND};
use support::proxy::{Network, Proxy};
use support::server::Server;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::{DEADLINE, bucket, limiters, rest};
use crate::{decision, on_both_stores, wait_until, wait_until_idle};

/// The first call in line cannot be admitted in time. The call behind it costs less and can.
#[tokio::test]
async fn a_call_that_is_rejected_does_not_hold_up_a_smaller_one() {
    let server = Server::start();
    for limiter in limiters(&server) {
        for limit in
            [Limit::sliding("smaller", 5, MINUTE), Limit::token_bucket("smaller", 5, MINUTE)]
        {
            limiter.check(&limit, "key", 4).await.expect("a new key");
            let large = limiter.check(&limit.wait(SECOND), "key", 2);
            let small = limiter.check(&limit.wait(SECOND / 2), "key", 1);
            let start = Instant::now();
            let (large, small) = (tokio::spawn(large), tokio::spawn(small));
            small.await.expect("no panic").expect("a unit is free");
            assert!(!decision(large.await.expect("no panic")).retry_after.is_zero());
            assert!(start.elapsed() < SECOND / 2, "{limit:?}: {:?}", start.elapsed());
        }
    }
}

/// A server that does not reply, and one that is gone: `on_error` decides calls that wait within a deadline.
#[tokio::test]
async fn on_error_decides_calls_that_wait_for_a_dead_server() {
    let server = Server::start();
    for network in [Network::Blackhole, Network::Cut] {
        let proxy = Proxy::start(server.port(), Duration::ZERO);
        let limiter = proxy.builder().deadline(DEADLINE).build().expect("valid settings");
        for limit in [Limit::sliding("dead", 2, SECOND / 2), bucket(4).burst(2)] {
            let limit = limit.wait(SECOND);
            let _ = limiter.check(&limit, "connects", 1).await;
            proxy.set(network);
            for (on_error, admitted) in
                [(OnError::Deny, 0), (OnError::Allow, 20), (OnError::Local, 6)]
            {
                let limit = limit.on_error(on_error);
                let key = format!("{on_error:?}");
                let start = Instant::now();
                let calls: JoinSet<_> = (0..20).map(|_| limiter.check(&limit, &*key, 1)).collect();
                let results = calls.join_all().await;
                let took = start.elapsed();
                let longest = if on_error == OnError::Local { SECOND } else { Duration::ZERO };
                assert!(took <= longest + 2 * DEADLINE, "{network:?}, {on_error:?}: {took:?}");
                let allowed = results.iter().filter(|result| result.is_ok()).count();
                let what = format!("{network:?}, {on_error:?}, {limit:?}: {allowed}");
                assert!(allowed <= admitted && allowed + 2 >= admitted, "{what}");
                for result in results {
                    match result {
                        Ok(decision) => assert_eq!(decision.source, Source::Fallback, "{what}"),
                        Err(Rejection::Limited { .. }) => assert_eq!(on_error, OnError::Local),
                        Err(Rejection::Unavailable { .. }) => assert_eq!(on_error, OnError::Deny),
                        Err(other) => panic!("{other:?}"),
                    }
                }
            }
            proxy.set(Network::Up);
            let back = wait_until(async || limiter.ping().await.is_ok());
            timeout(5 * SECOND, back).await.expect("Redis replies again");
        }
        rest(&limiter).await;
    }
}

/// An executor without timers, and code that is not async.
#[test]
fn calls_wait_without_a_runtime() {
    let server = Server::start();
    for limiter in limiters(&server) {
        let limit = bucket(20).wait(SECOND);
        let start = Instant::now();
        for _ in 0..2 {
            block_on(limiter.check(&limit, "key", 1)).expect("admitted");
            limiter.check_blocking(&limit, "key", 1).expect("admitted");
        }
        assert!(start.elapsed() >= 3 * SECOND / 20, "{:?}", start.elapsed());
        let slow = Limit::token_bucket("slow", 1, MINUTE).wait(Duration::from_millis(1));
        limiter.check_blocking(&slow, "key", 1).expect("admitted");
        let rejection = limiter.check_blocking(&slow, "key", 1).expect_err("the wait is too short");
        assert!(matches!(rejection, Rejection::Limited { .. }), "{rejection}");
    }
}

on_both_stores! {
    /// A window opens with its first call, so the queue of a fixed limit tells how many windows a call has to wait for.
    async fn calls_behind_too_many_windows_are_rejected_at_once(test: TestLimiter) {
        let limit = Limit::fixed("windows", 5, SECOND).wait(Duration::from_millis(3_100));
        let _ = test.limiter.peek(&limit, "key", 1).await.expect("a decision");
        let mut calls = JoinSet::new();
        for number in 1..=25 {
            let check = test.limiter.check(&limit, "key", 1);
            calls.spawn(async move { (number, check.await.is_ok()) });
        }
        wait_until_idle(&test.limiter).await;
        let mut ended: Vec<_> = std::iter::from_fn(|| calls.try_join_next()).collect();
        // Five are admitted now, and five cannot be within four windows.
        assert_eq!(ended.len(), 10);
        for _ in 0..3 {
            test.clock.advance(SECOND);
            wait_until_idle(&test.limiter).await;
        }
        ended.extend(std::iter::from_fn(|| calls.try_join_next()));
        let admitted = ended.into_iter().map(|call| call.expect("no panic")).filter(|call| call.1);
        let mut admitted: Vec<_> = admitted.map(|call| call.0).collect();
        admitted.sort_unstable();
        assert_eq!(admitted, (1..=20).collect::<Vec<_>>());
    }
}

/// A server that is killed and started again, and one that is flushed, by the real clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_end_in_time_while_the_server_loses_its_memory() {
    /// How late a busy machine may poll a call.
    const ROOM: Duration = Duration::from_millis(150);
    let mut server = Server::start();
    let bucket = bucket(10);
    for (on_error, kills) in
        [OnError::Deny, OnError::Local].into_iter().flat_map(|it| [(it, false), (it, true)])
    {
        let limiter = server.builder().deadline(DEADLINE).on_error(on_error);
        let limiter = limiter.build().expect("valid settings");
        wait_until(async || limiter.ping().await.is_ok()).await;
        let mut calls = JoinSet::new();
        let mut start_call = |wait: Duration| {
            let check = limiter.check(&bucket.wait(wait), "key", 1);
            calls.spawn(async move {
                let start = Instant::now();
                let result = check.await;
                (wait, start.elapsed(), result)
            });
        };
        for _ in 0..8 {
            start_call(2 * SECOND);
        }
        sleep(Duration::from_millis(100)).await;
        if kills {
            let port = server.port();
            server.stop();
            server = Server::start_on(port);
        } else {
            redis::cmd("FLUSHALL").exec(&mut server.connection()).expect("FLUSHALL");
        }
        for number in 0..24 {
            start_call(Duration::from_millis(50 + 150 * (number % 4)));
            sleep(Duration::from_millis(15)).await;
        }
        for (wait, took, result) in calls.join_all().await {
            let what = format!("{on_error:?}, kills {kills}: {took:?} of {wait:?}: {result:?}");
            assert!(took <= wait + DEADLINE + ROOM, "{what}");
        }
        rest(&limiter).await;
    }
}

// `max_waiting`: how many calls wait at most, and what happens to the calls beyond.

/// Limiters on both stores in which one call may wait.
fn with_one_place(server: &Server) -> [(RateLimiter, VirtualClock); 2] {
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
    for (limiter, clock) in with_one_place(&server) {
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
    for (limiter, clock) in with_one_place(&server) {
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
