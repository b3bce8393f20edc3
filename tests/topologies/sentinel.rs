//! A primary with Sentinels: after a failover, the limiter uses the new primary.

use std::time::{Duration, Instant};

use ratelimit_runtime::{Limit, Rejection, StoreError};
use redis::{Client, Commands};
use support::sentinel::Sentinels;

use crate::{denying_builder, first_decision};

const LIMIT: Limit = Limit::sliding("sentinel", 5, Duration::from_secs(3600));

/// The old primary becomes a replica. The matrix has a primary that is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_limiter_follows_a_failover() {
    let sentinels = Sentinels::start();
    let unknown = denying_builder(&sentinels.url("unknown")).build().expect("valid");
    let rejected = unknown.check(&LIMIT, "key", 1).await;
    let Err(Rejection::Unavailable { error: StoreError::Connection { message, .. }, .. }) =
        rejected
    else {
        panic!("{rejected:?}")
    };
    assert!(message.contains("unknown"), "{message}");

    let limiter = denying_builder(&sentinels.url("master0")).build().expect("valid");
    first_decision(&limiter, &LIMIT, "connect").await;
    for left in (0..5).rev() {
        let decision = limiter.check(&LIMIT, "key", 1).await.expect("admitted");
        assert_eq!(decision.remaining, left);
    }
    sentinels.wait_for_replication();
    let before = sentinels.primary();
    sentinels.fail_over();
    while sentinels.primary() == before {
        // Before, during and after the failover, calls are rejected or not decided, but never admitted.
        let result = limiter.check(&LIMIT, "key", 1).await;
        assert!(result.is_err(), "{result:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    let decision = first_decision(&limiter, &LIMIT, "key").await;
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
}
