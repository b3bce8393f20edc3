#![allow(unused)]

use ratelimit_runtime::rate_limit;

#[rate_limit(period = 30, threshold = 2, key = "{}:{0}")]
async fn positions(id: u64) -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, key = "{id.to_string()}")]
async fn expression(id: u64) -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, key = "{id:width$}")]
async fn width(id: u64, width: usize) -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, key = "{user.type}")]
async fn keyword(user: User) -> Option<()> {
    None
}

struct User {
    r#type: u8,
}

fn main() {}
