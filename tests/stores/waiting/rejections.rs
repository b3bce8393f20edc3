//! `wait` and calls that are rejected: because they cannot be admitted in time, or by `on_error`.

use std::time::{Duration, Instant};

use futures::executor::block_on;
use ratelimit_runtime::{
    Clock, Limit, OnError, RateLimiter, Rejection, Source, StoreError, VirtualClock,
};
use support::limits::{MINUTE, SECOND};
use support::proxy::{Network, Proxy};
use support::server::Server;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::{DEADLINE, bucket, limiters, rest};
use crate::{TestLimiter, decision, wait_until_idle};

#[tokio::test]
async fn a_rejection_says_when_a_call_can_be_admitted() {
    let server = Server::start();
    for limiter in limiters(&server) {
        for limit in
            [bucket(10), Limit::sliding("says", 2, SECOND), Limit::fixed("says", 2, SECOND)]
        {
            let mut calls = JoinSet::new();
            for number in 0..100_u64 {
                let wait = Duration::from_millis(number * 37 % 1_000);
                let check = limiter.check(&limit.wait(wait), "key", 1);
                calls.spawn(async move {
                    let start = Instant::now();
                    (wait, check.await, start.elapsed())
                });
            }
            for (wait, result, took) in calls.join_all().await {
                assert!(took <= wait + DEADLINE, "{limit:?}: {took:?} of {wait:?}");
                if let Err(Rejection::Limited { decision, .. }) = result {
                    assert!(!decision.retry_after.is_zero(), "{limit:?}: {decision:?}");
                    assert!(took + decision.retry_after > wait, "{limit:?}: {took:?} {decision:?}");
                }
            }
        }
        rest(&limiter).await;
    }
}

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
        let builder = RateLimiter::builder().redis(format!("redis://127.0.0.1:{}", proxy.port));
        let limiter = builder.deadline(DEADLINE).build().expect("valid settings");
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
            let back = async {
                while limiter.ping().await.is_err() {
                    sleep(Duration::from_millis(10)).await;
                }
            };
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

/// A window opens with its first call, so the queue of a fixed limit tells how many windows a call has to wait for.
#[tokio::test]
async fn calls_behind_too_many_windows_are_rejected_at_once() {
    let server = Server::start();
    for test in [TestLimiter::embedded(), TestLimiter::redis(&server)] {
        let limit = Limit::fixed("windows", 5, Duration::from_secs(1));
        let limit = limit.wait(Duration::from_millis(3_100));
        let _ = test.limiter.peek(&limit, "key", 1).await.expect("a decision");
        let mut calls = tokio::task::JoinSet::new();
        for number in 1..=25 {
            let check = test.limiter.check(&limit, "key", 1);
            calls.spawn(async move { (number, check.await.is_ok()) });
        }
        wait_until_idle(&test.limiter).await;
        let mut ended: Vec<_> = std::iter::from_fn(|| calls.try_join_next()).collect();
        assert_eq!(
            ended.len(),
            10,
            "five are admitted now, and five cannot be within four windows"
        );
        for _ in 0..3 {
            test.clock.advance(Duration::from_secs(1));
            wait_until_idle(&test.limiter).await;
        }
        ended.extend(std::iter::from_fn(|| calls.try_join_next()));
        let admitted = ended.into_iter().map(|call| call.expect("no panic")).filter(|call| call.1);
        let mut admitted: Vec<_> = admitted.map(|call| call.0).collect();
        admitted.sort_unstable();
        assert_eq!(admitted, (1..=20).collect::<Vec<_>>());
    }
}

/// `shutdown` acts when its future is polled.
#[tokio::test]
async fn a_shutdown_that_is_not_awaited_changes_nothing() {
    let test = TestLimiter::embedded();
    let limit = Limit::leaky_bucket("lazy", 1, Duration::from_secs(1)).wait(Duration::from_secs(9));
    test.limiter.check(&limit, "key", 1).await.expect("the first");
    let shutdown = test.limiter.shutdown();
    let mut waiting = std::pin::pin!(test.limiter.check(&limit, "key", 1));
    assert!(futures::poll!(&mut waiting).is_pending());
    shutdown.await.expect("nothing to give back");
    let rejection = waiting.await.expect_err("it is shut down");
    let Rejection::Unavailable { error: StoreError::ShuttingDown, .. } = rejection else {
        panic!("{rejection:?}")
    };
}

/// Redis dies while calls hold moments of Redis. The calls behind them have moments of this process, which stay apart.
#[tokio::test]
async fn moments_of_a_fallback_follow_those_of_redis() {
    let server = Server::start();
    let clock = VirtualClock::new();
    let builder = server.builder().clock(Clock::Virtual(clock.clone()));
    let limiter = builder.on_error(OnError::Local).deadline(SECOND).build().expect("valid");
    let limit = Limit::leaky_bucket("moments", 10, SECOND).wait(SECOND * 20);
    let start = clock.now();
    let mut calls = JoinSet::new();
    for _ in 0..30 {
        let check = limiter.check(&limit, "key", 1);
        calls.spawn(async move { check.await.expect("admitted").source });
    }
    wait_until_idle(&limiter).await;
    drop(server);
    let mut ended = Vec::new();
    while ended.len() < 30 {
        wait_until_idle(&limiter).await;
        while let Some(call) = calls.try_join_next() {
            ended.push((clock.now() - start, call.expect("no panic")));
        }
        assert!(clock.now() < start + SECOND * 10, "{ended:?}");
        clock.advance(Duration::from_millis(20));
    }
    let local: Vec<_> = ended.iter().filter(|(_, source)| *source == Source::Fallback).collect();
    assert!(local.len() >= 10 && local.len() < 30, "{ended:?}");
    for pair in local.windows(2) {
        let apart = pair[1].0 - pair[0].0;
        assert!(apart >= Duration::from_millis(80), "{apart:?}: {ended:?}");
    }
}
