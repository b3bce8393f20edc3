//! The values that a limit accepts, and the errors of the values that it does not.

use std::collections::BTreeSet;
use std::time::Duration;

use ratelimit_runtime::{Algorithm, Align, Calendar, Lease, Limit, LimitError, OnError, Scope};
use support::ALGORITHMS;
use support::limits::{DAY, HOUR, MINUTE, SECOND};

const YEAR: Duration = Duration::from_secs(86_400 * 36_525 / 100);

fn new(threshold: u64, period: Duration) -> Result<Limit, LimitError> {
    Limit::new("limits", Algorithm::Fixed, threshold, period)
}

fn assert_error(limit: Result<Limit, LimitError>, words: &str) {
    let message = limit.expect_err(words).to_string();
    assert!(message.contains(words), "not `{words}`: {message}");
}

#[test]
fn the_error_of_an_invalid_value_says_what_is_valid() {
    assert_error(Limit::new("", Algorithm::Fixed, 1, SECOND), "must not be empty");
    assert_error(new(0, SECOND), "at least 1");
    assert_error(new(1, Duration::ZERO), "at least one microsecond");
    assert_error(new(1, Duration::from_nanos(1_500)), "whole number of microseconds");
    assert_error(new(1, Duration::from_nanos(1)), "whole number of microseconds");
    assert_error(new(1, YEAR * 100 + Duration::from_micros(1)), "at most 100 years");
    assert_error(new(1, Duration::from_secs(u64::MAX)), "at most 100 years");
    assert!(new(1, Duration::from_micros(1)).is_ok());
    assert!(new(999_999_999_999_999, YEAR * 100).is_ok());
    assert_error(new(1_000_000_000_000_000, SECOND), "at most 999,999,999,999,999");
    let large = |algorithm, threshold, period| Limit::new("limits", algorithm, threshold, period);
    let counter = |threshold| large(Algorithm::SlidingCounter, threshold, DAY);
    assert_error(counter(5_000_000_000_001), "count in a larger unit");
    assert!(counter(4_000_000_000_001).is_ok());
    assert!(large(Algorithm::TokenBucket, 999_999_999_999_989, DAY).is_ok());
    let slow = |threshold| large(Algorithm::TokenBucket, threshold, YEAR * 100);
    assert_error(slow(99_999_999_999_989), "count in a larger unit");
    assert!(slow(2_000_000_000_003).is_ok());

    let bucket = Limit::token_bucket("limits", 1, YEAR);
    assert_error(bucket.try_burst(0), "at least 1");
    assert_error(bucket.try_burst(101), "lower `burst` or `period`");
    assert_eq!(bucket.try_burst(100).expect("100 years").capacity(), 100);
    let sliding = Limit::sliding("limits", 1, SECOND);
    assert_error(sliding.try_burst(2), "with token_bucket or leaky_bucket");

    let aligned = |period| Limit::fixed("limits", 1, period).try_align(Align::UTC);
    assert_error(aligned(Duration::from_secs(7_000)), "divide a day");
    assert_error(aligned(DAY + HOUR), "divide a day");
    assert_error(aligned(DAY * 30), "be a week (7d)");
    assert!(aligned(DAY * 7).is_ok());
    let quarters = Limit::fixed("limits", 1, MINUTE * 15);
    assert!(quarters.try_align(Align::offset_minutes(-210)).is_ok());
    assert_error(sliding.try_align(Align::UTC), "use it with fixed");

    let zone = Align::zone("Europe/Berlin");
    assert_error(quarters.try_align(zone), "a window is a day (1d)");
    assert_error(Limit::fixed("limits", 1, DAY).try_align(zone.day(15)), "`align_day`");
    let year = Limit::calendar("limits", 1, Calendar::Year);
    assert_error(year.try_align(Align::UTC.day(2)), "period `month`");
    assert_error(Limit::try_calendar("", 1, Calendar::Month), "empty");
    assert_error(Limit::try_calendar("limits", 0, Calendar::Month), "at least 1");
    assert!(Align::try_zone("Europe/Berln").is_err_and(|it| it.to_string().contains("time zone")));
}

#[test]
fn the_zones_are_those_of_the_database() {
    let listed = include_str!("../ratelimit-macros/src/text/zones.txt");
    let database = jiff::tz::TimeZoneDatabase::bundled();
    let known: BTreeSet<_> = database.available().map(|zone| zone.to_string()).collect();
    assert_eq!(listed.lines().map(str::to_owned).collect::<BTreeSet<_>>(), known);
    for zone in listed.lines() {
        assert_eq!(Align::zone(zone).to_string(), zone);
    }
}

#[test]
fn a_lease_is_at_most_what_the_limit_can_admit() {
    let sliding = |period| Limit::sliding("limits", 100, period);
    assert_error(sliding(MINUTE).try_lease(0), "at least 1");
    assert_error(sliding(MINUTE).try_lease(101), "at most what can be admitted");
    assert_error(sliding(Duration::from_millis(99)).try_lease(1), "at least 100 ms");
    assert!(sliding(Duration::from_millis(100)).try_lease(100).is_ok());
    // 1.01 tokens refill in 600 ms.
    let bucket = Limit::token_bucket("limits", 101, MINUTE).burst(10);
    assert!(bucket.try_lease(8).is_ok());
    assert_error(bucket.try_lease(9), "at most what can be admitted");
    assert_error(bucket.lease(8).try_burst(9), "at most what can be admitted");
    assert_error(Limit::leaky_bucket("limits", 100, MINUTE).try_lease(1), "raise `burst`");

    // An automatic lease is one percent of at least a hundred.
    assert!(sliding(MINUTE).try_auto_lease().is_ok());
    assert_error(Limit::sliding("limits", 99, MINUTE).try_auto_lease(), "at least 100");
    assert_error(sliding(Duration::from_millis(99)).try_auto_lease(), "at least 100 ms");
    let bucket = Limit::leaky_bucket("limits", 1_000, MINUTE);
    assert_error(bucket.try_auto_lease(), "raise `burst`");
    assert_error(bucket.burst(99).try_auto_lease(), "at least 100");
    assert_error(bucket.burst(100).auto_lease().try_burst(99), "at least 100");
}

#[test]
#[should_panic(expected = "between -14:00 and +14:00")]
fn an_offset_that_no_time_zone_has_panics() {
    let _ = Align::offset_minutes(14 * 60 + 1);
}

#[derive(Debug, serde::Deserialize)]
struct Settings {
    limits: Vec<Limit>,
}

#[test]
fn a_limit_is_written_as_it_is_read() {
    let mut limits = vec![
        Limit::sliding("sliding", 5, MINUTE).scope(Scope::Process).shadow(true),
        Limit::fixed("fixed", 5, HOUR).align(Align::offset_minutes(-210)),
        Limit::fixed("utc", 5, MINUTE).align(Align::UTC).on_error(OnError::Deny).hidden(true),
        Limit::sliding_counter("counter", 50, Duration::from_millis(1_500)).lease(5),
        Limit::sliding_counter("auto", 500, MINUTE).auto_lease(),
        Limit::token_bucket("token", 5, MINUTE).burst(20).wait(Duration::from_millis(250)),
        Limit::leaky_bucket("leaky", 5, MINUTE).on_error(OnError::Allow).wait(Duration::MAX),
        Limit::in_flight("exports", 2).hold(Duration::from_millis(1_500)),
        Limit::calendar("month", 5, Calendar::Month).notify_at(80),
        Limit::calendar("billed", 5, Calendar::Month).align(Align::zone("Asia/Tokyo").day(31)),
        Limit::calendar("year", 5, Calendar::Year).align(Align::offset_minutes(-210)),
        Limit::fixed("week", 5, 7 * DAY).align(Align::zone("Europe/Berlin")),
        Limit::once("orders once", HOUR),
    ];
    let json = serde_json::to_string(&limits).expect("JSON");
    assert!(json.contains(r#"{"name":"exports","in_flight":2,"hold":"1500ms"}"#), "{json}");
    // A longer wait cannot be read.
    limits[6] = limits[6].wait(36_525 * DAY);
    assert_eq!(serde_json::from_str::<Vec<Limit>>(&json).expect(&json), limits);
}

#[test]
fn the_error_of_a_limit_in_a_file_names_its_line_and_what_to_write() {
    let error = |limit: &str| {
        let text = format!("[[limits]]\nname = \"api\"\n{limit}\n");
        toml::from_str::<Settings>(&text).expect_err(&text).to_string()
    };
    let one_of = "`api`: write one of these: `limit = \"300/minute\"`, `threshold` with `period`";
    for (limit, words) in [
        ("limit = \"5 each minute\"", "such as `300/minute`"),
        ("limit = \"5/minute\"\nthreshold = 5", one_of),
        ("threshold = 5", one_of),
        ("threshold = 0\nperiod = 30", "the limit `api`: `threshold` must be at least 1"),
        ("threshold = 2\nperiod = 30\nonce = true", "write `threshold = 1`, `algo = \"fixed\"`"),
        ("threshold = 5\nperiod = \"30min\"", "did you mean `m`?"),
        ("threshold = 5\nperiod = -1", "cannot be negative"),
        ("threshold = 5\nperiod = 30\nalgo = \"slidding\"", "did you mean `sliding`?"),
        ("threshold = 5\nperiod = 30\nalign = \"utc\"", "use it with fixed"),
        ("limit = \"5/h fixed\"\nalign = \"Berlin\"", "`\"utc\"`, an offset"),
        ("limit = \"5/day fixed\"\nalign = \"Europe/Berln\"", "did you mean `\"Europe/Berlin\"`"),
        ("limit = \"5/h fixed\"\nalign = \"Europe/Berlin\"", "a window is a day"),
        ("limit = \"5/month sliding\"", "are `fixed`"),
        ("limit = \"5/year\"\nalign_day = 3", "period `month`"),
        ("limit = \"5/month\"\nalign_day = 32", "1 to 31"),
        ("in_flight = 2\nthreshold = 5", "or `in_flight`"),
        ("in_flight = 2\nhold = \"500ms\"", "`hold` must be at least a second"),
        ("limit = \"5/h\"\nhold = 5", "use it with in_flight"),
        ("limit = \"5/h\"\nlease = 6", "`lease` must be at most"),
        ("limit = \"5/h\"\nnotify_at = 101", "`notify_at` must be a percentage from 1 to 100"),
        ("limit = \"5/h\"\nlease = \"auto\"", "at least 100"),
        ("limit = \"5/h\"\nlease = \"automatic\"", "a number of units, or \"auto\""),
        ("limit = \"5/h\"\nscope = \"fleet\"", "`global` or `process`"),
        ("limit = \"5/h\"\ntreshold = 6", "unknown field `treshold`"),
    ] {
        let message = error(limit);
        assert!(message.contains(words) && message.contains("line "), "{limit}: {message}");
    }
    let monthly = Limit::parse("api", "5/month").expect("valid").align(Align::UTC.day(15));
    let sliding = Limit::sliding("api", 5, 30 * SECOND);
    for (period, limit) in [
        ("\"month\"\nalign_day = 15", monthly),
        ("30", sliding),
        ("30.0", sliding),
        ("\"30s\"", sliding),
    ] {
        let text = format!("[[limits]]\nname = \"api\"\nthreshold = 5\nperiod = {period}");
        assert_eq!(toml::from_str::<Settings>(&text).expect(&text).limits, [limit]);
    }
}

#[test]
fn a_burst_and_a_lease_are_returned_as_they_were_set() {
    // A burst of the default capacity differs from no burst.
    let bucket = Limit::token_bucket("limits", 100, SECOND);
    assert_eq!((bucket.get_burst(), bucket.burst(100).get_burst()), (None, Some(100)));
    let leases = [bucket, bucket.lease(7), bucket.auto_lease()].map(|limit| limit.policy().lease);
    assert_eq!(leases, [Lease::None, Lease::UpTo(7), Lease::Auto]);
}

/// The attribute checks literals, and the runtime checks constants.
#[test]
fn the_attribute_and_the_runtime_accept_the_same_limits() {
    const DAY_US: u64 = 86_400_000_000;
    const LONGEST: u64 = 36_525 * DAY_US;
    const PERIODS: [u64; 9] =
        [0, 1, 99_999, 100_000, 1_000_000, DAY_US / 24 * 7, DAY_US, LONGEST, LONGEST + 1];
    const LEASES: [Option<&str>; 6] =
        [None, Some("0"), Some("1"), Some("10"), Some("11"), Some("\"auto\"")];
    const COMBINATIONS: usize = 6 * 5 * 6 * 9 * 5 * 2;
    let mut accepted = 0;
    for combination in 0..COMBINATIONS {
        let mut rest = combination;
        let mut choice = |choices: usize| {
            let chosen = rest % choices;
            rest /= choices;
            chosen
        };
        let (lease, algorithm) = (LEASES[choice(6)], ALGORITHMS[choice(5)]);
        let threshold = [0, 1, 99, 100, 1_000, u64::MAX][choice(6)];
        let period = PERIODS[choice(9)];
        let burst = [None, Some(0), Some(1), Some(20), Some(u64::MAX)][choice(5)];
        let is_aligned = choice(2) == 1;

        let limit = || {
            let mut limit =
                Limit::new("name", algorithm, threshold, Duration::from_micros(period))?;
            if let Some(burst) = burst {
                limit = limit.try_burst(burst)?;
            }
            if is_aligned {
                limit = limit.try_align(Align::offset_minutes(480))?;
            }
            match lease.map(str::parse) {
                Some(Ok(units)) => limit.try_lease(units),
                Some(Err(_)) => limit.try_auto_lease(),
                None => Ok(limit),
            }
        };
        let arguments = [
            format!("period = \"{period}us\", threshold = {threshold}, algo = \"{algorithm}\""),
            burst.map(|burst| format!(", burst = {burst}")).unwrap_or_default(),
            if is_aligned { ", align = \"+08:00\"" } else { "" }.to_owned(),
            lease.map(|lease| format!(", lease = {lease}")).unwrap_or_default(),
        ];
        let arguments = arguments.concat();
        let output = expander::expand(&arguments, "async fn call() -> Option<()> { None }");
        let is_accepted = !output.expect("tokens").contains("compile_error");
        assert_eq!(is_accepted, limit().is_ok(), "{arguments}");
        accepted += usize::from(is_accepted);
    }
    assert!((100..COMBINATIONS).contains(&accepted), "{accepted}");
}
