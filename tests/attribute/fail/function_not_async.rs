use std::future::Future;

use ratelimit_runtime::rate_limit;

#[rate_limit(period = 30, threshold = 2)]
fn synchronous() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2)]
pub fn returns_a_future() -> impl Future<Output = Option<()>> {
    async { None }
}

#[rate_limit(period = 1, threshold = 5, scope = "process")]
const fn constant() -> Option<()> {
    Some(())
}

#[tokio::main]
#[rate_limit(period = 30, threshold = 2)]
async fn main() -> Result<(), ratelimit_runtime::Rejection> {
    Ok(())
}
