//! The moments of `until`: dates and times of TOML.

use std::time::{Duration, SystemTime};

use toml::value::{Date, Datetime, Offset, Time};

const DAY_US: i64 = 86_400_000_000;

/// Returns the moment of a date and time; `None` if a part is missing, or if it is before 1970.
pub(super) fn moment_of(written: &Datetime) -> Option<SystemTime> {
    let Datetime { date: Some(date), time: Some(time), offset: Some(offset) } = *written else {
        return None;
    };
    let offset_minutes = match offset {
        Offset::Z => 0,
        Offset::Custom { minutes } => i64::from(minutes),
    };
    let seconds = i64::from(time.hour) * 3_600
        + (i64::from(time.minute) - offset_minutes) * 60
        + i64::from(time.second.unwrap_or(0));
    let micros = days_since_epoch(date) * DAY_US
        + seconds * 1_000_000
        + i64::from(time.nanosecond.unwrap_or(0) / 1_000);
    let micros = u64::try_from(micros).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_micros(micros))
}

/// Returns the days from 1970-01-01 to a date of the Gregorian calendar. Years are counted from March, so that the day
/// that leap years add is the last one.
fn days_since_epoch(date: Date) -> i64 {
    let (month, day) = (i64::from(date.month), i64::from(date.day));
    let year = i64::from(date.year) - i64::from(month < 3);
    let days_before_month = (153 * ((month + 9) % 12) + 2) / 5;
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    // From 0000-03-01 to 1970-01-01.
    365 * year + leap_days + days_before_month + day - 1 - 719_468
}

/// Returns the date that is `days` after 1970-01-01. The inverse of [`days_since_epoch`].
fn date_of(days: i64) -> Date {
    let mut year = 1970 + days.div_euclid(366);
    let starts = |year: i64| days_since_epoch(Date { year: year as u16, month: 1, day: 1 });
    while starts(year + 1) <= days {
        year += 1;
    }
    let of_month = |month: u8| days_since_epoch(Date { year: year as u16, month, day: 1 });
    let month = (1..=12).rev().find(|month| of_month(*month) <= days).unwrap_or(1);
    Date { year: year as u16, month, day: (days - of_month(month) + 1) as u8 }
}

/// Returns the moment `micros` after 1970, in UTC.
pub(super) fn written(micros: u64) -> Datetime {
    // The last moment that can be written.
    let micros = micros.min(253_402_300_799_999_999) as i64;
    let (days, in_day) = (micros.div_euclid(DAY_US), micros.rem_euclid(DAY_US));
    let (seconds, micros) = (in_day / 1_000_000, in_day % 1_000_000);
    let time = Time {
        hour: (seconds / 3_600) as u8,
        minute: (seconds / 60 % 60) as u8,
        second: Some((seconds % 60) as u8),
        nanosecond: (micros > 0).then_some(micros as u32 * 1_000),
    };
    Datetime { date: Some(date_of(days)), time: Some(time), offset: Some(Offset::Z) }
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use super::*;

    #[test]
    fn moments_are_those_of_the_calendar() {
        let micros = |text: &str| {
            let moment = moment_of(&Datetime::from_str(text).expect(text)).expect(text);
            moment.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_micros() as u64
        };
        // From `date -d .. +%s`.
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T12:34:56Z", 951_827_696),
            ("2026-12-01T00:00:00+01:00", 1_796_079_600),
            ("2100-03-01T00:00:00Z", 4_107_542_400),
            ("9999-12-31T23:59:59Z", 253_402_300_799),
        ] {
            assert_eq!(micros(text), seconds * 1_000_000, "{text}");
        }
        assert_eq!(micros("2026-12-01T00:00:00.25-03:30"), 1_796_095_800_250_000);
        let all_days = (0..2_932_896).step_by(7).chain([2_932_896]);
        for days in all_days {
            assert_eq!(days_since_epoch(date_of(days)), days);
        }
        assert_eq!(written(1_796_083_200_000_000).to_string(), "2026-12-01T00:00:00Z");
    }
}
