//! Lines of waiting calls: calls share requests, and a call that is not polled does not hold up the calls behind it.

use std::time::{Duration, Instant};

use ratelimit_runtime::__private::{lines, lines_are_idle};
use ratelimit_runtime::{Clock, Limit, RateLimiter, Source, VirtualClock};
use support::limits::{MINUTE, SECOND, is_bucket, limits};
use support::proxy::Proxy;
use support::server::Server;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::{bucket, limiters, rest};
use crate::wait_until;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_is_asked_for_together() {
    let server = Server::start();
    let proxy = Proxy::with_latency(server.port(), Duration::from_millis(5));
    let limiter = proxy.builder().deadline(SECOND).build().expect("valid settings");
    for limit in limits("together", 1_000_000, MINUTE) {
        let before = server.script_calls();
        let limit = limit.wait(Duration::from_millis(500));
        let calls: JoinSet<_> = (0..1_000).map(|_| limiter.check(&limit, "key", 1)).collect();
        for result in calls.join_all().await {
            result.expect("admitted");
        }
        let requests = server.script_calls() - before;
        assert!(requests < 20, "{limit:?}: {requests} requests");
        let left = limiter.peek(&limit, "key", 1).await.expect("a reply").remaining;
        assert!(left == 999_000 || is_bucket(limit.algorithm()), "{limit:?}: {left}");
    }
}

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
