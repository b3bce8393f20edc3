//! A cost above one unit, and a cost that depends on the arguments.

use ratelimit_runtime::{RateLimiter, Rejection, rate_limit};

#[rate_limit(period = "1h", threshold = 10, cost = items.len() as u64)]
async fn batch(items: Vec<u8>) -> Result<Vec<u8>, Rejection> {
    Ok(items)
}

#[rate_limit(period = "1h", threshold = 10, cost = 4)]
async fn fixed() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = "1h", threshold = 10, key = path, cost = if path == "/big" { 10 } else { 1 })]
async fn weighed(path: &str) -> Result<(), Rejection> {
    Ok(())
}

async fn run() {
    assert_eq!(batch(vec![0; 6]).await.unwrap().len(), 6);
    assert!(batch(vec![0; 5]).await.is_err());
    assert!(batch(vec![0; 4]).await.is_ok());
    assert!(batch(vec![]).await.is_ok(), "a cost of 0 is always admitted");
    assert!(matches!(batch(vec![0; 11]).await, Err(Rejection::CostExceedsCapacity { .. })));

    assert!(fixed().await.is_ok());
    assert!(fixed().await.is_ok());
    assert!(fixed().await.is_err());

    assert!(weighed("/big").await.is_ok());
    assert!(weighed("/big").await.is_err());
    assert!(weighed("/").await.is_ok());
    assert!(weighed("/").await.is_ok());
}

#[tokio::test]
async fn charges_the_cost() {
    RateLimiter::embedded().scope(run()).await;
}
