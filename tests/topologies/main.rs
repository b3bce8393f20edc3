//! The topologies of Redis: a cluster, a primary with Sentinels, and a single server with TLS or a Unix socket.

mod between;
mod cluster;
mod cluster_several;
mod misplaced;
mod moving_slots;
mod replicas;
mod sentinel;
mod single_server;
mod strict_keys;

use std::time::{Duration, Instant};

use ratelimit_runtime::{Builder, Decision, Limit, OnError, RateLimiter, Rejection};
use support::cluster::Cluster;

/// Returns a builder for limiters that reject calls which Redis does not decide. The deadline is long enough for a
/// busy test machine.
fn denying_builder(url: &str) -> Builder {
    let deadline = Duration::from_secs(5);
    let builder = RateLimiter::builder().redis(url).deadline(deadline).on_error(OnError::Deny);
    // Each call has to reach Redis.
    builder.cache_rejections(false)
}

/// Starts a cluster without replicas, and builds a limiter on it.
fn start_cluster() -> (Cluster, RateLimiter) {
    let cluster = Cluster::start(0);
    let limiter = denying_builder(&cluster.url()).build().expect("valid");
    (cluster, limiter)
}

/// Returns whether a call is admitted. Panics if it is not decided.
fn is_admitted(result: Result<Decision, Rejection>) -> bool {
    match result {
        Ok(_) => true,
        Err(Rejection::Limited { .. }) => false,
        Err(other) => panic!("{other:?}"),
    }
}

/// Returns the first decision after a failure.
async fn first_decision(limiter: &RateLimiter, limit: &Limit, key: &str) -> Decision {
    let start = Instant::now();
    loop {
        match limiter.check(limit, key, 1).await {
            Ok(decision) | Err(Rejection::Limited { decision, .. }) => return decision,
            Err(error) => assert!(start.elapsed() < Duration::from_secs(30), "{error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
