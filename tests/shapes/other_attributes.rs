//! Beside the attributes of others, in either order.

use axum::extract::Path;
use ratelimit_runtime::{RateLimiter, Rejection, rate_limit};

#[rate_limit(period = "1h", threshold = 1, key = id)]
#[tracing::instrument(skip(secret))]
async fn above_instrument(id: u64, secret: &str) -> Result<usize, Rejection> {
    Ok(secret.len())
}

#[tracing::instrument(skip(secret))]
#[rate_limit(period = "1h", threshold = 1, key = "{id}")]
async fn below_instrument(id: u64, secret: &str) -> Result<usize, Rejection> {
    Ok(secret.len())
}

#[rate_limit(period = "1h", threshold = 1, key = id)]
#[axum::debug_handler]
async fn above_handler(Path(id): Path<u64>) -> Result<String, Rejection> {
    Ok(id.to_string())
}

#[axum::debug_handler]
#[rate_limit(period = "1h", threshold = 1, key = id)]
async fn below_handler(Path(id): Path<u64>) -> Result<String, Rejection> {
    Ok(id.to_string())
}

#[cfg(test)]
#[rate_limit(period = "1h", threshold = 1)]
#[cfg_attr(test, must_use)]
async fn configured() -> Option<()> {
    Some(())
}

#[rate_limit(period = "1h", threshold = 1)]
#[tokio::test]
async fn above_test() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = "1h", threshold = 1)]
#[allow(clippy::unused_unit, reason = "an attribute below")]
async fn above_allow() -> Option<()> {
    Some(())
}

async fn run() {
    assert_eq!(above_instrument(1, "four").await.unwrap(), 4);
    assert!(above_instrument(1, "four").await.is_err());
    assert_eq!(below_instrument(1, "four").await.unwrap(), 4);
    assert!(below_instrument(1, "four").await.is_err());
    assert_eq!(above_handler(Path(7)).await.unwrap(), "7");
    assert!(above_handler(Path(7)).await.is_err());
    assert_eq!(below_handler(Path(7)).await.unwrap(), "7");
    assert!(below_handler(Path(7)).await.is_err());
    assert!(configured().await.is_some());
    assert!(above_allow().await.is_some());
    assert!(above_allow().await.is_none());
}

#[tokio::test]
async fn runs() {
    RateLimiter::embedded().scope(run()).await;
}
