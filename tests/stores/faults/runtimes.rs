//! Several runtimes, or none: each has a connection of its own, and none depends on another.

use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use futures::executor::block_on;
use futures::future::join_all;
use ratelimit_runtime::{Limit, OnError, RateLimiter, Rejection, Source, rate_limit};
use support::limits::DAY;
use support::runtime;
use support::server::Server;

use super::DAILY;

/// A runtime that is no longer polled while it connects.
#[test]
fn an_idle_runtime_does_not_keep_others_from_connecting() {
    let server = Server::start();
    let limiter = server.builder().deadline(Duration::from_millis(200)).build().expect("valid");
    let stuck = runtime();
    let mut connecting = Box::pin(limiter.check(&DAILY, (), 1));
    stuck.block_on(async { assert!(futures::poll!(connecting.as_mut()).is_pending()) });
    let running = tokio::runtime::Runtime::new().expect("a runtime");
    let decided = (0..20).any(|_| running.block_on(limiter.check(&DAILY, (), 1)).is_ok());
    assert!(decided, "no decision in 20 attempts");
}

#[rate_limit(period = "1h", threshold = 1, scope = "global", on_error = "deny", key = id)]
fn synchronous(id: u8) -> Result<u8, Rejection> {
    Ok(id)
}

/// Another executor polls the futures, and threads without one call.
#[test]
fn calls_are_decided_without_a_runtime() {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid");
    block_on(limiter.ping()).expect("a reply");
    let checks = join_all((0..20).map(|_| limiter.check(&DAILY, (), 1)));
    assert!(block_on(checks).iter().all(Result::is_ok));
    let permit = block_on(limiter.acquire(&DAILY, (), 10)).expect("admitted");
    permit.settle(4);
    block_on(limiter.flush()).expect("settled");
    let decision = limiter.check_blocking(&DAILY, (), 1).expect("admitted");
    assert_eq!((decision.remaining, decision.source), (500 - 25, Source::Redis));
    let peeked = block_on(limiter.peek(&DAILY, (), 1)).expect("a peek");
    assert_eq!(peeked.remaining, 500 - 25);
    let usage = block_on(limiter.operator().usage(&DAILY, ())).expect("a reply");
    assert_eq!(usage.used, 25);
    block_on(limiter.scope(async { synchronous(1) })).expect("admitted");
    // Calls that are dropped keep nothing from ending.
    for _ in 0..20 {
        let mut check = pin!(limiter.check(&DAILY, (), 1));
        let _ = check.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }
    block_on(limiter.shutdown()).expect("all is given back");
}

/// In async code, a thread that is blocked does not keep its own request from being sent.
#[tokio::test]
async fn a_runtime_of_one_thread_is_blocked_and_not_stuck() {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid");
    limiter.check(&DAILY, (), 1).await.expect("admitted");
    for left in (490..499).rev() {
        assert_eq!(limiter.check_blocking(&DAILY, (), 1).expect("admitted").remaining, left);
    }
    // More calls than a task of tokio may make without a pause.
    for _ in 0..300 {
        limiter.check_blocking(&DAILY, (), 1).expect("admitted");
    }
    let calls = limiter.scope(async { [synchronous(1), synchronous(1)] }).await;
    assert!(matches!(calls, [Ok(1), Err(Rejection::Limited { .. })]), "{calls:?}");
    let down = RateLimiter::builder().redis("redis://127.0.0.1:1").build().expect("valid");
    for on_error in [OnError::Deny, OnError::Local, OnError::Allow] {
        let result = down.check_blocking(&DAILY.on_error(on_error), (), 1);
        assert_eq!(result.is_ok(), on_error != OnError::Deny, "{result:?}");
    }
}

/// Code of the application that blocks its runtime for longer than the deadline.
#[test]
fn a_reply_that_has_arrived_decides_although_the_runtime_was_blocked() {
    const DEADLINE: Duration = Duration::from_millis(100);
    const LEASED: Limit = Limit::sliding("leased", 500, DAY).lease(5);
    let server = Server::start();
    let limiter = server.builder().deadline(DEADLINE).build().expect("valid");
    let runtime = runtime();
    runtime.block_on(async {
        // The server learns the scripts.
        for _ in 0..5 {
            join_all((0..30).map(|_| limiter.check(&DAILY, (), 1))).await;
        }
        // One call is sent alone, many are sent in batches.
        for (round, calls) in [1, 1, 1, 1, 30, 30].into_iter().enumerate() {
            let calls = (0..calls).map(|_| tokio::spawn(limiter.check(&DAILY, (), 1)));
            let mut calls: Vec<_> = calls.collect();
            calls.push(tokio::spawn(limiter.check(&LEASED, (), 1)));
            // The requests are sent, and the replies arrive while the runtime is blocked.
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            std::thread::sleep(5 * DEADLINE);
            for call in calls {
                let result = call.await.expect("no panic");
                assert!(result.is_ok(), "in round {round}, Redis has replied in time: {result:?}");
            }
        }
    });
}
