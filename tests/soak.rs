//! Days of traffic on a virtual clock: decisions do not drift, keys expire, and memory does not grow with time.

use std::collections::BTreeMap;
use std::time::Duration;

use ratelimit_runtime::{Algorithm, Limit, VirtualClock};
use support::clocks::embedded_on;
use support::limits::{DAY, HOUR, decision};
use support::model::Model;
use support::random::Random;
use support::server::Server;
use support::{ALGORITHMS, poll_once};

const DAYS: u64 = 12;

/// The units of an hour. A unit does not refill in a whole number of microseconds.
const THRESHOLD: u64 = 7;

/// The keys of each algorithm that are used every day.
const DAILY_KEYS: u64 = 5;

/// The keys of each algorithm and day that are used only on that day.
const NEW_KEYS: u64 = 55;

/// The longest TTL in Redis: two windows of a sliding counter, a minute because the limiter sends its own clock, and an
/// eighth of the sum.
const LONGEST_TTL_MS: i64 = (2 * 3_600_000 + 60_000) * 9 / 8 + 1;

/// The largest memory that Redis needs for a key of a few units.
const KEY_BYTES: u64 = 512;

/// A key: the index of its algorithm, the day of its use (0: every day), and its number.
type SoakKey = (usize, u64, u64);

fn limit(algorithm: Algorithm) -> Limit {
    Limit::new("soak", algorithm, THRESHOLD, HOUR).expect("valid")
}

fn start() -> VirtualClock {
    VirtualClock::at(Duration::from_secs(1_800_000_000))
}

/// Returns the next key of a day: with equal probability a daily key or a new key.
fn next_key(random: &mut Random, day: u64) -> SoakKey {
    let algorithm = random.below(ALGORITHMS.len() as u64) as usize;
    match random.below(2) {
        0 => (algorithm, 0, random.below(DAILY_KEYS)),
        _ => (algorithm, day, random.below(NEW_KEYS)),
    }
}

#[tokio::test]
async fn both_stores_admit_what_the_model_admits_over_twelve_days() {
    let (server, clock, mut random) = (Server::start(), start(), Random(0x50a4));
    let (embedded, redis) = (embedded_on(&clock), server.limiter_on(&clock));
    let mut counts: BTreeMap<SoakKey, (Model, [u64; 3])> = BTreeMap::new();
    for day in 1..=DAYS {
        let midnight = clock.now() + DAY;
        for _ in 0..500 {
            let count = next_key(&mut random, day);
            let limit = limit(ALGORITHMS[count.0]);
            let (model, admitted) =
                counts.entry(count).or_insert_with(|| (Model::new(&limit, None), [0; 3]));
            // Up to three calls in succession, so that some are rejected.
            for _ in 0..=random.below(3) {
                let cost = 1 + random.below(limit.capacity().min(3));
                let expected = model.check(&limit, clock.now().as_micros() as u64, cost).allowed;
                let here = decision(embedded.check(&limit, count, cost).await).allowed;
                let there = decision(redis.check(&limit, count, cost).await).allowed;
                for (total, allowed) in admitted.iter_mut().zip([expected, here, there]) {
                    *total += u64::from(allowed) * cost;
                }
            }
            clock.advance(Duration::from_micros(random.below(150_000_000)));
        }
        if day % 4 == 0 {
            assert_keys_are_bounded(&server, counts.len());
        }
        // No calls until midnight.
        assert!(clock.now() < midnight);
        clock.set(midnight);
    }

    for (count, (model, [expected, here, there])) in &mut counts {
        let limit = limit(ALGORITHMS[count.0]);
        assert_eq!([*here, *there], [*expected; 2], "{}: {count:?}", limit.algorithm());
        // Hours after its last call, a key has its whole capacity, also in a store that still has its state.
        let clock = clock.now().as_micros() as u64;
        assert_eq!(model.peek(&limit, clock, 1).remaining, limit.capacity());
        for store in [&embedded, &redis] {
            let peek = store.peek(&limit, count, 1).await.expect("a decision");
            assert_eq!((peek.remaining, peek.reset_after), (limit.capacity(), Duration::ZERO));
        }
    }
    assert_keys_are_bounded(&server, counts.len());
}

/// Asserts that each key in Redis is small and has a TTL that ends soon after its last use. TTLs are real time, of
/// which little passes during the test, so no key has expired yet.
fn assert_keys_are_bounded(server: &Server, used: usize) {
    let ttls = server.ttls();
    assert!(ttls.len() <= used, "{} keys of {used}", ttls.len());
    let mut connection = server.connection();
    for (key, ttl) in ttls {
        assert!(ttl > 0, "{key} has no TTL");
        assert!(ttl <= LONGEST_TTL_MS, "{key} has a TTL of {ttl} ms");
        let bytes: u64 =
            redis::cmd("MEMORY").arg("USAGE").arg(&key).query(&mut connection).expect("a size");
        assert!(bytes <= KEY_BYTES, "{key} takes {bytes} bytes");
    }
}

/// There are new keys each day, far fewer than the bound of the store: expired keys make room for them.
#[test]
fn the_embedded_store_does_not_grow_within_a_year() {
    let (clock, mut random) = (start(), Random(0x1ea4));
    let limiter = embedded_on(&clock);
    let mut days = |days: std::ops::Range<u64>| {
        allocation_counter::measure(|| {
            for day in days {
                let midnight = clock.now() + DAY;
                for _ in 0..1_000 {
                    let count = next_key(&mut random, day);
                    let limit = limit(ALGORITHMS[count.0]);
                    let _ = poll_once(limiter.check(&limit, count, 1));
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
