//! A flood of distinct keys on the embedded store, as somebody makes it who sends another key with
//! each request: the store stays within its bound in keys and in memory, and what is in use is not
//! washed away.
//!
//! By itself in this file, since it measures the memory of the process. More keys come with
//! `FLOOD_KEYS=10000000 cargo test --test flood -- --nocapture`, which tells the figures as well.

use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ratelimit_runtime::{Limit, RateLimiter};

const HOUR: Duration = Duration::from_secs(3600);

/// What is flooded: the algorithm that keeps most for a key.
const FLOODED: Limit = Limit::sliding("flooded", 1, HOUR);

/// Of the same period, so that only its use tells it from the flood.
const USED: Limit = Limit::sliding("used", 1_000_000, HOUR);

/// To be reset after all the others.
const LONG: Limit = Limit::fixed("long", 1, Duration::from_secs(86_400));

/// How many keys a store holds at most, unless its builder says otherwise.
const MAX_KEYS: u64 = 1_000_000;

const THREADS: u64 = 2;

/// How many new keys come between two uses of the keys in use.
const BETWEEN: u64 = 1_000;

/// The answer of a future that is ready at once.
fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("the embedded store is waited for"),
    }
}

/// A number of `/proc/self/status`, in bytes; where there is no such file nothing is measured.
fn memory(name: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with(name))?;
    let kilobytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kilobytes * 1024)
}

/// A new key takes the place of the one among five that will be reset first. So a key that will be
/// reset last is never chosen, and one that was just charged hardly ever. A key that is rejected or
/// whose window goes on unchanged grows old as others do, and may be forgotten when
/// [`MAX_KEYS`] others have come since: then it starts anew.
#[test]
fn a_flood_of_keys_stays_within_its_bounds() {
    let keys = std::env::var("FLOOD_KEYS").map_or(2_000_000, |keys| keys.parse().expect("keys"));
    let limiter = RateLimiter::embedded();
    let before = memory("VmRSS");
    let admitted = AtomicU32::new(0);
    now(limiter.check(&LONG, (), 1)).expect("the first call");

    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (limiter, admitted) = (&limiter, &admitted);
            scope.spawn(move || {
                for key in (thread..keys).step_by(THREADS as usize) {
                    now(limiter.check(&FLOODED, key, 1)).expect("a new key");
                    if (key / THREADS).is_multiple_of(BETWEEN / THREADS) {
                        now(limiter.check(&USED, (), 1)).expect("far below the threshold");
                        admitted.fetch_add(1, Ordering::Relaxed);
                        let again = now(limiter.check(&LONG, (), 1));
                        assert!(again.is_err(), "forgotten after {key} keys");
                    }
                }
            });
        }
    });

    let used = now(limiter.peek(&USED, (), 1)).expect("a decision");
    assert_eq!(used.remaining, USED.threshold() - admitted.into_inner(), "forgotten in use");

    // Looking changes nothing. The last key of the two above is not in the flood.
    let held = |key: &u64| !now(limiter.peek(&FLOODED, key, 1)).expect("a decision").allowed;
    let held = (0..keys).filter(held).count() as u64 + 2;
    println!("{held} of {keys} keys are held");
    assert!(held <= MAX_KEYS, "{held} keys");
    assert!(held >= MAX_KEYS.min(keys) * 99 / 100, "{held} keys");

    if let (Some(before), Some(most)) = (before, memory("VmHWM")) {
        let each = most.saturating_sub(before) / MAX_KEYS;
        println!("at most {each} bytes for each of {MAX_KEYS} keys");
        assert!(each < 300, "{each} bytes for each of {MAX_KEYS} keys");
    }
}
