#![allow(unused)]

use ratelimit_runtime::rate_limit;

#[rate_limit(period = 30, threshold = 2, key = "user_id")]
async fn say_hi(user_id: u64) -> Option<()> {
    None
}

fn main() {}
