//! The limiter of a scope: tasks take it along, and a call outside of every scope can be made an error. The only test
//! of its process, because `require_scope` cannot be undone.

use ratelimit_runtime::{BuildError, Mistake, RateLimiter, Rejection, in_scope, rate_limit};

#[rate_limit(period = "1h", threshold = 1)]
async fn once() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = "1h", threshold = 1, scope = "process")]
fn here() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = "1h", threshold = 1, limiter = limiter)]
async fn on(limiter: &RateLimiter) -> Result<(), Rejection> {
    Ok(())
}

fn is_outside(result: &Result<(), Rejection>) -> bool {
    matches!(
        result,
        Err(Rejection::Mistake { mistake: Mistake::Configuration(BuildError::NoScope), .. })
    )
}

#[tokio::test]
async fn tasks_are_in_the_scope_that_they_take_along() {
    let spawned = async || tokio::spawn(in_scope(once())).await.expect("no panic");
    // Outside of a scope, `in_scope` changes nothing.
    assert!(spawned().await.is_ok());
    assert!(once().await.is_err(), "the limiter of the process has counted the task");

    let limiter = RateLimiter::embedded();
    let counted = async { (spawned().await.is_ok(), once().await.is_ok()) };
    assert_eq!(limiter.scope(counted).await, (true, false));
    let left = async { tokio::spawn(once()).await.expect("no panic") };
    assert!(matches!(limiter.scope(left).await, Err(Rejection::Limited { .. })), "of the process");

    RateLimiter::require_scope();
    let left = async { tokio::spawn(once()).await.expect("no panic") };
    assert!(is_outside(&limiter.scope(left).await));
    assert!(is_outside(&once().await) && is_outside(&here()));
    assert!(limiter.scope(async { here() }).await.is_ok());
    // An attribute that names its limiter needs no scope.
    assert!(on(&RateLimiter::embedded()).await.is_ok());
    // A scope inside of a task, and a limiter that is called by hand.
    let nested = tokio::spawn(async move { RateLimiter::embedded().scope(spawned()).await });
    assert!(nested.await.expect("no panic").is_ok());
    assert_eq!(ratelimit_runtime::current().err(), Some(BuildError::NoScope));
}
