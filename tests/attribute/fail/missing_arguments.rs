#![allow(unused)]

use ratelimit_runtime::rate_limit;

#[rate_limit]
async fn both() -> Option<()> {
    None
}

#[rate_limit(period = 30)]
async fn threshold() -> Option<()> {
    None
}

#[rate_limit(threshold = 30, key = id)]
async fn period(id: u64) -> Option<()> {
    None
}

fn main() {}
