//! `wait`: calls are admitted first come, first served, within their wait or not at all. A dropped call takes no units.

use std::task::Poll;
use std::time::{Duration, Instant};

use futures::{Stream, StreamExt, stream};
use ratelimit_runtime::__private::{lines, lines_are_idle};
use ratelimit_runtime::stream::RateLimitStreamExt;
use ratelimit_runtime::{
    Algorithm, Clock, Limit, OnError, Part, RateLimiter, Rejection, Source, VirtualClock,
};
use support::ALGORITHMS;
use support::limits::{MINUTE, SECOND, is_bucket, limits};
use support::proxy::Proxy;
use support::server::Server;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::{bucket, limiters, rest};
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

// Lines of waiting calls: calls share requests, and a call that is not polled does not hold up the calls behind it.

#[tokio::test]
async fn calls_that_are_alone_in_their_lines_share_scripts() {
    let server = Server::start();
    let limiter = server.builder().deadline(5 * SECOND).build().expect("valid settings");
    let limit = Limit::sliding("together", 1, MINUTE);
    for key in 0..1_000 {
        limiter.check(&limit, key, 1).await.expect("a new key");
    }
    let (waiting, before) = (limit.wait(2 * MINUTE), server.script_calls());
    let _calls: JoinSet<_> = (0..1_000).map(|key| limiter.check(&waiting, key, 1)).collect();
    wait_until(async || lines(&limiter) == 1_000 && lines_are_idle(&limiter)).await;
    let scripts = server.script_calls() - before;
    assert!(scripts < 100, "{scripts} scripts");
}

/// A clock that steps back makes the grant of a call that is not polled seem to be ahead. The call behind it waits.
#[tokio::test]
async fn a_clock_that_steps_back_does_not_keep_a_line_busy() {
    for limit in limits("back", 1, 3 * SECOND / 10).filter(|limit| !is_bucket(limit.algorithm())) {
        let clock = VirtualClock::at(Duration::from_secs(1_800_000_000));
        let builder = RateLimiter::builder().clock(Clock::Virtual(clock.clone()));
        let limiter = builder.deadline(MINUTE).build().expect("valid");
        limiter.check(&limit, "key", 1).await.expect("a new key");
        let waiting = limit.wait(MINUTE);
        let mut unpolled = Box::pin(limiter.check(&waiting, "key", 1));
        let mut call = Box::pin(limiter.check(&waiting, "key", 1));
        assert!(futures::poll!(unpolled.as_mut()).is_pending());
        assert!(futures::poll!(call.as_mut()).is_pending());
        clock.advance(2 * SECOND);
        assert!(futures::poll!(call.as_mut()).is_pending(), "{limit:?}");
        clock.set(clock.now() - SECOND / 10);
        // The line asks again.
        limiter.unblock(&limit, "key").await.expect("a reply");
        assert!(futures::poll!(call.as_mut()).is_pending(), "{limit:?}");
        clock.advance(5 * SECOND);
        unpolled.await.expect("admitted");
        call.await.expect("admitted");
    }
}

#[tokio::test]
async fn a_call_that_is_not_polled_does_not_hold_up_others() {
    let server = Server::start();
    for limiter in limiters(&server) {
        let limits = [
            bucket(10),
            Limit::sliding("unpolled", 1, Duration::from_millis(300)),
            Limit::fixed("unpolled", 1, Duration::from_millis(300)),
            Limit::sliding_counter("unpolled", 1, Duration::from_millis(300)),
        ];
        for limit in limits {
            let limit = limit.wait(20 * SECOND);
            for unpolled in [1, 30] {
                let key = (unpolled, "key");
                limiter.check(&limit, key, 1).await.expect("admitted at once");
                let mut kept = Vec::new();
                for _ in 0..unpolled {
                    let mut check = Box::pin(limiter.check(&limit, key, 1));
                    assert!(futures::poll!(check.as_mut()).is_pending());
                    kept.push(check);
                }
                let start = Instant::now();
                let result = timeout(6 * SECOND, limiter.check(&limit, key, 1)).await;
                let took = start.elapsed();
                result.expect("within its wait").expect("admitted");
                // A grant passes on after a deadline at most.
                assert!(took < if unpolled == 1 { 2 * SECOND } else { 5 * SECOND }, "{took:?}");
                // A call that is polled again is admitted, too.
                let mut first = kept.swap_remove(0);
                drop(kept);
                timeout(6 * SECOND, first.as_mut()).await.expect("in time").expect("admitted");
            }
        }
        rest(&limiter).await;
    }
}

/// Its turn comes, and nothing polls it until its wait and a deadline more have passed. Redis has replied all the time.
#[tokio::test]
async fn a_call_that_slept_beyond_its_wait_is_decided_by_redis() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let builder = server.builder().clock(Clock::Virtual(clock.clone()));
    let limiter = builder.deadline(SECOND / 5).build().expect("valid settings");
    let limit = Limit::sliding("slept", 1, SECOND);
    limiter.check(&limit, "key", 1).await.expect("a new key");
    let mut call = Box::pin(limiter.check(&limit.wait(2 * SECOND), "key", 1));
    assert!(futures::poll!(call.as_mut()).is_pending());
    wait_until(async || lines_are_idle(&limiter)).await;
    clock.advance(SECOND);
    for left in [0, 1] {
        let peek = async || limiter.peek(&limit, "key", 1).await.expect("a reply").remaining;
        wait_until(async || peek().await == left).await;
    }
    clock.advance(MINUTE);
    let decision = call.await.expect("a unit is free");
    assert_eq!(decision.source, Source::Redis);
}

#[tokio::test]
async fn a_clock_that_moves_while_a_request_is_pending_wakes_the_call() {
    let server = Server::start();
    let proxy = Proxy::with_latency(server.port(), Duration::from_millis(100));
    let clock = VirtualClock::new();
    let builder = proxy.builder().clock(Clock::Virtual(clock.clone())).deadline(5 * SECOND);
    let limiter = builder.build().expect("valid settings");
    for limit in [bucket(1), Limit::sliding("moved", 1, SECOND)] {
        let limit = limit.wait(MINUTE);
        limiter.check(&limit, "key", 1).await.expect("admitted at once");
        let mut call = Box::pin(limiter.check(&limit, "key", 1));
        assert!(timeout(Duration::from_millis(50), call.as_mut()).await.is_err());
        clock.advance(2 * SECOND);
        timeout(SECOND, call).await.expect("its moment has come").expect("admitted");
    }
}

/// Calls whose runtime stands still do not use units that were counted long ago.
#[test]
fn units_that_are_not_taken_in_time_are_not_used() {
    let server = Server::start();
    for limiter in limiters(&server) {
        let runtime = support::runtime();
        let limit = bucket(100).wait(MINUTE);
        let mut calls: JoinSet<_> = runtime.block_on(async {
            let calls = (0..90).map(|_| limiter.check(&limit, "key", 1)).collect();
            sleep(Duration::from_millis(50)).await;
            calls
        });
        std::thread::sleep(SECOND);
        runtime.block_on(async {
            let start = Instant::now();
            let mut admitted = 0;
            while start.elapsed() < SECOND / 10 {
                let next = timeout(Duration::from_millis(5), calls.join_next()).await;
                admitted += u64::from(next.is_ok());
            }
            // Those before the runtime stood still, of the last deadline, and of this tenth of a second.
            assert!(admitted <= 5 + 1 + 20 + 10 + 10, "{:?}: {admitted}", limiter.source());
        });
    }
}

// Streams whose items wait for a limit.

on_both_stores! {
    async fn items_come_at_the_rate_of_the_limit(test: TestLimiter) {
        for algorithm in ALGORITHMS {
            let limit = Limit::new("paced", algorithm, 5, SECOND).expect("valid");
            let start = test.clock.now();
            let items = stream::iter(0..21).rate_limited(&limit, "key");
            let items = items.limiter(test.limiter.clone());
            let items = tokio::spawn(items.map(|item| item.expect("it waits")).collect::<Vec<_>>());
            while !items.is_finished() {
                wait_until_idle(&test.limiter).await;
                test.clock.advance(Duration::from_millis(20));
            }
            assert!(items.await.expect("no panic").into_iter().eq(0..21), "{algorithm}");
            let took = test.clock.now().abs_diff(start);
            // The first five at once, except for the leaky bucket; the others at five a second.
            assert!(took >= Duration::from_millis(2_400) && took <= SECOND * 7, "{algorithm}: {took:?}");
            test.limiter.reset(&limit, "key").await.expect("a reply");
        }
    }

    async fn an_item_that_is_rejected_is_kept(test: TestLimiter) {
        let limit = Limit::fixed("kept", 1, SECOND * 60).wait(SECOND);
        let mut items = stream::iter(["a", "b"]).rate_limited(&limit, "key").limiter(test.limiter.clone());
        assert_eq!(items.next().await.expect("an item").expect("a unit"), "a");
        assert_eq!(items.size_hint(), (1, None));
        let rejection = items.next().await.expect("a rejection").expect_err("the wait is too short");
        assert_eq!(rejection.retry_after(), Some(SECOND * 60));
        // A consumer that only reports errors does not spin: the stream asks again when it helps.
        assert!(futures::poll!(items.next()).is_pending());
        test.clock.advance(SECOND * 60);
        assert_eq!(items.next().await.expect("an item").expect("a unit"), "b");
        assert!(items.next().await.is_none());
    }
}

#[tokio::test]
async fn no_unit_is_taken_while_there_is_no_item() {
    let (limiter, mut polls) = (RateLimiter::embedded(), 0);
    let limit = Limit::fixed("empty", 1, SECOND * 60);
    let empty = stream::poll_fn(|_| -> Poll<Option<()>> {
        polls += 1;
        Poll::Pending
    });
    let mut items = empty.rate_limited(&limit, "key").limiter(limiter.clone());
    assert!(futures::poll!(items.next()).is_pending());
    assert!(futures::poll!(items.next()).is_pending());
    drop(items);
    assert_eq!(polls, 2);
    assert!(limiter.check(&limit, "key", 1).await.is_ok());
}

#[tokio::test]
async fn a_stream_uses_the_limiter_of_its_scope() {
    let limiter = RateLimiter::embedded();
    let limit = Limit::fixed("scoped", 1, SECOND * 60).wait(Duration::ZERO);
    let mut items = stream::iter(0..2).rate_limited(&limit, "key");
    let results = limiter.scope(async { (items.next().await, items.next().await) }).await;
    assert!(matches!(results, (Some(Ok(0)), Some(Err(_)))), "{results:?}");
    assert!(limiter.check(&limit, "key", 1).await.is_err());
}

#[tokio::test]
async fn a_dead_server_loses_no_item() {
    let server = Server::start();
    let limiter = server.builder().deadline(SECOND).build().expect("valid");
    let port = server.port();
    let limit = Limit::leaky_bucket("down", 1_000, SECOND).on_error(OnError::Deny);
    let mut items = stream::iter(0..2).rate_limited(&limit, "key").limiter(limiter);
    assert_eq!(items.next().await.expect("an item").expect("a unit"), 0);
    drop(server);
    for _ in 0..2 {
        let rejection = items.next().await.expect("a rejection").expect_err("no server");
        assert!(matches!(rejection, Rejection::Unavailable { .. }), "{rejection:?}");
    }
    let _restarted = Server::start_on(port);
    let second = loop {
        if let Ok(item) = items.next().await.expect("an item, or a rejection") {
            break item;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(second, 1);
    assert!(items.next().await.is_none());
}
