//! The memory of the embedded store: a decision for a known key allocates nothing, and floods of keys or calls do
//! not make the store grow beyond its bounds.

use std::hint::black_box;
use std::net::{IpAddr, Ipv6Addr};
use std::task::{Context, Waker};
use std::thread::sleep;
use std::time::Duration;

use ratelimit_runtime::{
    Clock, Key, Limit, Part, RateLimiter, Rejection, VirtualClock, rate_limit,
};
use support::poll_once;

const LIMITS: [Limit; 5] = [
    Limit::sliding("allocations", 4, Duration::from_secs(3600)),
    Limit::fixed("allocations", 4, Duration::from_secs(3600)),
    Limit::sliding_counter("allocations", 4, Duration::from_secs(3600)),
    Limit::token_bucket("allocations", 4, Duration::from_secs(3600)),
    Limit::leaky_bucket("allocations", 4, Duration::from_secs(3600)),
];

#[rate_limit(period = "1h", threshold = 3, algo = "fixed", key = "{tenant}:{user}")]
async fn annotated(tenant: &str, user: u64) -> Result<(), Rejection> {
    black_box((tenant, user));
    Ok(())
}

/// Rejects calls, because the first rejection of a limiter on a thread allocates the list of rejected keys.
fn reject_some(limiter: &RateLimiter) {
    for limit in LIMITS {
        while poll_once(limiter.check(&limit, "rejected", 1)).is_ok() {}
    }
}

/// Asserts that admitted and rejected calls of a key allocate nothing.
fn assert_no_allocations(limiter: &RateLimiter, key: impl Key + Copy) {
    for limit in LIMITS {
        // A sliding window allocates its ring with the first call of another time.
        for _ in 0..2 {
            let _ = black_box(poll_once(limiter.check(&limit, key, 1)));
            sleep(Duration::from_micros(10));
        }
        // The first two are admitted, unless the burst is 1, and the rest are rejected.
        let allocations = allocation_counter::measure(|| {
            for _ in 0..6 {
                let _ = black_box(poll_once(limiter.check(&limit, key, 1)));
            }
        });
        assert_eq!(allocations.count_total, 0, "{}", limit.algorithm());
    }
}

#[test]
fn a_decision_for_a_known_key_allocates_nothing() {
    let limiter = RateLimiter::embedded();
    reject_some(&limiter);
    let long = "long ".repeat(1_000);
    assert_no_allocations(&limiter, "alice");
    assert_no_allocations(&limiter, &*long);
    assert_no_allocations(&limiter, &String::from("bob"));
    assert_no_allocations(&limiter, 42_u64);
    assert_no_allocations(&limiter, -1_i128);
    assert_no_allocations(&limiter, IpAddr::V6(Ipv6Addr::LOCALHOST));
    assert_no_allocations(&limiter, uuid::Uuid::nil());
    assert_no_allocations(&limiter, ("tenant", 7, (true, 'x')));
    assert_no_allocations(&limiter, ());
}

/// Also if metrics record it, as they do here.
#[test]
fn a_call_of_several_limits_allocates_nothing() {
    let limiter = RateLimiter::embedded();
    reject_some(&limiter);
    // The last one would reject the second call.
    let parts: Vec<_> = LIMITS[..4].iter().map(|limit| Part::new(limit, &"several", 1)).collect();
    for _ in 0..2 {
        poll_once(limiter.check_all(&parts)).expect("one of the first calls");
        sleep(Duration::from_micros(10));
    }
    let allocations = allocation_counter::measure(|| {
        for admitted in [true, true, false, false] {
            assert_eq!(black_box(poll_once(limiter.check_all(&parts))).is_ok(), admitted);
        }
    });
    assert_eq!(allocations.count_total, 0);
}

#[test]
fn a_call_of_an_annotated_function_allocates_nothing() {
    let limiter = RateLimiter::embedded();
    reject_some(&limiter);
    poll_once(limiter.scope(annotated("shop", 7))).expect("the first call");
    let allocations = allocation_counter::measure(|| {
        for _ in 0..6 {
            let _ = black_box(poll_once(limiter.scope(annotated("shop", 7))));
        }
    });
    assert_eq!(allocations.count_total, 0);
}

#[test]
fn a_flood_of_keys_stays_within_the_bound_of_the_store() {
    let limiter = RateLimiter::builder().max_keys(10_000).build().expect("valid");
    let flood = |keys: std::ops::Range<u64>| {
        allocation_counter::measure(|| {
            for key in keys {
                poll_once(limiter.check(&LIMITS[1], key, 1)).expect("a new key");
            }
        })
    };
    let first = flood(0..100_000);
    assert!(first.bytes_current < 10_000 * 400, "{} bytes for 10,000 keys", first.bytes_current);
    let then = flood(100_000..500_000);
    assert!(then.bytes_current < 100_000, "{} bytes more", then.bytes_current);
}

#[test]
fn a_log_holds_only_the_entries_of_its_window() {
    let clock = VirtualClock::new();
    let limiter =
        RateLimiter::builder().clock(Clock::Virtual(clock.clone())).build().expect("valid");
    let limit = Limit::sliding("log", 1_000, Duration::from_secs(1));
    let busy = |calls: u64| {
        allocation_counter::measure(|| {
            for _ in 0..calls {
                poll_once(limiter.check(&limit, "key", 1)).expect("one a millisecond");
                clock.advance(Duration::from_millis(1));
            }
        })
    };
    busy(5_000);
    let more = busy(100_000);
    assert!(more.bytes_current <= 0, "{} bytes more", more.bytes_current);
    // With fewer calls, the log shrinks.
    let quiet = allocation_counter::measure(|| {
        for _ in 0..10 {
            clock.advance(Duration::from_millis(600));
            poll_once(limiter.check(&limit, "key", 1)).expect("below the threshold");
        }
    });
    assert!(quiet.bytes_current < -3_500, "{} bytes", quiet.bytes_current);
}

#[test]
fn a_sliding_key_takes_at_most_1000_bytes_at_a_hundred_calls_and_few_at_the_first() {
    // The allocator adds up to 8 bytes to a block, and rounds it up to 16.
    const BLOCK: i64 = 16;
    for (keys, period) in [(5_000, 1), (5_800, 60), (6_600, 3_600)] {
        // With the real clock, calls would leave the window.
        let clock = VirtualClock::new();
        let builder = RateLimiter::builder().clock(Clock::Virtual(clock.clone()));
        let limiter = builder.build().expect("valid");
        let limit = Limit::sliding("memory", 100, Duration::from_secs(period));
        let take = |calls: u64| {
            let allocations = allocation_counter::measure(|| {
                for _ in 0..calls {
                    // Each call has a record of its own.
                    clock.advance(Duration::from_micros(1));
                    for key in 0..keys {
                        poll_once(limiter.check(&limit, key, 1)).expect("up to the threshold");
                    }
                }
            });
            allocations.bytes_current / i64::from(keys) + BLOCK
        };
        let first = take(1);
        assert!(first <= 240, "{first} bytes at the first call");
        let full = first + take(99) - BLOCK;
        println!("{first} bytes at the first call, {full} bytes at a hundred");
        assert!(full <= 1_000, "{full} bytes at a hundred calls of {keys} keys");
    }
}

#[test]
fn a_runtime_that_ends_frees_its_queued_calls() {
    let server = support::server::Server::start();
    let limiter = server.builder().build().expect("valid");
    let limit = Limit::sliding("queued", 1_000, Duration::from_secs(3600));
    let key = "k".repeat(10_000);
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let mut context = Context::from_waker(Waker::noop());
            let mut calls: Vec<_> =
                (0..100).map(|call| Box::pin(limiter.check(&limit, (call, &key), 1))).collect();
            for call in &mut calls {
                // One poll queues the call, and cannot decide it.
                assert!(call.as_mut().poll(&mut context).is_pending());
            }
        });
    };
    run();
    let ten = allocation_counter::measure(|| (0..10).for_each(|_| run()));
    assert!(ten.bytes_current < 1_000_000, "{} bytes; the keys were 10 MB", ten.bytes_current);
}

/// A check that goes to Redis allocates its charge, the key in Redis, and one box for its future.
#[test]
fn a_check_on_redis_has_one_box() {
    // Nothing connects before the first poll.
    let limiter = RateLimiter::builder().redis("redis://127.0.0.1:1").build().expect("valid");
    let limit = Limit::token_bucket("boxes", 3, Duration::from_secs(3600));
    let waiting = limit.wait(Duration::from_secs(1));
    let leased = Limit::token_bucket("boxes", 3_000, Duration::from_secs(3600)).lease(50);
    // The first check of a process starts its clock, and the first of a limit with a wait creates the lines.
    drop(limiter.check(&limit, "key", 1));
    drop(limiter.check(&waiting, "key", 1));
    for (limit, most) in [(limit, 3), (waiting, 3), (leased, 4)] {
        let mut check = None;
        let allocations = allocation_counter::measure(|| {
            check = Some(limiter.check(&limit, "key", 1));
        });
        assert!(allocations.count_total <= most, "{limit:?}: {}", allocations.count_total);
        drop(check);
    }
}
