//! `block` and its ceiling, `block_at_most`.

use std::time::Duration;

use ratelimit_runtime::{Limit, Rejection, rate_limit};

const TENANT: Limit = Limit::sliding("tenant", 10, Duration::from_secs(1));

fn retry_after<T>(_: &T) -> Option<Duration> {
    None
}

#[rate_limit(
    limit(period = 1, threshold = 10),
    limit(limit = TENANT, key = tenant),
    block = retry_after
)]
async fn beside_groups(tenant: u64) -> Result<u64, Rejection> {
    Ok(tenant)
}

#[rate_limit(
    limit(period = 1, threshold = 10, key = tenant, block = retry_after),
    limit(limit = TENANT, key = tenant),
    block_at_most = "5m"
)]
async fn ceiling_beside_groups(tenant: u64) -> Result<u64, Rejection> {
    Ok(tenant)
}

#[rate_limit(period = 1, threshold = 10, block_at_most = "5m")]
async fn without_block() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(limit(period = 1, threshold = 10, block_at_most = "5m"))]
async fn without_block_in_its_group() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = 1, threshold = 10, block = retry_after, block_at_most = 0)]
async fn never() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = 1, threshold = 10, block = retry_after, block_at_most = "5 minutes")]
async fn another_unit() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = 1, threshold = 10, block = retry_after, block_at_most = |_| HOUR)]
async fn a_function() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = 1, threshold = 10, block = retry_after, max_block = "5m")]
async fn another_word() -> Result<(), Rejection> {
    Ok(())
}

fn main() {}
