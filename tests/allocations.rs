//! The memory of calls: a decision for a known key allocates nothing, and the logs of the embedded store keep within
//! their bounds.

use std::hint::black_box;
use std::net::{IpAddr, Ipv6Addr};
use std::thread::sleep;
use std::time::Duration;

use futures::future::poll_immediate;
use ratelimit_runtime::{Key, Limit, Part, RateLimiter, Rejection, VirtualClock, rate_limit};
use support::clocks::embedded_on;
use support::limits::{DAY, HOUR};
use support::poll_once;
use support::random::Random;

const LIMITS: [Limit; 5] = [
    Limit::sliding("allocations", 4, HOUR),
    Limit::fixed("allocations", 4, HOUR),
    Limit::sliding_counter("allocations", 4, HOUR),
    Limit::token_bucket("allocations", 4, HOUR),
    Limit::leaky_bucket("allocations", 4, HOUR).burst(4),
];

#[rate_limit(period = "1h", threshold = 3, algo = "fixed", key = "{tenant}:{user}")]
async fn annotated(tenant: &str, user: u64) -> Result<(), Rejection> {
    black_box((tenant, user));
    Ok(())
}

/// Returns a limiter that has rejected calls: the first rejection of a limiter on a thread allocates the list of
/// rejected keys.
fn limiter() -> RateLimiter {
    let limiter = RateLimiter::embedded();
    for limit in LIMITS {
        while poll_once(limiter.check(&limit, "rejected", 1)).is_ok() {}
    }
    limiter
}

/// Asserts that admitted calls allocate nothing, and rejected ones only the box of their rejection. `call` returns
/// whether it is admitted: the first three times at least.
fn assert_no_allocations(what: &str, call: impl Fn() -> bool) {
    let measure = |calls: usize, admitted: bool| {
        let allocations = allocation_counter::measure(|| {
            for _ in 0..calls {
                assert_eq!(black_box(call()), admitted, "{what}");
            }
        });
        let boxes = if admitted { 0 } else { calls as u64 };
        assert_eq!(allocations.count_total, boxes, "{what}, admitted: {admitted}");
    };
    // A sliding window allocates its ring with the first call of another time.
    for _ in 0..2 {
        assert!(call(), "{what}");
        sleep(Duration::from_micros(10));
    }
    measure(1, true);
    // The first rejection of a key adds it to the list of rejected keys.
    while call() {}
    measure(3, false);
}

/// Also of several limits, and of an annotated function whose metrics are recorded.
#[test]
fn a_decision_for_a_known_key_allocates_nothing() {
    fn check(limiter: &RateLimiter, key: impl Key + Copy) {
        for limit in LIMITS {
            let call = || poll_once(limiter.check(&limit, key, 1)).is_ok();
            assert_no_allocations(limit.algorithm().as_str(), call);
        }
    }
    let limiter = limiter();
    check(&limiter, "alice");
    // The longest key whose text is not shortened.
    check(&limiter, &*"l".repeat(256));
    check(&limiter, &String::from("bob"));
    check(&limiter, 42_u64);
    check(&limiter, -1_i128);
    check(&limiter, IpAddr::V6(Ipv6Addr::LOCALHOST));
    check(&limiter, uuid::Uuid::nil());
    check(&limiter, ("tenant", 7, (true, 'x')));
    check(&limiter, ());

    let parts = LIMITS.each_ref().map(|limit| Part::new(limit, &"several", 1));
    assert_no_allocations("several", || poll_once(limiter.check_all(&parts)).is_ok());
    let annotated = |user| poll_once(limiter.scope(annotated("shop", user))).is_ok();
    // The first rejection makes its metrics.
    while annotated(8) {}
    assert_no_allocations("annotated", || annotated(7));
}

#[test]
fn a_log_holds_only_the_entries_of_its_window() {
    let clock = VirtualClock::new();
    let limiter = embedded_on(&clock);
    let limit = Limit::sliding("log", 1_000, Duration::from_secs(1));
    let bytes_of = |calls: u32, pause| {
        let calls = || {
            for _ in 0..calls {
                poll_once(limiter.check(&limit, "key", 1)).expect("at most one a millisecond");
                clock.advance(Duration::from_millis(pause));
            }
        };
        allocation_counter::measure(calls).bytes_current
    };
    bytes_of(5_000, 1);
    let more = bytes_of(100_000, 1);
    assert!(more <= 0, "{more} bytes more");
    let quiet = bytes_of(10, 600);
    assert!(quiet < -3_500, "{quiet} bytes");
}

#[test]
fn a_sliding_key_takes_at_most_1000_bytes_at_a_hundred_calls_and_few_at_the_first() {
    // The allocator adds up to 8 bytes to a block, and rounds it up to 16.
    const BLOCK: i64 = 16;
    for (keys, period) in [(5_000, 1), (5_800, 60), (6_600, 3_600)] {
        // With the real clock, calls would leave the window.
        let clock = VirtualClock::new();
        let limiter = embedded_on(&clock);
        let limit = Limit::sliding("memory", 100, Duration::from_secs(period));
        let take = |calls: u64| {
            let calls = || {
                for _ in 0..calls {
                    // Each call has a record of its own.
                    clock.advance(Duration::from_micros(1));
                    for key in 0..keys {
                        poll_once(limiter.check(&limit, key, 1)).expect("up to the threshold");
                    }
                }
            };
            allocation_counter::measure(calls).bytes_current / i64::from(keys) + BLOCK
        };
        let first = take(1);
        assert!(first <= 240, "{first} bytes at the first call");
        let full = first + take(99) - BLOCK;
        println!("{first} bytes at the first call, {full} bytes at a hundred");
        assert!(full <= 1_000, "{full} bytes at a hundred calls of {keys} keys");
    }
}

/// There are new keys each day, far fewer than the bound of the store: expired keys make room for them.
#[test]
fn the_embedded_store_does_not_grow_within_a_year() {
    let (clock, mut random) = (VirtualClock::new(), Random(0x1ea4));
    let limiter = embedded_on(&clock);
    let mut days = |days: std::ops::Range<u64>| {
        allocation_counter::measure(|| {
            for day in days {
                let midnight = clock.now() + DAY;
                for _ in 0..1_000 {
                    // Half of the calls are of keys that are used every day, and half of keys of this day alone.
                    let (limit, number) = (random.of(&LIMITS), random.below(60));
                    let key = if random.below(2) == 0 { (0, number % 5) } else { (day, number) };
                    let _ = poll_once(limiter.check(&limit, key, 1));
                    clock.advance(Duration::from_secs(random.below(80)));
                }
                clock.set(midnight);
            }
        })
        .bytes_current
    };
    let first = days(1..15);
    let then = days(15..365);
    assert!(then < first, "{first} bytes after two weeks, {then} more after a year");
}

#[test]
fn a_runtime_that_ends_frees_its_queued_calls() {
    let server = support::server::Server::start();
    let limiter = server.builder().build().expect("valid");
    let limit = Limit::sliding("queued", 1_000, HOUR);
    let key = "k".repeat(10_000);
    let run = || {
        support::runtime().block_on(async {
            let mut calls: Vec<_> =
                (0..100).map(|call| limiter.check(&limit, (call, &key), 1)).collect();
            for call in &mut calls {
                // One poll queues the call, and cannot decide it.
                assert!(poll_immediate(call).await.is_none());
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
    let limit = Limit::token_bucket("boxes", 3, HOUR);
    let waiting = limit.wait(Duration::from_secs(1));
    let leased = Limit::token_bucket("boxes", 3_000, HOUR).lease(50);
    // The first check of a process starts its clock, and the first of a limit with a wait creates the lines.
    drop(limiter.check(&limit, "key", 1));
    drop(limiter.check(&waiting, "key", 1));
    for (limit, most) in [(limit, 3), (waiting, 3), (leased, 4)] {
        let call = || drop(limiter.check(&limit, "key", 1));
        let allocations = allocation_counter::measure(call).count_total;
        assert!(allocations <= most, "{limit:?}: {allocations}");
    }
}
