//! Type, lifetime and const parameters, `where` clauses, and `impl Trait` arguments.

use std::fmt::Display;

use ratelimit_runtime::{Key, RateLimiter, Rejection, rate_limit};

#[rate_limit(period = "1h", threshold = 1, key = id)]
async fn typed<T>(id: T) -> Result<T, Rejection>
where
    T: Key + Clone,
{
    Ok(id.clone())
}

#[rate_limit(period = "1h", threshold = 1, key = "{first}")]
async fn borrowed<'a, 'b: 'a>(first: &'a str, second: &'b str) -> Result<&'a str, Rejection> {
    Ok(if first.is_empty() { second } else { first })
}

#[rate_limit(period = "1h", threshold = N, key = "{N}")]
async fn counted<const N: u64>() -> Result<u64, Rejection> {
    Ok(N)
}

#[rate_limit(period = "1h", threshold = 1, key = "{shown:>8}")]
async fn anonymous(shown: impl Display + Clone) -> Result<String, Rejection> {
    Ok(shown.to_string())
}

#[rate_limit(period = "1h", threshold = 1)]
async fn together<T: Default>() -> Result<T, Rejection> {
    Ok(T::default())
}

#[rate_limit(period = "1h", threshold = 1, key = std::any::type_name::<T>())]
async fn each<T: Default>() -> Result<T, Rejection> {
    Ok(T::default())
}

struct Pool<T> {
    of: T,
}

impl<T: AsRef<str>> Pool<T> {
    const SIZE: u64 = size_of::<T>() as u64;

    #[rate_limit(period = "1h", threshold = Self::SIZE, cost = Self::SIZE, key = self.of.as_ref())]
    async fn take<'a, U: 'a>(&'a self, with: U) -> Result<(&'a T, U), Rejection> {
        Ok((&self.of, with))
    }
}

async fn run() {
    assert!(typed(1).await.is_ok());
    assert!(typed(1).await.is_err());
    assert!(typed("one").await.is_ok());

    assert_eq!(borrowed("", "b").await.unwrap(), "b");
    assert!(borrowed("", "b").await.is_err());

    assert!(counted::<1>().await.is_ok());
    assert!(counted::<1>().await.is_err());
    assert!(counted::<2>().await.is_ok());
    assert!(counted::<2>().await.is_ok());
    assert!(counted::<2>().await.is_err());

    assert_eq!(anonymous(7).await.unwrap(), "7");
    assert!(anonymous("7").await.is_err(), "7 and \"7\" are one key");

    assert!(together::<u8>().await.is_ok());
    assert!(together::<u16>().await.is_err());
    assert!(each::<u8>().await.is_ok());
    assert!(each::<u16>().await.is_ok());
    assert!(each::<u16>().await.is_err());

    let pool = Pool { of: "p" };
    assert_eq!(pool.take(1).await.unwrap(), (&"p", 1));
    assert!(pool.take(1).await.is_err());
}

#[tokio::test]
async fn limits_generic_functions() {
    RateLimiter::embedded().scope(run()).await;
}
