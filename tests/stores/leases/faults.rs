//! Leases while Redis is down or far away, while a runtime is idle, and while the limiter rejects requests.

use ratelimit_runtime::__private::store_is_idle;
use support::proxy::{Network, Proxy};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::*;

/// Starts a server, a network to it, and a limiter.
fn through_network(round_trip: u64, deadline: u64) -> (Server, Proxy, VirtualClock, RateLimiter) {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let proxy = Proxy::with_latency(server.port(), Duration::from_millis(round_trip));
    let builder = proxy.builder().on_error(OnError::Deny).clock(Clock::Virtual(clock.clone()));
    let limiter = builder.deadline(Duration::from_millis(deadline)).build().expect("valid");
    (server, proxy, clock, limiter)
}

/// Starts a call, and lets it request a lease.
async fn requested(limiter: &RateLimiter) -> JoinHandle<Result<Decision, Rejection>> {
    let call = tokio::spawn(limiter.check(&LEASED, "key", 1));
    wait_until(async || !store_is_idle(limiter)).await;
    call
}

/// While Redis is down, leased units can be spent. After that, `on_error` applies.
#[tokio::test]
async fn leased_units_can_be_spent_while_redis_is_down() {
    for network in [Network::Cut, Network::Blackhole, Network::RepliesLost] {
        let (server, proxy, clock, limiter) = through_network(0, 100);
        assert_eq!(spend(&limiter, &LEASED, 65).await, 65);
        proxy.set(network);
        // The limiter holds 48 units.
        assert_eq!(spend(&limiter, &LEASED, 48).await, 48);
        for result in join_all((0..10).map(|_| limiter.check(&LEASED, "key", 1))).await {
            let is_undecided = matches!(result, Err(Rejection::Unavailable { .. }));
            assert!(is_undecided, "{network:?}: {result:?}");
        }
        let local = LEASED.on_error(OnError::Local);
        assert_eq!(source(&limiter, &local).await, Source::Fallback);
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
    let call = |call: usize| match runtimes.get(call % 3) {
        Some(runtime) => runtime.block_on(source(&limiter, &LEASED)),
        None => limiter.check_blocking(&LEASED, "key", 1).expect("admitted").source,
    };
    let (redis, lease) = (Source::Redis, Source::Lease);
    let sources: Vec<_> = (0..7).map(call).collect();
    assert_eq!(sources, [redis, redis, lease, redis, lease, lease, lease]);
}

#[tokio::test]
async fn a_shutdown_waits_for_units_on_their_way_back() {
    let (server, _proxy, clock, limiter) = through_network(30, 30_000);
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
    assert_eq!(late.await.expect("no panic").expect("admitted").source, Source::Redis);
    wait_until_left(&server, &clock, 1_000 - 16).await;
    // The last lease has spent one unit.
    for _ in 0..2 {
        assert_eq!(source(&limiter, &LEASED).await, Source::Redis);
    }
}

#[tokio::test]
async fn the_units_of_dropped_calls_are_at_most_a_lease() {
    let (server, clock, limiter) = Server::with_clock();
    limiter.check(&LEASED, "warm", 1).await.expect("admitted");
    server.pause_writes();
    let mut calls: Vec<_> = (0..200).map(|_| Box::pin(limiter.check(&LEASED, "key", 1))).collect();
    assert!(calls.iter_mut().all(|call| call.now_or_never().is_none()));
    server.resume();
    // The units of all calls come together, and only the first call is polled.
    calls.remove(0).await.expect("admitted");
    drop(calls);
    wait_until_left(&server, &clock, 1_000 - 51).await;
    let before = server.script_calls();
    assert_eq!(spend(&limiter, &LEASED, 50).await, 50);
    assert_eq!(server.script_calls(), before, "the process holds a lease");
}

/// A runtime that is no longer polled while its request is pending.
#[test]
fn an_idle_runtime_does_not_delay_the_calls_of_another() {
    let (server, limiter) = Server::with_limiter();
    let (idle, busy) = (runtime(), runtime());
    busy.block_on(limiter.check(&LEASED, "warm", 1)).expect("admitted");
    server.pause_writes();
    let call = limiter.check(&LEASED, "key", 1);
    idle.block_on(async { assert!(call.now_or_never().is_none()) });
    server.resume();
    assert_eq!(busy.block_on(spend(&limiter, &LEASED, 5)), 5);
}

#[test]
fn idle_units_return_while_no_runtime_is_polled() {
    let (server, clock, limiter) = Server::with_clock();
    let (caller, other) = (runtime(), runtime());
    assert_eq!(caller.block_on(spend(&limiter, &LEASED, 70)), 70);
    // Leases of 1, 2, 4, 8, 16, 32 and 50 units.
    assert_eq!(other.block_on(remaining(&server, &clock, &LEASED)), 1_000 - 63 - 50);
    // The units can be spent until almost the end of the term. The rest is a margin for clock drift.
    clock.advance(TERM.mul_f64(0.99));
    assert_eq!(caller.block_on(source(&limiter, &LEASED)), Source::Lease);
    clock.advance(TERM.mul_f64(0.01));
    other.block_on(wait_until_left(&server, &clock, 1_000 - 71));
    // After the term, Redis decides.
    let next = caller.block_on(limiter.check(&LEASED, "key", 1)).expect("admitted");
    assert_eq!((next.source, next.remaining), (Source::Redis, 1_000 - 72));
    assert_eq!(caller.block_on(spend(&limiter, &LEASED, 20)), 20);
    drop(limiter);
    other.block_on(wait_until_left(&server, &clock, 1_000 - 92));
}

/// A call for which the held units do not suffice gives them back first. Nothing polls its runtime from then on.
#[test]
fn held_units_return_while_the_runtime_that_asked_is_not_polled() {
    let (server, _proxy, clock, limiter) = through_network(20, 30_000);
    let (caller, idle, other) = (runtime(), runtime(), runtime());
    assert_eq!(caller.block_on(spend(&limiter, &LEASED, 65)), 65);
    let call = limiter.check(&LEASED, "key", 49);
    let timed_out = idle.block_on(async { timeout(Duration::from_millis(5), call).await });
    assert!(timed_out.is_err(), "the limiter holds 48 units");
    other.block_on(wait_until_left(&server, &clock, 1_000 - 65));
}

#[tokio::test]
async fn units_return_while_calls_above_max_pending_are_rejected() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let builder = server.builder().clock(Clock::Virtual(clock.clone())).max_pending(3);
    let limiter = builder.build().expect("valid");
    assert_eq!(spend(&limiter, &LEASED, 65).await, 65);
    let other = Limit::sliding("other", 1_000, MINUTE);
    let mut calls: Vec<_> = (0..3).map(|_| Box::pin(limiter.check(&other, (), 1))).collect();
    assert!(calls.iter_mut().all(|call| call.now_or_never().is_none()));
    let rejected = limiter.check(&other, (), 1).await.expect_err("too many");
    let Rejection::Unavailable { error, .. } = rejected else { panic!("{rejected}") };
    assert!(matches!(error, StoreError::Overloaded { max_pending: 3, .. }), "{error:?}");
    assert!(error.to_string().contains("max_pending"), "{error}");
    clock.advance(TERM);
    wait_until_left(&server, &clock, 1_000 - 65).await;
    // Dropped calls are no longer pending.
    drop(calls);
    limiter.check(&other, (), 1).await.expect("admitted");
}
