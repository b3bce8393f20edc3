//! Extreme values: long and short times, fine rates, large counts, and times near zero.

use std::time::Duration;

use ratelimit_runtime::{Algorithm, Align, Limit, Part, Rejection};
use support::ALGORITHMS;
use support::limits::is_bucket;
use support::server::Server;

use super::{DAY, HOUR, SECOND, limit};
use crate::decision;

crate::on_both_stores! {
    async fn a_bucket_admits_its_rate_over_hours(test: TestLimiter) {
        for (threshold, period, step) in [
            (1, SECOND, 333_333),
            (999, SECOND, 1_000),
            (1_001, SECOND, 997),
            (1_000_000, SECOND, 11),
            (7, 1_000, 101),
            (1_000_003, 30 * DAY, 2_591_999),
        ] {
            let limit = limit(Algorithm::TokenBucket, threshold, period).burst(50);
            test.limiter.reset(&limit, "key").await.expect("a reply");
            let start = test.clock.now();
            // Takes all tokens at irregular times. No pause fills the bucket, so the admitted cost is the
            // refilled amount.
            let mut admitted = 0;
            for round in 0..2_000_u64 {
                let tokens = decision(test.limiter.peek(&limit, "key", 0).await).remaining;
                assert!(test.allows(&limit, tokens).await);
                admitted += tokens;
                let full = 50 * period / threshold;
                test.advance(if round % 7 == 0 { full * 9 / 10 } else { step.min(full) });
            }
            let tokens = decision(test.limiter.peek(&limit, "key", 0).await).remaining;
            let elapsed = (test.clock.now() - start).as_micros();
            let refilled = elapsed * u128::from(threshold) / u128::from(period);
            let counted = u128::from(admitted) + u128::from(tokens);
            let expected = refilled + 50;
            assert!(
                counted <= expected && counted + 1 >= expected,
                "{threshold} per {period} µs: {counted} of {expected}"
            );
        }
    }

    async fn ten_idle_years_restore_the_whole_capacity(test: TestLimiter) {
        for algorithm in ALGORITHMS {
            for period in [1_000, SECOND, 30 * DAY] {
                let limit = limit(algorithm, 5, period);
                let capacity = limit.capacity();
                test.clock.set(Duration::from_secs(1_800_000_000));
                for _ in 0..3 {
                    assert!(test.allows(&limit, capacity).await, "{algorithm}");
                    assert!(!test.allows(&limit, 1).await, "{algorithm}");
                    test.advance(10 * 365 * DAY);
                }
            }
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
        // A log counts entries at time zero.
        test.clock.set(Duration::ZERO);
        let limit = limit(Algorithm::Sliding, 2, 100);
        for (at, allowed) in [(0, true), (50, true), (99, false), (100, true), (149, false)] {
            test.clock.set(Duration::from_micros(at));
            assert_eq!(test.allows(&limit, 1).await, allowed, "at {at} µs");
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

    /// In Redis, the running total of a log is modulo 2^32.
    async fn a_log_stays_exact_when_its_total_wraps(test: TestLimiter) {
        let limit = limit(Algorithm::Sliding, 4_000_000_000, 100);
        for _ in 0..5 {
            assert!(test.allows(&limit, 1_500_000_000).await);
            test.advance(40);
            assert!(test.allows(&limit, 1_500_000_000).await);
            let rejected = test.decide(&limit, 2_000_000_000).await;
            assert_eq!((rejected.allowed, rejected.remaining), (false, 1_000_000_000));
            assert_eq!(rejected.retry_after, Duration::from_micros(60));
            let refund = test.limiter.credit(&limit, "key", 500_000_000).await.expect("a reply");
            assert_eq!(refund.remaining, 1_500_000_000);
            test.advance(60);
            assert_eq!(test.decide(&limit, 0).await.remaining, 3_000_000_000);
            // The next round starts before the log is empty: an empty log has a new total.
            test.advance(30);
        }
    }

    async fn a_large_cost_takes_one_record(test: TestLimiter) {
        let limit = limit(Algorithm::Sliding, 4_000_000_000, HOUR);
        for _ in 0..10_000 {
            assert!(test.allows(&limit, 1).await);
            test.advance(1);
        }
        assert!(test.allows(&limit, 10_000).await);
        assert!(test.allows(&limit, 3_999_970_000).await);
        let rejected = test.decide(&limit, 20_000).await;
        assert_eq!((rejected.allowed, rejected.remaining), (false, 10_000));
        // All of these charges can leave the window together.
        let wait = rejected.retry_after.as_micros() as u64;
        assert!((HOUR - 10_000..HOUR + HOUR / 1_000).contains(&wait), "{wait}");
        let after = test.limiter.credit(&limit, "key", 3_999_985_000).await.expect("a reply");
        assert_eq!(after.remaining, 3_999_995_000);
        test.advance(HOUR + HOUR / 1_000);
        assert_eq!(test.decide(&limit, 10_000).await.remaining, 3_999_990_000);
    }

    /// Rates that are too fine for exact integers: both stores round them down in the same way.
    /// `Limit::token_bucket` documents by how much.
    async fn very_fine_rates_are_rounded_down(test: TestLimiter) {
        let limit = limit(Algorithm::TokenBucket, 4_000_000_007, DAY);
        let mut admitted = 0_u128;
        let start = test.clock.now();
        for _ in 0..500 {
            let tokens = decision(test.limiter.peek(&limit, "key", 0).await).remaining;
            assert!(test.allows(&limit, tokens).await);
            admitted += u128::from(tokens);
            test.advance(HOUR + 7);
        }
        let elapsed = (test.clock.now() - start).as_micros() - u128::from(HOUR + 7);
        let refilled = elapsed * 4_000_000_007 / u128::from(DAY) + 4_000_000_007;
        assert!(admitted <= refilled, "{admitted} of {refilled}");
        assert!(admitted >= refilled - (refilled >> 29), "{admitted} of {refilled}");
    }

    /// Counts that are too large for a resolution of one microsecond.
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
            assert!(test.limiter.reset(&limit, "key").await.expect("a reply"));
            let most = limit.try_amounts(999_999_999_999_999, Some(1).filter(|_| is_bucket(algorithm)));
            if let Ok(most) = most {
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
                    let is_refused = matches!(refusal, Err(Rejection::CostExceedsCapacity { .. }));
                    assert!(is_refused, "{limit:?}, {index}: {refusal:?}");
                }
                limiter.check(&shadow, "key", cost).await.expect("a shadow rejects nothing");
            }
            assert!(test.allows(&limit, whole).await, "{limit:?}: nothing was charged");
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

/// The scripts read the time of the server with microseconds.
#[tokio::test]
async fn windows_can_be_shorter_than_a_second() {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid");
    let limit = Limit::sliding("short", 1, Duration::from_millis(900));
    assert!(limiter.check(&limit, (), 1).await.is_ok());
    tokio::time::sleep(Duration::from_millis(100)).await;
    let rejected = limiter.check(&limit, (), 1).await;
    let wait = rejected.expect_err("within the window").retry_after().expect("limited");
    assert!(wait <= Duration::from_millis(800), "{wait:?}");
}
