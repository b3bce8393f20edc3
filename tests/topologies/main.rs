//! The topologies of Redis: a cluster, a primary with Sentinels, and a single server with TLS or a Unix socket.

mod cluster;
mod credentials;
mod moving_slots;
mod replicas;
mod single_server;
mod strict_keys;

use std::time::Duration;

use ratelimit_runtime::{
    Builder, Decision, Key, Limit, OnError, Part, RateLimiter, Rejection, StoreError,
};
use support::cluster::Cluster;
use support::limits::{HOUR, SECOND, limits};
use support::wait::wait_for;
use tokio::task::JoinSet;

/// The keys of [`use_all_operations`], on all nodes.
const KEYS: u64 = 12;
const SLOTS: Limit = Limit::in_flight("slots", 2).hold(HOUR);
const LEASED: Limit = Limit::token_bucket("leased", 10_000, HOUR).lease(20);
const WAITING: Limit = Limit::leaky_bucket("waiting", 100, SECOND).wait(SECOND);

/// Returns a builder for limiters that reject calls which Redis does not decide, and whose calls all reach Redis.
fn denying_builder(url: &str) -> Builder {
    let builder = RateLimiter::builder().redis(url).on_error(OnError::Deny);
    // Long enough for a busy test machine.
    builder.deadline(Duration::from_secs(5)).cache_rejections(false)
}

fn denying(url: &str) -> RateLimiter {
    denying_builder(url).build().expect("valid")
}

fn start_cluster() -> (Cluster, RateLimiter) {
    let cluster = Cluster::start(0);
    let limiter = denying(&cluster.url());
    (cluster, limiter)
}

/// Takes one unit. Returns the units that remain.
async fn take(limiter: &RateLimiter, limit: &Limit, key: impl Key) -> u64 {
    limiter.check(limit, key, 1).await.expect("admitted").remaining
}

/// Returns the units that remain, and takes none.
async fn remaining(limiter: &RateLimiter, limit: &Limit, key: impl Key) -> u64 {
    limiter.peek(limit, key, 1).await.expect("a decision").remaining
}

async fn error_of(limiter: &RateLimiter, limit: &Limit) -> StoreError {
    match limiter.check(limit, "key", 1).await {
        Err(Rejection::Unavailable { error, .. }) => error,
        other => panic!("{other:?}"),
    }
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
    wait_for(async || match limiter.check(limit, key, 1).await {
        Ok(decision) | Err(Rejection::Limited { decision, .. }) => Some(decision),
        Err(_) => None,
    })
    .await
}

/// Calls and operations of each kind, on keys of all nodes.
async fn use_all_operations(limiter: &RateLimiter) {
    for limit in limits("replicas", 3, HOUR) {
        let mut calls = JoinSet::new();
        for call in 0..KEYS * 8 {
            calls.spawn(limiter.check(&limit, call % KEYS, 1));
        }
        for result in calls.join_all().await {
            is_admitted(result);
        }
        for key in 0..KEYS {
            let settled = limiter.acquire(&limit, ("settled", key), 1).await.expect("admitted");
            settled.settle(0);
            limiter.peek(&limit, key, 1).await.expect("decided");
            limiter.operator().usage(&limit, key).await.expect("decided");
            limiter.credit(&limit, key, 1).await.expect("decided");
            limiter.block(&limit, key, HOUR).await.expect("blocked");
            limiter.unblock(&limit, key).await.expect("unblocked");
            limiter.reset(&limit, key).await.expect("reset");
        }
        limiter.operator().keys(&limit, None).await.expect("read");
    }
    let all: Vec<_> = limits("several", 3, HOUR).collect();
    let parts: Vec<_> = all.iter().map(|limit| Part::new(limit, &"key", 1)).collect();
    limiter.check_all(&parts).await.expect("admitted");
    let rate = Limit::fixed("beside", 100, HOUR);
    for key in 0..KEYS {
        let parts = [Part::new(&rate, &key, 1), Part::new(&SLOTS, &key, 1)];
        let running = limiter.acquire_all(&parts).await.expect("admitted");
        limiter.acquire(&SLOTS, key, 2).await.expect_err("busy");
        limiter.peek(&SLOTS, key, 0).await.expect("decided");
        limiter.operator().usage(&SLOTS, key).await.expect("decided");
        drop(running);
        for _ in 0..4 {
            limiter.check(&LEASED, key, 1).await.expect("admitted");
            limiter.check(&WAITING, key, 1).await.expect("admitted");
        }
        limiter.reset(&SLOTS, key).await.expect("reset");
    }
    limiter.flush().await.expect("settled");
    limiter.ping().await.expect("all nodes reply");
    limiter.operator().shared_rules().await.expect("read");
    limiter.operator().rule_changes(10).await.expect("read");
    limiter.operator().fleet().await.expect("read");
}
