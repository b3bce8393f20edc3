//! A crate that limits its functions through a facade, and does not depend on the runtime.

#![cfg(test)]

use std::fmt::Debug;
use std::time::Duration;

use acme::limits::{Limit, RateLimiter, Rejection, key, rate_limit};

const LOGIN: Limit = Limit::sliding("login", 1, Duration::from_secs(3600));

#[rate_limit(limit = LOGIN, key = "{tenant}:{user:?}", crate = acme::limits)]
async fn log_in(tenant: u64, user: &str) -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(
    limit(period = 1, threshold = most, algo = "token_bucket", burst = 5, key = "{most}"),
    limit(in_flight = 2, hold = "30s"),
    limit(limit = LOGIN, count_if = Result::is_err, block = |_| None),
    wait = "1s",
    crate = ::acme::limits
)]
async fn several(most: u64) -> Result<u64, Rejection> {
    Ok(most)
}

#[rate_limit("1/h", scope = "process", shadow = true, crate = acme::limits)]
fn synchronous() -> impl Debug {
    "done"
}

async fn run() {
    assert!(log_in(1, "ann").await.is_ok());
    assert!(log_in(1, "ann").await.is_err());
    let (tenant, user) = (1, "ann");
    let limiter = acme::limits::current().expect("a limiter");
    assert_eq!(limiter.reset(&LOGIN, key!("{tenant}:{user:?}")).await, Ok(true));
    assert_eq!(several(7).await.expect("admitted"), 7);
    assert_eq!(format!("{:?}", synchronous()), r#"Ok("done")"#);
}

#[tokio::test]
async fn a_facade_is_enough() {
    RateLimiter::embedded().scope(run()).await;
}
