//! The embedded store: exact with concurrent threads, bounded under a flood of keys.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ratelimit_runtime::{Algorithm, Clock, Limit, RateLimiter, VirtualClock};
use support::ALGORITHMS;

#[test]
fn eight_threads_admit_exactly_the_threshold() {
    for algorithm in ALGORITHMS {
        let mut limit = Limit::new("threads", algorithm, 10_000, Duration::from_secs(86_400 * 365))
            .expect("valid");
        if algorithm == Algorithm::LeakyBucket {
            limit = limit.burst(10_000);
        }
        // The clock stands still, in the middle of a window of the counter.
        let clock = VirtualClock::at(Duration::from_secs(86_400 * 365 * 60 + 43_200));
        let limiter = RateLimiter::builder().clock(Clock::Virtual(clock)).build().expect("valid");
        let admitted = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let runtime =
                        tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
                    runtime.block_on(async {
                        for _ in 0..5_000 {
                            if limiter.check(&limit, "one key", 1).await.is_ok() {
                                admitted.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    });
                });
            }
        });
        assert_eq!(admitted.into_inner(), 10_000, "{algorithm}");
    }
}

#[tokio::test]
async fn a_full_store_evicts_the_keys_that_reset_first() {
    const SHORT: Limit = Limit::fixed("short", 1, Duration::from_secs(10));
    const LONG: Limit = Limit::fixed("long", 1, Duration::from_secs(1_000_000));
    let clock = VirtualClock::new();
    let limiter =
        RateLimiter::builder().max_keys(6_400).clock(Clock::Virtual(clock)).build().expect("valid");
    for key in 0..640 {
        limiter.check(&LONG, key, 1).await.expect("a new key");
    }
    for key in 0..100_000 {
        limiter.check(&SHORT, key, 1).await.expect("a new key");
    }
    let mut kept = 0;
    for key in 0..640 {
        kept += u64::from(limiter.check(&LONG, key, 1).await.is_err());
    }
    // About 600 are kept, and of 150 runs the least were 524: which keys share a shard is random, and so is which
    // entries of a shard are compared. Evictions at random would keep none.
    assert!(kept >= 450, "a flood of short windows left only {kept} of 640 long windows");
}

#[tokio::test]
async fn keys_whose_windows_have_ended_make_room() {
    const LIMIT: Limit = Limit::fixed("room", 1, Duration::from_secs(10));
    let clock = VirtualClock::new();
    let limiter = RateLimiter::builder()
        .max_keys(12_800)
        .clock(Clock::Virtual(clock.clone()))
        .build()
        .expect("valid");
    // Each round leaves 3,000 keys whose windows have ended. If the store kept them, it would be full in the
    // fifth round, and would evict keys in use.
    for round in 0..20_u64 {
        for key in 0..3_000_u64 {
            limiter.check(&LIMIT, (round, key), 1).await.expect("a new key");
        }
        for key in 0..3_000_u64 {
            let again = limiter.check(&LIMIT, (round, key), 1).await;
            assert!(again.is_err(), "round {round}: key {key} was evicted while in use");
        }
        clock.advance(Duration::from_secs(10));
    }
}

#[tokio::test]
async fn keys_in_use_are_not_evicted_while_there_is_room() {
    const LIMIT: Limit = Limit::fixed("use", 1, Duration::from_secs(10));
    let clock = VirtualClock::new();
    let limiter = RateLimiter::builder()
        .max_keys(64_000)
        .clock(Clock::Virtual(clock.clone()))
        .build()
        .expect("valid");
    for key in 0..1_000_u64 {
        limiter.check(&LIMIT, key, 1).await.expect("a new key");
    }
    clock.advance(Duration::from_micros(9_999_999));
    // New keys look for keys whose windows have ended, and find none.
    for key in 1_000..20_000_u64 {
        limiter.check(&LIMIT, key, 1).await.expect("a new key");
    }
    for key in 0..1_000_u64 {
        assert!(limiter.check(&LIMIT, key, 1).await.is_err(), "key {key} was evicted while in use");
    }
}

/// Keys of any bytes and any length are different keys.
#[tokio::test]
async fn keys_can_be_any_bytes() {
    let server = support::server::Server::start();
    let limit = Limit::sliding("bytes", 1, Duration::from_secs(3600));
    let all: Vec<u8> = (0..=255).collect();
    let mut keys: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
    keys.extend([all.clone(), all.repeat(4096), [&all.repeat(4096)[..], b"x"].concat(), vec![]]);
    for limiter in [RateLimiter::embedded(), server.builder().build().expect("valid")] {
        for key in &keys {
            let (length, key) = (key.len(), &**key);
            assert!(limiter.check(&limit, key, 1).await.is_ok(), "{length} bytes");
            assert!(limiter.check(&limit, key, 1).await.is_err(), "{length} bytes");
        }
    }
    assert_eq!(server.ttls().len(), keys.len());
}
