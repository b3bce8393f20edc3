//! What a full embedded store evicts: a client that sends fresh keys neither gets its own exhausted key back nor takes
//! the counts of everybody else.

use std::time::Duration;

use ratelimit_runtime::{Clock, Limit, RateLimiter, VirtualClock};
use support::limits::{MINUTE, limit};
use support::{ALGORITHMS, poll_once};

const MAX_KEYS: u64 = 10_000;

fn full_store(clock: &VirtualClock) -> RateLimiter {
    let builder = RateLimiter::builder().max_keys(MAX_KEYS as usize);
    builder.clock(Clock::Virtual(clock.clone())).build().expect("valid")
}

fn admits(limiter: &RateLimiter, limit: &Limit, key: u64) -> bool {
    poll_once(limiter.check(limit, key, 1)).is_ok()
}

#[test]
fn an_exhausted_key_stays_exhausted_in_a_flood_of_fresh_keys() {
    for algorithm in ALGORITHMS {
        for trial in 0..20 {
            let clock = VirtualClock::new();
            let limiter = full_store(&clock);
            let limit = limit("flooded", algorithm, 5, MINUTE);
            while admits(&limiter, &limit, 0) {}
            clock.advance(Duration::from_millis(1));
            for key in 1..=15_000 {
                admits(&limiter, &limit, key);
            }
            let again = poll_once(limiter.peek(&limit, 0, 1)).expect("read");
            assert!(!again.allowed, "{algorithm:?}, trial {trial}");
        }
    }
}

#[test]
fn calls_between_fresh_keys_get_no_more_than_the_limit() {
    for algorithm in ALGORITHMS {
        let clock = VirtualClock::new();
        let limiter = full_store(&clock);
        let limit = limit("flooded", algorithm, 5, MINUTE);
        let mut admitted = 0;
        for key in 1..=50_000 {
            clock.advance(MINUTE / 60_000);
            admits(&limiter, &limit, key);
            if key % 20 == 0 && admits(&limiter, &limit, 0) {
                admitted += 1;
            }
        }
        // A minute's threshold, and what refills meanwhile.
        assert!(admitted <= 10, "{algorithm:?}: {admitted} calls");
    }
}

#[test]
fn exhausted_keys_take_no_more_than_half_of_the_store_from_others() {
    for algorithm in ALGORITHMS {
        let clock = VirtualClock::new();
        let limiter = full_store(&clock);
        let (used, flooded) =
            (limit("used", algorithm, 5, MINUTE), limit("flooded", algorithm, 1, MINUTE));
        // Half of the keys that the store holds.
        let keys = MAX_KEYS / 2;
        for key in 0..keys {
            assert!(admits(&limiter, &used, key));
        }
        for key in 0..3 * MAX_KEYS {
            admits(&limiter, &flooded, key);
            admits(&limiter, &flooded, key);
        }
        let held = |key: &u64| poll_once(limiter.peek(&used, key, 1)).expect("read").remaining < 5;
        let held = (0..keys).filter(held).count() as u64;
        assert!(held > keys * 3 / 4, "{algorithm:?}: {held} of {keys} keys");
    }
}

#[test]
fn a_blocked_key_outlives_exhausted_keys() {
    for algorithm in ALGORITHMS {
        let clock = VirtualClock::new();
        let limiter = full_store(&clock);
        let limit = limit("flooded", algorithm, 1, MINUTE);
        poll_once(limiter.block(&limit, 0, MINUTE)).expect("blocked");
        for key in 1..=3 * MAX_KEYS {
            admits(&limiter, &limit, key);
            admits(&limiter, &limit, key);
        }
        assert!(!admits(&limiter, &limit, 0), "{algorithm:?}");
    }
}

/// Blocked keys are bounded as well, as far as clients can cause them.
#[test]
fn blocked_keys_take_no_more_than_half_of_the_store() {
    let clock = VirtualClock::new();
    let limiter = full_store(&clock);
    let limit = Limit::sliding("flooded", 5, MINUTE);
    let keys = MAX_KEYS / 2;
    for key in 0..keys {
        assert!(admits(&limiter, &limit, key));
    }
    for key in keys..4 * MAX_KEYS {
        poll_once(limiter.block(&limit, key, MINUTE)).expect("blocked");
    }
    let held = |key: &u64| poll_once(limiter.peek(&limit, key, 1)).expect("read").remaining < 5;
    let held = (0..keys).filter(held).count() as u64;
    assert!(held > keys * 3 / 4, "{held} of {keys} keys");
}
