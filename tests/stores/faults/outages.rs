//! A server that does not reply, restarts or is too busy: calls end in time, and decisions resume.

use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use ratelimit_runtime::{RateLimiter, StoreError};
use support::proxy::{Network, Proxy};
use support::server::Server;
use tokio::time::timeout;

use super::{DAILY, denying_builder, store_error, through_network};
use crate::wait_until;

async fn wait_until_decided(limiter: &RateLimiter) {
    let decided = wait_until(async || limiter.check(&DAILY, (), 1).await.is_ok());
    timeout(Duration::from_secs(1), decided).await.expect("a decision within a second");
}

#[tokio::test]
async fn a_call_without_a_reply_ends_at_the_deadline() {
    let server = Server::start();
    let limiter = server.builder().deadline(Duration::from_millis(80)).build().expect("valid");
    // The first call connects. On a busy machine this can take longer than the deadline.
    while limiter.check(&DAILY, (), 1).await.is_err() {}
    let mut connection = server.connection();
    redis::cmd("CLIENT").arg("PAUSE").arg(2_000).exec(&mut connection).expect("CLIENT PAUSE");
    let start = Instant::now();
    let error = store_error(limiter.check(&DAILY, (), 1).await);
    assert!(matches!(error, StoreError::Timeout { .. }), "{error:?}");
    assert!(start.elapsed() >= Duration::from_millis(80));
    redis::cmd("CLIENT").arg("UNPAUSE").exec(&mut connection).expect("CLIENT UNPAUSE");
    while limiter.check(&DAILY, (), 1).await.is_err() {}
}

#[tokio::test]
async fn decisions_resume_after_the_server_restarts() {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid");
    assert!(limiter.check(&DAILY, (), 1).await.is_ok());
    let port = server.port();
    drop(server);
    // The connection breaks, the next attempt to connect fails, a probe does not connect either, and the breaker opens.
    let (start, mut is_open) = (Instant::now(), false);
    while start.elapsed() < Duration::from_millis(300) {
        match store_error(limiter.check(&DAILY, (), 1).await) {
            StoreError::Connection { .. } if !is_open => {}
            StoreError::CircuitOpen { cause, .. } => {
                assert!(matches!(&*cause, StoreError::Connection { .. }), "{cause:?}");
                is_open = true;
            }
            error => panic!("{error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(is_open);
    let _restarted = Server::start_on(port);
    wait_until_decided(&limiter).await;
    assert_eq!(limiter.check(&DAILY, (), 1).await.expect("admitted").remaining, 498);
}

/// A connection attempt that takes longer than the deadline serves a later call.
#[tokio::test]
async fn a_connection_attempt_outlasts_the_call_that_started_it() {
    let server = Server::start();
    let slow = Proxy::start(server.port(), Duration::from_millis(300));
    let deadline = Duration::from_millis(150);
    let limiter = denying_builder(&slow.url()).deadline(deadline).build().expect("valid");
    let error = store_error(limiter.check(&DAILY, (), 1).await);
    assert!(matches!(error, StoreError::Timeout { .. }), "{error:?}");
    // If each call started its own attempt, none would succeed within the deadline.
    while limiter.check(&DAILY, (), 1).await.is_err() {}
    let connections = slow.connections();
    assert!(
        (1..=4).contains(&connections),
        "{connections}: one for the calls, the others for probes"
    );
}

/// After a timeout that a probe confirms, a connection is replaced, also if it has reported no error.
#[tokio::test]
async fn a_connection_without_replies_is_replaced() {
    let deadline = Duration::from_millis(150);
    let (_server, proxy, limiter) = through_network(Duration::ZERO, deadline);
    while limiter.check(&DAILY, (), 1).await.is_err() {}
    proxy.set(Network::Blackhole);
    let error = store_error(limiter.check(&DAILY, (), 1).await);
    assert!(matches!(error, StoreError::Timeout { .. }), "{error:?}");
    let start = Instant::now();
    while !matches!(store_error(limiter.check(&DAILY, (), 1).await), StoreError::CircuitOpen { .. })
    {
    }
    assert!(start.elapsed() < 3 * deadline, "{:?}", start.elapsed());
    proxy.set(Network::Up);
    wait_until_decided(&limiter).await;
    assert!(proxy.connections() >= 2);
}

#[tokio::test]
async fn calls_above_max_pending_are_rejected_without_a_request() {
    let server = Server::start();
    let limiter = server.builder().max_pending(3).build().expect("valid");
    limiter.check(&DAILY, (), 1).await.expect("admitted");
    let mut calls: Vec<_> = (0..4).map(|_| Box::pin(limiter.check(&DAILY, (), 1))).collect();
    let mut context = Context::from_waker(Waker::noop());
    let polls: Vec<_> = calls.iter_mut().map(|call| call.as_mut().poll(&mut context)).collect();
    let [Poll::Pending, Poll::Pending, Poll::Pending, Poll::Ready(fourth)] = &polls[..] else {
        panic!("{polls:?}")
    };
    let error = store_error(fourth.clone());
    assert!(matches!(error, StoreError::Overloaded { max_pending: 3, .. }), "{error:?}");
    assert!(error.to_string().contains("max_pending"), "{error}");
    // Dropped calls are no longer pending.
    drop(calls);
    assert!(limiter.check(&DAILY, (), 1).await.is_ok());
}
