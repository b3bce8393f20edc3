//! What the random traces of `parity` do not reach: extreme values.

use std::time::Duration;

use ratelimit_runtime::{Algorithm, Align, Limit, Part, Rejection};
use support::ALGORITHMS;
use support::limits::{is_bucket, limits};

// Times in microseconds, by which `TestLimiter::advance` moves the clock.
const SECOND: u64 = 1_000_000;
const HOUR: u64 = 3600 * SECOND;
const DAY: u64 = 24 * HOUR;

fn limit(algorithm: Algorithm, threshold: u64, period: u64) -> Limit {
    Limit::new("semantics", algorithm, threshold, Duration::from_micros(period)).expect("valid")
}

crate::on_both_stores! {
    async fn limits_work_on_a_clock_that_starts_at_zero(test: TestLimiter) {
        for algorithm in ALGORITHMS {
            let limit = limit(algorithm, 2, 10);
            for (time, allowed) in [(0, true), (0, false), (30, true)] {
                test.clock.set(Duration::from_micros(time));
                assert_eq!(test.allows(&limit, limit.capacity()).await, allowed, "{algorithm}");
            }
        }
        // At time zero, the calendar windows began before the epoch.
        for minutes in [-840, 0, 480, 840] {
            for days in [1, 7] {
                let day = limit(Algorithm::Fixed, 1, days * DAY);
                let day = day.align(Align::offset_minutes(minutes));
                test.reset(&day).await;
                test.clock.set(Duration::ZERO);
                assert!(test.allows(&day, 1).await);
                let end = test.decide(&day, 1).await.retry_after;
                assert!(end <= day.period(), "{minutes}: {end:?}");
                for (time, allowed) in [(end - Duration::from_micros(1), false), (end, true)] {
                    test.clock.set(time);
                    assert_eq!(test.allows(&day, 1).await, allowed, "{minutes}, {days} days");
                }
            }
        }
    }

    /// A settlement keeps the rate of the last call, at which the bucket cannot count the capacity of the limit.
    async fn a_charge_of_a_fast_rate_is_settled_at_a_slow_rate(test: TestLimiter) {
        const FAST: u64 = 4_294_967_295;
        let fast = limit(Algorithm::TokenBucket, FAST, DAY);
        let slow = limit(Algorithm::TokenBucket, 1, DAY);
        for (used, debt) in [(30, 20), (0, 0)] {
            let permit = test.acquire(&fast, 10).await;
            test.advance(SECOND);
            assert!(test.allows(&slow, 1).await);
            test.settle(permit, used).await;
            // The bucket counts the call of the slow rate, and the debt at that rate.
            let left = test.peek(&slow, 1).await;
            let wait = Duration::from_micros((1 + debt) * DAY);
            assert_eq!((left.allowed, left.retry_after), (false, wait), "used: {used}");
            assert_eq!(test.peek(&fast, 1).await.remaining, FAST - 1 - debt, "used: {used}");
            test.reset(&slow).await;
        }
    }

    async fn the_largest_amounts_are_counted(test: TestLimiter) {
        for limit in limits("semantics", 1, Duration::from_micros(30 * DAY)) {
            let burst = is_bucket(limit.algorithm()).then_some(1);
            let Ok(most) = limit.try_amounts(999_999_999_999_999, burst) else { continue };
            assert!(test.allows(&most, most.capacity()).await, "{most:?}");
            assert!(!test.allows(&most, 1).await, "{most:?}");
            for is_counted in [true, false] {
                let was_counted = test.limiter.reset(&most, "key").await;
                assert_eq!(was_counted, Ok(is_counted), "{most:?}");
            }
        }
    }

    async fn the_largest_costs_are_refused(test: TestLimiter) {
        for algorithm in ALGORITHMS {
            let limit = limit(algorithm, 5, 30 * DAY);
            let (limiter, whole) = (&test.limiter, limit.capacity());
            for cost in [whole + 1, u64::MAX - 1, u64::MAX] {
                let part = Part::new(&limit, &"key", cost);
                let [same, other] = [&"key", &"other"].map(|key| Part::new(&limit, key, 1));
                let refusals = [
                    limiter.check(&limit, "key", cost).await.map(drop),
                    limiter.peek(&limit, "key", cost).await.map(drop),
                    limiter.acquire(&limit, "key", cost).await.map(drop),
                    limiter.check_all(&[part]).await.map(drop),
                    limiter.check_all(&[same, part]).await.map(drop),
                    limiter.check_all(&[part, part]).await.map(drop),
                    limiter.check_all(&[other, part]).await.map(drop),
                ];
                for (index, refusal) in refusals.into_iter().enumerate() {
                    let Err(Rejection::CostExceedsCapacity { varies: false, .. }) = refusal else {
                        panic!("{limit:?}, {index}: {refusal:?}")
                    };
                }
                limiter.check(&limit.shadow(true), "key", cost).await.expect("a shadow");
            }
            assert!(test.allows(&limit, whole).await, "{limit:?}: nothing was charged");
            let credited = limiter.credit(&limit, "key", u64::MAX).await.expect("a reply");
            assert_eq!((credited.remaining, credited.reset_after), (whole, Duration::ZERO));
        }
    }

    async fn waits_of_very_large_counters_are_tight(test: TestLimiter) {
        let limit = limit(Algorithm::SlidingCounter, 4_000_000_007, 30 * DAY);
        test.clock.set(Duration::from_secs(30 * 86_400 * 700));
        assert!(test.allows(&limit, 4_000_000_000).await);
        test.advance(30 * DAY + 12_345);
        for cost in [8, 100_000_007, 4_000_000_007] {
            let rejected = test.decide(&limit, cost).await;
            assert!(!rejected.allowed);
            let now = test.clock.now();
            test.clock.set(now + rejected.retry_after - Duration::from_micros(1));
            assert!(!test.allows(&limit, cost).await, "{cost}");
            test.advance(1);
            assert!(test.peek(&limit, cost).await.allowed, "{cost}");
            test.clock.set(now);
        }
    }
}
