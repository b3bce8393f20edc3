//! Faults of Redis, of connections and of runtimes, the errors that they cause, and the rights that a Redis user needs.

mod connections;
mod data;
mod errors;
mod outages;
mod rights;
mod runtimes;

use ratelimit_runtime::{Builder, Limit, OnError, RateLimiter, Rejection, StoreError};
use support::limits::DAY;

const DAILY: Limit = Limit::sliding("daily", 500, DAY);

/// Returns the error of a call that was not decided.
fn store_error<T: std::fmt::Debug>(result: Result<T, Rejection>) -> StoreError {
    match result {
        Err(Rejection::Unavailable { error, .. }) => error,
        other => panic!("expected no decision, got {other:?}"),
    }
}

/// Returns a builder for limiters that reject calls which Redis does not decide.
fn denying_builder(url: &str) -> Builder {
    RateLimiter::builder().redis(url).on_error(OnError::Deny)
}
