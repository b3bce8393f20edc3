//! What a limit can be, and what it is told when it cannot.

use std::time::Duration;

use ratelimit_runtime::{Algorithm, Align, InvalidLimit, Limit};

const YEAR: Duration = Duration::from_secs(86_400 * 36_525 / 100);

fn new(threshold: u32, period: Duration) -> Result<Limit, InvalidLimit> {
    Limit::new("limits", Algorithm::Fixed, threshold, period)
}

#[track_caller]
fn rejected(limit: Result<Limit, InvalidLimit>, words: &str) {
    let message = limit.expect_err("not a limit").to_string();
    assert!(message.contains(words), "{message}");
}

#[test]
fn bad_values_are_told_what_to_write() {
    let second = Duration::from_secs(1);
    rejected(Limit::new("", Algorithm::Fixed, 1, second), "must not be empty");
    rejected(new(0, second), "at least 1");
    rejected(new(1, Duration::ZERO), "at least one microsecond");
    rejected(new(1, Duration::from_nanos(1_500)), "whole number of microseconds");
    rejected(new(1, Duration::from_nanos(1)), "whole number of microseconds");
    rejected(new(1, YEAR * 100 + Duration::from_micros(1)), "at most 100 years");
    rejected(new(1, Duration::from_secs(u64::MAX)), "at most 100 years");
    assert!(new(u32::MAX, YEAR * 100).is_ok());
    assert!(new(1, Duration::from_micros(1)).is_ok());

    let bucket = Limit::token_bucket("limits", 1, YEAR);
    rejected(bucket.clone().try_burst(0), "at least 1");
    rejected(bucket.clone().try_burst(101), "lower `burst` or `period`");
    assert_eq!(bucket.try_burst(100).expect("100 years").capacity(), 100);
    rejected(Limit::sliding("limits", 1, second).try_burst(2), "with token_bucket or leaky_bucket");

    let fixed = |seconds| Limit::fixed("limits", 1, Duration::from_secs(seconds));
    rejected(fixed(7_000).try_align(Align::UTC), "divide a day");
    rejected(fixed(86_400 + 3_600).try_align(Align::UTC), "divide a day");
    assert!(fixed(86_400 * 30).try_align(Align::UTC).is_ok());
    assert!(fixed(900).try_align(Align::offset_minutes(-210)).is_ok());
    rejected(Limit::sliding("limits", 1, second).try_align(Align::UTC), "use it with fixed");
}

#[test]
fn a_lease_is_within_its_limit() {
    let minute = Duration::from_secs(60);
    let sliding = |period| Limit::sliding("limits", 100, period);
    rejected(sliding(minute).try_lease(0), "at least 1");
    rejected(sliding(minute).try_lease(101), "at most what can be admitted");
    rejected(sliding(Duration::from_millis(99)).try_lease(1), "at least 100 ms");
    assert!(sliding(Duration::from_millis(100)).try_lease(100).is_ok());
    // 1.01 tokens refill in 600 ms.
    let bucket = Limit::token_bucket("limits", 101, minute).burst(10);
    assert!(bucket.clone().try_lease(8).is_ok());
    rejected(bucket.clone().try_lease(9), "at most what can be admitted");
    rejected(bucket.lease(8).try_burst(9), "at most what can be admitted");
    rejected(Limit::leaky_bucket("limits", 100, minute).try_lease(1), "raise `burst`");
}

#[test]
fn a_limit_says_what_it_is() {
    let limit = Limit::leaky_bucket("limits", 7, Duration::from_millis(1_500)).burst(3);
    assert_eq!((limit.name(), limit.threshold(), limit.capacity()), ("limits", 7, 3));
    assert_eq!(
        (limit.algorithm(), limit.period()),
        (Algorithm::LeakyBucket, Duration::from_millis(1_500))
    );
    let default = |algorithm| {
        Limit::new("limits", algorithm, 7, Duration::from_secs(1)).expect("valid").capacity()
    };
    assert_eq!(default(Algorithm::TokenBucket), 7);
    assert_eq!(default(Algorithm::LeakyBucket), 1);
    assert_eq!(default(Algorithm::Sliding), 7);
}

#[test]
#[should_panic(expected = "between -14:00 and +14:00")]
fn an_offset_is_one_that_is_in_use() {
    let _ = Align::offset_minutes(14 * 60 + 1);
}
