#![allow(unused)]

use ratelimit_runtime::rate_limit;

#[rate_limit(period 30, threshold(2))]
async fn no_equals(id: u64) -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, key)]
async fn nothing(id: u64) -> Option<()> {
    None
}

#[rate_limit(period = , threshold = 2, key = )]
async fn equals_alone(id: u64) -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, key = id + , cost = 1)]
async fn half_an_expression(id: u64) -> Option<()> {
    None
}

fn main() {}
