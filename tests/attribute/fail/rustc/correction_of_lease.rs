//! A constant with a lease: its charges cannot be corrected.

use std::time::Duration;

use ratelimit_runtime::{Limit, Rejection, rate_limit};

const LEASED: Limit = Limit::fixed("leased", 10, Duration::from_secs(1)).lease(5);

#[rate_limit(limit = LEASED, settle = |_| 1)]
async fn leased() -> Result<(), Rejection> {
    Ok(())
}

#[tokio::main]
async fn main() {
    let _ = leased().await;
}
