//! Windows of the calendar: days, weeks, months, quarters and years in time zones.

use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZoneDatabase;
use ratelimit_runtime::__private::script_text;
use ratelimit_runtime::{
    Align, Calendar, Clock, Limit, OnError, Part, RateLimiter, Rejection, Rule, RuleSet, Source,
    VirtualClock, rate_limit,
};
use support::clocks::embedded_on;
use support::limits::DAY;
use support::log::Log;
use support::server::Server;
use support::{calendar, is_long};

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
        test.clock.set(at("2026-07-14T12:00Z"));
        let (of_berlin, of_tokyo) = ("2026-07-15T00:00+02:00", "2026-07-31T00:00+09:00");
        // "moved" begins its month in Berlin, and the tenant then moves to Tokyo: that month ends in Berlin.
        for (user, first, then, ends) in [
            ("berlin", &berlin, &berlin, of_berlin),
            ("tokyo", &tokyo, &tokyo, of_tokyo),
            ("moved", &berlin, &tokyo, of_berlin),
        ] {
            of_tenant(&test.limiter, first, user).await.expect("the first call");
            of_tenant(&test.limiter, then, user).await.expect("the second call");
            let rejection = of_tenant(&test.limiter, then, user).await.expect_err("the third");
            assert_eq!(rejection.retry_after(), Some(at(ends) - test.clock.now()), "{user}");
        }
        test.clock.set(at(of_berlin));
        for (user, tenant, ends) in
            [("berlin", &berlin, "2026-08-15T00:00+02:00"), ("moved", &tokyo, of_tokyo)]
        {
            for _ in 0..2 {
                of_tenant(&test.limiter, tenant, user).await.expect("of the next month");
            }
            let rejection = of_tenant(&test.limiter, tenant, user).await.expect_err("the third");
            assert_eq!(rejection.retry_after(), Some(at(ends) - test.clock.now()), "{user}");
        }
    }

    async fn windows_of_a_call_stay_under_a_rule_and_other_amounts(test: TestLimiter) {
        let month = Limit::calendar("calendar", 5, Calendar::Month);
        let limit = month.with_align(Align::zone("Asia/Tokyo").day(15)).expect("months have days");
        let daily = Limit::fixed("daily", 5, DAY);
        assert!(daily.with_align(Align::UTC.day(15)).is_err());
        let mut rules = RuleSet::new();
        rules.set("calendar", Rule::new().threshold(1)).expect("valid");
        test.limiter.set_rules(rules).expect("valid");
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

    async fn months_stand_beside_other_limits_and_under_rules(test: TestLimiter) {
        let month = Limit::calendar("calendar", 5, Calendar::Month).align(Align::zone("Asia/Tokyo"));
        let bucket = Limit::token_bucket("bucket", 1, DAY);
        let parts = [Part::new(&month, &"key", 2), Part::new(&bucket, &"key", 1)];
        test.limiter.check_all(&parts).await.expect("admitted");
        let rejected = test.limiter.check_all(&parts).await;
        assert!(rejected.is_err_and(|it| it.name() == "bucket"));
        assert_eq!(decision(test.limiter.peek(&month, "key", 1).await).remaining, 3);
        let mut rules = RuleSet::new();
        rules.set("calendar/month", Rule::new().threshold(3)).expect("valid");
        test.limiter.set_rules(rules).expect("valid");
        assert_eq!(decision(test.limiter.check(&month, "key", 1).await).remaining, 0);
        assert!(!test.allows(&month, 1).await);
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
    let daily = days(1, "Asia/Kolkata");
    limiter.check(&daily, "key", 1).await.expect("admitted");
    let rejected = limiter.check(&daily, "key", 1).await;
    let Err(Rejection::Limited { decision, .. }) = rejected else { panic!("{rejected:?}") };
    assert!(decision.retry_after <= DAY && decision.source == Source::Redis, "{decision:?}");
}

/// 50 callers while the clock passes midnight: each window admits its threshold, and each rejection names a midnight.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_over_midnight_get_their_own_day() {
    let server = Server::start();
    let clock = VirtualClock::at(at("2026-10-24T23:59:59+02:00"));
    // A cached rejection counts from its reply, and all callers move the clock meanwhile.
    let shared = RateLimiter::builder().redis(&server.url).cache_rejections(false);
    let shared = shared.clock(Clock::Virtual(clock.clone())).on_error(OnError::Deny);
    let shared = shared.deadline(Duration::from_secs(10)).build().expect("valid");
    for limiter in [embedded_on(&clock), shared] {
        clock.set(at("2026-10-24T23:59:59+02:00"));
        let limit = Limit::fixed("calendar", 20, DAY).align(Align::zone("Europe/Berlin"));
        let midnights = ["2026-10-25T00:00+02:00", "2026-10-26T00:00+01:00"].map(at);
        let calls = (0..50).map(|_| {
            let (limiter, clock) = (limiter.clone(), clock.clone());
            tokio::spawn(async move {
                let mut admitted = 0;
                for _ in 0..40 {
                    let before = clock.now();
                    let result = limiter.check(&limit, "key", 1).await;
                    let after = clock.now();
                    clock.advance(Duration::from_millis(1));
                    let Err(rejection) = result else {
                        admitted += 1;
                        continue;
                    };
                    let wait = rejection.retry_after().expect("a wait");
                    let is_named = |midnight| before + wait <= midnight && midnight <= after + wait;
                    assert!(midnights.into_iter().any(is_named), "{before:?} {wait:?} {after:?}");
                }
                admitted
            })
        });
        let calls: Vec<_> = calls.collect();
        let mut admitted = 0;
        for call in calls {
            admitted += call.await.expect("no panic");
        }
        assert_eq!(admitted, 2 * 20);
    }
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
        let limits = [days(1, name), days(7, name), monthly(Align::zone(name).day(31))];
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
    for (clock, left) in [(10, 10), (19, 1), (20, 10), (29, 1), (30, 10), (39, 1)] {
        let key = format!("rl:fixed:1d@Asia/Kolkata:calendar{{{clock}}}");
        let mut eval = redis::cmd("EVAL");
        eval.arg(&script).arg(1).arg(key).arg(&["threshold=1", "period=1", "shift=-1"]);
        eval.arg(&["first=10", "second=20", "third=30", "last=40"]).arg(format!("clock={clock}"));
        let reply: Vec<String> = eval.query(&mut server.connection()).expect("a reply");
        assert!(reply.contains(&"allowed=1".to_owned()), "{reply:?}");
        assert!(reply.contains(&format!("reset={left}")), "{clock}: {reply:?}");
    }
    for clock in [9, 40] {
        let mut eval = redis::cmd("EVAL");
        eval.arg(&script).arg(1).arg("rl:fixed:1d@Asia/Kolkata:calendar{off}");
        eval.arg(&["threshold=1", "period=1", "shift=-1", "first=10", "second=20"]);
        eval.arg(&["third=30", "last=40"]).arg(format!("clock={clock}"));
        let reply: redis::RedisResult<Vec<String>> = eval.query(&mut server.connection());
        let error = reply.expect_err("outside of the boundaries").to_string();
        assert!(error.contains("BADCLOCK"), "{error}");
        assert_eq!(server.ttls().len(), 6, "nothing was written");
    }
}
