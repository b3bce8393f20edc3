//! A flood of distinct keys on the embedded store, as an attacker causes it with a new key in each request. The
//! store stays within its bounds of keys and memory, and keeps the keys in use.
//!
//! This is the only test of the file, because it measures the memory of the process. For more keys, and to see the
//! figures, run `FLOOD_KEYS=10000000 tests/run --test flood -- --nocapture`.

use std::sync::atomic::{AtomicU64, Ordering};

use ratelimit_runtime::{Limit, RateLimiter};
use support::limits::{DAY, HOUR};
use support::{memory, poll_once};

/// The algorithm that needs the most memory for a key. The limit in use differs from it only in its use.
const FLOODED: Limit = Limit::sliding("flooded", 1, HOUR);
const USED: Limit = Limit::sliding("used", 1_000_000, HOUR);
/// Its window ends after all others.
const LONG: Limit = Limit::fixed("long", 1, DAY);
/// The default bound of a store.
const MAX_KEYS: u64 = 1_000_000;
const THREADS: u64 = 2;
/// How many new keys come between two uses of the keys in use.
const BETWEEN: u64 = 1_000;

/// In a full store, a new key evicts the one of five keys that resets first. So the key that resets last is never
/// evicted, and a key that was just charged almost never. A key whose state does not change ages, and can be evicted
/// after [`MAX_KEYS`] new keys: its count then starts from zero.
#[test]
fn a_flood_of_keys_stays_within_the_bounds_and_keeps_keys_in_use() {
    let keys = std::env::var("FLOOD_KEYS").map_or(2_000_000, |keys| keys.parse().expect("keys"));
    let limiter = RateLimiter::embedded();
    let before = memory("VmRSS");
    let admitted = AtomicU64::new(0);
    poll_once(limiter.check(&LONG, (), 1)).expect("the first call");

    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (limiter, admitted) = (&limiter, &admitted);
            scope.spawn(move || {
                for key in (thread..keys).step_by(THREADS as usize) {
                    poll_once(limiter.check(&FLOODED, key, 1)).expect("a new key");
                    if (key / THREADS).is_multiple_of(BETWEEN / THREADS) {
                        poll_once(limiter.check(&USED, (), 1)).expect("far below the threshold");
                        admitted.fetch_add(1, Ordering::Relaxed);
                        let again = poll_once(limiter.check(&LONG, (), 1));
                        assert!(again.is_err(), "evicted after {key} keys");
                    }
                }
            });
        }
    });

    let used = poll_once(limiter.peek(&USED, (), 1)).expect("a decision");
    let left = USED.threshold() - admitted.into_inner();
    assert_eq!(used.remaining, left, "evicted while in use");

    // A peek changes nothing. The two keys above are not in the flood.
    let held = |key: &u64| !poll_once(limiter.peek(&FLOODED, key, 1)).expect("a decision").allowed;
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
