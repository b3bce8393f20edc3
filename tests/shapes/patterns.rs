//! Keys from parameters that are destructured by patterns of every kind.

use ratelimit_runtime::{RateLimiter, Rejection, rate_limit};

struct Path<T>(T);

struct User {
    id: u64,
    tenant: String,
}

#[rate_limit(period = "1h", threshold = 1, key = "{id}")]
async fn tuple_struct(Path(id): Path<u64>) -> Result<u64, Rejection> {
    Ok(id)
}

#[rate_limit(period = "1h", threshold = 1, key = "{id}/{name}")]
async fn fields(User { id, tenant: name }: User) -> Result<String, Rejection> {
    Ok(format!("{id}{name}"))
}

#[rate_limit(period = "1h", threshold = 1, key = "{a}-{b}-{c}")]
async fn nested((a, &(b, [_, c, ..])): (u8, &(u8, [u8; 4]))) -> Result<u8, Rejection> {
    Ok(a + b + c)
}

#[rate_limit(period = "1h", threshold = 1, key = "{pair.1:?}")]
async fn at(pair @ (first, _): (u8, Option<u8>)) -> Result<u8, Rejection> {
    Ok(pair.0 + first)
}

#[rate_limit(period = "1h", threshold = 1, key = "{side}")]
async fn either((Ok(side) | Err(side)): Result<u8, u8>) -> Result<u8, Rejection> {
    Ok(side)
}

#[rate_limit(period = "1h", threshold = 1, key = "{count} {text}")]
async fn mutable(mut count: u64, mut text: String, _: u8) -> Result<String, Rejection> {
    count += 1;
    text.push_str(&count.to_string());
    Ok(text)
}

#[rate_limit(period = "1h", threshold = 1, key = "{type}")]
async fn r#match(r#type: &str) -> Result<usize, Rejection> {
    Ok(r#type.len())
}

async fn run() {
    assert!(tuple_struct(Path(1)).await.is_ok());
    assert!(tuple_struct(Path(1)).await.is_err());
    assert!(tuple_struct(Path(2)).await.is_ok());

    let user = || User { id: 1, tenant: "t".to_owned() };
    assert_eq!(fields(user()).await.unwrap(), "1t");
    assert!(fields(user()).await.is_err());

    assert_eq!(nested((1, &(2, [3, 4, 5, 6]))).await.unwrap(), 7);
    assert!(nested((1, &(2, [0, 4, 0, 0]))).await.is_err());

    assert_eq!(at((1, Some(1))).await.unwrap(), 2);
    assert!(at((2, Some(1))).await.is_err());

    assert!(either(Ok(1)).await.is_ok());
    assert!(either(Err(1)).await.is_err());

    assert_eq!(mutable(1, "a".to_owned(), 0).await.unwrap(), "a2");
    assert!(mutable(1, "a".to_owned(), 0).await.is_err());
    assert!(mutable(2, "a".to_owned(), 0).await.is_ok());

    assert_eq!(r#match("abc").await.unwrap(), 3);
    assert!(r#match("abc").await.unwrap_err().name().ends_with("::match"));
}

#[tokio::test]
async fn reads_keys_from_patterns() {
    RateLimiter::embedded().scope(run()).await;
}
