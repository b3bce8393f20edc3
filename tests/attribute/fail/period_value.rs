#![allow(unused)]

use std::time::Duration;

use ratelimit_runtime::rate_limit;

#[rate_limit(period = true, threshold = 2)]
async fn boolean() -> Option<()> {
    None
}

#[rate_limit(period = Duration::from_secs(30), threshold = 2)]
async fn call() -> Option<()> {
    None
}

#[rate_limit(period = 1e3, threshold = 2)]
async fn exponent() -> Option<()> {
    None
}

#[rate_limit(period = "", threshold = 2)]
async fn empty() -> Option<()> {
    None
}

fn main() {}
