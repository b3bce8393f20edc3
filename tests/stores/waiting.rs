//! `wait`: first come, first served, in time or not at all, and nothing taken by those who leave.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ratelimit_runtime::{Algorithm, Key, Limit, Part, Rejection};
use support::ALGORITHMS;
use support::model::Model;
use support::server::Server;
use tokio::task::JoinSet;

use crate::{Timed, decision};

const SECOND: Duration = Duration::from_secs(1);

fn limit(algorithm: Algorithm, threshold: u32, wait: Duration) -> Limit {
    Limit::new("waiting", algorithm, threshold, SECOND).expect("valid").wait(wait)
}

/// Lets every other task go on until it waits for the clock. On Redis that takes real time.
async fn settle(timed: &Timed) {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
    if timed.limiter.source() == ratelimit_runtime::Source::Redis {
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
}

/// Whoever waits, and whoever looks, gives back or does not wait, means the same count.
#[tokio::test]
async fn waited_for_or_not_it_is_one_count() {
    let server = Server::start();
    for timed in [Timed::embedded(), Timed::redis(&server)] {
        for algorithm in ALGORITHMS {
            let limit = limit(algorithm, 10, Duration::from_millis(1));
            let capacity = limit.capacity();
            for key in [&() as &(dyn Key + Sync), &"", &"key", &((),), &("a", 7)] {
                timed.limiter.check(&limit, key, capacity).await.expect("a new key");
                let seen = timed.limiter.peek(&limit, key, 1).await.expect("a decision");
                assert_eq!((seen.allowed, seen.remaining), (false, 0), "{algorithm}");
                timed.limiter.reset(&limit, key).await.expect("answers");
                timed.limiter.check(&limit, key, capacity).await.expect("a key that was reset");
                timed.limiter.refund(&limit, key, capacity).await.expect("answers");
                timed.limiter.check(&limit, key, capacity).await.expect("all was given back");
            }
        }
    }
}

#[tokio::test]
async fn waiters_are_admitted_in_their_order() {
    let server = Server::start();
    for timed in [Timed::embedded(), Timed::redis(&server)] {
        for algorithm in ALGORITHMS {
            let limit = limit(algorithm, 10, Duration::from_secs(60));
            // There is a connection, and calls arrive in the order in which they are made.
            let _ = timed.limiter.peek(&limit, "key", 1).await.expect("a decision");
            let order = Arc::new(Mutex::new(Vec::new()));
            let mut tasks = JoinSet::new();
            for number in 0..40 {
                let (limiter, order) = (timed.limiter.clone(), Arc::clone(&order));
                let limit = limit.clone();
                tasks.spawn(async move {
                    limiter.check(&limit, "key", 1).await.expect("in time");
                    order.lock().expect("no panic").push(number);
                });
                // Each is in line before the next comes.
                tokio::task::yield_now().await;
            }
            while !tasks.is_empty() {
                settle(&timed).await;
                while tasks.try_join_next().is_some() {}
                timed.clock.advance(Duration::from_millis(50));
            }
            let order = std::mem::take(&mut *order.lock().expect("no panic"));
            assert_eq!(order, (0..40).collect::<Vec<_>>(), "{algorithm}");
            timed.clock.advance(Duration::from_secs(10));
        }
    }
}

#[tokio::test]
async fn a_wait_that_is_too_long_is_refused_at_once() {
    let server = Server::start();
    for timed in [Timed::embedded(), Timed::redis(&server)] {
        let limit = limit(Algorithm::LeakyBucket, 1, Duration::from_millis(2_500));
        let check = || timed.limiter.check(&limit, "key", 1);
        assert!(check().await.is_ok());
        let mut tasks = JoinSet::new();
        for number in 0..4 {
            let check = check();
            tasks.spawn(async move { (number, check.await) });
            settle(&timed).await;
        }
        // The first two come after one and two seconds; for the others there is no time.
        for number in [2, 3] {
            let (refused, answer) = tasks.join_next().await.expect("refused").expect("no panic");
            assert_eq!(refused, number);
            assert_eq!(decision(answer).retry_after, Duration::from_secs(3));
        }
        for number in [0, 1] {
            settle(&timed).await;
            assert!(tasks.try_join_next().is_none());
            timed.clock.advance(SECOND);
            let (admitted, answer) = tasks.join_next().await.expect("admitted").expect("no panic");
            assert_eq!((admitted, answer.is_ok()), (number, true));
        }
        // Nobody is in line: the store itself says that the wait is too long.
        let hasty = limit.wait(Duration::from_millis(999));
        let refused = decision(timed.limiter.check(&hasty, "key", 1).await);
        assert_eq!((refused.allowed, refused.retry_after), (false, SECOND));
    }
}

/// A hundred waiters with mixed deadlines end by then, in order, and the rate is kept.
#[tokio::test]
async fn deadlines_are_kept() {
    for algorithm in ALGORITHMS {
        deadlines_are_kept_by(algorithm).await;
    }
}

async fn deadlines_are_kept_by(algorithm: Algorithm) {
    let timed = Timed::embedded();
    let start = timed.clock.now();
    let limit = limit(algorithm, 5, SECOND);
    let ends = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for number in 0..100_u64 {
        let wait = Duration::from_millis(number * 7_919 % 30_000);
        let (limiter, ends, clock) =
            (timed.limiter.clone(), Arc::clone(&ends), timed.clock.clone());
        let limit = limit.clone().wait(wait);
        tasks.spawn(async move {
            let admitted = limiter.check(&limit, "key", 1).await.is_ok();
            ends.lock().expect("no panic").push((number, admitted, clock.now() - start));
            assert!(clock.now() - start <= wait.max(Duration::from_millis(1)), "{number}");
        });
        tokio::task::yield_now().await;
    }
    while !tasks.is_empty() {
        settle(&timed).await;
        while let Some(ended) = tasks.try_join_next() {
            ended.expect("in time");
        }
        timed.clock.advance(Duration::from_millis(1));
    }
    let ends = ends.lock().expect("no panic").clone();
    let admitted: Vec<_> = ends.iter().filter(|(_, admitted, _)| *admitted).collect();
    assert!(admitted.is_sorted_by_key(|(number, ..)| *number), "{algorithm}: {admitted:?}");
    assert!(admitted.len() > 50, "{algorithm}: {}", admitted.len());
    let mut model = Model::new(&limit, None);
    for (number, _, at) in admitted {
        let at = (start + *at).as_micros() as u64;
        assert!(model.check(&limit, at, 1).allowed, "{algorithm}: {number} is one too many");
    }
}

#[tokio::test]
async fn who_leaves_has_taken_nothing() {
    let server = Server::start();
    for timed in [Timed::embedded(), Timed::redis(&server)] {
        let limit = limit(Algorithm::Sliding, 2, Duration::from_secs(60));
        for polls in 0..6 {
            let before = decision(timed.limiter.peek(&limit, "left", 1).await);
            // Given up after so many polls: before the store is asked, while it is, and after.
            let mut check = Box::pin(timed.limiter.check(&limit, "full", 1));
            assert!(timed.limiter.check(&limit, "full", 2).await.is_ok());
            for _ in 0..polls {
                let _ = tokio::time::timeout(Duration::ZERO, check.as_mut()).await;
            }
            drop(check);
            settle(&timed).await;
            timed.clock.advance(SECOND);
            let left = decision(timed.limiter.peek(&limit, "full", 1).await).remaining;
            assert_eq!(left, 2, "after {polls} polls");
            assert_eq!(before, decision(timed.limiter.peek(&limit, "left", 1).await));
        }
        // Those behind one who leaves move up.
        assert!(timed.limiter.check(&limit, "line", 2).await.is_ok());
        let first = tokio::spawn(timed.limiter.check(&limit, "line", 1));
        settle(&timed).await;
        let second = tokio::spawn(timed.limiter.check(&limit, "line", 1));
        settle(&timed).await;
        first.abort();
        settle(&timed).await;
        timed.clock.advance(SECOND);
        assert_eq!(second.await.expect("no panic").expect("admitted").remaining, 1);
    }
}

/// An answer on its way from Redis when its caller leaves is given back.
#[tokio::test]
async fn an_answer_that_nobody_waits_for_is_given_back() {
    let server = Server::start();
    let timed = Timed::redis(&server);
    let limit = limit(Algorithm::Sliding, 10, Duration::from_secs(60));
    assert!(timed.limiter.check(&limit, "key", 1).await.is_ok());
    for _ in 0..20 {
        let mut check = Box::pin(timed.limiter.check(&limit, "key", 1));
        // One poll sends the command; the answer cannot be there already.
        let waker = std::task::Waker::noop();
        let poll = check.as_mut().poll(&mut std::task::Context::from_waker(waker));
        assert!(poll.is_pending());
        drop(check);
    }
    for _ in 0..100 {
        let left = decision(timed.limiter.peek(&limit, "key", 1).await).remaining;
        if left == 9 {
            return;
        }
        settle(&timed).await;
    }
    panic!("units of calls that nobody waited for are missing");
}

#[tokio::test]
async fn several_limits_are_waited_for_together() {
    let server = Server::start();
    for timed in [Timed::embedded(), Timed::redis(&server)] {
        let burst = limit(Algorithm::TokenBucket, 2, Duration::from_secs(60));
        let patience = Duration::from_secs(60);
        let slow = Limit::fixed("waiting.slow", 3, Duration::from_secs(10)).wait(patience);
        let check = || {
            let parts = [Part::new(&burst, &"key", 1), Part::new(&slow, &"key", 1)];
            timed.limiter.check_all(&parts)
        };
        assert!(check().await.is_ok());
        assert!(check().await.is_ok());
        let third = tokio::spawn(check());
        settle(&timed).await;
        timed.clock.advance(Duration::from_millis(500));
        assert!(third.await.expect("no panic").is_ok());
        let fourth = tokio::spawn(check());
        settle(&timed).await;
        timed.clock.advance(Duration::from_millis(9_499));
        settle(&timed).await;
        assert!(!fourth.is_finished());
        timed.clock.advance(Duration::from_millis(1));
        assert!(fourth.await.expect("no panic").is_ok());
        let never = [Part::new(&burst, &"key", 1), Part::new(&slow, &"key", 4)];
        let never = timed.limiter.check_all(&never).await;
        assert!(matches!(never, Err(Rejection::CostExceedsCapacity { .. })), "{never:?}");
    }
}

/// A thousand waiters on one key do not poll in a herd: the store is asked about twice for each.
#[tokio::test]
async fn only_the_first_in_line_asks() {
    let server = Server::start();
    let timed = Timed::redis(&server);
    let limit = Limit::sliding("waiting", 1, Duration::from_millis(10));
    let limit = limit.wait(Duration::from_secs(60));
    let mut tasks = JoinSet::new();
    for _ in 0..1_000 {
        let check = timed.limiter.check(&limit, "key", 1);
        tasks.spawn(async move { check.await.expect("in time") });
    }
    while !tasks.is_empty() {
        while tasks.try_join_next().is_some() {}
        timed.clock.advance(Duration::from_millis(1));
        tokio::task::yield_now().await;
    }
    let calls = server.script_calls();
    assert!((1_000..2_100).contains(&calls), "{calls} calls of the script");
}

/// On the real clock, too.
#[tokio::test]
async fn real_time_passes() {
    let limiter = ratelimit_runtime::RateLimiter::embedded();
    let limit = Limit::leaky_bucket("real", 100, SECOND).wait(SECOND);
    let start = std::time::Instant::now();
    for _ in 0..6 {
        limiter.check(&limit, "key", 1).await.expect("in time");
    }
    assert!(start.elapsed() >= Duration::from_millis(50));
    let hasty = Limit::leaky_bucket("real", 1, SECOND).wait(Duration::from_millis(10));
    assert!(limiter.check(&hasty, "hasty", 1).await.is_ok());
    assert!(limiter.check(&hasty, "hasty", 1).await.is_err());
}
