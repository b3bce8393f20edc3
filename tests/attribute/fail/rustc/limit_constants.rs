use ratelimit_runtime::{Limit, key, rate_limit};
use std::time::Duration;

const LOGIN: Limit = Limit::fixed("login", 1, Duration::from_secs(1));
const NUMBER: u64 = 100;

#[rate_limit(limit = NUMBER)]
async fn another_type() -> Option<()> { None }

#[rate_limit(limit = LOGN)]
async fn a_typo() -> Option<()> { None }

fn main() {
    let tenant = 1;
    let _ = key!("{tenant}:{usr}");
    let _ = key!("{tenant");
    let _ = key!(tenant);
    let _ = key!("{tenant}", 1);
}
