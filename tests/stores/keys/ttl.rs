//! Every key in Redis has a TTL. It is as long as the count is useful, and not much longer.

use std::time::Duration;

use futures::future::join_all;
use ratelimit_runtime::{Algorithm, Limit, RateLimiter};
use redis::Commands;
use support::ALGORITHMS;
use support::server::Server;

use crate::{TestLimiter, decision};

/// Returns the key in Redis of the tests' count.
fn redis_key(algorithm: Algorithm) -> String {
    format!("rl:{algorithm}:1h:ttl{{key}}")
}

fn limit(algorithm: Algorithm, threshold: u64, period: Duration) -> Limit {
    Limit::new("ttl", algorithm, threshold, period).expect("valid")
}

fn limiter(server: &Server) -> RateLimiter {
    server.builder().build().expect("valid")
}

#[tokio::test]
async fn the_ttl_covers_the_useful_life_of_a_key() {
    let server = Server::start();
    let limiter = limiter(&server);
    let mut connection = server.connection();
    for algorithm in ALGORITHMS {
        let key = &redis_key(algorithm);
        let limit = limit(algorithm, 100, Duration::from_secs(3600));
        for _ in 0..5 {
            let decided = decision(limiter.check(&limit, "key", 1).await);
            let useful_ms = decided.reset_after.as_micros().div_ceil(1000) as i64;
            let ttl: i64 = connection.pttl(key).expect("PTTL");
            assert!(ttl >= useful_ms - 1_000, "{key}: {ttl} ms, useful for {useful_ms}");
            assert!(
                ttl <= useful_ms + (useful_ms / 8).max(10_000) + 1_000,
                "{key}: {ttl} ms, useful for {useful_ms}"
            );
        }
    }
    assert_eq!(server.ttls().len(), ALGORITHMS.len());
}

/// The state contains the end of the TTL, so a script does not read the TTL. The script sets a TTL that an
/// operator removed at the times that "Running it in production" documents.
#[tokio::test]
async fn a_removed_ttl_comes_back_at_the_documented_times() {
    let server = Server::start();
    let limiter = limiter(&server);
    let second = Duration::from_secs(1);
    // The limit, the units before the removal, the pause after it, and the units then.
    let cases = [
        // After ten seconds, which are longer than an eighth of the period.
        (Limit::sliding("ttl", 20, 60 * second), 1, 10 * second, 1),
        // With a window that ends after the removed TTL would have.
        (Limit::fixed("ttl", 20, second), 1, 11 * second, 1),
        (Limit::sliding_counter("ttl", 20, second), 1, 11 * second, 1),
        // When the level is an eighth higher than before.
        (Limit::token_bucket("ttl", 100, 3_600 * second), 80, Duration::ZERO, 11),
        (Limit::leaky_bucket("ttl", 100, 3_600 * second).burst(100), 80, Duration::ZERO, 11),
    ];
    join_all(cases.into_iter().map(async |(limit, before, pause, after)| {
        let mut connection = server.connection();
        let key = format!("rl:{}:*", limit.algorithm());
        limiter.check(&limit, "key", before).await.expect("admitted");
        let keys: Vec<String> = connection.keys(&key).expect("KEYS");
        let [key] = &keys[..] else { panic!("one key of {key}: {keys:?}") };
        let removed: bool = connection.persist(key).expect("PERSIST");
        assert!(removed, "{key} had no TTL");
        tokio::time::sleep(pause + Duration::from_millis(100)).await;
        limiter.check(&limit, "key", after).await.expect("admitted");
        let ttl: i64 = connection.pttl(key).expect("PTTL");
        assert!(ttl > 0, "{key}: {ttl}");
    }))
    .await;
}

/// If the limiter sends its own clock, the script reads the TTL at each call, so the next call sets it again.
#[tokio::test]
async fn a_removed_ttl_comes_back_at_once_with_another_clock() {
    let server = Server::start();
    let test = TestLimiter::redis(&server);
    let mut connection = server.connection();
    for algorithm in ALGORITHMS {
        let key = &redis_key(algorithm);
        let limit = limit(algorithm, 20, Duration::from_secs(3600));
        let limit = if limit.capacity() == 1 { limit.burst(20) } else { limit };
        assert!(test.limiter.check(&limit, "key", 8).await.is_ok());
        let removed: bool = connection.persist(key).expect("PERSIST");
        assert!(removed, "{key} had no TTL");
        assert!(test.limiter.check(&limit, "key", 1).await.is_ok());
        let ttl: i64 = connection.pttl(key).expect("PTTL");
        assert!(ttl > 0, "{key}: {ttl}");
    }
}

#[tokio::test]
async fn a_key_whose_units_are_all_refunded_is_deleted() {
    let server = Server::start();
    let limiter = limiter(&server);
    for algorithm in ALGORITHMS {
        let key = &redis_key(algorithm);
        let limit = limit(algorithm, 5, Duration::from_secs(3600));
        assert!(limiter.check(&limit, "key", 1).await.is_ok());
        limiter.credit(&limit, "key", 1).await.expect("a reply");
        assert_eq!(server.ttls(), [], "{key}: all units were refunded");
        let _ = limiter.peek(&limit, "key", 1).await;
        limiter.credit(&limit, "key", 1).await.expect("a reply");
        assert_eq!(server.ttls(), [], "{key}: a peek writes nothing");
    }
}

#[tokio::test]
async fn keys_with_short_periods_expire() {
    let server = Server::start();
    let limiter = limiter(&server);
    for algorithm in ALGORITHMS {
        let limit = limit(algorithm, 5, Duration::from_millis(20));
        assert!(limiter.check(&limit, "key", 1).await.is_ok());
    }
    // The longest TTL is two periods and ten seconds.
    let wait = server.ttls().into_iter().map(|(_, ttl)| ttl).max().unwrap_or(0);
    assert!(wait <= 10_042, "{wait} ms");
    tokio::time::sleep(Duration::from_millis(wait as u64 + 2)).await;
    assert_eq!(server.ttls(), []);
}
