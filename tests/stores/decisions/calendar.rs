//! Windows of the calendar: days, weeks, months, quarters and years in time zones.

use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZoneDatabase;
use ratelimit_runtime::__private::script_text;
use ratelimit_runtime::{
    Align, Calendar, Limit, RateLimiter, Rejection, Rule, Source, VirtualClock, rate_limit,
};
use support::clocks::embedded_on;
use support::limits::{DAY, HOUR, ruled};
use support::log::Log;
use support::server::Server;
use support::{calendar, is_long};

use crate::decision;

fn at(time: &str) -> Duration {
    let time: Timestamp = time.parse().expect(time);
    Duration::from_micros(time.as_microsecond() as u64)
}

fn days(count: u32, align: Align) -> Limit {
    Limit::fixed("calendar", 1, count * DAY).align(align)
}

fn monthly(align: Align) -> Limit {
    Limit::calendar("calendar", 1, Calendar::Month).align(align)
}

struct Tenant {
    zone: Align,
    day: u8,
}

#[rate_limit(
    name = "calendar", period = "month", threshold = 2, align = tenant.zone, align_day = tenant.day, key = user,
    limiter = limiter
)]
async fn of_tenant(limiter: &RateLimiter, tenant: &Tenant, user: &str) -> Result<(), Rejection> {
    Ok(())
}

crate::on_both_stores! {
    async fn each_tenant_has_windows_of_its_own(test: TestLimiter) {
        let berlin = Tenant { zone: Align::zone("Europe/Berlin"), day: 15 };
        let tokyo = Tenant { zone: Align::zone("Asia/Tokyo"), day: 31 };
        let (of_berlin, of_tokyo) = ("2026-07-15T00:00+02:00", "2026-07-31T00:00+09:00");
        // "moved" begins its month in Berlin, and the tenant then moves to Tokyo: that month ends in Berlin.
        for (user, first, then, ends) in [
            ("berlin", &berlin, &berlin, [of_berlin, "2026-08-15T00:00+02:00"]),
            ("tokyo", &tokyo, &tokyo, [of_tokyo, "2026-08-31T00:00+09:00"]),
            ("moved", &berlin, &tokyo, [of_berlin, of_tokyo]),
        ] {
            test.clock.set(at("2026-07-14T12:00Z"));
            for (first, ends) in [first, then].into_iter().zip(ends) {
                of_tenant(&test.limiter, first, user).await.expect("the first call");
                of_tenant(&test.limiter, then, user).await.expect("the second call");
                let rejection = of_tenant(&test.limiter, then, user).await.expect_err("the third");
                assert_eq!(rejection.retry_after(), Some(at(ends) - test.clock.now()), "{user}");
                test.clock.set(at(ends));
            }
        }
    }

    async fn windows_of_a_call_stay_under_a_rule_and_other_amounts(test: TestLimiter) {
        let month = Limit::calendar("calendar", 5, Calendar::Month);
        let limit = month.with_align(Align::zone("Asia/Tokyo").day(15)).expect("months have days");
        let daily = Limit::fixed("daily", 5, DAY);
        assert!(daily.with_align(Align::UTC.day(15)).is_err());
        test.set_rules(ruled("calendar/month", Rule::new().threshold(1)));
        test.clock.set(at("2026-02-10T00:00Z"));
        let more = limit.try_amounts(7, None).expect("valid");
        for limit in [limit, more] {
            test.limiter.reset(&limit, "key").await.expect("a reply");
            assert!(test.allows(&limit, 1).await);
            let left = decision(test.limiter.peek(&limit, "key", 1).await);
            let ends = at("2026-02-15T00:00+09:00");
            assert_eq!((left.limit, left.retry_after), (1, ends - test.clock.now()));
        }
        // Another align is no other count.
        assert!(!test.allows(&month, 1).await);
    }

    async fn windows_end_at_boundaries_of_the_calendar(test: TestLimiter) {
        let [berlin, east] = [Align::zone("Europe/Berlin"), Align::offset_minutes(480)];
        let daily = |zone| days(1, Align::zone(zone));
        let hour = Limit::fixed("calendar", 1, HOUR).align(Align::offset_minutes(-210));
        let quarter = Limit::calendar("calendar", 1, Calendar::Quarter);
        let year = Limit::calendar("calendar", 1, Calendar::Year);
        for (limit, called, ends) in [
            // This Sunday at 22:30 UTC, it is Monday in +08:00.
            (days(1, Align::UTC), "2026-03-01T22:30Z", "2026-03-02T00:00Z"),
            (days(1, east), "2026-03-01T22:30Z", "2026-03-03T00:00+08:00"),
            (days(7, Align::UTC), "2026-03-01T22:30Z", "2026-03-02T00:00Z"),
            (days(7, east), "2026-03-01T22:30Z", "2026-03-09T00:00+08:00"),
            (hour, "2026-03-01T22:30Z", "2026-03-01T23:30Z"),
            // Clocks go forward at 02:00 and back at 03:00: days of 23 and of 25 hours.
            (days(1, berlin), "2026-03-29T00:30+01:00", "2026-03-30T00:00+02:00"),
            (days(1, berlin), "2026-10-25T23:59+01:00", "2026-10-26T00:00+01:00"),
            (days(7, berlin), "2026-03-26T12:00+01:00", "2026-03-30T00:00+02:00"),
            // In Santiago, clocks skip midnight.
            (daily("America/Santiago"), "2026-09-05T12:00-04:00", "2026-09-06T01:00-03:00"),
            // In Samoa, there was no 30 December 2011.
            (daily("Pacific/Apia"), "2011-12-29T12:00-10:00", "2011-12-31T00:00+14:00"),
            // In Toronto, clocks went back from 00:01 to 23:01: the day that ends twice has one end.
            (daily("America/Toronto"), "2006-10-28T12:00-04:00", "2006-10-29T00:00-04:00"),
            (monthly(Align::UTC), "2026-02-28T23:59Z", "2026-03-01T00:00Z"),
            (monthly(berlin), "2026-03-15T12:00Z", "2026-04-01T00:00+02:00"),
            (monthly(Align::UTC.day(31)), "2026-02-27T12:00Z", "2026-02-28T00:00Z"),
            (monthly(Align::UTC.day(31)), "2026-02-28T12:00Z", "2026-03-31T00:00Z"),
            (monthly(berlin.day(15)), "2026-03-14T23:00+01:00", "2026-03-15T00:00+01:00"),
            (quarter, "2026-02-03T00:00Z", "2026-04-01T00:00Z"),
            (quarter.align(berlin), "2026-12-31T23:30Z", "2027-04-01T00:00+02:00"),
            (year, "2028-01-01T00:00Z", "2029-01-01T00:00Z"),
            (year.align(east), "2026-12-31T15:00Z", "2026-12-31T16:00Z"),
        ] {
            let (name, called, ends) = (format!("{limit:?}, {called}"), at(called), at(ends));
            test.limiter.reset(&limit, "key").await.expect("a reply");
            let last = ends - Duration::from_micros(1);
            for (time, allowed) in [(called, true), (called, false), (last, false), (ends, true)] {
                test.clock.set(time);
                let decided = test.decide(&limit, 1).await;
                assert_eq!(decided.allowed, allowed, "{name}");
                if time < ends {
                    assert_eq!(decided.reset_after, ends - time, "{name}");
                    assert!(allowed || decided.retry_after == ends - time, "{name}: {decided:?}");
                }
            }
        }
    }
}

#[tokio::test]
async fn a_call_with_a_day_of_no_month_is_decided_and_told_once() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(log.writer()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let clock = VirtualClock::at(at("2026-02-10T00:00Z"));
    let limiter = embedded_on(&clock);
    let lost = Tenant { zone: Align::zone("Asia/Tokyo"), day: 32 };
    for _ in 0..2 {
        of_tenant(&limiter, &lost, "lost").await.expect("decided");
    }
    let rejection = of_tenant(&limiter, &lost, "lost").await.expect_err("the third");
    assert_eq!(rejection.retry_after(), Some(at("2026-03-01T00:00Z") - clock.now()));
    assert_eq!(log.text().matches("day of `align` must be one of 1 to 31").count(), 1);
}

#[tokio::test]
async fn a_server_decides_by_its_own_clock() {
    let (_server, limiter) = Server::with_limiter();
    let daily = days(1, Align::zone("Asia/Kolkata"));
    limiter.check(&daily, "key", 1).await.expect("admitted");
    let rejected = limiter.check(&daily, "key", 1).await;
    let Err(Rejection::Limited { decision, .. }) = rejected else { panic!("{rejected:?}") };
    assert!(decision.retry_after <= DAY && decision.source == Source::Redis, "{decision:?}");
}

/// The windows around each change of the clocks of each zone from 1970 to 2040, by days, weeks and months. With
/// `tests/run --long`, those of each day.
#[test]
fn the_windows_of_each_zone_are_those_of_its_days() {
    let clock = VirtualClock::at(Duration::ZERO);
    let limiter = embedded_on(&clock);
    let zones = TimeZoneDatabase::bundled();
    let (first, last) = (at("1970-02-01T00:00Z"), at("2040-01-01T00:00Z"));
    let mut calls = 0_u64;
    for name in zones.available() {
        let (name, zone) = (name.as_str(), zones.get(name.as_str()).expect("a zone"));
        let align = Align::zone(name);
        let limits = [days(1, align), days(7, align), monthly(align.day(31))];
        let since = Timestamp::from_second(first.as_secs() as i64).expect("in range");
        let changes = zone.following(since).map(|change| change.timestamp().as_second() as u64);
        let changes = changes.take_while(|change| *change < last.as_secs());
        let around =
            |change| [change - 86_400, change - 1, change, change + 3_600, change + 86_400];
        let each_day = (first.as_secs()..last.as_secs()).step_by(86_400).filter(|_| is_long());
        for moments in
            changes.map(|change| around(change).to_vec()).chain(each_day.map(|day| vec![day]))
        {
            for now in moments {
                clock.set(Duration::from_secs(now));
                let limit = limits[calls as usize % limits.len()];
                calls += 1;
                limiter.check_blocking(&limit, calls, 1).expect("a new key");
                let rejection = limiter.check_blocking(&limit, calls, 1).expect_err("full");
                let (start, end) = calendar::window(&limit, now * 1_000_000).expect("a window");
                assert!((start..end).contains(&(now * 1_000_000)), "{limit:?} at {now}");
                let left = Duration::from_micros(end) - Duration::from_secs(now);
                assert_eq!(rejection.retry_after(), Some(left), "{limit:?} at {now}");
            }
        }
    }
    assert!(calls > 100_000, "{calls}");
}

/// A server whose clock is behind or ahead of that of the process by less than a window decides by its own.
#[test]
fn a_script_decides_in_the_window_of_its_own_time() {
    let server = Server::start();
    let script = script_text("calendar").expect("a script");
    let eval = |clock: u64| -> redis::RedisResult<Vec<String>> {
        let key = format!("rl:fixed:1d@Asia/Kolkata:calendar{{{clock}}}");
        let windows = ["first=10", "second=20", "third=30", "last=40"];
        let terms = ["threshold=1", "period=1", "shift=-1"];
        let mut eval =
            redis::cmd("EVAL").arg(&script).arg(1).arg(key).arg(&terms).arg(&windows).to_owned();
        eval.arg(format!("clock={clock}")).query(&mut server.connection())
    };
    for (clock, left) in [(10, 10), (19, 1), (20, 10), (29, 1), (30, 10), (39, 1)] {
        let reply = eval(clock).expect("a reply");
        assert!(reply.contains(&"allowed=1".to_owned()), "{reply:?}");
        assert!(reply.contains(&format!("reset={left}")), "{clock}: {reply:?}");
    }
    for clock in [9, 40] {
        let error = eval(clock).expect_err("outside of the boundaries").to_string();
        assert!(error.contains("BADCLOCK"), "{error}");
        assert_eq!(server.ttls().len(), 6, "nothing was written");
    }
}
