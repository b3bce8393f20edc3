//! The period of a limit.

use std::fmt;
use std::time::Duration;

use super::LimitError;
use crate::text::duration::parse_text;

const DAY_US: u64 = 86_400_000_000;

/// The length of a window, or the time in which a bucket refills its threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Period {
    micros: u64,
}

impl Period {
    pub(super) const SECOND: Self = Self { micros: 1_000_000 };

    pub(crate) const fn new(period: Duration) -> Result<Self, LimitError> {
        if !period.subsec_nanos().is_multiple_of(1000) {
            return Err(LimitError("`period` must be a whole number of microseconds"));
        }
        let micros = period.as_micros();
        if micros == 0 {
            return Err(LimitError("`period` must be at least one microsecond"));
        }
        if micros > LimitError::MAX_US as u128 {
            return Err(LimitError("`period` must be at most 100 years (36,525 days)"));
        }
        Ok(Self { micros: micros as u64 })
    }

    /// Reads a text such as `1h30m`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::new(Duration::from_micros(parse_text(text).ok()?)).ok()
    }

    #[inline]
    pub(crate) const fn micros(self) -> u64 {
        self.micros
    }

    pub(crate) const fn duration(self) -> Duration {
        Duration::from_micros(self.micros)
    }

    /// Returns this period lengthened by `micros`.
    pub(super) const fn plus(self, micros: u64) -> Self {
        Self { micros: self.micros + micros }
    }

    /// Returns whether windows of this period can start at calendar boundaries.
    pub(super) const fn fits_calendar(self) -> bool {
        DAY_US.is_multiple_of(self.micros) || self.micros == 7 * DAY_US
    }

    /// Returns the time from a calendar boundary to the next multiple of this period since the epoch, in
    /// microseconds, at an offset of `minutes` from UTC.
    pub(super) const fn shift_us(self, minutes: i32) -> u64 {
        let offset = minutes as i64 * 60_000_000;
        // The epoch was a Thursday; weeks begin on Monday.
        let week = if self.micros == 7 * DAY_US { 3 * DAY_US } else { 0 };
        (offset + week as i64).rem_euclid(self.micros as i64) as u64
    }

    /// Returns the period as a number and a unit, the largest unit that divides the period.
    pub(crate) const fn in_units(self) -> (u64, &'static str) {
        match self.micros {
            us if us.is_multiple_of(DAY_US) => (us / DAY_US, "d"),
            us if us.is_multiple_of(3_600_000_000) => (us / 3_600_000_000, "h"),
            us if us.is_multiple_of(60_000_000) => (us / 60_000_000, "m"),
            us if us.is_multiple_of(1_000_000) => (us / 1_000_000, "s"),
            us if us.is_multiple_of(1_000) => (us / 1_000, "ms"),
            us => (us, "us"),
        }
    }
}

/// Writes the number and the unit of [`Period::in_units`]: `1m`.
impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, unit) = self.in_units();
        write!(f, "{count}{unit}")
    }
}
