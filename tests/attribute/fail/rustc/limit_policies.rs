use ratelimit_runtime::{Limit, rate_limit};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const LOGIN: Limit = Limit::fixed("login", 1, SECOND);
const WAITING: Limit = Limit::fixed("waiting", 1, SECOND).wait(SECOND);

#[rate_limit(limit(limit = LOGIN), limit(limit = WAITING))]
async fn different_policies() -> Option<()> {
    None
}

#[rate_limit(limit(limit = LOGIN), limit(limit = WAITING), wait = "2s")]
async fn one_policy() -> Option<()> {
    None
}

#[tokio::main]
async fn main() {
    let _ = different_policies().await;
    let _ = one_policy().await;
}
