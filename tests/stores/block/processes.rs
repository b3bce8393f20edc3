//! Blocks of a key among several processes, and blocks that Redis has not received.

use std::time::Duration;

use futures::FutureExt;
use futures::executor::block_on;
use ratelimit_runtime::{Limit, OnError, RateLimiter, Rejection, Source, VirtualClock, rate_limit};
use support::limits::{HOUR, MINUTE, SECOND};
use support::proxy::Proxy;
use support::server::Server;
use tokio::time::timeout;

use super::{blocked, limits};
use crate::wait_until_idle;

/// Two processes hold reservations in one bucket, one between those of the other.
#[tokio::test]
async fn reservations_of_several_processes_wait_for_the_end_of_a_block() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let processes = [server.limiter_on(&clock), server.limiter_on(&clock)];
    let limit = Limit::leaky_bucket("reserved", 10, SECOND);
    let waiting = limit.wait(MINUTE);
    processes[0].check(&limit, "key", 1).await.expect("a new key");
    let mut calls = Vec::new();
    for number in 0..6 {
        calls.push(tokio::spawn(processes[number % 2].check(&waiting, "key", 1)));
        wait_until_idle(&processes[number % 2]).await;
    }
    processes[0].block(&limit, "key", 10 * SECOND).await.expect("blocked");
    // The other process looks within a second. A second's worth of calls may start until then.
    clock.advance(Duration::from_micros(1));
    wait_until_idle(&processes[0]).await;
    let other: Vec<_> = calls.iter().skip(1).step_by(2).collect();
    let (mut started, end) = (0, clock.now() + 10 * SECOND - Duration::from_micros(1));
    while clock.now() + SECOND / 10 < end {
        clock.advance(SECOND / 10);
        for process in &processes {
            wait_until_idle(process).await;
        }
        assert!(calls.iter().step_by(2).all(|call| !call.is_finished()), "the own calls obey");
        let finished = other.iter().filter(|call| call.is_finished()).count();
        assert!(finished == started || clock.now() + 9 * SECOND <= end + SECOND / 10);
        started = finished;
    }
    assert!(started < 6);
    clock.advance(end - clock.now());
    let mut finished = started;
    for _ in 0..40 {
        for process in &processes {
            wait_until_idle(process).await;
        }
        let now = calls.iter().filter(|call| call.is_finished()).count();
        assert!(now <= finished + 1, "{now} calls, {finished} before");
        finished = now;
        clock.advance(SECOND / 10);
    }
    assert_eq!(finished, 6);
    for call in calls {
        timeout(5 * SECOND, call).await.expect("soon").expect("no panic").expect("admitted");
    }
}

/// A process that has not observed the block keeps its moment. No other call is reserved for that moment.
#[tokio::test]
async fn an_early_unblock_admits_no_two_calls_at_a_moment() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let [here, there] = [server.limiter_on(&clock), server.limiter_on(&clock)];
    let limit = Limit::leaky_bucket("reserved", 10, SECOND);
    let waiting = limit.wait(MINUTE);
    here.check(&limit, "key", 1).await.expect("a new key");
    let mut calls = Vec::new();
    for limiter in [&here, &there] {
        calls.push(tokio::spawn(limiter.check(&waiting, "key", 1)));
        wait_until_idle(limiter).await;
    }
    here.block(&limit, "key", 10 * SECOND).await.expect("blocked");
    wait_until_idle(&here).await;
    assert!(here.unblock(&limit, "key").await.expect("unblocked"));
    let mut finished = 0;
    for _ in 0..10 {
        for limiter in [&here, &there] {
            wait_until_idle(limiter).await;
        }
        let now = calls.iter().filter(|call| call.is_finished()).count();
        assert!(now <= finished + 1, "{now} calls, {finished} before");
        finished = now;
        clock.advance(SECOND / 10);
    }
    assert_eq!(finished, 2);
}

#[tokio::test]
async fn leased_units_are_not_spent_after_a_second() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let [here, there] = [server.limiter_on(&clock), server.limiter_on(&clock)];
    for limit in limits() {
        let threshold = 10_000;
        let limit =
            support::limits::limit("blocked", limit.algorithm(), threshold, MINUTE).lease(50);
        for limiter in [&here, &there] {
            for _ in 0..200 {
                limiter.check(&limit, "key", 1).await.expect("admitted");
            }
            let leased = limiter.check(&limit, "key", 1).await.expect("admitted");
            assert_eq!(leased.source, Source::Lease, "{limit:?}");
        }
        here.block(&limit, "key", MINUTE).await.expect("blocked");
        blocked(here.check(&limit, "key", 1).await);
        clock.advance(SECOND);
        blocked(there.check(&limit, "key", 1).await);
        clock.advance(MINUTE - SECOND);
        there.check(&limit, "key", 1).await.expect("open");
        here.reset(&limit, "key").await.expect("reset");
        there.reset(&limit, "key").await.expect("reset");
    }
}

#[tokio::test]
async fn other_processes_obey_with_their_next_request() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let [here, there] = [server.limiter_on(&clock), server.limiter_on(&clock)];
    for limit in limits() {
        there.check(&limit, "key", 1).await.expect("admitted");
        here.block(&limit, "key", 10 * SECOND).await.expect("blocked");
        assert_eq!(blocked(there.check(&limit, "key", 1).await), 10 * SECOND);
        // From the rejection cache, until the process looks again after a second.
        let cached = there.check(&limit, "key", 1).await.expect_err("blocked");
        let Rejection::Blocked { decision, .. } = cached else { panic!("{cached:?}") };
        assert_eq!(decision.source, Source::Cache, "{limit:?}");
        assert!(here.unblock(&limit, "key").await.expect("unblocked"));
        here.check(&limit, "key", 1).await.expect("open");
        clock.advance(SECOND);
        there.check(&limit, "key", 1).await.expect("open");
        // A cached rejection of the limit hides the block for a second at most.
        while there.check(&limit, "key", 1).await.is_ok() {}
        here.block(&limit, "key", HOUR).await.expect("blocked");
        let cached = there.check(&limit, "key", 1).await.expect_err("limited");
        let Rejection::Limited { decision, .. } = cached else { panic!("{cached:?}") };
        assert_eq!(decision.source, Source::Cache, "{limit:?}");
        clock.advance(SECOND);
        blocked(there.check(&limit, "key", 1).await);
    }
}

#[tokio::test]
async fn a_foreign_value_is_not_blocked() {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid settings");
    for limit in limits() {
        limiter.check(&limit, "key", 1).await.expect("admitted");
        let mut connection = server.connection();
        let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).expect("keys");
        for key in &keys {
            redis::cmd("SET").arg(key).arg("foreign").exec(&mut connection).expect("set");
        }
        limiter.block(&limit, "key", SECOND).await.expect_err("not the state of a limit");
        limiter.unblock(&limit, "key").await.expect_err("not the state of a limit");
        for key in &keys {
            let value: String = redis::cmd("GET").arg(key).query(&mut connection).expect("a value");
            assert_eq!(value, "foreign");
        }
        redis::cmd("FLUSHALL").exec(&mut connection).expect("flushed");
    }
}

/// The embedded store blocks it at once.
#[test]
fn a_key_is_blocked_without_a_runtime() {
    let server = Server::start();
    let limit = Limit::sliding("blocked", 10, MINUTE);
    let here = RateLimiter::embedded();
    assert_eq!(here.block(&limit, "key", SECOND).now_or_never(), Some(Ok(())));
    assert_eq!(here.unblock(&limit, "key").now_or_never(), Some(Ok(true)));
    let there = server.builder().build().expect("valid settings");
    assert_eq!(block_on(there.block(&limit, "key", MINUTE)), Ok(()));
    assert_eq!(block_on(there.unblock(&limit, "key")), Ok(true));
}

/// A dead Redis cannot block a key. The process obeys for the calls that it decides alone.
#[tokio::test]
async fn a_fallback_obeys_the_process_that_blocked() {
    let server = Server::start();
    let builder = server.builder().on_error(OnError::Local).deadline(SECOND / 5);
    let limiter = builder.build().expect("valid settings");
    let limit = Limit::sliding("blocked", 10, MINUTE);
    limiter.check(&limit, "key", 1).await.expect("admitted");
    limiter.block(&limit, "key", MINUTE).await.expect("blocked");
    drop(server);
    let Err(Rejection::Blocked { decision, .. }) = limiter.check(&limit, "key", 1).await else {
        panic!("the process knows that the key is blocked");
    };
    assert_eq!(decision.source, Source::Fallback);
    limiter.block(&limit, "another key", MINUTE).await.expect_err("Redis does not reply");
    blocked(limiter.check(&limit, "another key", 1).await);
}

/// A service that takes no calls for a minute.
#[rate_limit(period = 60, threshold = 10, name = "upstream", block = |result| match result {
    Err(UpstreamError::TryAgain) => Some(MINUTE),
    _ => None,
})]
async fn call_upstream() -> Result<(), UpstreamError> {
    Err(UpstreamError::TryAgain)
}

#[derive(Debug)]
enum UpstreamError {
    TryAgain,
    Limited(Rejection),
}

impl From<Rejection> for UpstreamError {
    fn from(rejection: Rejection) -> Self {
        Self::Limited(rejection)
    }
}

/// Redis blocks the key in the background. A call that follows at once is rejected all the same.
#[tokio::test]
async fn a_process_obeys_its_own_block_at_once() {
    let server = Server::start();
    let proxy = Proxy::with_latency(server.port(), Duration::from_millis(30));
    let url = format!("redis://127.0.0.1:{}", proxy.port);
    let builder = RateLimiter::builder().redis(url).deadline(SECOND);
    let limiter = builder.build().expect("valid settings");
    let mut blocked = 0;
    let run = async {
        for _ in 0..5 {
            match call_upstream().await.expect_err("never succeeds") {
                UpstreamError::TryAgain => {}
                UpstreamError::Limited(Rejection::Blocked { .. }) => blocked += 1,
                UpstreamError::Limited(other) => panic!("{other:?}"),
            }
        }
    };
    limiter.scope(run).await;
    assert_eq!(blocked, 4);
    limiter.flush().await.expect("sent");
    let there = server.builder().build().expect("valid settings");
    let rejection = there.scope(call_upstream()).await.expect_err("blocked by the other process");
    assert!(
        matches!(rejection, UpstreamError::Limited(Rejection::Blocked { .. })),
        "{rejection:?}"
    );
}

/// The server is gone when the call ends.
#[rate_limit(period = 60, threshold = 10, name = "upstream", block = |result| match result {
    Err(UpstreamError::TryAgain) => Some(MINUTE),
    _ => None,
})]
async fn call_and_stop(server: Server) -> Result<(), UpstreamError> {
    drop(server);
    Err(UpstreamError::TryAgain)
}

/// Redis has charged the call, and is gone before it can block its key. The process rejects the calls by itself.
#[tokio::test]
async fn a_block_that_waits_holds_in_its_process() {
    let server = Server::start();
    let builder = server.builder().on_error(OnError::Local).deadline(SECOND / 5);
    let limiter = builder.build().expect("valid settings");
    let run = async {
        call_and_stop(server).await.expect_err("never succeeds");
        let rejection = call_upstream().await.expect_err("blocked");
        let UpstreamError::Limited(Rejection::Blocked { decision, .. }) = rejection else {
            panic!("{rejection:?}");
        };
        assert_eq!(decision.source, Source::Cache);
    };
    limiter.scope(run).await;
}
