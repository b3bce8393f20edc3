//! The expansion causes no warning, and the attributes of the user still apply to the body.

#![deny(
    warnings,
    missing_docs,
    unused,
    unreachable_code,
    rust_2018_idioms,
    elided_lifetimes_in_paths
)]
#![deny(
    single_use_lifetimes,
    unused_qualifications,
    unused_lifetimes,
    let_underscore_drop
)]
#![deny(
    unit_bindings,
    unused_results,
    unnameable_types,
    trivial_casts,
    trivial_numeric_casts
)]

use ratelimit_runtime::{RateLimiter, Rejection, rate_limit};

/// Documented.
#[must_use]
#[rate_limit(period = "1h", threshold = 1, key = (id, "{id}"), cost = 1)]
#[inline]
pub async fn outer(id: u64) -> Result<(), Rejection> {
    #![allow(unused_variables)]
    //! Documented inside as well.
    let unused = 1;
    Ok(())
}

#[rate_limit(period = "1h", threshold = 1, key = "{used_in_the_key_only}")]
async fn diverges(used_in_the_key_only: u8) -> Result<(), Rejection> {
    loop {
        return Ok(());
    }
}

#[rate_limit(period = "1h", threshold = 1)]
async fn empty() -> impl std::fmt::Debug {}

#[rate_limit(period = "1h", threshold = 1, on_limited = drop)]
async fn nothing() {}

#[rustfmt::skip]
#[rate_limit(period = "1h", threshold = 1, key = a + b)]
async fn one_line(a: u8, b: u8) -> Option<u8> { Some(a * b) }

async fn run() {
    assert_eq!(one_line(1, 2).await, Some(2));
    assert!(outer(1).await.is_ok());
    assert!(outer(1).await.is_err());
    assert!(diverges(1).await.is_ok());
    assert!(diverges(1).await.is_err());
    assert_eq!(format!("{:?}", empty().await), "Ok(())");
    nothing().await;
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(RateLimiter::embedded().scope(run()));
}
