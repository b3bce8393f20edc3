//! Debts: units that a call has used beyond its charge.

use std::time::Duration;

use ratelimit_runtime::Limit;
use support::limits::{MINUTE, limits};
use support::server::Server;

use super::{acquire, limiters, remaining};
use crate::decision;

/// A debt holds until it has left the window or drained. The wait is tight.
#[tokio::test]
async fn units_beyond_the_charge_are_a_debt() {
    let server = Server::start();
    let (limiters, clock) = limiters(&server);
    for limiter in &limiters {
        for limit in limits("permits", 100, MINUTE) {
            acquire(limiter, &limit, 40).await.settle(150);
            assert_eq!(remaining(limiter, &limit).await, 0, "{limit:?}");
            let rejected = decision(limiter.peek(&limit, "key", 1).await);
            assert!(!rejected.allowed);
            clock.advance(rejected.retry_after - Duration::from_micros(1));
            assert!(!decision(limiter.peek(&limit, "key", 1).await).allowed, "{limit:?}");
            clock.advance(Duration::from_micros(1));
            acquire(limiter, &limit, 1).await.keep();
            clock.advance(10 * MINUTE);
        }
    }
}

/// The largest debts neither wrap nor live for ever.
#[tokio::test]
async fn a_debt_saturates() {
    let server = Server::start();
    let (limiters, clock) = limiters(&server);
    for limit in limits("permits", 1_000, MINUTE) {
        // The clock ends in the year 2112, so the longest debt drains only if it starts long before.
        clock.set(MINUTE);
        let mut resets = Vec::new();
        for limiter in &limiters {
            let mut permits = Vec::new();
            for _ in 0..3 {
                // The permit of a call that costs nothing can be settled as well.
                permits.push(acquire(limiter, &limit, 0).await);
            }
            for permit in permits {
                permit.settle(u64::MAX);
                assert_eq!(remaining(limiter, &limit).await, 0, "{limit:?}");
            }
            resets.push(decision(limiter.peek(&limit, "key", 1).await).reset_after);
        }
        assert_eq!(resets[0], resets[1], "{limit:?}");
        assert!(resets[0] <= Duration::from_secs(36_525 * 86_400), "{limit:?}: {resets:?}");
        clock.advance(resets[0]);
        for limiter in &limiters {
            assert_eq!(remaining(limiter, &limit).await, 1_000, "{limit:?}");
        }
    }
    server.assert_all_keys_expire();
}

/// A debt of the largest size in a log whose ring is full: a further debt changes nothing.
#[tokio::test]
async fn a_saturated_log_keeps_its_entries() {
    let server = Server::start();
    let (limiters, _) = limiters(&server);
    let limit = Limit::sliding("saturated", 100_000, MINUTE);
    for limiter in &limiters {
        for _ in 0..63 {
            acquire(limiter, &limit, 1).await.keep();
        }
        let permits = [acquire(limiter, &limit, 0).await, acquire(limiter, &limit, 0).await];
        for permit in permits {
            permit.settle(u64::MAX);
            assert_eq!(remaining(limiter, &limit).await, 0);
        }
    }
}
