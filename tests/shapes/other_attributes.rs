//! The attribute above and below the attributes of other crates. Those of actix-web and tonic: `tests/web`, `examples`.

use axum::extract::Path;
use ratelimit_runtime::{RateLimiter, Rejection, rate_limit};

#[rate_limit(period = "1h", threshold = 1, key = id)]
#[tracing::instrument(skip(secret))]
async fn above_instrument(id: u64, secret: &str) -> Option<usize> {
    Some(secret.len())
}

#[tracing::instrument(skip(secret))]
#[rate_limit(period = "1h", threshold = 1, key = "{id}")]
async fn below_instrument(id: u64, secret: &str) -> Option<usize> {
    Some(secret.len())
}

/// A value that cannot be printed: `instrument` records the arguments that have names.
struct Secret(u8);

#[rate_limit(in_flight = 1, scope = "process")]
#[tracing::instrument]
async fn in_flight_above_instrument(_: Secret, Secret(first): Secret) -> Option<u8> {
    Some(first)
}

#[rate_limit(period = "1h", threshold = 1, count_if = Option::is_some)]
#[tracing::instrument]
async fn counted_above_instrument(_: Secret, Secret(first): Secret) -> Option<u8> {
    Some(first)
}

#[rate_limit(period = "1h", threshold = 1, key = id)]
#[axum::debug_handler]
async fn above_handler(Path(id): Path<u64>) -> Result<String, Rejection> {
    Ok(id.to_string())
}

#[axum::debug_handler]
#[rate_limit(period = "1h", threshold = 1, key = id)]
async fn below_handler(Path(id): Path<u64>) -> Result<String, Rejection> {
    Ok(id.to_string())
}

#[cfg(test)]
#[rate_limit(period = "1h", threshold = 1)]
#[cfg_attr(test, must_use)]
#[allow(clippy::unused_unit, reason = "tests an attribute below")]
async fn configured() -> Option<()> {
    Some(())
}

#[rate_limit(period = "1h", threshold = 1)]
#[tokio::main(flavor = "current_thread")]
async fn above_main() -> Option<u8> {
    Some(7)
}

#[rate_limit(period = "1h", threshold = 1)]
#[actix_web::test]
async fn above_actix_test() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = "1h", threshold = 1)]
#[tokio::test]
async fn above_test() -> Result<(), Rejection> {
    Ok(())
}

#[test]
fn checks_a_main_function() {
    assert_eq!((above_main(), above_main()), (Some(7), None));
}

#[tokio::test]
async fn works_beside_other_attributes() {
    let run = async {
        let calls = (above_instrument(1, "four").await, above_instrument(1, "four").await);
        assert_eq!(calls, (Some(4), None));
        let calls = (below_instrument(1, "four").await, below_instrument(1, "four").await);
        assert_eq!(calls, (Some(4), None));
        let secret = || Secret(7);
        assert_eq!(in_flight_above_instrument(secret(), secret()).await, Some(7));
        assert_eq!(counted_above_instrument(secret(), secret()).await, Some(7));
        assert_eq!(above_handler(Path(7)).await.unwrap(), "7");
        assert!(above_handler(Path(7)).await.is_err());
        assert_eq!(below_handler(Path(7)).await.unwrap(), "7");
        assert!(below_handler(Path(7)).await.is_err());
        assert_eq!((configured().await, configured().await), (Some(()), None));
    };
    RateLimiter::embedded().scope(run).await;
}
