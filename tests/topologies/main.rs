//! Where Redis may be: a cluster, behind Sentinels, behind TLS, at a socket of this machine.

mod cluster;
mod sentinel;
mod single_server;

use std::time::{Duration, Instant};

use ratelimit_runtime::{Builder, Decision, Limit, OnError, RateLimiter, Rejection};

/// A limiter whose errors are seen, with a deadline that a busy test machine keeps.
fn denying(url: &str) -> Builder {
    let deadline = Duration::from_secs(5);
    let builder = RateLimiter::builder().redis(url).deadline(deadline).on_error(OnError::Deny);
    // Each call is to be asked about.
    builder.cache_rejections(false)
}

/// Whether the call is admitted; errors are not expected.
async fn admits(limiter: &RateLimiter, limit: &Limit, key: &str) -> bool {
    match limiter.check(limit, key, 1).await {
        Ok(_) => true,
        Err(Rejection::Limited { .. }) => false,
        Err(other) => panic!("{other:?}"),
    }
}

/// The first decision after a failure, and how long it took to come.
async fn recovered(limiter: &RateLimiter, limit: &Limit, key: &str) -> (Decision, Duration) {
    let start = Instant::now();
    loop {
        match limiter.check(limit, key, 1).await {
            Ok(decision) | Err(Rejection::Limited { decision, .. }) => {
                return (decision, start.elapsed());
            }
            Err(error) => assert!(start.elapsed() < Duration::from_secs(30), "{error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
