#![allow(unused)]

use ratelimit_runtime::{Rejection, rate_limit};

#[rate_limit(rate = "5/m", key = user)]
async fn rate(user: u8) -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(tokens = 5, period = "1m", key = user)]
async fn tokens(user: u8) -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = "15m", threshold = 5, key = user, lockout = "15m")]
async fn lockout(user: u8) -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = "15m", threshold = 5, key = user, only_failures = true)]
async fn only_failures(user: u8) -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = "1m", threshold = 5, ip = true)]
async fn ip() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = "1m", threshold = 5, per_user = true)]
async fn per_user(user: u8) -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = "1m", threshold = 5, key = |user| user.id)]
async fn closure(user: User) -> Result<(), Rejection> {
    Ok(())
}

struct User {
    id: u8,
}

#[rate_limit(period = 1, threshold = 5, retry = "5s")]
async fn retry() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = 1, threshold = 5, wait = true)]
async fn wait() -> Result<(), Rejection> {
    Ok(())
}

fn main() {}
