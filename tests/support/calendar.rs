//! The windows of the calendar, found day by day: what the computation of the library is compared with.

use std::sync::LazyLock;

use jiff::Timestamp;
use jiff::civil::{Date, Weekday};
use jiff::tz::{Offset, TimeZone, TimeZoneDatabase};
use ratelimit_runtime::{Calendar, Limit};

static ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// Returns the start and the end of the window at a time; `None` if the windows of the limit have one length.
pub fn window(limit: &Limit, now: u64) -> Option<(u64, u64)> {
    let align = limit.get_align()?;
    let (unit, text) = (limit.get_calendar(), align.to_string());
    let (place, of_month) = text.split_once(' ').unwrap_or((&text, "1"));
    let zone = match align.get_offset_minutes() {
        Some(_) if unit.is_none() => return None,
        Some(minutes) => TimeZone::fixed(Offset::from_seconds(minutes * 60).expect("an offset")),
        None => ZONES.get(place).expect("a zone"),
    };
    let of_month: i8 = of_month.parse().expect("a day");
    let is_week = limit.period().as_secs() == 7 * 86_400;
    let is_first = |day: Date| {
        let is_day = day.day() == of_month.min(day.days_in_month());
        match unit {
            None => !is_week || day.weekday() == Weekday::Monday,
            Some(Calendar::Month) => is_day,
            Some(Calendar::Quarter) => is_day && [1, 4, 7, 10].contains(&day.month()),
            Some(_) => is_day && day.month() == 1,
        }
    };
    let midnight = |day: Date| {
        let start = day.to_zoned(zone.clone()).expect("in range").timestamp();
        u64::try_from(start.as_microsecond()).unwrap_or(0)
    };
    let now_there = Timestamp::from_microsecond(now as i64).expect("in range");
    let mut first = zone.to_datetime(now_there).date().tomorrow().expect("in range");
    while !is_first(first) || midnight(first) > now {
        first = first.yesterday().expect("in range");
    }
    let mut next = first.tomorrow().expect("in range");
    // A zone can skip a day.
    while !is_first(next) || midnight(next) == midnight(first) {
        next = next.tomorrow().expect("in range");
    }
    Some((midnight(first), midnight(next)))
}
