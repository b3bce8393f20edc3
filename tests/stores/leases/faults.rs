//! Leases while Redis is down or far away, while a runtime is idle, and while the limiter rejects requests.

use std::time::Duration;

use futures::FutureExt;
use futures::future::join_all;
use ratelimit_runtime::__private::store_is_idle;
use ratelimit_runtime::{
    Clock, Decision, Limit, OnError, RateLimiter, Rejection, Source, StoreError, VirtualClock,
};
use support::limits::MINUTE;
use support::proxy::{Network, Proxy};
use support::runtime;
use support::server::Server;
use tokio::task::JoinHandle;

use super::{LEASED, TERM, remaining, spend};
use crate::wait_until;

fn limiter_through(proxy: &Proxy, clock: &VirtualClock, deadline: Duration) -> RateLimiter {
    let builder = proxy.builder().clock(Clock::Virtual(clock.clone())).deadline(deadline);
    builder.on_error(OnError::Deny).build().expect("valid")
}

/// Starts a call, and lets it request a lease.
async fn requested(limiter: &RateLimiter) -> JoinHandle<Result<Decision, Rejection>> {
    let own = limiter.clone();
    let call = tokio::spawn(async move { own.check(&LEASED, "key", 1).await });
    wait_until(async || !store_is_idle(limiter)).await;
    call
}

/// While Redis is down, leased units can be spent. After that, `on_error` applies.
#[tokio::test]
async fn leased_units_can_be_spent_while_redis_is_down() {
    for network in [Network::Cut, Network::Blackhole, Network::RepliesLost] {
        let (server, clock) = (Server::start(), VirtualClock::new());
        let proxy = Proxy::start(server.port(), Duration::ZERO);
        let limiter = limiter_through(&proxy, &clock, Duration::from_millis(100));
        assert_eq!(spend(&limiter, &LEASED, 65).await, 65);
        proxy.set(network);
        // The limiter holds 48 units.
        assert_eq!(spend(&limiter, &LEASED, 48).await, 48);
        for result in join_all((0..10).map(|_| limiter.check(&LEASED, "key", 1))).await {
            let is_undecided = matches!(result, Err(Rejection::Unavailable { .. }));
            assert!(is_undecided, "{network:?}: {result:?}");
        }
        let local = LEASED.on_error(OnError::Local);
        let here = limiter.check(&local, "key", 1).await.expect("admitted");
        assert_eq!(here.source, Source::Fallback);
        proxy.set(Network::Up);
        wait_until(async || limiter.check(&LEASED, "key", 1).await.is_ok()).await;
        // Units whose reply was lost stay charged.
        assert!(remaining(&server, &clock, &LEASED).await < 1_000 - 113);
    }
}

/// Calls of two runtimes, and those without one, spend the same units.
#[test]
fn units_are_leased_for_all_runtimes_and_without_one() {
    let server = Server::start();
    let (limiter, runtimes) = (server.limiter_on(&VirtualClock::new()), [runtime(), runtime()]);
    let sources: Vec<_> = (0..7)
        .map(|call| match runtimes.get(call % 3) {
            Some(runtime) => runtime.block_on(limiter.check(&LEASED, "key", 1)),
            None => limiter.check_blocking(&LEASED, "key", 1),
        })
        .map(|decision| decision.expect("admitted").source)
        .collect();
    let (redis, lease) = (Source::Redis, Source::Lease);
    assert_eq!(sources, [redis, redis, lease, redis, lease, lease, lease]);
}

#[tokio::test]
async fn a_shutdown_waits_for_units_on_their_way_back() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let proxy = Proxy::with_latency(server.port(), Duration::from_millis(30));
    let limiter = limiter_through(&proxy, &clock, Duration::from_secs(30));
    // Leases of 1, 2, 4 and 8 units.
    assert_eq!(spend(&limiter, &LEASED, 15).await, 15);
    let late = requested(&limiter).await;
    // The limiter makes a connection to give back what comes too late to be spent.
    clock.advance(TERM);
    late.await.expect("no panic").expect("admitted");
    limiter.shutdown().await.expect("the leases are returned");
    assert_eq!(remaining(&server, &clock, &LEASED).await, 1_000 - 16);
}

/// Units that come too late to be spent go back, and do not make the next lease larger.
#[tokio::test]
async fn a_reply_that_comes_after_the_term_leases_nothing() {
    let (server, clock, limiter) = Server::with_clock();
    // Leases of 1, 2, 4 and 8 units.
    assert_eq!(spend(&limiter, &LEASED, 15).await, 15);
    server.pause_writes();
    let late = requested(&limiter).await;
    clock.advance(TERM);
    server.resume();
    let late = late.await.expect("no panic").expect("admitted");
    assert_eq!(late.source, Source::Redis);
    wait_until(async || remaining(&server, &clock, &LEASED).await == 1_000 - 16).await;
    // The last lease has spent one unit.
    for _ in 0..2 {
        let next = limiter.check(&LEASED, "key", 1).await.expect("admitted");
        assert_eq!(next.source, Source::Redis);
    }
}

#[tokio::test]
async fn the_units_of_dropped_calls_are_at_most_a_lease() {
    let (server, clock, limiter) = Server::with_clock();
    limiter.check(&LEASED, "warm", 1).await.expect("admitted");
    server.pause_writes();
    let mut calls: Vec<_> = (0..200).map(|_| Box::pin(limiter.check(&LEASED, "key", 1))).collect();
    assert!(calls.iter_mut().all(|call| call.as_mut().now_or_never().is_none()));
    server.resume();
    // The units of all calls come together, and only the first call is polled.
    calls.remove(0).await.expect("admitted");
    drop(calls);
    wait_until(async || remaining(&server, &clock, &LEASED).await == 1_000 - 51).await;
    let before = server.script_calls();
    assert_eq!(spend(&limiter, &LEASED, 50).await, 50);
    assert_eq!(server.script_calls(), before, "the process holds a lease");
}

/// A runtime that is no longer polled while its request is pending.
#[test]
fn an_idle_runtime_does_not_delay_the_calls_of_another() {
    let server = Server::start();
    let limiter = server.builder().on_error(OnError::Deny).build().expect("valid");
    let (idle, busy) = (runtime(), runtime());
    busy.block_on(limiter.check(&LEASED, "warm", 1)).expect("admitted");
    server.pause_writes();
    let call = limiter.check(&LEASED, "key", 1);
    idle.block_on(async { assert!(call.now_or_never().is_none()) });
    server.resume();
    for _ in 0..5 {
        busy.block_on(limiter.check(&LEASED, "key", 1)).expect("admitted");
    }
}

#[test]
fn idle_units_return_while_no_runtime_is_polled() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let (caller, other) = (runtime(), runtime());
    let wait_until_left = |units| {
        other.block_on(wait_until(async || remaining(&server, &clock, &LEASED).await == units));
    };
    let limiter = server.limiter_on(&clock);
    assert_eq!(caller.block_on(spend(&limiter, &LEASED, 65)), 65);
    clock.advance(TERM);
    wait_until_left(1_000 - 65);
    assert_eq!(caller.block_on(spend(&limiter, &LEASED, 20)), 20);
    drop(limiter);
    wait_until_left(1_000 - 85);
}

/// A call for which the held units do not suffice gives them back first. Nothing polls its runtime from then on.
#[test]
fn held_units_return_while_the_runtime_that_asked_is_not_polled() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let proxy = Proxy::with_latency(server.port(), Duration::from_millis(20));
    let limiter = limiter_through(&proxy, &clock, Duration::from_secs(30));
    let (caller, idle, other) = (runtime(), runtime(), runtime());
    assert_eq!(caller.block_on(spend(&limiter, &LEASED, 65)), 65);
    let call = limiter.check(&LEASED, "key", 49);
    let timed_out =
        idle.block_on(async { tokio::time::timeout(Duration::from_millis(5), call).await });
    assert!(timed_out.is_err(), "the limiter holds 48 units");
    other.block_on(wait_until(async || remaining(&server, &clock, &LEASED).await == 1_000 - 65));
}

#[tokio::test]
async fn units_return_while_max_pending_rejects_calls() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let builder = server.builder().clock(Clock::Virtual(clock.clone())).max_pending(3);
    let limiter = builder.build().expect("valid");
    assert_eq!(spend(&limiter, &LEASED, 65).await, 65);
    let other = Limit::sliding("other", 1_000, MINUTE);
    let mut calls: Vec<_> = (0..3).map(|_| Box::pin(limiter.check(&other, (), 1))).collect();
    assert!(calls.iter_mut().all(|call| call.as_mut().now_or_never().is_none()));
    let rejected = limiter.check(&other, (), 1).await.expect_err("too many");
    let Rejection::Unavailable { error, .. } = rejected else { panic!("{rejected}") };
    assert!(matches!(error, StoreError::Overloaded { .. }), "{error:?}");
    clock.advance(TERM);
    wait_until(async || remaining(&server, &clock, &LEASED).await == 1_000 - 65).await;
    drop(calls);
}
