#![allow(dead_code)]
#![deny(unused_variables)]

use ratelimit_runtime::{Limit, Rejection, rate_limit};
use std::time::Duration;

const CALLS: Limit = Limit::sliding("calls", 10, Duration::from_secs(60));

struct User {
    id: u64,
    name: String,
}

#[rate_limit(limit = CALLS, key = "{by_format}", count_if = Result::is_ok)]
async fn counted(unused: u64, by_format: u64, user: User) -> Result<u64, Rejection> {
    Ok(user.id + user.name.len() as u64)
}

#[rate_limit(limit = CALLS, key = in_the_key, settle = |_| 1, scope = "process")]
fn settled(in_the_key: u64, in_a_text: u64, in_a_range: u64, _allowed: u64, [unused, _]: [u64; 2]) -> Option<String> {
    for _ in 0..in_a_range {}
    Some(format!("{in_a_text}"))
}

fn main() {}
