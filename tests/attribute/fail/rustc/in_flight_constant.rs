//! A constant of calls in flight, whose slot nothing would hold.

use std::time::Duration;

use ratelimit_runtime::{Limit, Rejection, rate_limit};

const TWO: Limit = Limit::in_flight("two", 2).hold(Duration::from_secs(30));

#[rate_limit(limit = TWO)]
async fn without_a_permit() -> Result<(), Rejection> {
    Ok(())
}

#[tokio::main]
async fn main() {
    let _ = without_a_permit().await;
}
