//! How long keys live in Redis: every key has a TTL, as long as it is of use and not much longer.

use std::time::Duration;

use ratelimit_runtime::{Algorithm, Limit, RateLimiter};
use redis::Commands;
use support::server::Server;

use crate::Timed;

use crate::decision;

const ALGORITHMS: [(Algorithm, &str); 5] = [
    (Algorithm::Sliding, "ratelimit:sliding:1h:life{key}"),
    (Algorithm::Fixed, "ratelimit:fixed:1h:life{key}"),
    (Algorithm::SlidingCounter, "ratelimit:sliding_counter:1h:life{key}"),
    (Algorithm::TokenBucket, "ratelimit:token_bucket:1h:life{key}"),
    (Algorithm::LeakyBucket, "ratelimit:leaky_bucket:1h:life{key}"),
];

fn limit(algorithm: Algorithm, threshold: u32, period: Duration) -> Limit {
    Limit::new("life", algorithm, threshold, period).expect("valid")
}

fn limiter(server: &Server) -> RateLimiter {
    server.builder().build().expect("valid")
}

#[tokio::test]
async fn a_key_lives_as_long_as_it_is_of_use() {
    let server = Server::start();
    let limiter = limiter(&server);
    let mut connection = server.connection();
    for (algorithm, key) in ALGORITHMS {
        let limit = limit(algorithm, 100, Duration::from_secs(3600));
        for _ in 0..5 {
            let decided = decision(limiter.check(&limit, "key", 1).await);
            let use_ms = decided.reset_after.as_micros().div_ceil(1000) as i64;
            let life: i64 = connection.pttl(key).expect("PTTL");
            assert!(life >= use_ms - 1_000, "{key} dies {life} ms after, in use for {use_ms}");
            assert!(life <= use_ms + use_ms / 8 + 1_000, "{key}: {life} ms, in use for {use_ms}");
        }
    }
    assert_eq!(server.lives().len(), ALGORITHMS.len());
}

/// Scripts know until when the TTL that they set lasts, and do not ask for it. A TTL that an operator removed
/// comes back when "Running it in production" says so.
#[tokio::test]
async fn a_ttl_that_was_removed_comes_back() {
    let server = Server::start();
    let (limiter, mut connection) = (limiter(&server), server.connection());
    let ms = Duration::from_millis;
    // The limit, the units before the removal, and the pause after it.
    let cases = [
        // An eighth of the period.
        (Limit::sliding("life", 20, ms(800)), 1, ms(101)),
        // The next window.
        (Limit::fixed("life", 20, ms(300)), 1, ms(300)),
        (Limit::sliding_counter("life", 20, ms(300)), 1, ms(300)),
        // An eighth more is taken than before: 80 units, then 11.
        (Limit::token_bucket("life", 100, Duration::from_secs(3600)), 80, ms(0)),
        (Limit::leaky_bucket("life", 100, Duration::from_secs(3600)).burst(100), 80, ms(0)),
    ];
    for (limit, units, pause) in cases {
        assert!(limiter.check(&limit, "key", units).await.is_ok());
        let [(key, _)] = &server.lives()[..] else { panic!("one key") };
        let removed: bool = connection.persist(key).expect("PERSIST");
        assert!(removed, "{key} had no TTL");
        tokio::time::sleep(pause).await;
        let more = if limit.algorithm().as_str().ends_with("bucket") { 11 } else { 1 };
        assert!(limiter.check(&limit, "key", more).await.is_ok());
        let life: i64 = connection.pttl(key).expect("PTTL");
        assert!(life > 0, "{key}: {life}");
        limiter.reset(&limit, "key").await.expect("answers");
    }
}

/// Where another clock decides, scripts ask for the TTL: it comes back with the next call.
#[tokio::test]
async fn a_ttl_that_was_removed_comes_back_at_once_by_another_clock() {
    let server = Server::start();
    let timed = Timed::redis(&server);
    let mut connection = server.connection();
    for (algorithm, key) in ALGORITHMS {
        let limit = limit(algorithm, 20, Duration::from_secs(3600));
        let limit = if limit.capacity() == 1 { limit.burst(20) } else { limit };
        assert!(timed.limiter.check(&limit, "key", 8).await.is_ok());
        let removed: bool = connection.persist(key).expect("PERSIST");
        assert!(removed, "{key} had no TTL");
        assert!(timed.limiter.check(&limit, "key", 1).await.is_ok());
        let life: i64 = connection.pttl(key).expect("PTTL");
        assert!(life > 0, "{key}: {life}");
    }
}

#[tokio::test]
async fn a_key_that_is_of_no_more_use_is_gone() {
    let server = Server::start();
    let limiter = limiter(&server);
    for (algorithm, key) in ALGORITHMS {
        let limit = limit(algorithm, 5, Duration::from_secs(3600));
        assert!(limiter.check(&limit, "key", 1).await.is_ok());
        limiter.refund(&limit, "key", 1).await.expect("answers");
        assert_eq!(server.lives(), [], "{key}: all was given back");
        let _ = limiter.peek(&limit, "key", 1).await;
        limiter.refund(&limit, "key", 1).await.expect("answers");
        assert_eq!(server.lives(), [], "{key}: looking leaves nothing behind");
    }
}

#[tokio::test]
async fn short_lives_end_by_themselves() {
    let server = Server::start();
    let limiter = limiter(&server);
    for (algorithm, _) in ALGORITHMS {
        let limit = limit(algorithm, 5, Duration::from_millis(20));
        assert!(limiter.check(&limit, "key", 1).await.is_ok());
    }
    // The longest of them: two periods and an eighth. Redis itself tells when the last one is gone.
    let wait = server.lives().into_iter().map(|(_, life)| life).max().unwrap_or(0);
    assert!(wait <= 46, "{wait} ms");
    tokio::time::sleep(Duration::from_millis(wait as u64 + 2)).await;
    assert_eq!(server.lives(), []);
}
