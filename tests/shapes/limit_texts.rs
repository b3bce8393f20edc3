//! Limits that are written as a text in first place.

use std::time::Duration;

use ratelimit_runtime::{RateLimiter, Rejection, rate_limit};

#[rate_limit("2/s", key = user)]
async fn sliding(user: u64) -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit("1 per 30s burst 3", name = "texts.bucket", scope = "process")]
fn bucket() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(limit("2 per minute fixed"), limit("3/day", key = user))]
async fn together(user: u64) -> Result<(), Rejection> {
    Ok(())
}

#[tokio::test]
async fn a_text_stands_for_the_arguments_of_a_limit() {
    let limiter = RateLimiter::embedded();
    let run = async {
        for _ in 0..2 {
            sliding(1).await.expect("admitted");
            together(1).await.expect("admitted");
        }
        let rejection = sliding(1).await.expect_err("used up");
        assert!(rejection.retry_after() <= Some(Duration::from_secs(1)), "{rejection:?}");
        sliding(2).await.expect("another key");
        together(2).await.expect_err("used up");
        for _ in 0..3 {
            bucket().expect("admitted");
        }
        let rejection = bucket().expect_err("used up");
        assert!(rejection.retry_after() > Some(Duration::from_secs(29)), "{rejection:?}");
    };
    limiter.scope(run).await;
}
