//! The argument `crate` for a crate that re-exports the runtime.

mod facade {
    pub(crate) use ratelimit_runtime as limits;

    pub(crate) mod deeper {
        #[limits::rate_limit(period = "1h", threshold = 1, crate = super::limits, key = "{id}")]
        pub(crate) async fn relative(id: u8) -> Option<u8> {
            Some(id)
        }

        use super::limits;
    }
}

#[facade::limits::rate_limit(period = "1h", threshold = 1, crate = crate::crate_path::facade::limits)]
async fn absolute() -> Result<(), facade::limits::Rejection> {
    Ok(())
}

#[facade::limits::rate_limit(period = "1h", threshold = 1, crate = facade::limits)]
async fn hidden() -> impl std::fmt::Debug {}

async fn run() {
    assert!(absolute().await.is_ok());
    assert!(absolute().await.is_err());
    assert!(facade::deeper::relative(1).await.is_some());
    assert!(facade::deeper::relative(1).await.is_none());
    assert_eq!(format!("{:?}", hidden().await), "Ok(())");
}

#[tokio::test]
async fn finds_a_re_exported_runtime() {
    facade::limits::RateLimiter::embedded().scope(run()).await;
}
