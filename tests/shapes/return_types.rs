//! Return types that can carry a rejection: errors made from one, `Option`, and own types.

use std::error::Error;

use ratelimit_runtime::{FromRejection, RateLimiter, Rejection, rate_limit};

#[derive(Debug)]
enum AppError {
    Busy(Rejection),
    #[allow(dead_code, reason = "read by `Debug` only")]
    Parse(std::num::ParseIntError),
}

impl From<Rejection> for AppError {
    fn from(rejection: Rejection) -> Self {
        AppError::Busy(rejection)
    }
}

impl From<std::num::ParseIntError> for AppError {
    fn from(error: std::num::ParseIntError) -> Self {
        AppError::Parse(error)
    }
}

type AppResult<T = ()> = Result<T, AppError>;

#[rate_limit(period = "1h", threshold = 2)]
async fn own(text: &str) -> Result<i32, AppError> {
    Ok(text.parse::<i32>()?)
}

#[rate_limit(period = "1h", threshold = 1)]
async fn alias() -> AppResult {
    Ok(())
}

#[rate_limit(period = "1h", threshold = 1)]
async fn anyhow() -> anyhow::Result<()> {
    anyhow::ensure!(true);
    Ok(())
}

#[rate_limit(period = "1h", threshold = 1)]
async fn boxed() -> Result<i32, Box<dyn Error + Send + Sync>> {
    Ok("1".parse::<i32>()?)
}

#[rate_limit(period = "1h", threshold = 1)]
async fn option() -> Option<u8> {
    let byte = [1_u8].first().copied()?;
    Some(byte)
}

#[derive(Debug, PartialEq)]
enum Reply {
    Text(&'static str),
    Busy,
}

impl FromRejection for Reply {
    fn from_rejection(_: Rejection) -> Self {
        Reply::Busy
    }
}

#[rate_limit(period = "1h", threshold = 1)]
async fn own_type() -> Reply {
    Reply::Text("hi")
}

async fn run() {
    assert_eq!(own("1").await.unwrap(), 1);
    assert!(matches!(own("x").await, Err(AppError::Parse(_))));
    assert!(matches!(own("1").await, Err(AppError::Busy(Rejection::Limited { .. }))));

    assert!(alias().await.is_ok());
    assert!(matches!(alias().await, Err(AppError::Busy(_))));

    assert!(anyhow().await.is_ok());
    assert!(anyhow().await.unwrap_err().downcast_ref::<Rejection>().is_some());

    assert_eq!(boxed().await.unwrap(), 1);
    assert!(boxed().await.unwrap_err().is::<Rejection>());

    assert_eq!(option().await, Some(1));
    assert_eq!(option().await, None);

    assert_eq!(own_type().await, Reply::Text("hi"));
    assert_eq!(own_type().await, Reply::Busy);
}

#[tokio::test]
async fn converts_the_rejection_to_the_return_type() {
    RateLimiter::embedded().scope(run()).await;
}
