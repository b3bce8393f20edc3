//! A constant ceiling of `close` that never closes a key.

use std::time::Duration;

use ratelimit_runtime::{Rejection, rate_limit};

const NEVER: Duration = Duration::ZERO;

#[rate_limit(period = 1, threshold = 10, close = |_| None, close_at_most = NEVER)]
async fn never() -> Result<(), Rejection> {
    Ok(())
}

#[tokio::main]
async fn main() {
    let _ = never().await;
}
