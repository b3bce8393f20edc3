//! A primary that Sentinels know: when another becomes it, decisions follow.

use std::time::{Duration, Instant};

use ratelimit_runtime::{Limit, RateLimiter, Rejection, StoreError};
use redis::{Client, Commands};
use support::sentinel::Sentinels;

use crate::{denying, recovered};

const LIMIT: Limit = Limit::sliding("sentinel", 5, Duration::from_secs(3600));

async fn fill(limiter: &RateLimiter, key: &str) {
    for left in (0..5).rev() {
        assert_eq!(limiter.check(&LIMIT, key, 1).await.expect("admitted").remaining, left);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failovers_are_followed() {
    let mut sentinels = Sentinels::start();
    let limiter = denying(&sentinels.url("master0")).build().expect("valid");
    recovered(&limiter, &LIMIT, "connect").await;

    // One that is asked for: the old primary lives on as a replica.
    fill(&limiter, "asked for").await;
    sentinels.wait_for_replication();
    let before = sentinels.primary();
    sentinels.fail_over();
    while sentinels.primary() == before {
        // Before, during and after: rejected, or not decided, but never admitted.
        let result = limiter.check(&LIMIT, "asked for", 1).await;
        assert!(result.is_err(), "{result:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    let (decision, _) = recovered(&limiter, &LIMIT, "asked for").await;
    assert!(!decision.allowed, "the count was lost");
    // Until it is told, the old primary takes writes that will be lost. That is noticed soon.
    let client = Client::open(sentinels.primary()).expect("an address");
    let mut primary = client.get_connection().expect("the primary");
    let start = Instant::now();
    while !primary.exists::<_, bool>("ratelimit:sliding:1h:sentinel{which}").expect("EXISTS") {
        assert!(start.elapsed() < Duration::from_secs(2), "the old primary is still asked");
        let _ = limiter.check(&LIMIT, "which", 1).await;
        std::thread::sleep(Duration::from_millis(10));
    }
    fill(&limiter, "after it").await;

    // One that has to be noticed: the primary is killed.
    let now = sentinels.primary();
    sentinels.wait_for_replication();
    sentinels.kill_primary();
    let (decision, took) = recovered(&limiter, &LIMIT, "after it").await;
    println!("a killed primary was replaced after {took:?}");
    assert!(!decision.allowed, "the count was lost");
    assert_ne!(sentinels.primary(), now);
}

#[tokio::test]
async fn a_service_that_nobody_knows_is_named() {
    let sentinels = Sentinels::start();
    let limiter = denying(&sentinels.url("nobody")).build().expect("valid");
    let rejected = limiter.check(&LIMIT, "key", 1).await;
    let Err(Rejection::Unavailable { error: StoreError::Connection { message, .. }, .. }) =
        rejected
    else {
        panic!("{rejected:?}")
    };
    assert!(message.contains("nobody"), "{message}");
}
