//! Faults of Redis, of connections and of runtimes, the errors that they cause, and the rights that a Redis user needs.

mod connections;
mod errors;
mod rights;

use std::time::Duration;

use ratelimit_runtime::{Builder, Limit, OnError, RateLimiter, Rejection, StoreError};
use support::limits::{DAY, HOUR};
use support::proxy::Proxy;
use support::server::Server;
use tokio::time::timeout;

use crate::wait_until;

const DAILY: Limit = Limit::sliding("daily", 500, DAY);
const HOURLY: Limit = Limit::sliding("hourly", 1_000_000, HOUR);

/// Returns the error of a call that was not decided.
fn store_error<T: std::fmt::Debug>(result: Result<T, Rejection>) -> StoreError {
    match result {
        Err(Rejection::Unavailable { error, .. }) => error,
        other => panic!("expected no decision, got {other:?}"),
    }
}

fn denying_builder(url: &str) -> Builder {
    RateLimiter::builder().redis(url).on_error(OnError::Deny)
}

/// Starts a server, a network to it, and a limiter that rejects calls which Redis does not decide.
fn through_network(round_trip: Duration, deadline: Duration) -> (Server, Proxy, RateLimiter) {
    let server = Server::start();
    let proxy = Proxy::with_latency(server.port(), round_trip);
    let limiter = denying_builder(&proxy.url()).deadline(deadline).build().expect("valid");
    (server, proxy, limiter)
}

/// Waits until a condition holds, for five seconds at most.
async fn wait_briefly_until(holds: impl AsyncFnMut() -> bool) {
    timeout(Duration::from_secs(5), wait_until(holds)).await.expect("within five seconds");
}
