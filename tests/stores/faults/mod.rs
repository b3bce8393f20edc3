//! Faults of Redis, of connections and of runtimes, the errors that they cause, and the rights that a Redis user needs.

mod connections;
mod errors;
mod rights;

use std::time::Duration;

use futures::FutureExt;
use ratelimit_runtime::{
    Builder, Limit, OnError, Part, RateLimiter, Rejection, Source, StoreError, rate_limit,
};
use support::limits::{DAY, HOUR, MINUTE, limits};
use support::proxy::{Network, Proxy};
use support::server::Server;
use support::{ALGORITHMS, runtime};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{sleep, timeout};

use crate::wait_until;

const DAILY: Limit = Limit::sliding("daily", 500, DAY);
const HOURLY: Limit = Limit::sliding("hourly", 1_000_000, HOUR);

/// Returns the error of a call that was not decided.
pub(crate) fn store_error<T: std::fmt::Debug>(result: Result<T, Rejection>) -> StoreError {
    match result {
        Err(Rejection::Unavailable { error, .. }) => error,
        other => panic!("expected no decision, got {other:?}"),
    }
}

/// Asserts that an error of the server has this code and this advice.
#[track_caller]
fn assert_advises(error: &StoreError, code: &str, advice: &str) {
    let StoreError::Server { code: actual, .. } = error else { panic!("{error:?}") };
    assert_eq!(&**actual, code, "{error}");
    assert!(error.to_string().contains(advice), "{error}");
}

fn denying_builder(url: &str) -> Builder {
    RateLimiter::builder().redis(url).on_error(OnError::Deny).deadline(Duration::from_secs(5))
}

/// Starts a server, a network to it, and a limiter that rejects calls which Redis does not decide.
fn through_network(round_trip: Duration, deadline: Duration) -> (Server, Proxy, RateLimiter) {
    let server = Server::start();
    let proxy = Proxy::with_latency(server.port(), round_trip);
    let limiter = denying_builder(&proxy.url()).deadline(deadline).build().expect("valid");
    (server, proxy, limiter)
}

async fn is_admitted(limiter: &RateLimiter) -> bool {
    limiter.check(&HOURLY, (), 1).await.is_ok()
}

/// Waits until Redis decides, for as many seconds at most.
async fn wait_until_admitted(limiter: &RateLimiter, seconds: u64) {
    let admitted = wait_until(async || is_admitted(limiter).await);
    timeout(Duration::from_secs(seconds), admitted).await.expect("in time");
}
