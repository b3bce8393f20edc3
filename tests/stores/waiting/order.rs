//! `wait`: calls are admitted first come, first served, within their wait or not at all. A dropped call takes no units.

use std::time::Duration;

use ratelimit_runtime::{Algorithm, Limit, Part};
use support::ALGORITHMS;
use support::limits::{MINUTE, SECOND};
use support::server::Server;
use tokio::task::JoinSet;

use crate::{TestLimiter, decision, on_both_stores, wait_until, wait_until_idle};

fn limit(algorithm: Algorithm, threshold: u64, wait: Duration) -> Limit {
    Limit::new("waiting", algorithm, threshold, SECOND).expect("valid").wait(wait)
}

on_both_stores! {
    async fn waiters_are_admitted_in_the_order_of_arrival(test: TestLimiter) {
        for algorithm in ALGORITHMS {
            let limit = limit(algorithm, 10, MINUTE);
            // Connects, so that Redis receives the calls in the order in which they are made.
            let _ = test.limiter.peek(&limit, "key", 1).await.expect("a decision");
            let (mut tasks, mut admitted) = (JoinSet::new(), Vec::new());
            for number in 0..40 {
                let (check, clock) = (test.limiter.check(&limit, "key", 1), test.clock.clone());
                tasks.spawn(async move {
                    check.await.expect("in time");
                    (clock.now(), number)
                });
                // Each call is in line before the next starts.
                tokio::task::yield_now().await;
            }
            while !tasks.is_empty() {
                wait_until_idle(&test.limiter).await;
                while let Some(call) = tasks.try_join_next() {
                    admitted.push(call.expect("no panic"));
                }
                test.clock.advance(Duration::from_millis(50));
            }
            // The runtime decides in which order calls run that were admitted at the same time.
            admitted.sort_unstable();
            let order = admitted.into_iter().map(|(_, number)| number);
            assert!(order.eq(0..40), "{algorithm}");
            test.clock.advance(10 * SECOND);
        }
    }

    async fn a_call_that_would_wait_too_long_is_rejected_at_once(test: TestLimiter) {
        let limit = limit(Algorithm::LeakyBucket, 1, Duration::from_millis(2_500));
        let check = || test.limiter.check(&limit, "key", 1);
        assert!(check().await.is_ok());
        let mut tasks = JoinSet::new();
        for number in 0..4 {
            let check = check();
            tasks.spawn(async move { (number, check.await) });
            wait_until_idle(&test.limiter).await;
        }
        // The first two calls wait one and two seconds. The others would wait longer than they can.
        for number in [2, 3] {
            let (rejected, result) = tasks.join_next().await.expect("rejected").expect("no panic");
            assert_eq!(rejected, number);
            assert_eq!(decision(result).retry_after, Duration::from_secs(3));
        }
        for number in [0, 1] {
            wait_until_idle(&test.limiter).await;
            assert!(tasks.try_join_next().is_none());
            test.clock.advance(SECOND);
            let (admitted, result) = tasks.join_next().await.expect("admitted").expect("no panic");
            assert_eq!((admitted, result.is_ok()), (number, true));
        }
        // No call is in line, so the decision comes from the store.
        let impatient = limit.wait(Duration::from_millis(999));
        let rejected = decision(test.limiter.check(&impatient, "key", 1).await);
        assert_eq!((rejected.allowed, rejected.retry_after), (false, SECOND));
    }

    async fn a_dropped_call_takes_no_units(test: TestLimiter) {
        let limit = limit(Algorithm::Sliding, 2, MINUTE);
        for polls in 0..6 {
            let before = decision(test.limiter.peek(&limit, "unused", 1).await);
            // Dropped after so many polls: before, while and after the request is pending.
            let mut check = Box::pin(test.limiter.check(&limit, "full", 1));
            assert!(test.limiter.check(&limit, "full", 2).await.is_ok());
            for _ in 0..polls {
                let _ = tokio::time::timeout(Duration::ZERO, check.as_mut()).await;
            }
            drop(check);
            wait_until_idle(&test.limiter).await;
            test.clock.advance(SECOND);
            let left = decision(test.limiter.peek(&limit, "full", 1).await).remaining;
            assert_eq!(left, 2, "after {polls} polls");
            assert_eq!(before, decision(test.limiter.peek(&limit, "unused", 1).await));
        }
    }
}

/// If a call is dropped while its request is pending, the charged units are returned.
#[tokio::test]
async fn units_of_calls_dropped_while_pending_are_returned() {
    let server = Server::start();
    let test = TestLimiter::redis(&server);
    let limit = limit(Algorithm::Sliding, 10, MINUTE);
    assert!(test.limiter.check(&limit, "key", 1).await.is_ok());
    server.pause_writes();
    for _ in 0..20 {
        let mut check = Box::pin(test.limiter.check(&limit, "key", 1));
        // One poll sends the request.
        assert!(futures::poll!(check.as_mut()).is_pending());
        drop(check);
    }
    server.resume();
    let remaining = async || decision(test.limiter.peek(&limit, "key", 1).await).remaining;
    wait_until(async || remaining().await == 9).await;
}

on_both_stores! {
    async fn a_call_waits_for_several_limits_together(test: TestLimiter) {
        let burst = limit(Algorithm::TokenBucket, 2, MINUTE);
        let slow = Limit::fixed("waiting.slow", 3, 10 * SECOND).wait(MINUTE);
        let check = || {
            let parts = [Part::new(&burst, &"key", 1), Part::new(&slow, &"key", 1)];
            test.limiter.check_all(&parts)
        };
        assert!(check().await.is_ok());
        assert!(check().await.is_ok());
        let third = tokio::spawn(check());
        wait_until_idle(&test.limiter).await;
        test.clock.advance(Duration::from_millis(500));
        assert!(third.await.expect("no panic").is_ok());
        let fourth = tokio::spawn(check());
        wait_until_idle(&test.limiter).await;
        test.clock.advance(Duration::from_millis(9_499));
        wait_until_idle(&test.limiter).await;
        assert!(!fourth.is_finished());
        test.clock.advance(Duration::from_millis(1));
        assert!(fourth.await.expect("no panic").is_ok());
    }
}

/// A line sends one request for each time at which a window admits calls, however many calls wait. For a bucket, it
/// reserves moments for a second, and asks again when half of them are left.
#[tokio::test]
async fn calls_in_line_share_requests() {
    let limits = [
        (Limit::fixed("waiting", 100, SECOND), 10..25),
        (Limit::leaky_bucket("waiting", 100, SECOND), 5..50),
    ];
    for (limit, expected) in limits {
        let server = Server::start();
        let test = TestLimiter::redis(&server);
        // Otherwise, the first window admits calls as they come.
        assert!(test.allows(&limit, limit.capacity()).await);
        let mut tasks = JoinSet::new();
        for _ in 0..1_000 {
            let check = test.limiter.check(&limit.wait(MINUTE), "key", 1);
            tasks.spawn(async move { check.await.expect("in time") });
        }
        wait_until_idle(&test.limiter).await;
        for _ in 0..100 {
            test.clock.advance(SECOND / 10);
            wait_until_idle(&test.limiter).await;
        }
        while tasks.try_join_next().is_some() {}
        assert!(tasks.is_empty(), "{} calls wait", tasks.len());
        let requests = server.script_calls();
        assert!(expected.contains(&requests), "{limit:?}: {requests} requests");
    }
}
