//! `wait` under attack: calls that are not polled, dropped or in another runtime do not hold up the calls behind them,
//! and no unit is lost.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use ratelimit_runtime::__private::lines;
use ratelimit_runtime::{
    Algorithm, Check, Clock, Limit, OnError, RateLimiter, Rejection, Source, StoreError,
    VirtualClock,
};
use support::proxy::{Network, Proxy};
use support::server::Server;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::{decision, settle_lines};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// How long a grant is valid in these tests.
const DEADLINE: Duration = Duration::from_millis(200);

/// Limiters on the embedded store and on Redis, on the real clock.
fn limiters(server: &Server) -> [RateLimiter; 2] {
    [RateLimiter::builder(), server.builder()]
        .map(|builder| builder.deadline(DEADLINE).build().expect("valid settings"))
}

fn bucket(threshold: u32) -> Limit {
    Limit::leaky_bucket("lines", threshold, SECOND)
}

/// Polls a call once, so that it is in line.
fn poll_once(check: &mut Pin<Box<Check>>) {
    let poll = check.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll.is_pending(), "the call waits");
}

/// Waits until no line holds a call or a unit.
async fn rest(limiter: &RateLimiter) {
    for _ in 0..500 {
        if lines(limiter) == 0 {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("a line is not at rest");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_is_asked_for_together() {
    let server = Server::start();
    let proxy = Proxy::with_latency(server.port(), Duration::from_millis(5));
    let builder = RateLimiter::builder().redis(format!("redis://127.0.0.1:{}", proxy.port));
    let limiter = builder.deadline(SECOND).build().expect("valid settings");
    let limits = [
        Limit::sliding("together", 1_000_000, MINUTE),
        Limit::fixed("together", 1_000_000, MINUTE),
        Limit::sliding_counter("together", 1_000_000, MINUTE),
        Limit::token_bucket("together", 1_000_000, MINUTE),
    ];
    for limit in limits {
        let before = server.script_calls();
        let limit = limit.wait(Duration::from_millis(500));
        let calls: JoinSet<_> = (0..1_000).map(|_| limiter.check(&limit, "key", 1)).collect();
        for result in calls.join_all().await {
            result.expect("admitted");
        }
        let requests = server.script_calls() - before;
        assert!(requests < 20, "{limit:?}: {requests} requests");
        let left = limiter.peek(&limit, "key", 1).await.expect("a reply").remaining;
        assert!(
            left == 999_000 || limit.algorithm() == Algorithm::TokenBucket,
            "{limit:?}: {left}"
        );
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
                    poll_once(&mut check);
                    kept.push(check);
                }
                let start = Instant::now();
                let result = timeout(6 * SECOND, limiter.check(&limit, key, 1)).await;
                let took = start.elapsed();
                result.expect("within its wait").expect("admitted");
                println!("{limit:?} {unpolled} {took:?}");
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

#[tokio::test]
async fn refunds_and_resets_reach_the_calls_that_wait() {
    let server = Server::start();
    for limiter in limiters(&server) {
        let limits = [
            Limit::sliding("given back", 200, MINUTE),
            Limit::fixed("given back", 200, MINUTE),
            Limit::sliding_counter("given back", 200, MINUTE),
            Limit::token_bucket("given back", 200, MINUTE),
        ];
        for limit in limits {
            for is_reset in [false, true] {
                let waiting = limit.clone().wait(2 * MINUTE);
                limiter.reset(&limit, "key").await.expect("a reply");
                limiter.check(&limit, "key", 200).await.expect("a new key");
                let mut call = Box::pin(limiter.check(&waiting, "key", 100));
                assert!(timeout(SECOND / 5, call.as_mut()).await.is_err(), "the call waits");
                if is_reset {
                    limiter.reset(&limit, "key").await.expect("a reply");
                } else {
                    limiter.refund(&limit, "key", 150).await.expect("a reply");
                }
                let start = Instant::now();
                timeout(2 * SECOND, call).await.expect("at once").expect("admitted");
                assert!(start.elapsed() < SECOND / 2, "{limit:?} {:?}", start.elapsed());
                let left = decision(limiter.peek(&limit, "key", 1).await).remaining;
                let expected = if is_reset { 100 } else { 50 };
                assert!((expected..=expected + 10).contains(&left), "{limit:?}: {left} left");
            }
        }
        rest(&limiter).await;
    }
}

#[tokio::test]
async fn units_that_another_process_gives_back_are_observed_within_a_second() {
    let server = Server::start();
    let [_, here] = limiters(&server);
    let [_, there] = limiters(&server);
    for limit in
        [Limit::sliding("elsewhere", 2, MINUTE), Limit::token_bucket("elsewhere", 2, MINUTE)]
    {
        for is_reset in [false, true] {
            let waiting = limit.clone().wait(2 * MINUTE);
            here.reset(&limit, "key").await.expect("a reply");
            here.check(&limit, "key", 2).await.expect("a new key");
            let mut call = Box::pin(here.check(&waiting, "key", 1));
            assert!(timeout(SECOND / 5, call.as_mut()).await.is_err(), "the call waits");
            if is_reset {
                there.reset(&limit, "key").await.expect("a reply");
            } else {
                there.refund(&limit, "key", 2).await.expect("a reply");
            }
            timeout(3 * SECOND / 2, call).await.expect("within a second").expect("admitted");
        }
    }
}

/// The call is dropped while the request that would have admitted it is in flight.
#[tokio::test]
async fn a_call_that_is_dropped_while_its_line_asks_passes_its_unit_on() {
    let server = Server::start();
    let proxy = Proxy::with_latency(server.port(), Duration::from_millis(60));
    let builder = RateLimiter::builder().redis(format!("redis://127.0.0.1:{}", proxy.port));
    let limiter = builder.deadline(SECOND).build().expect("valid settings");
    for limit in
        [Limit::sliding("dropped", 1, 5 * SECOND), Limit::token_bucket("dropped", 1, 5 * SECOND)]
    {
        let limit = limit.wait(10 * SECOND);
        let _ = limiter.peek(&limit, "connects", 1).await;
        let mut first = Box::pin(limiter.check(&limit, "key", 1));
        assert!(timeout(Duration::from_millis(20), first.as_mut()).await.is_err());
        let second = tokio::spawn(limiter.check(&limit, "key", 1));
        sleep(Duration::from_millis(20)).await;
        drop(first);
        let start = Instant::now();
        second.await.expect("no panic").expect("admitted");
        assert!(start.elapsed() < SECOND, "{limit:?}: {:?}", start.elapsed());
    }
}

#[tokio::test]
async fn calls_that_are_dropped_together_give_back_in_few_requests() {
    let server = Server::start();
    for limit in [bucket(2_000), Limit::sliding("together", 1_000, SECOND)] {
        let [_, limiter] = limiters(&server);
        let limit = limit.wait(MINUTE);
        let calls: Vec<_> = (0..3_000).map(|_| limiter.check(&limit, "dropped", 1)).collect();
        let mut calls: JoinSet<_> = calls.into_iter().collect();
        sleep(Duration::from_millis(100)).await;
        calls.abort_all();
        while calls.join_next().await.is_some() {}
        let before = server.script_calls();
        rest(&limiter).await;
        let requests = server.script_calls() - before;
        assert!(requests < 10, "{limit:?}: {requests} requests");
        sleep(SECOND).await;
        assert!(limiter.peek(&limit, "dropped", 1).await.expect("a reply").allowed, "{limit:?}");
    }
}

#[tokio::test]
async fn a_clock_that_moves_while_a_request_is_in_flight_wakes_the_call() {
    let server = Server::start();
    let proxy = Proxy::with_latency(server.port(), Duration::from_millis(100));
    let clock = VirtualClock::new();
    let builder = RateLimiter::builder().redis(format!("redis://127.0.0.1:{}", proxy.port));
    let builder = builder.clock(Clock::Virtual(clock.clone())).deadline(5 * SECOND);
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

/// The burst is raised and lowered while reservations exist. They are cancelled all the same.
#[tokio::test]
async fn reservations_are_cancelled_after_the_burst_has_changed() {
    let server = Server::start();
    for redis in [false, true] {
        let clock = VirtualClock::new();
        let builder = if redis { server.builder() } else { RateLimiter::builder() };
        let builder = builder.clock(Clock::Virtual(clock.clone())).deadline(MINUTE);
        let limiter = builder.build().expect("valid settings");
        let limit = Limit::token_bucket("burst", 10, SECOND);
        for burst in [1, 5] {
            limiter.reset(&limit, "key").await.expect("a reply");
            let waiting = limit.clone().burst(2).wait(MINUTE);
            limiter.check(&waiting, "key", 2).await.expect("a new key");
            let calls: JoinSet<_> = (0..4).map(|_| limiter.check(&waiting, "key", 1)).collect();
            settle_lines(&limiter).await;
            let other = limit.clone().burst(burst);
            let before = decision(limiter.peek(&other, "key", burst).await).retry_after;
            assert_eq!(before, Duration::from_millis(600), "burst {burst}");
            drop(calls);
            settle_lines(&limiter).await;
            let after = decision(limiter.peek(&other, "key", burst).await).retry_after;
            assert_eq!(after, Duration::from_millis(200), "burst {burst}");
        }
    }
}

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
                let check = limiter.check(&limit.clone().wait(wait), "key", 1);
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

/// Two runtimes share a limiter, and one of them stands still.
#[test]
fn a_runtime_that_stands_still_does_not_hold_up_others() {
    let server = Server::start();
    for limiter in limiters(&server) {
        for limit in [bucket(10), Limit::sliding("still", 1, Duration::from_millis(200))] {
            let limit = limit.wait(3 * SECOND);
            let runtime = || {
                let mut builder = tokio::runtime::Builder::new_current_thread();
                builder.enable_all().build().expect("a runtime")
            };
            let (still, moving) = (runtime(), runtime());
            still.block_on(limiter.check(&limit, "key", 1)).expect("admitted at once");
            let blocked = still.spawn(limiter.check(&limit, "key", 1));
            still.block_on(tokio::task::yield_now());
            let start = Instant::now();
            moving.block_on(limiter.check(&limit, "key", 1)).expect("admitted");
            assert!(start.elapsed() < SECOND, "{limit:?}: {:?}", start.elapsed());
            still.block_on(blocked).expect("no panic").expect("admitted");
        }
    }
}

/// Forty calls wait for five a second when the process shuts down. The next process waits for none of them.
#[tokio::test]
async fn a_shutdown_leaves_nothing_reserved() {
    let server = Server::start();
    for redis in [false, true] {
        for limit in [bucket(5), Limit::sliding("shutdown", 5, SECOND)] {
            let [embedded, next] = limiters(&server);
            let [_, other] = limiters(&server);
            let limiter = if redis { other } else { embedded };
            let limit = limit.wait(MINUTE);
            let calls: JoinSet<_> = (0..40).map(|_| limiter.check(&limit, "key", 1)).collect();
            sleep(Duration::from_millis(50)).await;
            let start = Instant::now();
            limiter.shutdown().await.expect("all is given back");
            limiter.shutdown().await.expect("nothing is left");
            assert!(start.elapsed() < 2 * DEADLINE, "{:?}", start.elapsed());
            let (mut admitted, mut ended) = (0, 0);
            for result in calls.join_all().await {
                match result {
                    Ok(_) => admitted += 1,
                    Err(Rejection::Unavailable { error, .. }) => {
                        assert_eq!(error, StoreError::ShuttingDown);
                        ended += 1;
                    }
                    Err(other) => panic!("{other:?}"),
                }
            }
            assert!(admitted <= 5 && ended >= 35, "{limit:?}: {admitted} admitted, {ended} ended");
            let next = if redis { &next } else { &limiter };
            let left = decision(next.peek(&limit, "key", 1).await);
            let longest = if limit.algorithm() == Algorithm::Sliding { SECOND } else { SECOND / 5 };
            assert!(left.retry_after <= longest, "{limit:?}: {left:?}");
            // Calls are decided, and do not wait.
            let start = Instant::now();
            while limiter.check(&limit, "key", 1).await.is_ok() {}
            assert!(start.elapsed() < SECOND / 5, "{:?}", start.elapsed());
            assert_eq!(lines(&limiter), 0);
        }
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
            let large = limiter.check(&limit.clone().wait(SECOND), "key", 2);
            let small = limiter.check(&limit.clone().wait(SECOND / 2), "key", 1);
            let start = Instant::now();
            let (large, small) = (tokio::spawn(large), tokio::spawn(small));
            small.await.expect("no panic").expect("a unit is free");
            assert!(!decision(large.await.expect("no panic")).retry_after.is_zero());
            assert!(start.elapsed() < SECOND / 2, "{limit:?}: {:?}", start.elapsed());
        }
    }
}

/// Calls whose runtime stands still do not use units that were counted long ago.
#[test]
fn units_that_are_not_taken_in_time_are_not_used() {
    let server = Server::start();
    for limiter in limiters(&server) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
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
                admitted += u32::from(next.is_ok());
            }
            // Those before the runtime stood still, of the last deadline, and of this tenth of a second.
            assert!(admitted <= 5 + 1 + 20 + 10 + 10, "{:?}: {admitted}", limiter.source());
        });
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
                let limit = limit.clone().on_error(on_error);
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

/// Calls with low costs come all the time. A call with a high cost takes its turn all the same.
#[tokio::test]
async fn a_high_cost_is_not_overtaken() {
    let server = Server::start();
    for limiter in limiters(&server) {
        for limit in [Limit::sliding("costs", 10, SECOND / 2), bucket(20).burst(10)] {
            let limit = limit.wait(MINUTE);
            limiter.check(&limit, "key", 10).await.expect("a new key");
            let mut before: JoinSet<_> = (0..3).map(|_| limiter.check(&limit, "key", 1)).collect();
            tokio::task::yield_now().await;
            let large = tokio::spawn(limiter.check(&limit, "key", 10));
            tokio::task::yield_now().await;
            let mut behind: JoinSet<_> = (0..30).map(|_| limiter.check(&limit, "key", 1)).collect();
            large.await.expect("no panic").expect("admitted");
            assert!(behind.try_join_next().is_none(), "{limit:?}: a later call came first");
            while before.join_next().await.is_some() {}
            while behind.join_next().await.is_some() {}
        }
    }
}

#[test]
fn a_call_that_waits_needs_a_runtime() {
    let limiter = RateLimiter::embedded();
    let limit = bucket(1).wait(SECOND);
    let mut call = Box::pin(limiter.check(&limit, "key", 1));
    let result = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    let Poll::Ready(Err(Rejection::Unavailable { error, .. })) = result else {
        panic!("{result:?}")
    };
    assert_eq!(error, StoreError::NoRuntime);
}
