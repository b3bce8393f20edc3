//! Days of traffic in seconds, on a virtual clock: nothing drifts, nothing is left behind, and
//! nothing grows with time.

use std::collections::BTreeMap;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ratelimit_runtime::{Algorithm, Clock, Decision, Limit, RateLimiter, Rejection, VirtualClock};
use support::ALGORITHMS;
use support::model::Model;
use support::server::Server;

const DAYS: u32 = 12;
const DAY: Duration = Duration::from_secs(86_400);
const HOUR: Duration = Duration::from_secs(3600);

/// Units of an hour; it takes no whole number of microseconds for one of them to refill.
const THRESHOLD: u32 = 7;

/// Keys of each algorithm that come every day, and those that come on one day only.
const REGULARS: u32 = 5;
const NEWCOMERS: u32 = 55;

/// How long a key lives in Redis at most: the two windows of a sliding counter and a minute for the
/// clock, which is not the server's, and an eighth of all that.
const LONGEST_LIFE_MS: i64 = (2 * 3_600_000 + 60_000) * 9 / 8 + 1;

/// The most memory that Redis needs for a key of a few units.
const KEY_BYTES: u64 = 512;

/// One key of one algorithm: its index, the day on which it comes (0 for a regular), its number.
type Count = (usize, u32, u32);

fn limit(algorithm: Algorithm) -> Limit {
    Limit::new("soak", algorithm, THRESHOLD, HOUR).expect("valid")
}

fn start() -> VirtualClock {
    VirtualClock::at(Duration::from_secs(1_800_000_000))
}

fn embedded(clock: &VirtualClock) -> RateLimiter {
    RateLimiter::builder().clock(Clock::Virtual(clock.clone())).build().expect("valid settings")
}

fn redis(server: &Server, clock: &VirtualClock) -> RateLimiter {
    server.builder().clock(Clock::Virtual(clock.clone())).build().expect("valid settings")
}

fn decision(result: Result<Decision, Rejection>) -> Decision {
    match result {
        Ok(decision) | Err(Rejection::Limited { decision, .. }) => decision,
        Err(other) => panic!("the store did not decide: {other:?}"),
    }
}

/// The answer of a future that is ready at once.
fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("the embedded store is waited for"),
    }
}

/// Chance that is the same in every run (xorshift64).
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as u32 % end
    }

    /// Who comes next on a day; one in two is a regular.
    fn count(&mut self, day: u32) -> Count {
        let algorithm = self.below(ALGORITHMS.len() as u32) as usize;
        match self.below(2) {
            0 => (algorithm, 0, self.below(REGULARS)),
            _ => (algorithm, day, self.below(NEWCOMERS)),
        }
    }
}

/// Every decision of both stores is that of the model, so each key is admitted as much by all three.
#[tokio::test]
async fn twelve_days_of_traffic() {
    let (server, clock, mut chance) = (Server::start(), start(), Chance(0x50a4));
    let (embedded, redis) = (embedded(&clock), redis(&server, &clock));
    let mut counts: BTreeMap<Count, (Model, [u32; 3])> = BTreeMap::new();
    for day in 1..=DAYS {
        let midnight = clock.now() + DAY;
        for _ in 0..500 {
            let count = chance.count(day);
            let limit = limit(ALGORITHMS[count.0]);
            let (model, admitted) =
                counts.entry(count).or_insert_with(|| (Model::new(&limit, None), [0; 3]));
            // Up to the capacity at once, over and over.
            for _ in 0..=chance.below(3) {
                let cost = 1 + chance.below(limit.capacity().min(3));
                let expected = model.check(&limit, clock.now().as_micros() as u64, cost).allowed;
                let here = decision(embedded.check(&limit, count, cost).await).allowed;
                let there = decision(redis.check(&limit, count, cost).await).allowed;
                for (total, allowed) in admitted.iter_mut().zip([expected, here, there]) {
                    *total += u32::from(allowed) * cost;
                }
            }
            clock.advance(Duration::from_micros(chance.below(150_000_000).into()));
        }
        if day % 4 == 0 {
            leaves_nothing_behind(&server, counts.len());
        }
        // The night is quiet.
        assert!(clock.now() < midnight);
        clock.set(midnight);
    }

    let mut most = [0; ALGORITHMS.len()];
    for (count, (model, [expected, here, there])) in &mut counts {
        let limit = limit(ALGORITHMS[count.0]);
        assert_eq!([*here, *there], [*expected; 2], "{}: {count:?}", limit.algorithm());
        most[count.0] = most[count.0].max(*expected);
        // Hours after the last call a key is as new, whoever still remembers it.
        let clock = clock.now().as_micros() as u64;
        assert_eq!(model.peek(&limit, clock, 1).remaining, limit.capacity());
        for store in [&embedded, &redis] {
            let seen = store.peek(&limit, count, 1).await.expect("a decision");
            assert_eq!((seen.remaining, seen.reset_after), (limit.capacity(), Duration::ZERO));
        }
    }
    leaves_nothing_behind(&server, counts.len());
    println!("{} keys; the busiest of each algorithm were admitted {most:?}", counts.len());
}

/// The lives of keys are real time, which hardly goes on here, so that no key is gone yet. But each
/// ends, and no later than after its last use; and none has grown.
fn leaves_nothing_behind(server: &Server, used: usize) {
    let lives = server.ttls();
    assert!(lives.len() <= used, "{} keys of {used}", lives.len());
    let mut connection = server.connection();
    for (key, life) in lives {
        assert!(life > 0, "{key} has no TTL");
        assert!(life <= LONGEST_LIFE_MS, "{key} lives for {life} ms");
        let bytes: u64 =
            redis::cmd("MEMORY").arg("USAGE").arg(&key).query(&mut connection).expect("a size");
        assert!(bytes <= KEY_BYTES, "{key} takes {bytes} bytes");
    }
}

/// Whoever calls again as soon as it helps gets exactly what the rate allows, after days as in the
/// first hour.
#[tokio::test]
async fn twelve_days_of_pressure() {
    let server = Server::start();
    let hours = DAYS * 24;
    for algorithm in ALGORITHMS {
        let limit = limit(algorithm);
        let exact = match algorithm {
            // Estimated: what is exact about it is that the model says the same.
            Algorithm::SlidingCounter => None,
            // Spaced by whole microseconds: a bucket that holds one call keeps nothing beyond it.
            Algorithm::LeakyBucket => {
                let spacing = HOUR.as_micros().div_ceil(THRESHOLD.into());
                Some(1 + ((DAY * DAYS).as_micros() / spacing) as u32)
            }
            // A token bucket at once, and then as it refills: no fraction of a microsecond is lost.
            // A window all at its beginning, and the last one has just begun.
            _ => Some(THRESHOLD * (hours + 1)),
        };
        let (here, there) = (start(), start());
        let stores = [(embedded(&here), here), (redis(&server, &there), there)];
        for (limiter, clock) in stores {
            let (mut model, mut expected, mut admitted) = (Model::new(&limit, None), 0, 0);
            let end = clock.now() + DAY * DAYS;
            while clock.now() <= end {
                let time = clock.now().as_micros() as u64;
                expected += u32::from(model.check(&limit, time, 1).allowed);
                let decided = decision(limiter.check(&limit, "key", 1).await);
                admitted += u32::from(decided.allowed);
                assert_ne!(decided.allowed, decided.retry_after > Duration::ZERO, "{decided:?}");
                clock.advance(decided.retry_after);
            }
            assert_eq!(admitted, expected, "{algorithm}, {:?}", limiter.source());
            assert_eq!(admitted, exact.unwrap_or(expected), "{algorithm}, {:?}", limiter.source());
        }
    }
    leaves_nothing_behind(&server, ALGORITHMS.len());
}

/// Other keys come each day, and the store is nowhere near its bound: it is time that makes room.
#[test]
fn a_year_does_not_make_the_embedded_store_grow() {
    let (clock, mut chance) = (start(), Chance(0x1ea4));
    let limiter = embedded(&clock);
    let mut days = |days: std::ops::Range<u32>| {
        allocation_counter::measure(|| {
            for day in days {
                let midnight = clock.now() + DAY;
                for _ in 0..1_000 {
                    let count = chance.count(day);
                    let limit = limit(ALGORITHMS[count.0]);
                    let _ = now(limiter.check(&limit, count, 1));
                    clock.advance(Duration::from_secs(chance.below(80).into()));
                }
                clock.set(midnight);
            }
        })
        .bytes_current
    };
    let first = days(1..15);
    let then = days(15..365);
    println!("{first} bytes after two weeks, {then} more after a year");
    assert!(then < first, "{first} bytes after two weeks, {then} more after a year");
}
