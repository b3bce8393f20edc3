//! `wait`: calls are admitted first come, first served, within their wait or not at all. A dropped call takes
//! no units.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ratelimit_runtime::{Algorithm, Key, Limit, Part, Rejection};
use support::ALGORITHMS;
use support::limits::SECOND;
use support::model::Model;
use support::server::Server;
use tokio::task::JoinSet;

use crate::{TestLimiter, decision, wait_until, wait_until_idle};

fn limit(algorithm: Algorithm, threshold: u64, wait: Duration) -> Limit {
    Limit::new("waiting", algorithm, threshold, SECOND).expect("valid").wait(wait)
}

#[tokio::test]
async fn check_peek_refund_and_reset_of_a_waiting_limit_share_a_count() {
    let server = Server::start();
    for test in [TestLimiter::embedded(), TestLimiter::redis(&server)] {
        for algorithm in ALGORITHMS {
            let limit = limit(algorithm, 10, Duration::from_millis(1));
            let capacity = limit.capacity();
            for key in [&() as &(dyn Key + Sync), &"", &"key", &((),), &("a", 7)] {
                test.limiter.check(&limit, key, capacity).await.expect("a new key");
                let peek = test.limiter.peek(&limit, key, 1).await.expect("a decision");
                assert_eq!((peek.allowed, peek.remaining), (false, 0), "{algorithm}");
                test.limiter.reset(&limit, key).await.expect("a reply");
                test.limiter.check(&limit, key, capacity).await.expect("a key that was reset");
                test.limiter.credit(&limit, key, capacity).await.expect("a reply");
                test.limiter.check(&limit, key, capacity).await.expect("all units were refunded");
            }
        }
    }
}

#[tokio::test]
async fn waiters_are_admitted_in_the_order_of_arrival() {
    let server = Server::start();
    for test in [TestLimiter::embedded(), TestLimiter::redis(&server)] {
        for algorithm in ALGORITHMS {
            let limit = limit(algorithm, 10, Duration::from_secs(60));
            // Connects, so that Redis receives the calls in the order in which they are made.
            let _ = test.limiter.peek(&limit, "key", 1).await.expect("a decision");
            let admitted = Arc::new(Mutex::new(Vec::new()));
            let mut tasks = JoinSet::new();
            for number in 0..40 {
                let (limiter, admitted) = (test.limiter.clone(), Arc::clone(&admitted));
                let clock = test.clock.clone();
                tasks.spawn(async move {
                    limiter.check(&limit, "key", 1).await.expect("in time");
                    admitted.lock().expect("no panic").push((clock.now(), number));
                });
                // Each call is in line before the next starts.
                tokio::task::yield_now().await;
            }
            while !tasks.is_empty() {
                wait_until_idle(&test.limiter).await;
                while tasks.try_join_next().is_some() {}
                test.clock.advance(Duration::from_millis(50));
            }
            let mut admitted = std::mem::take(&mut *admitted.lock().expect("no panic"));
            // The runtime decides in which order calls run that were admitted at the same time.
            admitted.sort_unstable();
            let order = admitted.into_iter().map(|(_, number)| number);
            assert!(order.eq(0..40), "{algorithm}");
            test.clock.advance(Duration::from_secs(10));
        }
    }
}

#[tokio::test]
async fn a_call_that_would_wait_too_long_is_rejected_at_once() {
    let server = Server::start();
    for test in [TestLimiter::embedded(), TestLimiter::redis(&server)] {
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
}

/// A hundred calls with different waits.
#[tokio::test]
async fn calls_end_within_their_waits_in_order_and_within_the_rate() {
    for algorithm in ALGORITHMS {
        check_waits_of(algorithm).await;
    }
}

async fn check_waits_of(algorithm: Algorithm) {
    let test = TestLimiter::embedded();
    let start = test.clock.now();
    let limit = limit(algorithm, 5, SECOND);
    let ends = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for number in 0..100_u64 {
        let wait = Duration::from_millis(number * 7_919 % 30_000);
        let (limiter, ends, clock) = (test.limiter.clone(), Arc::clone(&ends), test.clock.clone());
        let limit = limit.wait(wait);
        tasks.spawn(async move {
            let admitted = limiter.check(&limit, "key", 1).await.is_ok();
            ends.lock().expect("no panic").push((number, admitted, clock.now() - start));
            assert!(clock.now() - start <= wait.max(Duration::from_millis(1)), "{number}");
        });
        tokio::task::yield_now().await;
    }
    while !tasks.is_empty() {
        wait_until_idle(&test.limiter).await;
        while let Some(ended) = tasks.try_join_next() {
            ended.expect("in time");
        }
        test.clock.advance(Duration::from_millis(1));
    }
    let ends = ends.lock().expect("no panic").clone();
    let admitted: Vec<_> = ends.iter().filter(|(_, admitted, _)| *admitted).collect();
    assert!(admitted.is_sorted_by_key(|(number, ..)| *number), "{algorithm}: {admitted:?}");
    assert!(admitted.len() > 50, "{algorithm}: {}", admitted.len());
    let mut model = Model::new(&limit, None);
    for (number, _, at) in admitted {
        let at = (start + *at).as_micros() as u64;
        assert!(model.check(&limit, at, 1).allowed, "{algorithm}: call {number} is above the rate");
    }
}

#[tokio::test]
async fn a_dropped_call_takes_no_units() {
    let server = Server::start();
    for test in [TestLimiter::embedded(), TestLimiter::redis(&server)] {
        let limit = limit(Algorithm::Sliding, 2, Duration::from_secs(60));
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
        // Calls behind a dropped call move up.
        assert!(test.limiter.check(&limit, "line", 2).await.is_ok());
        let first = tokio::spawn(test.limiter.check(&limit, "line", 1));
        wait_until_idle(&test.limiter).await;
        let second = tokio::spawn(test.limiter.check(&limit, "line", 1));
        wait_until_idle(&test.limiter).await;
        first.abort();
        wait_until_idle(&test.limiter).await;
        test.clock.advance(SECOND);
        assert_eq!(second.await.expect("no panic").expect("admitted").remaining, 1);
    }
}

/// If a call is dropped while its request is pending, the charged units are returned.
#[tokio::test]
async fn units_of_calls_dropped_while_pending_are_returned() {
    let server = Server::start();
    let test = TestLimiter::redis(&server);
    let limit = limit(Algorithm::Sliding, 10, Duration::from_secs(60));
    assert!(test.limiter.check(&limit, "key", 1).await.is_ok());
    server.pause_writes();
    for _ in 0..20 {
        let mut check = Box::pin(test.limiter.check(&limit, "key", 1));
        // One poll sends the request.
        let waker = std::task::Waker::noop();
        let poll = check.as_mut().poll(&mut std::task::Context::from_waker(waker));
        assert!(poll.is_pending());
        drop(check);
    }
    server.resume();
    let remaining = async || decision(test.limiter.peek(&limit, "key", 1).await).remaining;
    wait_until(async || remaining().await == 9).await;
}

#[tokio::test]
async fn a_call_waits_for_several_limits_together() {
    let server = Server::start();
    for test in [TestLimiter::embedded(), TestLimiter::redis(&server)] {
        let burst = limit(Algorithm::TokenBucket, 2, Duration::from_secs(60));
        let patience = Duration::from_secs(60);
        let slow = Limit::fixed("waiting.slow", 3, Duration::from_secs(10)).wait(patience);
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
        let never = [Part::new(&burst, &"key", 1), Part::new(&slow, &"key", 4)];
        let never = test.limiter.check_all(&never).await;
        assert!(matches!(never, Err(Rejection::CostExceedsCapacity { .. })), "{never:?}");
    }
}

/// A line sends one request for each time at which the window admits calls, however many calls wait.
#[tokio::test]
async fn calls_in_line_share_requests() {
    let server = Server::start();
    let test = TestLimiter::redis(&server);
    let limit = Limit::fixed("waiting", 100, SECOND).wait(Duration::from_secs(60));
    // Otherwise, the first window admits calls as they come.
    test.limiter.check(&limit, "key", 100).await.expect("a new key");
    let mut tasks = JoinSet::new();
    for _ in 0..1_000 {
        let check = test.limiter.check(&limit, "key", 1);
        tasks.spawn(async move { check.await.expect("in time") });
    }
    wait_until_idle(&test.limiter).await;
    for _ in 0..100 {
        test.clock.advance(Duration::from_millis(100));
        wait_until_idle(&test.limiter).await;
    }
    while tasks.try_join_next().is_some() {}
    assert!(tasks.is_empty(), "{} calls wait", tasks.len());
    let requests = server.script_calls();
    assert!((10..25).contains(&requests), "{requests} requests");
}

#[tokio::test]
async fn waits_end_on_the_real_clock() {
    let limiter = ratelimit_runtime::RateLimiter::embedded();
    let limit = Limit::leaky_bucket("real", 100, SECOND).wait(SECOND);
    let start = std::time::Instant::now();
    for _ in 0..6 {
        limiter.check(&limit, "key", 1).await.expect("in time");
    }
    assert!(start.elapsed() >= Duration::from_millis(50));
    let impatient = Limit::leaky_bucket("real", 1, SECOND).wait(Duration::from_millis(10));
    assert!(limiter.check(&impatient, "impatient", 1).await.is_ok());
    assert!(limiter.check(&impatient, "impatient", 1).await.is_err());
}
