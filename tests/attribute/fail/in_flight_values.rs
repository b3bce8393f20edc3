//! Calls in flight have no period.

use ratelimit_runtime::{Rejection, rate_limit};

#[rate_limit(in_flight = 2, hold = "30s", scope = "process")]
async fn hold_of_a_process() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(in_flight = 2, hold = "30s", period = "1m", threshold = 5)]
async fn with_a_rate() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(in_flight = 2, hold = "30s", algo = "fixed", burst = 2, align = "utc", lease = 5)]
async fn with_parts_of_a_rate() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(in_flight = 2, hold = "30s", settle = |_| 1)]
async fn with_a_correction() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(in_flight = 0, hold = "500ms")]
async fn too_little() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(in_flight = 1, hold = "2d", cost = 2)]
async fn too_much() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = 1, threshold = 5, hold = "30s")]
async fn hold_of_a_rate() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(concurrent = 5, hold = "30s")]
async fn another_word() -> Result<(), Rejection> {
    Ok(())
}

fn main() {}
