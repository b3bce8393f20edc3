//! The embedded store: exact with concurrent threads. If it is full, a client that sends fresh keys neither gets its
//! own exhausted key back nor takes the counts of everybody else.

use std::time::Duration;

use ratelimit_runtime::{Clock, Limit, RateLimiter, VirtualClock};
use support::clocks::embedded_on;
use support::limits::{DAY, MINUTE, limit, limits};
use support::poll_once;

const MAX_KEYS: u64 = 10_000;

fn full_store() -> (RateLimiter, VirtualClock) {
    let clock = VirtualClock::new();
    let builder = RateLimiter::builder().max_keys(MAX_KEYS as usize);
    (builder.clock(Clock::Virtual(clock.clone())).build().expect("valid"), clock)
}

fn admits(limiter: &RateLimiter, limit: &Limit, key: u64) -> bool {
    poll_once(limiter.check(limit, key, 1)).is_ok()
}

#[test]
fn eight_threads_admit_exactly_the_threshold() {
    for limit in limits("threads", 10_000, 365 * DAY) {
        // The clock stands still, in the middle of a window of the counter.
        let limiter = embedded_on(&VirtualClock::at(365 * DAY * 60 + DAY / 2));
        let calls = || (0..5_000).filter(|_| admits(&limiter, &limit, 0)).count();
        let admitted: usize = std::thread::scope(|scope| {
            let threads = [(); 8].map(|()| scope.spawn(calls));
            threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
        });
        assert_eq!(admitted, 10_000, "{limit:?}");
    }
}

#[test]
fn an_exhausted_key_stays_exhausted_in_a_flood_of_fresh_keys() {
    for limit in limits("flooded", 5, MINUTE) {
        for trial in 0..20 {
            let (limiter, clock) = full_store();
            while admits(&limiter, &limit, 0) {}
            clock.advance(Duration::from_millis(1));
            for key in 1..=15_000 {
                admits(&limiter, &limit, key);
            }
            let again = poll_once(limiter.peek(&limit, 0, 1)).expect("read");
            assert!(!again.allowed, "{limit:?}, trial {trial}");
        }
    }
}

/// Blocked keys are bounded as exhausted ones are, as far as clients can cause them.
#[test]
fn exhausted_keys_take_no_more_than_half_of_the_store_from_others() {
    for (used, blocks) in limits("used", 5, MINUTE).flat_map(|it| [(it, false), (it, true)]) {
        let (limiter, _) = full_store();
        let flooded = limit("flooded", used.algorithm(), 1, MINUTE);
        let block = |limit: &Limit, key: u64| {
            poll_once(limiter.block(limit, key, MINUTE)).expect("blocked");
        };
        // Half of the keys that the store holds.
        let keys = MAX_KEYS / 2;
        assert!((0..keys).all(|key| admits(&limiter, &used, key)));
        block(&used, u64::MAX);
        for key in 0..3 * MAX_KEYS {
            if blocks {
                block(&flooded, key);
            } else {
                admits(&limiter, &flooded, key);
                admits(&limiter, &flooded, key);
            }
        }
        let held = |key: &u64| poll_once(limiter.peek(&used, key, 1)).expect("read").remaining < 5;
        let held = (0..keys).filter(held).count() as u64;
        assert!(held > keys * 3 / 4, "{used:?}: {held} of {keys} keys");
        // A blocked key outlives exhausted ones.
        assert!(blocks || !admits(&limiter, &used, u64::MAX), "{used:?}");
    }
}
