//! Windows of the calendar: days, weeks, months, quarters and years in time zones.

use std::time::Duration;

use jiff::Timestamp;
use ratelimit_runtime::{Align, Calendar, Limit, OnError, RateLimiter, Rejection, rate_limit};
use support::calendar;
use support::limits::DAY;
use support::server::Server;

use crate::decision;

fn at(time: &str) -> Duration {
    let time: Timestamp = time.parse().expect(time);
    Duration::from_micros(time.as_microsecond() as u64)
}

fn days(count: u32, zone: &str) -> Limit {
    Limit::fixed("calendar", 1, count * DAY).align(Align::zone(zone))
}

fn monthly(align: Align) -> Limit {
    Limit::calendar("calendar", 1, Calendar::Month).align(align)
}

#[rate_limit(
    name = "calendar", period = "month", threshold = 1, align = "Asia/Tokyo", align_day = 31, key = user,
    limiter = limiter
)]
async fn annotated(limiter: &RateLimiter, user: &str) -> Result<(), Rejection> {
    Ok(())
}

crate::on_both_stores! {
    async fn the_attribute_has_months(test: TestLimiter) {
        annotated(&test.limiter, "key").await.expect("the first call of the month");
        let limit = monthly(Align::zone("Asia/Tokyo").day(31));
        let (now, peeked) = (test.clock.now().as_micros() as u64, test.limiter.peek(&limit, "key", 1));
        let (_, end) = calendar::window(&limit, now).expect("a window");
        let left = decision(peeked.await).retry_after;
        assert_eq!(left, Duration::from_micros(end - now));
        assert!(annotated(&test.limiter, "key").await.is_err());
    }

    async fn windows_end_at_boundaries_of_the_calendar(test: TestLimiter) {
        let berlin = Align::zone("Europe/Berlin");
        let quarter = Limit::calendar("calendar", 1, Calendar::Quarter);
        let year = Limit::calendar("calendar", 1, Calendar::Year);
        for (limit, called, ends) in [
            // Clocks go forward at 02:00 and back at 03:00: days of 23 and of 25 hours.
            (days(1, "Europe/Berlin"), "2026-03-29T00:30+01:00", "2026-03-30T00:00+02:00"),
            (days(1, "Europe/Berlin"), "2026-10-25T23:59+01:00", "2026-10-26T00:00+01:00"),
            (days(7, "Europe/Berlin"), "2026-03-26T12:00+01:00", "2026-03-30T00:00+02:00"),
            // In Santiago, clocks skip midnight.
            (days(1, "America/Santiago"), "2026-09-05T12:00-04:00", "2026-09-06T01:00-03:00"),
            // In Samoa, there was no 30 December 2011.
            (days(1, "Pacific/Apia"), "2011-12-29T12:00-10:00", "2011-12-31T00:00+14:00"),
            // In Toronto, clocks went back from 00:01 to 23:01: the day that ends twice has one end.
            (days(1, "America/Toronto"), "2006-10-28T12:00-04:00", "2006-10-29T00:00-04:00"),
            (monthly(Align::UTC), "2026-02-28T23:59Z", "2026-03-01T00:00Z"),
            (monthly(berlin), "2026-03-15T12:00Z", "2026-04-01T00:00+02:00"),
            (monthly(Align::UTC.day(31)), "2026-02-27T12:00Z", "2026-02-28T00:00Z"),
            (monthly(Align::UTC.day(31)), "2026-02-28T12:00Z", "2026-03-31T00:00Z"),
            (monthly(berlin.day(15)), "2026-03-14T23:00+01:00", "2026-03-15T00:00+01:00"),
            (quarter, "2026-02-03T00:00Z", "2026-04-01T00:00Z"),
            (quarter.align(berlin), "2026-12-31T23:30Z", "2027-04-01T00:00+02:00"),
            (year, "2028-01-01T00:00Z", "2029-01-01T00:00Z"),
            (year.align(Align::offset_minutes(480)), "2026-12-31T15:00Z", "2026-12-31T16:00Z"),
        ] {
            let name = format!("{limit:?}, {called}");
            test.limiter.reset(&limit, "key").await.expect("a reply");
            test.clock.set(at(called));
            assert!(test.allows(&limit, 1).await, "{name}");
            let left = decision(test.limiter.peek(&limit, "key", 1).await);
            assert_eq!(left.retry_after, at(ends) - at(called), "{name}");
            assert_eq!(left.reset_after, left.retry_after, "{name}");
            let ends = at(ends);
            for (time, allowed) in [(ends - Duration::from_micros(1), false), (ends, true)] {
                test.clock.set(time);
                assert_eq!(test.allows(&limit, 1).await, allowed, "{name}");
            }
        }
    }

    async fn a_charge_is_corrected_in_its_month_alone(test: TestLimiter) {
        let limit = Limit::calendar("calendar", 10, Calendar::Month);
        test.clock.set(at("2026-02-10T00:00Z"));
        let [settled, late] = [6, 4].map(|cost| test.limiter.acquire(&limit, "key", cost));
        let (settled, late) = (settled.await.expect("admitted"), late.await.expect("admitted"));
        settled.settle(1);
        test.limiter.flush().await.expect("settled");
        assert_eq!(decision(test.limiter.peek(&limit, "key", 1).await).remaining, 5);
        test.clock.set(at("2026-03-01T00:00Z"));
        assert!(test.allows(&limit, 3).await);
        late.settle(0);
        test.limiter.flush().await.expect("settled");
        assert_eq!(decision(test.limiter.peek(&limit, "key", 1).await).remaining, 7);
    }
}

#[tokio::test]
async fn a_clock_that_is_a_window_off_decides_nothing() {
    let server = Server::start();
    let limiter = RateLimiter::builder().redis(&server.url).on_error(OnError::Deny);
    let limiter = limiter.deadline(Duration::from_secs(5)).build().expect("valid");
    let daily = days(1, "Asia/Kolkata");
    limiter.check(&daily, "key", 1).await.expect("admitted");
    let rejected = limiter.check(&daily, "key", 1).await;
    let Err(Rejection::Limited { decision, .. }) = rejected else { panic!("{rejected:?}") };
    assert!(decision.retry_after <= DAY, "{decision:?}");
    // The process sends the boundaries around its own time, which is far from this one.
    let arguments = ["op=take", "threshold=1", "period=1", "shift=-1"];
    let boundaries = ["first=10", "second=20", "third=30", "last=40", "clock=40"];
    let script = ratelimit_runtime::__private::script_text("calendar").expect("a script");
    let mut eval = redis::cmd("EVAL");
    eval.arg(script).arg(1).arg("rl:fixed:1d@Asia/Kolkata:calendar{off}");
    let reply: redis::RedisResult<Vec<String>> =
        eval.arg(&arguments).arg(&boundaries).query(&mut server.connection());
    let error = reply.expect_err("outside of the boundaries").to_string();
    assert!(error.contains("BADCLOCK"), "{error}");
}

/// Each zone, for a month of days and two and a half years of months.
#[test]
fn the_windows_of_each_zone_are_those_of_its_days() {
    let clock = ratelimit_runtime::VirtualClock::at(Duration::ZERO);
    let limiter = support::clocks::embedded_on(&clock);
    for zone in jiff::tz::TimeZoneDatabase::bundled().available() {
        let zone = zone.as_str();
        for limit in [days(1, zone), monthly(Align::zone(zone).day(31))] {
            let mut now = 1_700_000_000_000_000;
            for _ in 0..30 {
                clock.set(Duration::from_micros(now));
                limiter.check_blocking(&limit, zone, 1).expect("a new window");
                let retry =
                    limiter.check_blocking(&limit, zone, 1).expect_err("full").retry_after();
                let (_, end) = calendar::window(&limit, now).expect("a window");
                assert_eq!(retry, Some(Duration::from_micros(end - now)), "{limit:?} at {now}");
                now = end;
            }
        }
    }
}
