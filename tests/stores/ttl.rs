//! Every key in Redis has a TTL. It is as long as the count is useful, and not much longer.

use std::time::Duration;

use ratelimit_runtime::{Algorithm, Limit, RateLimiter};
use redis::Commands;
use support::ALGORITHMS;
use support::server::Server;

use crate::{TestLimiter, decision};

/// Returns the key in Redis of the tests' count.
fn redis_key(algorithm: Algorithm) -> String {
    format!("ratelimit:{algorithm}:1h:ttl{{key}}")
}

fn limit(algorithm: Algorithm, threshold: u32, period: Duration) -> Limit {
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
                ttl <= useful_ms + useful_ms / 8 + 1_000,
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
    let (limiter, mut connection) = (limiter(&server), server.connection());
    let ms = Duration::from_millis;
    // The limit, the units before the removal, and the pause after it.
    let cases = [
        // After an eighth of the period.
        (Limit::sliding("ttl", 20, ms(800)), 1, ms(101)),
        // With the next window.
        (Limit::fixed("ttl", 20, ms(300)), 1, ms(300)),
        (Limit::sliding_counter("ttl", 20, ms(300)), 1, ms(300)),
        // When the level is an eighth higher than before: 80 units, then 11 more.
        (Limit::token_bucket("ttl", 100, Duration::from_secs(3600)), 80, ms(0)),
        (Limit::leaky_bucket("ttl", 100, Duration::from_secs(3600)).burst(100), 80, ms(0)),
    ];
    for (limit, units, pause) in cases {
        assert!(limiter.check(&limit, "key", units).await.is_ok());
        let [(key, _)] = &server.ttls()[..] else { panic!("there is one key") };
        let removed: bool = connection.persist(key).expect("PERSIST");
        assert!(removed, "{key} had no TTL");
        tokio::time::sleep(pause).await;
        let more = if limit.algorithm().as_str().ends_with("bucket") { 11 } else { 1 };
        assert!(limiter.check(&limit, "key", more).await.is_ok());
        let ttl: i64 = connection.pttl(key).expect("PTTL");
        assert!(ttl > 0, "{key}: {ttl}");
        limiter.reset(&limit, "key").await.expect("a reply");
    }
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
        limiter.refund(&limit, "key", 1).await.expect("a reply");
        assert_eq!(server.ttls(), [], "{key}: all units were refunded");
        let _ = limiter.peek(&limit, "key", 1).await;
        limiter.refund(&limit, "key", 1).await.expect("a reply");
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
    // The longest TTL is two periods and an eighth.
    let wait = server.ttls().into_iter().map(|(_, ttl)| ttl).max().unwrap_or(0);
    assert!(wait <= 46, "{wait} ms");
    tokio::time::sleep(Duration::from_millis(wait as u64 + 2)).await;
    assert_eq!(server.ttls(), []);
}
