#![allow(unused)]

use ratelimit_runtime::rate_limit;

#[rate_limit(period = 30, threshold = 2, key = "user:{id")]
async fn unclosed(id: u64) -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, key = "{id}}")]
async fn unmatched(id: u64) -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, key = "{a{id}}")]
async fn nested(id: u64) -> Option<()> {
    None
}

fn main() {}
