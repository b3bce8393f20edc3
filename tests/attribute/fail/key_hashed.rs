#![allow(unused)]

use ratelimit_runtime::rate_limit;

#[rate_limit(period = 30, threshold = 2, key = hashed())]
async fn nothing(token: String) -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, key = (1, hashed(a, b)))]
async fn two(a: u8, b: u8) -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, key = hashed("{token}"))]
async fn format(token: String) -> Option<()> {
    None
}

fn main() {}
