//! Where fixed windows start: at boundaries of the calendar, at an offset from UTC or in a time zone.

use std::fmt;

use super::{LimitError, valid};
use crate::text::duration::CALENDAR;
use crate::text::offset::ZONES;

/// A unit of the calendar: the period of a `Limit::calendar`, with feature `calendar`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Calendar {
    /// A month.
    Month,
    /// Three months, from the first of January, April, July or October.
    Quarter,
    /// A year.
    Year,
}

impl Calendar {
    /// Returns the unit with a word.
    pub(super) fn find(word: &str) -> Option<Self> {
        [Self::Month, Self::Quarter, Self::Year].into_iter().find(|unit| unit.as_str() == word)
    }

    /// Returns the word of the unit: `month`, `quarter` or `year`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        CALENDAR[self as usize].0
    }
}

/// Where the windows of an aligned [`Limit::fixed`](crate::Limit::fixed) start, and those of the calendar.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[must_use]
pub struct Align {
    midnight: Midnight,
    /// The day of the month on which months begin.
    pub(super) day: u8,
}

/// Where it is midnight.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Midnight {
    /// At so many minutes ahead of UTC.
    Offset(i16),
    In(Zone),
}

impl Align {
    /// Windows start at calendar boundaries of UTC.
    pub const UTC: Self = Self::offset_minutes(0);

    /// Windows start at calendar boundaries of local time `minutes` ahead of UTC: `480` is `+08:00`.
    ///
    /// # Panics
    ///
    /// Outside −14:00 to +14:00, the range of offsets in use. In a `const` that is a compile error.
    #[track_caller]
    pub const fn offset_minutes(minutes: i32) -> Self {
        assert!(
            minutes >= -14 * 60 && minutes <= 14 * 60,
            "the offset of `align` must lie between -14:00 and +14:00"
        );
        Self { midnight: Midnight::Offset(minutes as i16), day: 1 }
    }

    /// Returns how many minutes local time is ahead of UTC; `None` in a time zone, where that changes.
    #[must_use]
    pub const fn get_offset_minutes(self) -> Option<i32> {
        match self.midnight {
            Midnight::Offset(minutes) => Some(minutes as i32),
            Midnight::In(_) => None,
        }
    }

    /// Returns this align with a day of the month that is known only at run time: see `day`, of feature `calendar`.
    ///
    /// # Errors
    ///
    /// Unless `day` is one of 1 to 31.
    pub const fn try_day(self, day: u8) -> Result<Self, LimitError> {
        if day >= 1 && day <= 31 {
            Ok(Self { day, ..self })
        } else {
            Err(LimitError("the day of `align` must be one of 1 to 31"))
        }
    }

    /// Returns a number below 2²¹ that no other align has.
    pub(super) const fn bits(self) -> u128 {
        let midnight = match self.midnight {
            // Offsets are at least -14:00.
            Midnight::Offset(minutes) => (minutes + 14 * 60 + 1) as u128,
            Midnight::In(zone) => 2_048 + zone.0 as u128,
        };
        midnight | (self.day as u128) << 16
    }

    /// Returns the align in the name of a count: `+0800`, `@Europe/Berlin`, `+0000.15`.
    pub(crate) fn in_count_name(self) -> String {
        let midnight = match self.midnight {
            Midnight::Offset(minutes) => written_offset(minutes, ""),
            Midnight::In(zone) => format!("@{}", zone.name()),
        };
        if self.day == 1 { midnight } else { format!("{midnight}.{}", self.day) }
    }
}

/// Shows an align as the attribute reads it: `utc`, `+08:00`, `Europe/Berlin`; with a day of the month after a space.
impl fmt::Display for Align {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.midnight {
            Midnight::Offset(0) => f.write_str("utc")?,
            Midnight::Offset(minutes) => f.write_str(&written_offset(minutes, ":"))?,
            Midnight::In(zone) => f.write_str(zone.name())?,
        }
        if self.day == 1 { Ok(()) } else { write!(f, " {}", self.day) }
    }
}

/// Writes an offset from UTC, with `colon` between its hours and its minutes.
fn written_offset(minutes: i16, colon: &str) -> String {
    let (sign, ahead) = (if minutes < 0 { '-' } else { '+' }, minutes.abs());
    format!("{sign}{:02}{colon}{:02}", ahead / 60, ahead % 60)
}

impl fmt::Debug for Align {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Align({self})")
    }
}

/// A zone of the time zone database: the position of its name in [`ZONES`].
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Zone(u16);

impl Zone {
    const fn find(name: &str) -> Option<Self> {
        let (zones, name) = (ZONES.as_bytes(), name.as_bytes());
        let mut start = 0;
        while start < zones.len() {
            let (mut length, mut is_same) = (0, true);
            while zones[start + length] != b'\n' {
                is_same &= length < name.len() && zones[start + length] == name[length];
                length += 1;
            }
            if is_same && length == name.len() {
                return Some(Self(start as u16));
            }
            start += length + 1;
        }
        None
    }

    fn name(self) -> &'static str {
        ZONES[usize::from(self.0)..].lines().next().unwrap_or_default()
    }
}

impl Align {
    /// Windows start at midnight in a time zone, by its name in the time zone database, such as `Europe/Berlin`.
    /// Their periods are days, weeks, or units of the calendar. A day has 23 to 25 hours where clocks change.
    ///
    /// The database is a part of this library. Where two releases of it disagree about a change of clocks, each
    /// process begins windows by its own: a key can use one more window at that change.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ratelimit_runtime::{Align, Calendar, Limit};
    ///
    /// const DAY: Duration = Duration::from_secs(86_400);
    /// const DAILY: Limit = Limit::fixed("daily", 100, DAY).align(Align::zone("Europe/Berlin"));
    /// const BILLED: Limit = Limit::calendar("billed", 10_000, Calendar::Month)
    ///     .align(Align::zone("America/New_York").day(15));
    /// ```
    ///
    /// # Panics
    ///
    /// On a name that is not in the database; in a `const` that is a compile error.
    #[track_caller]
    pub const fn zone(name: &str) -> Self {
        valid(Self::try_zone(name))
    }

    /// Returns the align of a time zone whose name is known only at run time.
    ///
    /// # Errors
    ///
    /// On a name that is not in the database; without the feature `calendar`.
    pub const fn try_zone(name: &str) -> Result<Self, LimitError> {
        match Zone::find(name) {
            _ if !cfg!(feature = "calendar") => Err(LimitError::NO_CALENDAR),
            Some(zone) => Ok(Self { midnight: Midnight::In(zone), day: 1 }),
            None => Err(LimitError(
                "this time zone is not in the time zone database: write a name such as `Europe/Berlin`",
            )),
        }
    }

    /// Lets months begin on this day: the billing day. In a month without it, on the last day of the month.
    ///
    /// # Panics
    ///
    /// Unless `day` is one of 1 to 31; in a `const` that is a compile error.
    #[track_caller]
    pub const fn day(self, day: u8) -> Self {
        valid(self.try_day(day))
    }
}

#[cfg(not(feature = "calendar"))]
impl Align {
    #[allow(clippy::unused_self, reason = "as with the feature")]
    pub(super) fn window(self, _: super::Period, _: u64) -> (u64, u64) {
        unreachable!("no limit without the feature has a calendar")
    }
}

#[cfg(feature = "calendar")]
mod zones {
    use jiff::civil::{Date, date};
    use jiff::tz::{Offset, TimeZone, TimeZoneDatabase};
    use jiff::{Timestamp, ToSpan};
    use once_cell::sync::Lazy;

    use super::super::Period;
    use super::{Align, Midnight};

    impl Align {
        /// Returns the window at the time `now`: the times at which it starts and ends, in microseconds since the
        /// epoch.
        pub(in crate::limit) fn window(self, period: Period, now: u64) -> (u64, u64) {
            let zone = self.time_zone();
            let now_there = Timestamp::from_microsecond(now as i64).unwrap_or(Timestamp::MAX);
            let mut day = zone.to_datetime(now_there).date();
            loop {
                let [first, next] = self.first_days(period, day);
                let [start, end] = [first, next].map(|day| midnight(day, &zone));
                // A zone can repeat an hour across midnight. The window ends at its first midnight.
                if now < end || first == next {
                    return (start, end);
                }
                day = next;
            }
        }

        fn time_zone(self) -> TimeZone {
            static BUNDLED: Lazy<TimeZoneDatabase> = Lazy::new(TimeZoneDatabase::bundled);
            match self.midnight {
                Midnight::Offset(minutes) => {
                    let offset = Offset::from_seconds(i32::from(minutes) * 60);
                    TimeZone::fixed(offset.unwrap_or(Offset::UTC))
                }
                Midnight::In(zone) => BUNDLED
                    .get(zone.name())
                    .unwrap_or_else(|_| unreachable!("the list is that of the database")),
            }
        }

        /// Returns the first days of the window of a day, and of the next one.
        fn first_days(self, period: Period, day: Date) -> [Date; 2] {
            let Some(unit) = period.calendar else {
                let since_monday = i32::from(day.weekday().to_monday_zero_offset());
                let (since, days) = if period.is_week() { (since_monday, 7) } else { (0, 1) };
                let first = day.saturating_sub(since.days());
                return [first, first.saturating_add(days.days())];
            };
            let months = [1, 3, 12][unit as usize];
            let month = i32::from(day.year()) * 12 + i32::from(day.month()) - 1;
            let first = month - month.rem_euclid(months);
            let first = if self.day_of(first) <= day { first } else { first - months };
            [first, first + months].map(|month| self.day_of(month))
        }

        /// Returns the day on which windows begin in a month, counted from the year 0.
        fn day_of(self, month: i32) -> Date {
            let (year, month) = (month.div_euclid(12) as i16, month.rem_euclid(12) as i8 + 1);
            let first = date(year, month, 1);
            date(year, month, first.days_in_month().min(self.day as i8))
        }
    }

    /// Returns when a day begins: at midnight, or after it where clocks skip midnight. A time before the epoch counts
    /// as the epoch.
    fn midnight(day: Date, zone: &TimeZone) -> u64 {
        let start = day.to_zoned(zone.clone()).map_or(Timestamp::MAX, |start| start.timestamp());
        start.as_microsecond().max(0) as u64
    }
}
