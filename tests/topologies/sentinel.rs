//! A primary with Sentinels: after a failover, the limiter uses the new primary.

use std::time::{Duration, Instant};

use ratelimit_runtime::{Limit, RateLimiter, Rejection, StoreError};
use redis::{Client, Commands};
use support::sentinel::Sentinels;

use crate::{denying_builder, first_decision};

const LIMIT: Limit = Limit::sliding("sentinel", 5, Duration::from_secs(3600));

/// Takes all units of a key.
async fn fill(limiter: &RateLimiter, key: &str) {
    for left in (0..5).rev() {
        assert_eq!(limiter.check(&LIMIT, key, 1).await.expect("admitted").remaining, left);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_limiter_follows_failovers() {
    let mut sentinels = Sentinels::start();
    let limiter = denying_builder(&sentinels.url("master0")).build().expect("valid");
    first_decision(&limiter, &LIMIT, "connect").await;

    // A requested failover: the old primary becomes a replica.
    fill(&limiter, "requested").await;
    sentinels.wait_for_replication();
    let before = sentinels.primary();
    sentinels.fail_over();
    while sentinels.primary() == before {
        // Before, during and after the failover, calls are rejected or not decided, but never admitted.
        let result = limiter.check(&LIMIT, "requested", 1).await;
        assert!(result.is_err(), "{result:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    let (decision, _) = first_decision(&limiter, &LIMIT, "requested").await;
    assert!(!decision.allowed, "the count was lost");
    // The old primary accepts writes, which will be lost, until it becomes a replica. The limiter soon detects
    // that.
    let client = Client::open(sentinels.primary()).expect("an address");
    let mut primary = client.get_connection().expect("the primary");
    let start = Instant::now();
    while !primary.exists::<_, bool>("rl:sliding:1h:sentinel{which}").expect("EXISTS") {
        assert!(start.elapsed() < Duration::from_secs(2), "the limiter still uses the old primary");
        let _ = limiter.check(&LIMIT, "which", 1).await;
        std::thread::sleep(Duration::from_millis(10));
    }
    fill(&limiter, "after the failover").await;

    // An unplanned failover: the primary is killed.
    let now = sentinels.primary();
    sentinels.wait_for_replication();
    sentinels.kill_primary();
    let (decision, took) = first_decision(&limiter, &LIMIT, "after the failover").await;
    println!("a killed primary was replaced after {took:?}");
    assert!(!decision.allowed, "the count was lost");
    assert_ne!(sentinels.primary(), now);
}

#[tokio::test]
async fn the_error_of_an_unknown_service_names_it() {
    let sentinels = Sentinels::start();
    let limiter = denying_builder(&sentinels.url("unknown")).build().expect("valid");
    let rejected = limiter.check(&LIMIT, "key", 1).await;
    let Err(Rejection::Unavailable { error: StoreError::Connection { message, .. }, .. }) =
        rejected
    else {
        panic!("{rejected:?}")
    };
    assert!(message.contains("unknown"), "{message}");
}
