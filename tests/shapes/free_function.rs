//! A plain async function, with and without a key.

use ratelimit_runtime::{RateLimiter, Rejection, rate_limit};

#[rate_limit(period = 3600, threshold = 2, algo = "sliding", key = user_id)]
async fn say_hi(user_id: u64) -> Result<String, Rejection> {
    Ok(format!("hi {user_id}"))
}

#[rate_limit(threshold = 1, period = "1h")]
pub(crate) async fn without_key() -> Result<(), Rejection> {
    Ok(())
}

async fn run() {
    assert_eq!(say_hi(1).await.unwrap(), "hi 1");
    assert_eq!(say_hi(1).await.unwrap(), "hi 1");
    let rejection = say_hi(1).await.unwrap_err();
    assert_eq!(rejection.name(), concat!(module_path!(), "::say_hi"));
    assert_eq!(say_hi(2).await.unwrap(), "hi 2", "another user");

    assert!(without_key().await.is_ok());
    assert!(without_key().await.is_err());
}

#[tokio::test]
async fn counts_each_key_separately() {
    RateLimiter::embedded().scope(run()).await;
}
