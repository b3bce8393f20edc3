//! Amounts that each call computes are of type `u64` or `Option<u64>`.

use ratelimit_runtime::rate_limit;

#[rate_limit(period = 30, threshold = plan.len())]
async fn a_usize(plan: &str) -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, algo = "token_bucket", burst = factor * 2.0)]
async fn a_float(factor: f64) -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = Some("5"))]
async fn a_text() -> Option<()> {
    None
}

fn main() {}
