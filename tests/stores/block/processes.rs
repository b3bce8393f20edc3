//! Blocks of a key among several processes, and blocks that Redis has not received.

use std::time::Duration;

use futures::FutureExt;
use futures::executor::block_on;
use ratelimit_runtime::{Limit, OnError, RateLimiter, Rejection, Source, VirtualClock, rate_limit};
use redis::Commands;
use support::limits::{HOUR, MINUTE, SECOND};
use support::proxy::Proxy;
use support::server::Server;

use super::{blocked, limits};
use crate::wait_until_idle;

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
    let mut connection = server.connection();
    for limit in limits() {
        limiter.check(&limit, "key", 1).await.expect("admitted");
        let [(key, _)] = &server.ttls()[..] else { panic!("one key") };
        let () = connection.set(key, "foreign").expect("SET");
        limiter.block(&limit, "key", SECOND).await.expect_err("not the state of a limit");
        limiter.unblock(&limit, "key").await.expect_err("not the state of a limit");
        assert_eq!(connection.get::<_, String>(key).expect("GET"), "foreign");
        let () = connection.del(key).expect("DEL");
    }
}

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

fn is_blocked(result: &Result<(), UpstreamError>) -> bool {
    matches!(result, Err(UpstreamError::Limited(Rejection::Blocked { .. })))
}

/// Redis blocks the key in the background. A call that follows at once is rejected all the same, and an unblock comes
/// after the blocks before it.
#[tokio::test]
async fn a_process_obeys_its_own_block_at_once() {
    let server = Server::start();
    let proxy = Proxy::with_latency(server.port(), Duration::from_millis(30));
    let limiter = proxy.builder().deadline(10 * SECOND).build().expect("valid settings");
    let upstream = Limit::sliding("upstream", 10, MINUTE);
    let there = server.builder().build().expect("valid settings");
    let run = async {
        for _ in 0..2 {
            let first = call_upstream().await.expect_err("never succeeds");
            assert!(matches!(first, UpstreamError::TryAgain), "{first:?}");
            for _ in 0..4 {
                assert!(is_blocked(&call_upstream().await));
            }
            assert!(limiter.unblock(&upstream, ()).await.expect("unblocked"));
        }
        call_upstream().await.expect_err("never succeeds");
        limiter.flush().await.expect("sent");
    };
    limiter.scope(run).await;
    let result = there.scope(call_upstream()).await;
    assert!(is_blocked(&result), "blocked by the other process: {result:?}");
}

#[rate_limit(period = 60, threshold = 10_000, algo = "fixed", name = "left", block = |_| Some(MINUTE))]
async fn close_window() -> Result<(), Rejection> {
    Ok(())
}

/// One function leases units of a count, another one blocks its key.
#[tokio::test]
async fn a_process_that_blocks_a_key_spends_no_leased_units() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let limiter = server.limiter_on(&clock);
    let limit = Limit::fixed("left", 10_000, MINUTE).lease(50);
    for _ in 0..201 {
        limiter.check(&limit, (), 1).await.expect("admitted");
    }
    let leased = limiter.check(&limit, (), 1).await.expect("admitted");
    assert_eq!(leased.source, Source::Lease);
    limiter.scope(close_window()).await.expect("admitted");
    blocked(limiter.check(&limit, (), 1).await);
}
