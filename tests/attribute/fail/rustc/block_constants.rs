//! A constant ceiling of `block` that never blocks a key.

use std::time::Duration;

use ratelimit_runtime::{Rejection, rate_limit};

const NEVER: Duration = Duration::ZERO;

#[rate_limit(period = 1, threshold = 10, block = |_| None, block_at_most = NEVER)]
async fn never() -> Result<(), Rejection> {
    Ok(())
}

#[tokio::main]
async fn main() {
    let _ = never().await;
}
