//! `wait` and units that are given back: by refunds, resets and dropped calls, and when a limiter is shut down.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake};

use super::*;
use crate::faults::store_error;

/// A call for half of the capacity waits in one process. It observes within a second what another process gives back.
#[tokio::test]
async fn refunds_and_resets_reach_the_calls_that_wait() {
    let server = Server::start();
    let ([embedded, redis], [_, other]) = (limiters(&server), limiters(&server));
    for (here, there, longest) in [
        (&embedded, &embedded, SECOND / 2),
        (&redis, &redis, SECOND / 2),
        (&redis, &other, 3 * SECOND / 2),
    ] {
        let limits = limits("given back", 200, MINUTE);
        for (limit, refunded) in limits.flat_map(|limit| [(limit, 150), (limit, 0)]) {
            let limit = &limit;
            here.reset(limit, "key").await.expect("a reply");
            here.check(limit, "key", 200).await.expect("a new key");
            let mut call = Box::pin(here.check(&limit.wait(2 * MINUTE), "key", 100));
            assert!(timeout(SECOND / 5, call.as_mut()).await.is_err(), "the call waits");
            if refunded == 0 {
                there.reset(limit, "key").await.expect("a reply");
            } else {
                there.credit(limit, "key", refunded).await.expect("a reply");
            }
            timeout(longest, call).await.expect("soon").expect("admitted");
            let remaining = decision(here.peek(limit, "key", 1).await).remaining;
            let left = if refunded == 0 { 100 } else { 50 };
            // A bucket refills 3.3 tokens a second.
            assert!((left..=left + 10).contains(&remaining), "{limit:?}: {remaining} left");
        }
        rest(here).await;
    }
}

on_both_stores! {
    /// The burst is raised and lowered while reservations exist. They are cancelled all the same.
    async fn reservations_are_cancelled_after_the_burst_has_changed(test: TestLimiter) {
        for burst in [1, 5] {
            let waiting = tokens(2).wait(MINUTE);
            test.limiter.reset(&waiting, "key").await.expect("a reply");
            assert!(test.allows(&waiting, 2).await);
            let check = |_| test.limiter.check(&waiting, "key", 1);
            let calls: JoinSet<_> = (0..4).map(check).collect();
            wait_until_idle(&test.limiter).await;
            let peek = || test.limiter.peek(&tokens(burst), "key", burst);
            assert_eq!(decision(peek().await).retry_after, 3 * SECOND / 5, "burst {burst}");
            drop(calls);
            wait_until_idle(&test.limiter).await;
            assert_eq!(decision(peek().await).retry_after, SECOND / 5, "burst {burst}");
        }
    }
}

#[tokio::test]
async fn calls_that_are_dropped_together_give_back_in_few_requests() {
    let server = Server::start();
    for limit in [bucket(2_000), Limit::sliding("together", 1_000, SECOND)] {
        let [_, limiter] = limiters(&server);
        let limit = limit.wait(MINUTE);
        let check = |_| limiter.check(&limit, "dropped", 1);
        let mut calls: JoinSet<_> = (0..3_000).map(check).collect();
        sleep(SECOND / 10).await;
        calls.shutdown().await;
        let before = server.script_calls();
        rest(&limiter).await;
        let requests = server.script_calls() - before;
        // On a busy machine, the calls are dropped over several batches.
        assert!(requests < 100, "{limit:?}: {requests} requests");
        sleep(SECOND).await;
        assert!(limiter.peek(&limit, "dropped", 1).await.expect("a reply").allowed, "{limit:?}");
    }
}

/// Forty calls wait for five a second when the process shuts down. The next process waits for none of them.
#[tokio::test]
async fn a_shutdown_leaves_nothing_reserved() {
    let server = Server::start();
    for limit in [bucket(5), Limit::sliding("shutdown", 5, SECOND)] {
        let limit = limit.wait(MINUTE);
        let ([embedded, redis], [_, next]) = (limiters(&server), limiters(&server));
        for (limiter, next) in [(&embedded, &embedded), (&redis, &next)] {
            let calls: JoinSet<_> = (0..40).map(|_| limiter.check(&limit, "key", 1)).collect();
            sleep(SECOND / 20).await;
            let start = Instant::now();
            limiter.shutdown().await.expect("all is given back");
            limiter.shutdown().await.expect("nothing is left");
            assert!(start.elapsed() < 2 * DEADLINE, "{:?}", start.elapsed());
            let mut results = calls.join_all().await;
            results.retain(Result::is_err);
            assert!(results.len() >= 35, "{limit:?}: {} ended", results.len());
            for error in results.into_iter().map(store_error) {
                assert_eq!(error, StoreError::ShuttingDown);
            }
            let left = decision(next.peek(&limit, "key", 1).await);
            let longest = if limit.algorithm() == Algorithm::Sliding { SECOND } else { SECOND / 5 };
            assert!(left.retry_after <= longest, "{limit:?}: {left:?}");
            // Calls are decided, and do not wait.
            let start = Instant::now();
            while limiter.check(&limit, "key", 1).await.is_ok() {}
            assert!(start.elapsed() < SECOND / 5, "{:?}", start.elapsed());
            assert_eq!(lines(limiter), 0);
        }
    }
}

// `wait` on a bucket and a call that is dropped after its moment has come, before it is polled: its units go to the
// next call or back to the bucket.

fn is_admitted(check: &mut Pin<Box<Check>>) -> bool {
    check.as_mut().now_or_never().map(|result| result.expect("admitted")).is_some()
}

/// The times after the moment at which a call is dropped, in microseconds.
const TIMES: [u64; 6] = [0, 1, 10_000, 50_000, 250_000, 10_000_000];

/// Asserts that a bucket is as if a call had never come, except for what has drained since its moment.
fn assert_is_as_if_dropped(left: Decision, control: Decision, drained: u64, what: &str) {
    let later = left.reset_after.checked_sub(control.reset_after);
    let is_right = later.is_some_and(|later| later <= Duration::from_micros(drained));
    assert!(is_right && left.remaining <= control.remaining, "{what}: {left:?}, {control:?}");
}

on_both_stores! {
    /// Calls are dropped after their moments, in either order. What drains after the last moment is all that can be
    /// missing.
    async fn calls_that_are_dropped_together_after_their_moments_leave_nothing(test: TestLimiter) {
        for (burst, cost, calls, is_reversed) in [
            (1, 1, 1, false),
            (5, 1, 1, false),
            (5, 5, 1, false),
            (1_000, 1, 1, false),
            (1_000, 30, 1, false),
            (1, 1, 10, false),
            (5, 1, 10, true),
            (5, 1, 10, false),
            (10, 1, 10, true),
            (10, 1, 10, false),
        ] {
            let (times, drained) =
                if calls == 1 { (TIMES.to_vec(), 0) } else { (vec![0], 100_000) };
            for late in times {
                let what = format!("{burst}, {cost}, {calls}, {is_reversed}, {late}");
                let (limit, key) = (tokens(burst), format!("{what}, dropped"));
                for key in [&key, &what] {
                    test.limiter.check(&limit, &**key, burst).await.expect("a new key");
                }
                let mut dropped = Vec::new();
                for _ in 0..calls {
                    dropped.push(waiting(&test.limiter, &limit, &key, cost).await);
                }
                test.advance(calls * cost * 100_000 + late);
                wait_until_idle(&test.limiter).await;
                if is_reversed {
                    dropped.reverse();
                }
                drop(dropped);
                wait_until_idle(&test.limiter).await;
                test.limiter.flush().await.expect("given back");
                let left = decision(test.limiter.peek(&limit, &*key, 1).await);
                let control = decision(test.limiter.peek(&limit, &*what, 1).await);
                assert_is_as_if_dropped(left, control, late + drained, &what);
            }
        }
    }

    /// The next call has the moment of the dropped call, and all calls behind move up.
    async fn calls_behind_a_call_that_is_dropped_after_its_moment_move_up(test: TestLimiter) {
        for costs in [[1, 1], [3, 3], [1, 3], [3, 1]] {
            for late in [0, 1, 10_000] {
                let (limit, key) = (tokens(3), format!("{costs:?}, {late}"));
                test.limiter.check(&limit, &*key, 3).await.expect("a new key");
                let dropped = waiting(&test.limiter, &limit, &key, costs[0]).await;
                let mut second = waiting(&test.limiter, &limit, &key, costs[1]).await;
                let mut third = waiting(&test.limiter, &limit, &key, costs[1]).await;
                let start = test.clock.now();
                test.advance(costs[0] * 100_000 + late);
                wait_until_idle(&test.limiter).await;
                drop(dropped);
                let mut moments = Vec::new();
                for call in [&mut second, &mut third] {
                    // A call drives the line of the embedded store.
                    while !is_admitted(call) {
                        wait_until_idle(&test.limiter).await;
                        if is_admitted(call) {
                            break;
                        }
                        test.advance(1_000);
                    }
                    moments.push((test.clock.now() - start).as_millis() as u64);
                }
                // As if the dropped call had never come: the bucket refills from the start on. A call of another cost
                // cannot use its moment, and keeps its own.
                let first = if costs[0] == costs[1] { costs[0] } else { costs[0] + costs[1] };
                let expected = [first, first + costs[1]].map(|units| units * 100);
                let within = |(moment, expected): (&u64, u64)| {
                    (expected..=expected + late / 1_000 + 1).contains(moment)
                };
                assert!(moments.iter().zip(expected).all(within), "{key}: {moments:?}");
                let left = decision(test.limiter.peek(&limit, &*key, 1).await);
                let used = 2 * costs[1];
                let refilled = (test.clock.now() - start).as_millis() as u64 / 100;
                assert!(left.remaining + used <= refilled + 3, "{key}: {left:?}");
            }
        }
    }
}

/// The call behind it has another cost, so it cannot use the moment, and has a later one.
#[tokio::test]
async fn a_moment_that_no_call_can_use_goes_back_once_it_has_passed() {
    let server = Server::start();
    let (test, limit) = (TestLimiter::redis(&server), tokens(3));
    test.limiter.check(&limit, "key", 3).await.expect("a new key");
    let dropped = waiting(&test.limiter, &limit, "key", 1).await;
    let _behind = waiting(&test.limiter, &limit, "key", 3).await;
    drop(dropped);
    wait_until_idle(&test.limiter).await;
    test.advance(100_000);
    let idle = timeout(5 * SECOND, wait_until_idle(&test.limiter));
    idle.await.expect("the line gives the moment back");
}

/// The moments are of this process, because the server is dead.
#[tokio::test]
async fn a_moment_of_a_fallback_goes_back_to_it() {
    for late in TIMES {
        let clock = VirtualClock::new();
        let builder = RateLimiter::builder().redis("redis://127.0.0.1:1").deadline(SECOND);
        let limiter = on_clock(builder, &clock);
        for key in ["dropped", "control"] {
            limiter.check(&tokens(5), key, 5).await.expect("a new key");
        }
        for moment in [0, 100_000 + late] {
            let mut calls = Vec::new();
            for _ in 0..3 {
                calls.push(waiting(&limiter, &tokens(5), "dropped", 1).await);
            }
            clock.advance(Duration::from_micros(moment));
            wait_until_idle(&limiter).await;
            // The last first, so that no call moves up.
            while calls.pop().is_some() {
                wait_until_idle(&limiter).await;
            }
            let left = decision(limiter.peek(&tokens(5), "dropped", 1).await);
            let control = decision(limiter.peek(&tokens(5), "control", 1).await);
            assert_is_as_if_dropped(left, control, moment, &format!("{late}, {moment}"));
        }
    }
}

/// A waker is foreign code: the calls behind its call go on.
#[tokio::test]
async fn a_waker_that_panics_ends_no_other_call() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("on purpose");
        }
    }
    let (_server, limiter) = Server::with_limiter();
    let limit = Limit::leaky_bucket("panics", 4, SECOND).on_error(OnError::Deny).wait(MINUTE);
    limiter.check(&limit, "key", 1).await.expect("a new key");
    let mut first = pin!(limiter.check(&limit, "key", 1));
    let waker = Arc::new(Panics).into();
    assert!(first.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let behind: JoinSet<_> = (0..3).map(|_| limiter.check(&limit, "key", 1)).collect();
    assert!(behind.join_all().await.iter().all(Result::is_ok));
}
