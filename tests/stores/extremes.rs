//! Numbers at their ends: long times, fine rates, large counts, the beginning of time.

use std::time::Duration;

use ratelimit_runtime::{Algorithm, Align, Limit};
use support::ALGORITHMS;

use crate::decision;

const SECOND: u64 = 1_000_000;
const HOUR: u64 = 3600 * SECOND;
const DAY: u64 = 24 * HOUR;

fn limit(algorithm: Algorithm, threshold: u32, period: u64) -> Limit {
    Limit::new("semantics", algorithm, threshold, Duration::from_micros(period)).expect("valid")
}

crate::on_both_stores! {
    async fn a_bucket_admits_its_rate_over_hours(timed: Timed) {
        for (threshold, period, step) in [
            (1, SECOND, 333_333),
            (999, SECOND, 1_000),
            (1_001, SECOND, 997),
            (1_000_000, SECOND, 11),
            (7, 1_000, 101),
            (1_000_003, 30 * DAY, 2_591_999),
        ] {
            let limit = limit(Algorithm::TokenBucket, threshold, period).burst(50);
            timed.limiter.reset(&limit, "key").await.expect("answers");
            let start = timed.clock.now();
            // Ask for everything, at odd times, with idle hours in between that never overflow the
            // bucket: what is admitted is what refilled.
            let mut admitted = 0;
            for round in 0..2_000_u64 {
                let there = decision(timed.limiter.peek(&limit, "key", 0).await).remaining;
                assert!(timed.allows(&limit, there).await);
                admitted += u64::from(there);
                let full = 50 * period / u64::from(threshold);
                timed.advance(if round % 7 == 0 { full * 9 / 10 } else { step.min(full) });
            }
            let there = decision(timed.limiter.peek(&limit, "key", 0).await).remaining;
            let elapsed = (timed.clock.now() - start).as_micros();
            let refilled = elapsed * u128::from(threshold) / u128::from(period);
            let counted = u128::from(admitted) + u128::from(there);
            let expected = refilled + 50;
            assert!(
                counted <= expected && counted + 1 >= expected,
                "{threshold} per {period} µs: {counted} of {expected}"
            );
        }
    }

    async fn ten_idle_years_change_nothing_but_what_is_left(timed: Timed) {
        for algorithm in ALGORITHMS {
            for period in [1_000, SECOND, 30 * DAY] {
                let limit = limit(algorithm, 5, period);
                let capacity = limit.capacity();
                timed.clock.set(Duration::from_secs(1_800_000_000));
                for _ in 0..3 {
                    assert!(timed.allows(&limit, capacity).await, "{algorithm}");
                    assert!(!timed.allows(&limit, 1).await, "{algorithm}");
                    timed.advance(10 * 365 * DAY);
                }
            }
        }
    }

    async fn time_may_begin_at_zero(timed: Timed) {
        for algorithm in ALGORITHMS {
            timed.clock.set(Duration::ZERO);
            let limit = limit(algorithm, 2, 10);
            let capacity = limit.capacity();
            assert!(timed.allows(&limit, capacity).await);
            assert!(!timed.allows(&limit, capacity).await, "{algorithm}");
            timed.advance(30);
            assert!(timed.allows(&limit, capacity).await, "{algorithm}");
        }
        // Entries at zero are entries.
        timed.clock.set(Duration::ZERO);
        let limit = limit(Algorithm::Sliding, 2, 100);
        for (at, allowed) in [(0, true), (50, true), (99, false), (100, true), (149, false)] {
            timed.clock.set(Duration::from_micros(at));
            assert_eq!(timed.allows(&limit, 1).await, allowed, "at {at} µs");
        }
        // The first calendar windows began before the epoch.
        for minutes in [-840, 0, 480, 840] {
            let align = Align::offset_minutes(minutes);
            for days in [1, 7] {
                let day = Limit::fixed("epoch", 1, Duration::from_secs(days * 86_400)).align(align);
                timed.limiter.reset(&day, "key").await.expect("answers");
                timed.clock.set(Duration::ZERO);
                assert!(timed.allows(&day, 1).await);
                let refused = timed.decide(&day, 1).await;
                assert!(refused.retry_after <= day.period(), "{minutes}: {refused:?}");
                timed.clock.set(refused.retry_after - Duration::from_micros(1));
                assert!(!timed.allows(&day, 1).await, "{minutes}, {days} days");
                timed.advance(1);
                assert!(timed.allows(&day, 1).await, "{minutes}, {days} days");
            }
        }
    }

    /// The running total of a log counts modulo 2^32 in Redis.
    async fn a_total_may_wrap(timed: Timed) {
        let limit = limit(Algorithm::Sliding, 4_000_000_000, 100);
        for _ in 0..5 {
            assert!(timed.allows(&limit, 1_500_000_000).await);
            timed.advance(40);
            assert!(timed.allows(&limit, 1_500_000_000).await);
            let refused = timed.decide(&limit, 2_000_000_000).await;
            assert_eq!((refused.allowed, refused.remaining), (false, 1_000_000_000));
            assert_eq!(refused.retry_after, Duration::from_micros(60));
            let given = timed.limiter.refund(&limit, "key", 500_000_000).await.expect("answers");
            assert_eq!(given.remaining, 1_500_000_000);
            timed.advance(60);
            assert_eq!(timed.decide(&limit, 0).await.remaining, 3_000_000_000);
            // Before the log is empty, or its total would begin anew.
            timed.advance(30);
        }
    }

    async fn a_large_cost_is_one_entry_of_the_log(timed: Timed) {
        let limit = limit(Algorithm::Sliding, 4_000_000_000, HOUR);
        for _ in 0..10_000 {
            assert!(timed.allows(&limit, 1).await);
            timed.advance(1);
        }
        assert!(timed.allows(&limit, 10_000).await);
        assert!(timed.allows(&limit, 3_999_970_000).await);
        let refused = timed.decide(&limit, 20_000).await;
        assert_eq!((refused.allowed, refused.remaining), (false, 10_000));
        // It fits when the first 10,000, which came a microsecond apart, have left.
        assert_eq!(refused.retry_after, Duration::from_micros(HOUR - 1));
        let after = timed.limiter.refund(&limit, "key", 3_999_985_000).await.expect("answers");
        assert_eq!(after.remaining, 3_999_995_000);
        timed.advance(HOUR);
        assert_eq!(timed.decide(&limit, 10_000).await.remaining, 3_999_990_000);
    }

    /// Rates too fine for exact integers, which both stores round alike and never up. How far down is
    /// documented at `Limit::token_bucket`.
    async fn very_fine_rates_are_never_faster(timed: Timed) {
        let limit = limit(Algorithm::TokenBucket, 4_000_000_007, DAY);
        let mut admitted = 0_u128;
        let start = timed.clock.now();
        for _ in 0..500 {
            let there = decision(timed.limiter.peek(&limit, "key", 0).await).remaining;
            assert!(timed.allows(&limit, there).await);
            admitted += u128::from(there);
            timed.advance(HOUR + 7);
        }
        let elapsed = (timed.clock.now() - start).as_micros() - u128::from(HOUR + 7);
        let refilled = elapsed * 4_000_000_007 / u128::from(DAY) + 4_000_000_007;
        assert!(admitted <= refilled, "{admitted} of {refilled}");
        assert!(admitted >= refilled - (refilled >> 29), "{admitted} of {refilled}");
    }

    /// Counts too large for a grain of one microsecond.
    async fn very_large_counters_keep_their_waits_tight(timed: Timed) {
        let limit = limit(Algorithm::SlidingCounter, 4_000_000_007, 30 * DAY);
        timed.clock.set(Duration::from_secs(30 * 86_400 * 700));
        assert!(timed.allows(&limit, 4_000_000_000).await);
        timed.advance(30 * DAY + 12_345);
        for cost in [8, 100_000_007, 4_000_000_007] {
            let refused = timed.decide(&limit, cost).await;
            assert!(!refused.allowed);
            let now = timed.clock.now();
            timed.clock.set(now + refused.retry_after - Duration::from_micros(1));
            assert!(!timed.allows(&limit, cost).await, "{cost}");
            timed.advance(1);
            assert!(decision(timed.limiter.peek(&limit, "key", cost).await).allowed, "{cost}");
            timed.clock.set(now);
        }
    }
}
