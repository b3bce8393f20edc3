//! Functions from `macro_rules!`, whose fragments are wrapped in invisible parentheses.

#![deny(warnings)]

use ratelimit_runtime::{RateLimiter, Rejection, rate_limit};

macro_rules! endpoint {
    (
        $vis:vis $name:ident($parameter:ident: $ty:ty) -> $output:ty,
        $period:literal, $threshold:expr, $key:expr, $text:literal, $body:block
    ) => {
        #[rate_limit(period = $period, threshold = $threshold, key = $key, name = $text)]
        $vis async fn $name($parameter: $ty) -> $output $body
    };
}

endpoint!(pub(crate) first(id: u64) -> Result<u64, Rejection>, "1h", 1, (id, "x"), "one", { Ok(id) });
endpoint!(second(id: u64) -> Option<u64>, 3600, 1, "{id}", "two", { Some(id) });

macro_rules! own_argument {
    ($name:ident) => {
        #[rate_limit(period = "1h", threshold = 1, key = "{id}")]
        async fn $name(id: u64) -> Option<u64> {
            Some(id)
        }
    };
}

own_argument!(third);

macro_rules! hidden {
    ($output:ty) => {
        #[rate_limit(period = "1h", threshold = 1)]
        async fn fourth() -> $output {}
    };
}

hidden!(impl std::fmt::Debug);

async fn run() {
    assert!(first(1).await.is_ok());
    assert!(first(1).await.is_err());
    assert!(second(1).await.is_some());
    assert!(second(1).await.is_none());
    assert!(second(2).await.is_some());
    assert!(third(1).await.is_some());
    assert!(third(1).await.is_none());
    assert_eq!(format!("{:?}", fourth().await), "Ok(())");
}

#[tokio::test]
async fn limits_functions_from_macro_rules() {
    RateLimiter::embedded().scope(run()).await;
}
