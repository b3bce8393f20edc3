//! The compiler reports a bad constant when it generates code.

use std::time::Duration;

use ratelimit_runtime::rate_limit;

const ZERO: u64 = 0;
const TWO: u64 = 2;
const NANOS: Duration = Duration::from_nanos(1500);

#[rate_limit(period = 30, threshold = ZERO)]
async fn zero() -> Option<()> {
    None
}

#[rate_limit(period = NANOS, threshold = 1)]
async fn too_fine() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 1, algo = "token_bucket", burst = ZERO)]
async fn no_capacity() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 1, lease = TWO)]
async fn above_threshold() -> Option<()> {
    None
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    zero().await;
    too_fine().await;
    no_capacity().await;
    above_threshold().await;
}
