//! What each algorithm promises, on virtual time and on both stores.

use std::time::Duration;

use ratelimit_runtime::__private::return_units;
use ratelimit_runtime::{Algorithm, Align, Decision, Limit, Rejection};
use support::ALGORITHMS;

use crate::{Timed, decision};

const SECOND: u64 = 1_000_000;
const HOUR: u64 = 3600 * SECOND;
const DAY: u64 = 24 * HOUR;

fn limit(algorithm: Algorithm, threshold: u32, period: u64) -> Limit {
    Limit::new("semantics", algorithm, threshold, Duration::from_micros(period)).expect("valid")
}

/// Buckets that refill a token each 100 ms, each a count of its own.
fn buckets() -> [Limit; 2] {
    let period = Duration::from_secs(1);
    [Limit::token_bucket("debt", 10, period), Limit::leaky_bucket("debt", 10, period)]
}

impl Timed {
    /// Now, in microseconds since the epoch.
    fn micros(&self) -> u64 {
        self.clock.now().as_micros() as u64
    }

    async fn peek(&self, limit: &Limit) -> Decision {
        decision(self.limiter.peek(limit, "key", 1).await)
    }

    /// Refunds units, and returns units that were charged at a moment. Returns what is left after each.
    async fn give_back(&self, limit: &Limit, units: u32, at: u64) -> [Left; 2] {
        let refund = self.limiter.refund(limit, "key", units).await.expect("answers");
        let returned = return_units(&self.limiter, limit, "key", units, at).await.expect("answers");
        [left(refund), left(returned)]
    }
}

/// How much is left, and how long until all of it is.
type Left = (u32, Duration);

fn left(decision: Decision) -> Left {
    (decision.remaining, decision.reset_after)
}

crate::on_both_stores! {
    async fn a_window_admits_its_threshold_and_opens_again_at_its_end(timed: Timed) {
        for algorithm in [Algorithm::Sliding, Algorithm::Fixed] {
            let limit = limit(algorithm, 3, 10 * SECOND);
            for remaining in [2, 1, 0] {
                let decision = timed.decide(&limit, 1).await;
                assert!(decision.allowed);
                assert_eq!((decision.remaining, decision.limit), (remaining, 3));
            }
            timed.advance(10 * SECOND - 1);
            let decision = timed.decide(&limit, 1).await;
            assert!(!decision.allowed);
            assert_eq!(decision.retry_after, Duration::from_micros(1));
            timed.advance(1);
            assert!(timed.allows(&limit, 1).await, "{algorithm}");
        }
    }

    async fn a_fixed_window_begins_with_its_first_admitted_call(timed: Timed) {
        let limit = limit(Algorithm::Fixed, 2, 10 * SECOND);
        assert!(timed.allows(&limit, 2).await);
        timed.advance(13 * SECOND);
        assert!(timed.allows(&limit, 2).await);
        timed.advance(9 * SECOND);
        assert!(!timed.allows(&limit, 1).await, "this window lasts from 13 s to 23 s");
        timed.advance(SECOND);
        assert!(timed.allows(&limit, 1).await);
    }

    async fn aligned_windows_begin_at_calendar_boundaries(timed: Timed) {
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
            timed.limiter.reset(&limit, "key").await.expect("answers");
            timed.clock.set(SUNDAY + Duration::from_secs(22 * 3600 + 1800));
            assert!(timed.allows(&limit, 1).await, "{name}");
            for (hours, allowed) in hours.into_iter().zip([false, true]) {
                timed.clock.set(SUNDAY + Duration::from_secs_f64(hours * 3600.0));
                assert_eq!(timed.allows(&limit, 1).await, allowed, "{name}, {hours} h later");
            }
        }
    }

    async fn the_sliding_counter_lets_the_previous_window_fade(timed: Timed) {
        let limit = limit(Algorithm::SlidingCounter, 10, 10 * SECOND);
        timed.clock.set(Duration::from_secs(2_000_000_000));
        assert!(timed.allows(&limit, 10).await);
        // Half of the next window: half of the ten still count.
        timed.advance(15 * SECOND);
        let peek = decision(timed.limiter.peek(&limit, "key", 6).await);
        assert_eq!((peek.allowed, peek.remaining), (false, 5));
        assert_eq!(peek.retry_after, Duration::from_secs(1));
        assert!(timed.allows(&limit, 5).await);
        assert!(!timed.allows(&limit, 1).await);
    }

    async fn a_leaky_bucket_spaces_calls(timed: Timed) {
        let limit = limit(Algorithm::LeakyBucket, 10, SECOND);
        for _ in 0..20 {
            assert!(timed.allows(&limit, 1).await);
            assert!(!timed.allows(&limit, 1).await);
            timed.advance(99_999);
            assert!(!timed.allows(&limit, 1).await);
            timed.advance(1);
        }
    }

    async fn one_a_minute_keeps_the_halves(timed: Timed) {
        let limit = limit(Algorithm::TokenBucket, 1, 60 * SECOND).burst(10);
        let mut admitted = 0;
        for _ in 0..=120 {
            admitted += u32::from(timed.allows(&limit, 1).await);
            timed.advance(30 * SECOND);
        }
        assert!((69..=70).contains(&admitted), "{admitted} in an hour");
    }

    async fn a_clock_that_steps_back_admits_nothing_twice(timed: Timed) {
        for algorithm in ALGORITHMS {
            let limit = limit(algorithm, 4, HOUR);
            let capacity = limit.capacity();
            let start = timed.clock.now();
            assert!(timed.allows(&limit, capacity).await);
            timed.clock.set(start - Duration::from_secs(600));
            let refused = timed.decide(&limit, 1).await;
            assert!(!refused.allowed, "{algorithm}");
            // The wait is counted from the clock as it is, and tight.
            timed.clock.set(timed.clock.now() + refused.retry_after - Duration::from_micros(1));
            assert!(!timed.allows(&limit, 1).await, "{algorithm}");
            timed.advance(1);
            assert!(timed.allows(&limit, 1).await, "{algorithm}");
            timed.advance(DAY);
        }
    }

    async fn hammering_while_refused_does_not_postpone_recovery(timed: Timed) {
        for algorithm in ALGORITHMS {
            let limit = limit(algorithm, 4, 10 * SECOND);
            let capacity = limit.capacity();
            assert!(timed.allows(&limit, capacity).await);
            let free = timed.clock.now() + timed.decide(&limit, 1).await.retry_after;
            let step = (free - timed.clock.now()).as_micros() as u64 / 100;
            for _ in 0..99 {
                timed.advance(step);
                let refused = timed.decide(&limit, 1).await;
                assert!(!refused.allowed, "{algorithm}");
                assert_eq!(timed.clock.now() + refused.retry_after, free, "{algorithm}");
            }
            timed.clock.set(free);
            assert!(timed.allows(&limit, 1).await, "{algorithm}");
        }
    }

    async fn a_refused_large_cost_does_not_spend_the_rest(timed: Timed) {
        for algorithm in ALGORITHMS {
            let mut limit = limit(algorithm, 10, 10 * SECOND);
            if algorithm == Algorithm::LeakyBucket {
                limit = limit.burst(10);
            }
            assert!(timed.allows(&limit, 4).await);
            assert!(!timed.allows(&limit, 7).await);
            let last = timed.decide(&limit, 6).await;
            assert!(last.allowed, "{algorithm}");
            assert_eq!(last.remaining, 0, "{algorithm}");
        }
    }

    async fn checks_and_refunds_in_pairs_change_nothing(timed: Timed) {
        for algorithm in ALGORITHMS {
            let limit = limit(algorithm, 3, HOUR);
            let capacity = limit.capacity();
            assert!(timed.allows(&limit, capacity - 1).await || capacity == 1);
            let before = decision(timed.limiter.peek(&limit, "key", 1).await);
            for _ in 0..1_000 {
                assert!(timed.allows(&limit, 1).await, "{algorithm}");
                timed.limiter.refund(&limit, "key", 1).await.expect("answers");
            }
            let after = decision(timed.limiter.peek(&limit, "key", 1).await);
            assert_eq!(before, after, "{algorithm}");
        }
    }

    async fn what_is_given_back_to_a_bucket_under_a_lowered_burst_changes_nothing(timed: Timed) {
        for limit in buckets() {
            let (full, lowered) = (limit.clone().burst(10), limit.clone().burst(3));
            let at = timed.micros();
            assert!(timed.allows(&full, 10).await);
            let before = timed.peek(&lowered).await;
            assert_eq!((before.allowed, before.retry_after), (false, Duration::from_millis(800)));
            assert_eq!(timed.give_back(&lowered, 5, at).await, [left(before); 2], "{limit:?}");
            assert_eq!(timed.peek(&lowered).await, before, "{limit:?}");
            // No more is taken than the bucket holds now.
            timed.advance(700_000);
            let after = timed.limiter.refund(&lowered, "key", 2).await.expect("answers");
            assert_eq!(after.remaining, 2, "{limit:?}");
        }
    }

    async fn what_is_given_back_to_a_bucket_with_a_reservation_changes_nothing(timed: Timed) {
        for limit in buckets() {
            let limit = limit.burst(10);
            let at = timed.micros();
            assert!(timed.allows(&limit, 10).await);
            let waiting = limit.clone().wait(Duration::from_secs(60));
            let waiting = tokio::spawn(timed.limiter.check(&waiting, "key", 1));
            // It has reserved the next token, so that another call gets the one after that.
            let before = loop {
                let decision = timed.peek(&limit).await;
                if decision.retry_after == Duration::from_millis(200) {
                    break decision;
                }
                tokio::task::yield_now().await;
            };
            assert_eq!(timed.give_back(&limit, 5, at).await, [left(before); 2], "{limit:?}");
            assert_eq!(timed.peek(&limit).await, before, "{limit:?}");
            timed.advance(100_000);
            waiting.await.expect("no panic").expect("admitted");
            // Its moment has come: nothing is reserved.
            let after = timed.limiter.refund(&limit, "key", 5).await.expect("answers");
            assert_eq!(after.remaining, 5, "{limit:?}");
        }
    }

    async fn a_refund_never_exceeds_the_capacity(timed: Timed) {
        for algorithm in ALGORITHMS {
            let limit = limit(algorithm, 3, HOUR);
            let fresh = timed.limiter.refund(&limit, "key", 5).await.expect("answers");
            assert_eq!(fresh.remaining, limit.capacity(), "{algorithm}");
            assert!(timed.allows(&limit, 1).await);
            let whole = timed.limiter.refund(&limit, "key", u32::MAX).await.expect("answers");
            assert_eq!((whole.remaining, whole.reset_after), (limit.capacity(), Duration::ZERO));
            let capacity = limit.capacity();
            assert!(timed.allows(&limit, capacity).await);
            assert!(!timed.allows(&limit, 1).await, "{algorithm}");
        }
    }

    async fn a_reset_key_is_as_new(timed: Timed) {
        for algorithm in ALGORITHMS {
            let limit = limit(algorithm, 3, HOUR);
            let capacity = limit.capacity();
            assert!(timed.allows(&limit, capacity).await);
            assert!(!timed.allows(&limit, 1).await);
            timed.limiter.reset(&limit, "key").await.expect("answers");
            assert!(timed.allows(&limit, capacity).await, "{algorithm}");
        }
    }

    async fn another_align_is_another_count(timed: Timed) {
        let daily = limit(Algorithm::Fixed, 10, DAY);
        let aligns = [
            daily.clone(),
            daily.clone().align(Align::UTC),
            daily.align(Align::offset_minutes(480)),
        ];
        let mut admitted = [0; 3];
        for _ in 0..100 {
            for (limit, admitted) in aligns.iter().zip(&mut admitted) {
                *admitted += u32::from(timed.allows(limit, 1).await);
            }
        }
        assert_eq!(admitted, [10; 3]);
        timed.limiter.reset(&aligns[1], "key").await.expect("answers");
        assert!(timed.allows(&aligns[1], 10).await, "of one align");
        assert!(!timed.allows(&aligns[2], 1).await, "and no other");
    }

    async fn periods_of_weeks_begin_on_monday_and_others_at_the_epoch(timed: Timed) {
        // 1970-01-05 was the first Monday, 1970-01-15 is 14 days after the epoch.
        for (days, hours) in [(7, 4 * 24), (14, 14 * 24)] {
            let limit = limit(Algorithm::Fixed, 1, days * DAY).align(Align::UTC);
            timed.clock.set(Duration::from_secs(3 * 86_400));
            assert!(timed.allows(&limit, 1).await);
            timed.clock.set(Duration::from_secs(hours * 3600 - 1));
            assert!(!timed.allows(&limit, 1).await, "{days} days");
            timed.advance(SECOND);
            assert!(timed.allows(&limit, 1).await, "{days} days");
        }
    }

    async fn no_cost_is_always_admitted_and_too_much_never(timed: Timed) {
        for algorithm in ALGORITHMS {
            let limit = limit(algorithm, 3, HOUR);
            let capacity = limit.capacity();
            assert!(timed.allows(&limit, capacity).await);
            assert!(timed.allows(&limit, 0).await, "{algorithm}");
            let refused = timed.limiter.check(&limit, "key", capacity + 1).await;
            let Err(rejection @ Rejection::CostExceedsCapacity { .. }) = refused else {
                panic!("{algorithm}: {refused:?}")
            };
            assert_eq!(rejection.retry_after(), None);
        }
    }

    async fn limits_names_and_keys_count_separately(timed: Timed) {
        const A: Limit = Limit::fixed("a", 1, Duration::from_secs(60));
        const B: Limit = Limit::fixed("b", 1, Duration::from_secs(60));
        const C: Limit = Limit::sliding("a", 1, Duration::from_secs(60));
        let long = "x".repeat(100_000);
        for limit in [A, B, C] {
            for key in ["", "k", "k:", "\0", "{k}", &long, &long[1..]] {
                assert!(timed.limiter.check(&limit, key, 1).await.is_ok(), "{key:.9}");
            }
            assert!(timed.limiter.check(&limit, (), 1).await.is_ok());
            assert!(timed.limiter.check(&limit, ("k:", "k"), 1).await.is_ok());
            assert!(timed.limiter.check(&limit, ("k", ":k"), 1).await.is_ok());
            assert!(timed.limiter.check(&limit, [0xff_u8, 0].as_slice(), 1).await.is_ok());
            for key in ["", "k", "k:", "\0", "{k}", &long, &long[1..]] {
                assert!(timed.limiter.check(&limit, key, 1).await.is_err(), "{key:.9}");
            }
        }
    }
}
