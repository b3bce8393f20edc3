#![allow(unused)]

use ratelimit_runtime::rate_limit;

#[rate_limit(period = 30, threshold = 2, key = (a, a, a, a, a, a, a, a, a))]
async fn nine(a: u8) -> Option<()> {
    None
}

fn main() {}
