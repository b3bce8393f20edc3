//! The semantics of each algorithm, on a virtual clock and on both stores.

use std::time::Duration;

use ratelimit_runtime::__private::return_units;
use ratelimit_runtime::{Algorithm, Align, Decision, Limit, Rejection};
use support::ALGORITHMS;

use super::{DAY, HOUR, SECOND, limit};
use crate::{TestLimiter, decision};

/// A token bucket and a leaky bucket that refill a token each 100 ms, each with its own count.
fn buckets() -> [Limit; 2] {
    let period = Duration::from_secs(1);
    [Limit::token_bucket("bucket", 10, period), Limit::leaky_bucket("bucket", 10, period)]
}

impl TestLimiter {
    /// Returns the time of the clock, in microseconds since the epoch.
    fn micros(&self) -> u64 {
        self.clock.now().as_micros() as u64
    }

    async fn peek(&self, limit: &Limit) -> Decision {
        decision(self.limiter.peek(limit, "key", 1).await)
    }

    /// Returns units that were charged at `at`.
    async fn return_units(&self, limit: &Limit, units: u64, at: u64) {
        return_units(&self.limiter, limit, "key", units, at).await.expect("a reply");
    }
}

const HALF_AN_HOUR: Duration = Duration::from_secs(1_800);

crate::on_both_stores! {
    async fn a_window_admits_its_threshold_until_it_ends(test: TestLimiter) {
        for algorithm in [Algorithm::Sliding, Algorithm::Fixed] {
            let limit = limit(algorithm, 3, 10 * SECOND);
            for remaining in [2, 1, 0] {
                let decision = test.decide(&limit, 1).await;
                assert!(decision.allowed);
                assert_eq!((decision.remaining, decision.limit), (remaining, 3));
            }
            test.advance(10 * SECOND - 1);
            let decision = test.decide(&limit, 1).await;
            assert!(!decision.allowed);
            assert_eq!(decision.retry_after, Duration::from_micros(1));
            test.advance(1);
            assert!(test.allows(&limit, 1).await, "{algorithm}");
        }
    }

    async fn a_fixed_window_begins_with_its_first_admitted_call(test: TestLimiter) {
        let limit = limit(Algorithm::Fixed, 2, 10 * SECOND);
        assert!(test.allows(&limit, 2).await);
        test.advance(13 * SECOND);
        assert!(test.allows(&limit, 2).await);
        test.advance(9 * SECOND);
        assert!(!test.allows(&limit, 1).await, "this window lasts from 13 s to 23 s");
        test.advance(SECOND);
        assert!(test.allows(&limit, 1).await);
    }

    async fn aligned_windows_begin_at_calendar_boundaries(test: TestLimiter) {
        // 2026-03-01 was a Sunday; 22:30 UTC is 06:30 on Monday in +08:00.
        const SUNDAY: Duration = Duration::from_secs(1_772_323_200);
        let days = |count: u64| limit(Algorithm::Fixed, 1, count * DAY);
        let hour = limit(Algorithm::Fixed, 1, HOUR);
        for (name, limit, hours) in [
            ("day, UTC", days(1).align(Align::UTC), [23.99, 24.0]),
            ("day, +08:00", days(1).align(Align::offset_minutes(480)), [39.99, 40.0]),
            ("week, UTC", days(7).align(Align::UTC), [23.99, 24.0]),
            ("week, +08:00", days(7).align(Align::offset_minutes(480)), [183.99, 184.0]),
            ("hour, -03:30", hour.align(Align::offset_minutes(-210)), [22.99, 23.5]),
        ] {
            test.limiter.reset(&limit, "key").await.expect("a reply");
            test.clock.set(SUNDAY + Duration::from_secs(22 * 3600 + 1800));
            assert!(test.allows(&limit, 1).await, "{name}");
            for (hours, allowed) in hours.into_iter().zip([false, true]) {
                test.clock.set(SUNDAY + Duration::from_secs_f64(hours * 3600.0));
                assert_eq!(test.allows(&limit, 1).await, allowed, "{name}, {hours} h later");
            }
        }
    }

    async fn the_sliding_counter_weights_the_previous_window_by_its_overlap(test: TestLimiter) {
        let limit = limit(Algorithm::SlidingCounter, 10, 10 * SECOND);
        test.clock.set(Duration::from_secs(2_000_000_000));
        assert!(test.allows(&limit, 10).await);
        // Half of the next window has passed, so half of the ten units count.
        test.advance(15 * SECOND);
        let peek = decision(test.limiter.peek(&limit, "key", 6).await);
        assert_eq!((peek.allowed, peek.remaining), (false, 5));
        assert_eq!(peek.retry_after, Duration::from_secs(1));
        assert!(test.allows(&limit, 5).await);
        assert!(!test.allows(&limit, 1).await);
    }

    async fn a_client_that_always_retries_gets_all_but_one_unit_of_a_sliding_counter(test: TestLimiter) {
        for (threshold, percent) in [(1, 50), (2, 50), (10, 90), (20, 95), (100, 99)] {
            let limit = limit(Algorithm::SlidingCounter, threshold, HOUR);
            let (start, mut admitted) = (test.clock.now(), 0);
            while test.clock.now() < start + Duration::from_micros(20 * HOUR) {
                let decision = test.decide(&limit, 1).await;
                admitted += u64::from(decision.allowed);
                test.clock.advance(decision.retry_after);
            }
            // The first window admits all units.
            let got = (admitted - threshold) as f64 / (19 * threshold) as f64 * 100.0;
            assert!((got - f64::from(percent)).abs() < 3.0, "{got} % of {threshold}");
            test.limiter.reset(&limit, "key").await.expect("a reply");
        }
    }

    async fn a_leaky_bucket_spaces_calls_evenly(test: TestLimiter) {
        let limit = limit(Algorithm::LeakyBucket, 10, SECOND);
        for _ in 0..20 {
            assert!(test.allows(&limit, 1).await);
            assert!(!test.allows(&limit, 1).await);
            test.advance(99_999);
            assert!(!test.allows(&limit, 1).await);
            test.advance(1);
        }
    }

    async fn a_slow_token_bucket_keeps_fractions_of_tokens(test: TestLimiter) {
        let limit = limit(Algorithm::TokenBucket, 1, 60 * SECOND).burst(10);
        let mut admitted = 0;
        for _ in 0..=120 {
            admitted += u64::from(test.allows(&limit, 1).await);
            test.advance(30 * SECOND);
        }
        assert!((69..=70).contains(&admitted), "{admitted} in an hour");
    }

    async fn a_clock_that_steps_back_admits_no_extra_calls(test: TestLimiter) {
        for algorithm in ALGORITHMS {
            let limit = limit(algorithm, 4, HOUR);
            let capacity = limit.capacity();
            let start = test.clock.now();
            assert!(test.allows(&limit, capacity).await);
            test.clock.set(start - Duration::from_secs(600));
            let rejected = test.decide(&limit, 1).await;
            assert!(!rejected.allowed, "{algorithm}");
            // The wait starts at the time of the clock, and is tight.
            test.clock.set(test.clock.now() + rejected.retry_after - Duration::from_micros(1));
            assert!(!test.allows(&limit, 1).await, "{algorithm}");
            test.advance(1);
            assert!(test.allows(&limit, 1).await, "{algorithm}");
            test.advance(DAY);
        }
    }

    async fn rejected_calls_do_not_postpone_the_next_admission(test: TestLimiter) {
        for algorithm in ALGORITHMS {
            let limit = limit(algorithm, 4, 10 * SECOND);
            let capacity = limit.capacity();
            assert!(test.allows(&limit, capacity).await);
            let free = test.clock.now() + test.decide(&limit, 1).await.retry_after;
            let step = (free - test.clock.now()).as_micros() as u64 / 100;
            for _ in 0..99 {
                test.advance(step);
                let rejected = test.decide(&limit, 1).await;
                assert!(!rejected.allowed, "{algorithm}");
                assert_eq!(test.clock.now() + rejected.retry_after, free, "{algorithm}");
            }
            test.clock.set(free);
            assert!(test.allows(&limit, 1).await, "{algorithm}");
        }
    }

    async fn a_rejected_large_cost_takes_no_units(test: TestLimiter) {
        for algorithm in ALGORITHMS {
            let mut limit = limit(algorithm, 10, 10 * SECOND);
            if algorithm == Algorithm::LeakyBucket {
                limit = limit.burst(10);
            }
            assert!(test.allows(&limit, 4).await);
            assert!(!test.allows(&limit, 7).await);
            let last = test.decide(&limit, 6).await;
            assert!(last.allowed, "{algorithm}");
            assert_eq!(last.remaining, 0, "{algorithm}");
        }
    }

    async fn pairs_of_a_check_and_a_refund_change_nothing(test: TestLimiter) {
        for algorithm in ALGORITHMS {
            let limit = limit(algorithm, 3, HOUR);
            let capacity = limit.capacity();
            assert!(test.allows(&limit, capacity - 1).await || capacity == 1);
            let before = decision(test.limiter.peek(&limit, "key", 1).await);
            for _ in 0..1_000 {
                assert!(test.allows(&limit, 1).await, "{algorithm}");
                test.limiter.credit(&limit, "key", 1).await.expect("a reply");
            }
            let after = decision(test.limiter.peek(&limit, "key", 1).await);
            assert_eq!(before, after, "{algorithm}");
        }
    }

    async fn a_bucket_above_a_lowered_burst_accepts_refunds_and_no_returns(test: TestLimiter) {
        for limit in buckets() {
            let (full, lowered) = (limit.burst(10), limit.burst(3));
            let at = test.micros();
            assert!(test.allows(&full, 10).await);
            let before = test.peek(&lowered).await;
            assert_eq!((before.allowed, before.retry_after), (false, Duration::from_millis(800)));
            test.limiter.credit(&lowered, "key", 3).await.expect("a reply");
            let after = test.peek(&lowered).await;
            assert_eq!((after.remaining, after.retry_after), (0, Duration::from_millis(500)));
            test.return_units(&lowered, 5, at).await;
            assert_eq!(test.peek(&lowered).await, after, "{limit:?}");
            let after = test.limiter.credit(&lowered, "key", 6).await.expect("a reply");
            assert_eq!(after.remaining, 2, "{limit:?}");
        }
    }

    /// Half of a bucket of 1,000 an hour is full in half an hour, also after the rate was lowered.
    async fn a_correction_keeps_the_rate_of_a_bucket(test: TestLimiter) {
        for limit in buckets() {
            let amounts = |threshold, burst| {
                let limit = Limit::new("corrected", limit.algorithm(), threshold, 2 * HALF_AN_HOUR);
                limit.expect("valid").burst(burst)
            };
            let (fast, slow) = (amounts(1_000, 1_000), amounts(10, 10));
            test.limiter.check(&fast, "key", 500).await.expect("a new key");
            let wait = async || {
                test.limiter.peek(&slow, "key", 1).await.expect("a decision").retry_after
            };
            assert_eq!(wait().await, HALF_AN_HOUR);
            test.limiter.credit(&slow, "key", 1).await.expect("a reply");
            assert!(wait().await <= HALF_AN_HOUR, "{:?}", wait().await);
            test.limiter.acquire(&slow, "key", 0).await.expect_err("above the limit");
            test.clock.advance(HALF_AN_HOUR);
            test.limiter.check(&slow, "key", 10).await.expect("full");
        }
    }

    async fn a_bucket_with_a_reservation_accepts_no_returns(test: TestLimiter) {
        for limit in buckets() {
            let limit = limit.burst(10);
            let at = test.micros();
            assert!(test.allows(&limit, 10).await);
            let waiting = limit.wait(Duration::from_secs(60));
            let waiting = tokio::spawn(test.limiter.check(&waiting, "key", 1));
            // The waiting call has reserved the next token, so another call has to wait for the one after it.
            let before = loop {
                let decision = test.peek(&limit).await;
                if decision.retry_after == Duration::from_millis(200) {
                    break decision;
                }
                tokio::task::yield_now().await;
            };
            test.return_units(&limit, 5, at).await;
            assert_eq!(test.peek(&limit).await, before, "{limit:?}");
            test.advance(100_000);
            waiting.await.expect("no panic").expect("admitted");
        }
    }

    async fn a_call_that_gave_its_units_back_frees_none_when_it_leaves(test: TestLimiter) {
        let limit = limit(Algorithm::Sliding, 3, 8 * SECOND);
        for _ in 0..3 {
            assert!(test.allows(&limit, 1).await);
            test.advance(2 * SECOND);
        }
        // Of the calls at 0, 2 and 4 seconds, the second gives its unit back. At 8 seconds, the first leaves.
        test.return_units(&limit, 1, test.micros() - 4 * SECOND).await;
        test.advance(2 * SECOND);
        assert!(test.allows(&limit, 1).await);
        assert!(test.allows(&limit, 1).await);
        // The second call leaves the window at 10 seconds and frees no unit. The third leaves at 12 and frees one.
        let rejected = test.decide(&limit, 1).await;
        assert_eq!((rejected.allowed, rejected.retry_after), (false, Duration::from_secs(4)));
        // A time at which nothing was charged gives nothing back.
        test.return_units(&limit, 1, test.micros() - SECOND).await;
        assert_eq!(test.peek(&limit).await.remaining, 0);
    }

    async fn a_refund_never_exceeds_the_capacity(test: TestLimiter) {
        for algorithm in ALGORITHMS {
            let limit = limit(algorithm, 3, HOUR);
            let fresh = test.limiter.credit(&limit, "key", 5).await.expect("a reply");
            assert_eq!(fresh.remaining, limit.capacity(), "{algorithm}");
            assert!(test.allows(&limit, 1).await);
            let whole = test.limiter.credit(&limit, "key", u64::MAX).await.expect("a reply");
            assert_eq!((whole.remaining, whole.reset_after), (limit.capacity(), Duration::ZERO));
            let capacity = limit.capacity();
            assert!(test.allows(&limit, capacity).await);
            assert!(!test.allows(&limit, 1).await, "{algorithm}");
        }
    }

    async fn a_reset_restores_the_whole_capacity(test: TestLimiter) {
        for algorithm in ALGORITHMS {
            let limit = limit(algorithm, 3, HOUR);
            let capacity = limit.capacity();
            assert!(test.allows(&limit, capacity).await);
            assert!(!test.allows(&limit, 1).await);
            assert!(test.limiter.reset(&limit, "key").await.expect("a reply"), "{algorithm}");
            assert!(!test.limiter.reset(&limit, "key").await.expect("a reply"), "{algorithm}");
            assert!(test.allows(&limit, capacity).await, "{algorithm}");
        }
    }

    async fn limits_with_different_aligns_count_separately(test: TestLimiter) {
        let daily = limit(Algorithm::Fixed, 10, DAY);
        let aligns = [
            daily,
            daily.align(Align::UTC),
            daily.align(Align::offset_minutes(480)),
        ];
        let mut admitted = [0; 3];
        for _ in 0..100 {
            for (limit, admitted) in aligns.iter().zip(&mut admitted) {
                *admitted += u64::from(test.allows(limit, 1).await);
            }
        }
        assert_eq!(admitted, [10; 3]);
        test.limiter.reset(&aligns[1], "key").await.expect("a reply");
        assert!(test.allows(&aligns[1], 10).await, "the reset count is still full");
        assert!(!test.allows(&aligns[2], 1).await, "the reset dropped another count");
    }

    async fn windows_of_a_week_begin_on_monday(test: TestLimiter) {
        // 1970-01-05 was the first Monday.
        let limit = limit(Algorithm::Fixed, 1, 7 * DAY).align(Align::UTC);
        test.clock.set(Duration::from_secs(3 * 86_400));
        assert!(test.allows(&limit, 1).await);
        test.clock.set(Duration::from_secs(4 * 86_400 - 1));
        assert!(!test.allows(&limit, 1).await);
        test.advance(SECOND);
        assert!(test.allows(&limit, 1).await);
    }

    async fn a_cost_of_zero_is_admitted_and_a_cost_above_the_capacity_is_not(test: TestLimiter) {
        for algorithm in ALGORITHMS {
            let limit = limit(algorithm, 3, HOUR);
            let capacity = limit.capacity();
            assert!(test.allows(&limit, capacity).await);
            assert!(test.allows(&limit, 0).await, "{algorithm}");
            let rejected = test.limiter.check(&limit, "key", capacity + 1).await;
            let Err(rejection @ Rejection::CostExceedsCapacity { .. }) = rejected else {
                panic!("{algorithm}: {rejected:?}")
            };
            assert_eq!(rejection.retry_after(), None);
        }
    }

    async fn names_algorithms_and_keys_count_separately(test: TestLimiter) {
        const A: Limit = Limit::fixed("a", 1, Duration::from_secs(60));
        const B: Limit = Limit::fixed("b", 1, Duration::from_secs(60));
        const C: Limit = Limit::sliding("a", 1, Duration::from_secs(60));
        let long = "x".repeat(100_000);
        for limit in [A, B, C] {
            for key in ["", "k", "k:", "\0", "{k}", &long, &long[1..]] {
                assert!(test.limiter.check(&limit, key, 1).await.is_ok(), "{key:.9}");
            }
            assert!(test.limiter.check(&limit, (), 1).await.is_ok());
            assert!(test.limiter.check(&limit, ("k:", "k"), 1).await.is_ok());
            assert!(test.limiter.check(&limit, ("k", ":k"), 1).await.is_ok());
            assert!(test.limiter.check(&limit, [0xff_u8, 0].as_slice(), 1).await.is_ok());
            for key in ["", "k", "k:", "\0", "{k}", &long, &long[1..]] {
                assert!(test.limiter.check(&limit, key, 1).await.is_err(), "{key:.9}");
            }
        }
    }
}
