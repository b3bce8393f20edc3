//! Behind a path, the compiler finds the mistake when it generates code.

use std::time::Duration;

use ratelimit_runtime::rate_limit;

const NONE: u32 = 0;
const MANY: u32 = 2;
const NANOS: Duration = Duration::from_nanos(1500);

#[rate_limit(period = 30, threshold = NONE)]
async fn zero() -> Option<()> {
    None
}

#[rate_limit(period = NANOS, threshold = 1)]
async fn too_fine() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 1, algo = "token_bucket", burst = NONE)]
async fn no_capacity() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 1, lease = MANY)]
async fn more_than_there_is() -> Option<()> {
    None
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    zero().await;
    too_fine().await;
    no_capacity().await;
    more_than_there_is().await;
}
