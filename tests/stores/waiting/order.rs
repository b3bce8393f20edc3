//! `wait`: calls are admitted first come, first served, within their wait or not at all. A dropped call takes no units.

use std::task::Poll;

use futures::{Stream, StreamExt, stream};
use ratelimit_runtime::__private::lines_are_idle;
use ratelimit_runtime::Part;
use ratelimit_runtime::stream::RateLimitStreamExt;
use support::ALGORITHMS;

use super::*;

fn limit(algorithm: Algorithm, threshold: u64, wait: Duration) -> Limit {
    Limit::new("waiting", algorithm, threshold, SECOND).expect("valid").wait(wait)
}

on_both_stores! {
    async fn a_call_that_would_wait_too_long_is_rejected_at_once(test: TestLimiter) {
        let limit = limit(Algorithm::LeakyBucket, 1, Duration::from_millis(2_500));
        assert!(test.allows(&limit, 1).await);
        let mut calls = Vec::new();
        for _ in 0..4 {
            calls.push(tokio::spawn(test.limiter.check(&limit, "key", 1)));
            wait_until_idle(&test.limiter).await;
        }
        // The first two calls wait one and two seconds. The others would wait longer than they can.
        for rejected in calls.split_off(2) {
            assert!(rejected.is_finished());
            assert_eq!(decision(rejected.await.expect("no panic")).retry_after, 3 * SECOND);
        }
        for call in calls {
            wait_until_idle(&test.limiter).await;
            assert!(!call.is_finished());
            test.clock.advance(SECOND);
            call.await.expect("no panic").expect("admitted");
        }
        // No call is in line, so the decision comes from the store.
        let rejected = test.decide(&limit.wait(Duration::from_millis(999)), 1).await;
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
                let _ = timeout(Duration::ZERO, check.as_mut()).await;
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
        for _ in 0..2 {
            check().await.expect("new keys");
        }
        for millis in [500, 9_500] {
            let call = tokio::spawn(check());
            wait_until_idle(&test.limiter).await;
            test.clock.advance(Duration::from_millis(millis - 1));
            wait_until_idle(&test.limiter).await;
            assert!(!call.is_finished());
            test.clock.advance(Duration::from_millis(1));
            call.await.expect("no panic").expect("admitted");
        }
    }
}

/// A line sends one request for each time at which a window admits calls, however many calls wait. For a bucket, it
/// reserves moments for a second, and asks again when half of them are left.
#[tokio::test]
async fn calls_in_line_share_requests() {
    for (limit, expected) in [(Limit::fixed("waiting", 100, SECOND), 10..25), (bucket(100), 5..50)]
    {
        let server = Server::start();
        let test = TestLimiter::redis(&server);
        // Otherwise, the first window admits calls as they come.
        assert!(test.allows(&limit, limit.capacity()).await);
        let check = |_| test.limiter.check(&limit.wait(MINUTE), "key", 1);
        let mut calls: JoinSet<_> = (0..1_000).map(check).collect();
        wait_until_idle(&test.limiter).await;
        for _ in 0..100 {
            test.clock.advance(SECOND / 10);
            wait_until_idle(&test.limiter).await;
        }
        while let Some(call) = calls.try_join_next() {
            call.expect("no panic").expect("in time");
        }
        assert!(calls.is_empty(), "{} calls wait", calls.len());
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
        let limiter = on_clock(RateLimiter::builder().deadline(MINUTE), &clock);
        limiter.check(&limit, "key", 1).await.expect("a new key");
        let unpolled = waiting(&limiter, &limit, "key", 1).await;
        let mut call = waiting(&limiter, &limit, "key", 1).await;
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
        let limits = limits("unpolled", 1, 3 * SECOND / 10);
        let windows = limits.filter(|limit| !is_bucket(limit.algorithm()));
        for limit in windows.chain([bucket(10)]) {
            let limit = limit.wait(20 * SECOND);
            for unpolled in [1, 30] {
                let key = (unpolled, "key");
                limiter.check(&limit, key, 1).await.expect("admitted at once");
                let check = || Box::pin(limiter.check(&limit, key, 1));
                let mut kept: Vec<_> = (0..unpolled).map(|_| check()).collect();
                assert!(kept.iter_mut().all(|call| call.now_or_never().is_none()));
                // A grant passes on after a deadline at most.
                let longest = if unpolled == 1 { 2 * SECOND } else { 5 * SECOND };
                timeout(longest, check()).await.expect("within its wait").expect("admitted");
                // A call that is polled again is admitted, too.
                let first = kept.swap_remove(0);
                drop(kept);
                timeout(6 * SECOND, first).await.expect("in time").expect("admitted");
            }
        }
        rest(&limiter).await;
    }
}

/// Its turn comes, and nothing polls it until its wait and a deadline more have passed. Redis has replied all the time.
#[tokio::test]
async fn a_call_that_slept_beyond_its_wait_is_decided_by_redis() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let limiter = on_clock(server.builder().deadline(DEADLINE), &clock);
    let limit = Limit::sliding("slept", 1, SECOND);
    limiter.check(&limit, "key", 1).await.expect("a new key");
    let mut call = Box::pin(limiter.check(&limit.wait(2 * SECOND), "key", 1));
    assert!(call.as_mut().now_or_never().is_none());
    wait_until(async || lines_are_idle(&limiter)).await;
    clock.advance(SECOND);
    for left in [0, 1] {
        let peek = async || limiter.peek(&limit, "key", 1).await.expect("a reply").remaining;
        wait_until(async || peek().await == left).await;
    }
    clock.advance(MINUTE);
    assert_eq!(call.await.expect("a unit is free").source, Source::Redis);
}

#[tokio::test]
async fn a_clock_that_moves_while_a_request_is_pending_wakes_the_call() {
    let server = Server::start();
    let proxy = Proxy::with_latency(server.port(), SECOND / 10);
    let clock = VirtualClock::new();
    let limiter = on_clock(proxy.builder().deadline(5 * SECOND), &clock);
    for limit in [bucket(1), Limit::sliding("moved", 1, SECOND)] {
        let limit = limit.wait(MINUTE);
        limiter.check(&limit, "key", 1).await.expect("admitted at once");
        let mut call = Box::pin(limiter.check(&limit, "key", 1));
        assert!(timeout(SECOND / 20, call.as_mut()).await.is_err());
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
        let mut calls = JoinSet::new();
        runtime.block_on(async {
            (0..90).for_each(|_| drop(calls.spawn(limiter.check(&limit, "key", 1))));
            sleep(SECOND / 20).await;
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
            let expected = Duration::from_millis(2_400)..=7 * SECOND;
            assert!(expected.contains(&took), "{algorithm}: {took:?}");
            test.limiter.reset(&limit, "key").await.expect("a reply");
        }
    }

    async fn an_item_that_is_rejected_is_kept(test: TestLimiter) {
        let limit = Limit::fixed("kept", 1, MINUTE).wait(SECOND);
        let items = stream::iter(["a", "b"]).rate_limited(&limit, "key");
        let mut items = items.limiter(test.limiter.clone());
        assert_eq!(items.next().await.expect("an item").expect("a unit"), "a");
        assert_eq!(items.size_hint(), (1, None));
        let rejection = items.next().await.expect("a rejection").expect_err("a short wait");
        assert_eq!(rejection.retry_after(), Some(MINUTE));
        // A consumer that only reports errors does not spin: the stream asks again when it helps.
        assert!(futures::poll!(items.next()).is_pending());
        test.clock.advance(MINUTE);
        assert_eq!(items.next().await.expect("an item").expect("a unit"), "b");
        assert!(items.next().await.is_none());
    }
}

#[tokio::test]
async fn no_unit_is_taken_while_there_is_no_item() {
    let (limiter, mut polls) = (RateLimiter::embedded(), 0);
    let limit = Limit::fixed("empty", 1, MINUTE);
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
    let limit = Limit::fixed("scoped", 1, MINUTE).wait(Duration::ZERO);
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
    wait_until(async || items.next().await.expect("an item, or a rejection") == Ok(1)).await;
    assert!(items.next().await.is_none());
}
