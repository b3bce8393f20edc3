//! `scope`, `on_error`, `shadow`, `lease` and `wait` have their effect.

use ratelimit_runtime::{OnError, RateLimiter, Rejection, StoreError, rate_limit};

#[rate_limit(period = "1h", threshold = 1, scope = "process")]
async fn process() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = "1h", threshold = 1, scope = "global", on_error = "local")]
async fn local() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = "1h", threshold = 1, on_error = "allow")]
async fn allow() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = "1h", threshold = 1, on_error = "deny")]
async fn deny() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = "1h", threshold = 1)]
async fn default_policy() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = "1h", threshold = 1, shadow = true, cost = cost, on_error = "deny")]
async fn shadow(cost: u64) -> Result<u64, Rejection> {
    Ok(cost)
}

#[rate_limit(period = "1h", threshold = 1, shadow = false)]
async fn no_shadow() -> Option<()> {
    Some(())
}

const LEASE: u64 = 1;

#[rate_limit(period = "1h", threshold = 1, lease = LEASE)]
async fn leased() -> Result<(), Rejection> {
    Ok(())
}

#[tokio::test]
async fn lease_changes_nothing_on_the_embedded_store() {
    let limiter = RateLimiter::embedded();
    let calls = limiter.scope(async { [leased().await.is_ok(), leased().await.is_ok()] });
    assert_eq!(calls.await, [true, false]);
}

async fn twice<T>(call: impl AsyncFn() -> Result<T, Rejection>) -> [bool; 2] {
    [call().await.is_ok(), call().await.is_ok()]
}

async fn run() {
    assert_eq!(twice(process).await, [true, false]);
    assert_eq!(twice(local).await, [true, false]);
    assert_eq!(twice(allow).await, [true, true]);
    assert_eq!(twice(deny).await, [false, false]);
    assert_eq!(twice(default_policy).await, [false, false]);
    assert_eq!(twice(async || shadow(1).await).await, [true, true]);
    assert_eq!(shadow(2).await.unwrap(), 2);
    let denied = deny().await;
    assert!(matches!(
        denied,
        Err(Rejection::Unavailable {
            error: StoreError::Connection { .. } | StoreError::CircuitOpen { .. },
            ..
        })
    ));
}

/// No server listens on port 1.
#[tokio::test]
async fn applies_on_error_without_redis() {
    let limiter = RateLimiter::builder().redis("redis://127.0.0.1:1").on_error(OnError::Deny);
    limiter.build().unwrap().scope(run()).await;
}

#[tokio::test]
async fn decides_when_the_store_works() {
    let limiter = RateLimiter::embedded();
    assert_eq!(limiter.scope(twice(deny)).await, [true, false]);
    assert_eq!(limiter.scope(twice(allow)).await, [true, false]);
    assert_eq!(limiter.scope(twice(async || shadow(1).await)).await, [true, true]);
    assert!(limiter.scope(no_shadow()).await.is_some());
    assert!(limiter.scope(no_shadow()).await.is_none());
}

const PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);

#[rate_limit(period = "100ms", threshold = 2, algo = "leaky_bucket", key = id, wait = PATIENCE)]
async fn patient(id: u64) -> Result<u64, Rejection> {
    Ok(id)
}

#[rate_limit(limit(period = "1h", threshold = 1), limit(period = "1d", threshold = 2), wait = "1s")]
async fn waits_too_short() -> Result<(), Rejection> {
    Ok(())
}

#[tokio::test]
async fn waits_for_admission() {
    let start = std::time::Instant::now();
    RateLimiter::embedded()
        .scope(async {
            for _ in 0..4 {
                assert_eq!(patient(1).await.unwrap(), 1);
            }
            assert!(start.elapsed() >= std::time::Duration::from_millis(150));
            assert!(waits_too_short().await.is_ok());
            assert!(waits_too_short().await.is_err());
        })
        .await;
}
