//! Mistakes in the body are reported at the same place as without the attribute.

use ratelimit_runtime::{Rejection, rate_limit};

#[rate_limit(period = 30, threshold = 2)]
async fn other_type() -> Result<u8, Rejection> {
    Ok("one")
}

#[rate_limit(period = 30, threshold = 2)]
async fn semicolon() -> Option<u8> {
    Some(1);
}

#[rate_limit(period = 30, threshold = 2, key = id)]
async fn moved(id: String) -> Option<String> {
    drop(id);
    Some(id)
}

#[rate_limit(period = 30, threshold = 2)]
async fn names_of_the_check() -> Option<u8> {
    drop((pending, rejection));
    Some(output)
}

#[rate_limit(period = 30, threshold = 2)]
async fn not_mutable(count: u8) -> impl std::fmt::Debug {
    count += 1;
    count
}

fn main() {}
