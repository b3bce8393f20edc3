//! Functions inside functions, and items in a body that have the names of the expansion.

use ratelimit_runtime::{RateLimiter, Rejection, rate_limit};

#[rate_limit(period = "1h", threshold = 2)]
async fn outer() -> Result<u8, Rejection> {
    use std::convert::identity as check;

    fn refuse(value: u8) -> u8 {
        value
    }

    #[rate_limit(period = "1h", threshold = 1)]
    async fn inner() -> Result<u8, Rejection> {
        Ok(7)
    }

    struct Limit;
    let _ = Limit;

    inner().await.map(check).map(refuse)
}

async fn run() {
    assert_eq!(outer().await.unwrap(), 7);
    assert!(outer().await.unwrap_err().name().ends_with("::inner"));
    assert!(outer().await.unwrap_err().name().ends_with("::outer"));

    #[rate_limit(period = "1h", threshold = 1)]
    async fn local() -> Option<()> {
        Some(())
    }
    assert!(local().await.is_some());
    assert!(local().await.is_none());
}

#[tokio::test]
async fn limits_nested_functions() {
    RateLimiter::embedded().scope(run()).await;
}
