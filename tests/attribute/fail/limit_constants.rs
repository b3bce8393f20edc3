use ratelimit_runtime::{Limit, rate_limit};
use std::time::Duration;

const LOGIN: Limit = Limit::fixed("login", 1, Duration::from_secs(1));

#[rate_limit(limit = LOGIN, period = 30, algo = "fixed", name = "login", wait = "1s")]
async fn described_twice() -> Option<()> {
    None
}

#[rate_limit(limit = 100, period = 30)]
async fn a_number() -> Option<()> {
    None
}

#[rate_limit(limit = "login")]
async fn quoted() -> Option<()> {
    None
}

#[rate_limit(limit = plan)]
async fn a_variable(plan: Limit) -> Option<()> {
    None
}

#[rate_limit(limit = Limit::fixed("login", 1, Duration::from_secs(1)))]
async fn an_expression() -> Option<()> {
    None
}

#[rate_limit(limit = LOGIN, limit(limit = LOGIN))]
async fn beside_groups() -> Option<()> {
    None
}

#[rate_limit(limit = LOGIN, threshold = 0, burst = "many")]
async fn amounts() -> Option<()> {
    None
}

#[rate_limit(limit = LOGIN, lease = 0)]
async fn lease() -> Option<()> {
    None
}

fn main() {}
