//! What the random traces of `parity` do not reach: the calendar, and extreme values.

use std::time::Duration;

use ratelimit_runtime::{Algorithm, Align, Limit, Part, Rejection};
use support::ALGORITHMS;
use support::limits::is_bucket;

use crate::decision;

// Times in microseconds, by which `TestLimiter::advance` moves the clock.
const SECOND: u64 = 1_000_000;
const HOUR: u64 = 3600 * SECOND;
const DAY: u64 = 24 * HOUR;

fn limit(algorithm: Algorithm, threshold: u64, period: u64) -> Limit {
    Limit::new("semantics", algorithm, threshold, Duration::from_micros(period)).expect("valid")
}

crate::on_both_stores! {
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

    /// Half of a bucket of 1,000 an hour is full in half an hour, also after the rate was lowered.
    async fn a_correction_keeps_the_rate_of_a_bucket(test: TestLimiter) {
        for algorithm in [Algorithm::TokenBucket, Algorithm::LeakyBucket] {
            let [fast, slow] = [1_000, 10].map(|units| limit(algorithm, units, HOUR).burst(units));
            let half_an_hour = Duration::from_micros(HOUR / 2);
            assert!(test.allows(&fast, 500).await);
            let wait = async || decision(test.limiter.peek(&slow, "key", 1).await).retry_after;
            assert_eq!(wait().await, half_an_hour);
            test.limiter.credit(&slow, "key", 1).await.expect("a reply");
            assert!(wait().await <= half_an_hour, "{:?}", wait().await);
            test.limiter.acquire(&slow, "key", 0).await.expect_err("above the limit");
            test.clock.advance(half_an_hour);
            assert!(test.allows(&slow, 10).await, "full");
        }
    }

    async fn limits_work_on_a_clock_that_starts_at_zero(test: TestLimiter) {
        for algorithm in ALGORITHMS {
            test.clock.set(Duration::ZERO);
            let limit = limit(algorithm, 2, 10);
            let capacity = limit.capacity();
            assert!(test.allows(&limit, capacity).await);
            assert!(!test.allows(&limit, capacity).await, "{algorithm}");
            test.advance(30);
            assert!(test.allows(&limit, capacity).await, "{algorithm}");
        }
        // At time zero, the calendar windows began before the epoch.
        for minutes in [-840, 0, 480, 840] {
            let align = Align::offset_minutes(minutes);
            for days in [1, 7] {
                let day = Limit::fixed("epoch", 1, Duration::from_secs(days * 86_400)).align(align);
                test.limiter.reset(&day, "key").await.expect("a reply");
                test.clock.set(Duration::ZERO);
                assert!(test.allows(&day, 1).await);
                let rejected = test.decide(&day, 1).await;
                assert!(rejected.retry_after <= day.period(), "{minutes}: {rejected:?}");
                test.clock.set(rejected.retry_after - Duration::from_micros(1));
                assert!(!test.allows(&day, 1).await, "{minutes}, {days} days");
                test.advance(1);
                assert!(test.allows(&day, 1).await, "{minutes}, {days} days");
            }
        }
    }

    /// A settlement keeps the rate of the last call, at which the bucket cannot count the capacity of the limit.
    async fn a_charge_of_a_fast_rate_is_settled_at_a_slow_rate(test: TestLimiter) {
        const FAST: u64 = 4_294_967_295;
        let fast = limit(Algorithm::TokenBucket, FAST, DAY);
        let slow = limit(Algorithm::TokenBucket, 1, DAY);
        for (used, debt) in [(30, 20), (0, 0)] {
            let permit = test.limiter.acquire(&fast, "key", 10).await.expect("admitted");
            test.advance(SECOND);
            assert!(test.allows(&slow, 1).await);
            permit.settle(used);
            test.limiter.flush().await.expect("settled");
            // The bucket counts the call of the slow rate, and the debt at that rate.
            let left = decision(test.limiter.peek(&slow, "key", 1).await);
            let wait = Duration::from_micros((1 + debt) * DAY);
            assert_eq!((left.allowed, left.retry_after), (false, wait), "used: {used}");
            let left = decision(test.limiter.peek(&fast, "key", 1).await).remaining;
            assert_eq!(left, FAST - 1 - debt, "used: {used}");
            test.limiter.reset(&slow, "key").await.expect("a reply");
        }
    }

    /// 30,000,000,000 units a month: tokens, or nano-dollars. What is charged, settled and given back is exact.
    async fn amounts_above_32_bits_are_exact(test: TestLimiter) {
        const MONTHLY: u64 = 30_000_000_000;
        const USED: u64 = 12_345_678_901;
        for algorithm in ALGORITHMS {
            let limit = limit(algorithm, MONTHLY, 30 * DAY);
            let limit = if is_bucket(algorithm) { limit.burst(MONTHLY) } else { limit };
            let left = async || decision(test.limiter.peek(&limit, "key", 1).await).remaining;
            test.clock.set(Duration::from_secs(30 * 86_400 * 700));
            let permit = test.limiter.acquire(&limit, "key", 20_000_000_000).await.expect("admitted");
            assert_eq!((permit.decision().limit, left().await), (MONTHLY, 10_000_000_000));
            let costly = test.limiter.check(&limit, "key", 10_000_000_001).await;
            let rejection = costly.expect_err("more than is left");
            assert!(matches!(rejection, Rejection::Limited { .. }), "{rejection:?}");
            permit.settle(USED);
            test.limiter.flush().await.expect("settled");
            assert_eq!(left().await, MONTHLY - USED, "{algorithm}");
            let permit = test.limiter.acquire(&limit, "key", 1).await.expect("admitted");
            permit.settle(MONTHLY);
            test.limiter.flush().await.expect("settled");
            assert_eq!(left().await, 0, "{algorithm}: a debt");
            let credited = test.limiter.credit(&limit, "key", MONTHLY).await.expect("a reply");
            assert_eq!(credited.remaining, MONTHLY - USED, "{algorithm}");
            for is_counted in [true, false] {
                let was_counted = test.limiter.reset(&limit, "key").await.expect("a reply");
                assert_eq!(was_counted, is_counted, "{algorithm}");
            }
            let burst = is_bucket(algorithm).then_some(1);
            if let Ok(most) = limit.try_amounts(999_999_999_999_999, burst) {
                let cost = most.capacity();
                assert!(test.allows(&most, cost).await, "{algorithm}");
                assert!(!test.allows(&most, 1).await, "{algorithm}");
            }
            test.limiter.reset(&limit, "key").await.expect("a reply");
        }
    }

    async fn the_largest_costs_are_refused(test: TestLimiter) {
        for algorithm in ALGORITHMS {
            let limit = limit(algorithm, 5, 30 * DAY);
            let shadow = limit.shadow(true);
            let (limiter, whole) = (&test.limiter, limit.capacity());
            for cost in [whole + 1, u64::MAX - 1, u64::MAX] {
                let part = Part::new(&limit, &"key", cost);
                let same = [Part::new(&limit, &"key", 1), part];
                let twice = [part, part];
                let other = [Part::new(&limit, &"other", 1), part];
                let refusals = [
                    limiter.check(&limit, "key", cost).await.map(drop),
                    limiter.peek(&limit, "key", cost).await.map(drop),
                    limiter.acquire(&limit, "key", cost).await.map(drop),
                    limiter.check_all(&[part]).await.map(drop),
                    limiter.check_all(&same).await.map(drop),
                    limiter.check_all(&twice).await.map(drop),
                    limiter.check_all(&other).await.map(drop),
                ];
                for (index, refusal) in refusals.into_iter().enumerate() {
                    let Err(Rejection::CostExceedsCapacity { varies: false, .. }) = refusal else {
                        panic!("{limit:?}, {index}: {refusal:?}")
                    };
                }
                limiter.check(&shadow, "key", cost).await.expect("a shadow rejects nothing");
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
            assert!(decision(test.limiter.peek(&limit, "key", cost).await).allowed, "{cost}");
            test.clock.set(now);
        }
    }
}
