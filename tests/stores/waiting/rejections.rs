//! `wait` and calls that are rejected: because they cannot be admitted in time, or by `on_error`.

use futures::executor::block_on;

use super::*;

/// The first call in line cannot be admitted in time. The call behind it costs less and can.
#[tokio::test]
async fn a_call_that_is_rejected_does_not_hold_up_a_smaller_one() {
    let server = Server::start();
    for limiter in limiters(&server) {
        for algorithm in [Algorithm::Sliding, Algorithm::TokenBucket] {
            let limit = Limit::new("smaller", algorithm, 5, MINUTE).expect("valid");
            limiter.check(&limit, "key", 4).await.expect("a new key");
            let large = limiter.check(&limit.wait(SECOND), "key", 2);
            let small = limiter.check(&limit.wait(SECOND / 2), "key", 1);
            let both = timeout(SECOND / 2, futures::future::join(large, small)).await;
            let (large, small) = both.unwrap_or_else(|_| panic!("{limit:?}: too late"));
            small.expect("a unit is free");
            assert!(!limited(&large).is_zero());
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
                let is_expected = |result: &Result<Decision, Rejection>| match result {
                    Ok(decision) => decision.source == Source::Fallback,
                    Err(Rejection::Limited { .. }) => on_error == OnError::Local,
                    Err(Rejection::Unavailable { .. }) => on_error == OnError::Deny,
                    Err(_) => false,
                };
                assert!(results.iter().all(is_expected), "{what}: {results:?}");
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
        limited(&limiter.check_blocking(&slow, "key", 1));
    }
}

on_both_stores! {
    /// A window opens with its first call, so the queue of a fixed limit tells how many windows a call has to wait for.
    async fn calls_behind_too_many_windows_are_rejected_at_once(test: TestLimiter) {
        let limit = Limit::fixed("windows", 5, SECOND).wait(Duration::from_millis(3_100));
        test.limiter.peek(&limit, "key", 1).await.expect("a decision");
        let check = |_| tokio::spawn(test.limiter.check(&limit, "key", 1));
        let calls: Vec<_> = (0..25).map(check).collect();
        wait_until_idle(&test.limiter).await;
        // Five are admitted now, and five cannot be within four windows.
        assert_eq!(calls.iter().filter(|call| call.is_finished()).count(), 10);
        for _ in 0..3 {
            test.clock.advance(SECOND);
            wait_until_idle(&test.limiter).await;
        }
        for (number, call) in calls.into_iter().enumerate() {
            assert!(call.is_finished());
            assert_eq!(call.await.expect("no panic").is_ok(), number < 20, "{number}");
        }
    }
}

/// A server that is killed and started again, and one that is flushed, by the real clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_end_in_time_while_the_server_loses_its_memory() {
    /// How late a busy machine may poll a call.
    const ROOM: Duration = Duration::from_millis(150);
    let mut server = Server::start();
    for (on_error, kills) in
        [OnError::Deny, OnError::Local].map(|it| [(it, false), (it, true)]).concat()
    {
        let limiter = server.builder().deadline(DEADLINE).on_error(on_error);
        let limiter = limiter.build().expect("valid settings");
        wait_until(async || limiter.ping().await.is_ok()).await;
        let mut calls = JoinSet::new();
        let mut start_call = |wait: Duration| {
            let (check, start) = (limiter.check(&bucket(10).wait(wait), "key", 1), Instant::now());
            calls.spawn(check.map(move |result| (wait, start.elapsed(), result)));
        };
        (0..8).for_each(|_| start_call(2 * SECOND));
        sleep(SECOND / 10).await;
        if kills {
            server.stop();
            server = Server::start_on(server.port());
        } else {
            server.command::<()>("FLUSHALL");
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
        (on_clock(builder.max_waiting(1), &clock), clock)
    })
}

#[track_caller]
fn limited(result: &Result<Decision, Rejection>) -> Duration {
    let Err(Rejection::Limited { decision, .. }) = result else { panic!("{result:?}") };
    decision.retry_after
}

on_both_stores! {
    with_one_place;

    async fn a_call_beyond_the_bound_is_decided_if_no_call_waits_for_its_counts((limiter, clock)) {
        for limit in [Limit::sliding("bound", 1, SECOND), Limit::leaky_bucket("bound", 1, SECOND)] {
            let limit = limit.wait(MINUTE);
            limiter.check(&limit, "key", 1).await.expect("a new key");
            let first = waiting(&limiter, &limit, "key", 1).await;
            limiter.check(&limit, "other key", 1).await.expect("a new key");
            assert_eq!(limited(&limiter.check(&limit, "other key", 1).await), SECOND);
            // A call that is dropped makes room.
            drop(first);
            wait_until_idle(&limiter).await;
            let second = waiting(&limiter, &limit, "key", 1).await;
            clock.advance(SECOND);
            second.await.expect("admitted");
            drop(waiting(&limiter, &limit, "key", 1).await);
            wait_until_idle(&limiter).await;
            clock.advance(MINUTE);
        }
    }

    async fn a_call_beyond_the_bound_does_not_overtake((limiter, clock)) {
        let limit = Limit::sliding("bound", 10, SECOND).wait(MINUTE);
        limiter.check(&limit, "key", 5).await.expect("a new key");
        let first = waiting(&limiter, &limit, "key", 8).await;
        // Five units are free, and the first call waits for eight. Both fit into the next window.
        assert_eq!(limited(&limiter.check(&limit, "key", 1).await), SECOND);
        assert_eq!(limited(&limiter.check(&limit, "key", 3).await), 2 * SECOND);
        clock.advance(SECOND);
        first.await.expect("admitted");
        limiter.check(&limit, "key", 2).await.expect("no call waits");

        let bucket = Limit::leaky_bucket("bound", 10, SECOND).wait(MINUTE);
        limiter.check(&bucket, "key", 1).await.expect("a new key");
        let first = waiting(&limiter, &bucket, "key", 1).await;
        assert_eq!(limited(&limiter.check(&bucket, "key", 1).await), SECOND / 5);
        clock.advance(SECOND / 10);
        first.await.expect("admitted");
    }
}

#[tokio::test]
async fn no_call_waits_with_a_bound_of_zero() {
    let limiter = RateLimiter::builder().max_waiting(0).build().expect("valid settings");
    let limit = Limit::sliding("bound", 1, MINUTE).wait(2 * MINUTE);
    limiter.check(&limit, "key", 1).await.expect("a new key");
    assert!(limited(&limiter.check(&limit, "key", 1).await) <= MINUTE);
}
