//! The identity of a limit, which makes two calls share a count: its name, its algorithm, its period and its align.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::{Algorithm, Align, Calendar, Limit, LimitError, Scope};
use crate::text::duration::{CALENDAR, DAY_US, parse_period};

/// Name, algorithm, period, align and scope. Calls that agree on these and on the key share a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    pub(crate) name: Name,
    pub(crate) algorithm: Algorithm,
    pub(crate) period: Period,
    pub(crate) align: Option<Align>,
    pub(super) scope: Scope,
    /// A hash of the name, below 64. [`RulesInForce`](crate::rules) skips limits without rules by it.
    pub(crate) name_bit: u8,
    /// A hash of the name, algorithm, period, align and scope. [`KeyId`](crate::key::KeyId) combines it with a key.
    pub(crate) hash: u128,
}

impl Identity {
    pub(super) const fn new(name: Name, algorithm: Algorithm, period: Period) -> Self {
        let (align, scope) = (None, Scope::Global);
        Self { name, algorithm, period, align, scope, name_bit: 0, hash: 0 }.hashed()
    }

    /// Returns this identity with the hashes of its other fields, after one of these has changed.
    pub(super) const fn hashed(self) -> Self {
        Self { name_bit: bit_of_name(self.name), hash: hash(&self), ..self }
    }
}

/// Hashes a name to a number below 64.
pub(crate) const fn bit_of_name(name: &str) -> u8 {
    (hash_after(0, name.as_bytes()) >> 88) as u8 % 64
}

/// Hashes an identity. The hash needs no secret, because clients do not choose identities.
const fn hash(identity: &Identity) -> u128 {
    let align = match identity.align {
        None => 0,
        Some(align) => align.bits(),
    };
    // The calendar needs no bits: its units have the lengths of no other period with an align.
    let head = (identity.scope as u128) << 96
        | align << 72
        | (identity.period.micros() as u128) << 8
        | identity.algorithm as u128;
    let head = hash_after(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, &head.to_le_bytes());
    hash_after(head, identity.name.as_bytes())
}

/// Hashes bytes after others with this `hash`, by 128-bit FNV-1a.
const fn hash_after(mut hash: u128, bytes: &[u8]) -> u128 {
    let mut index = 0;
    while index < bytes.len() {
        hash = (hash ^ bytes[index] as u128).wrapping_mul(0x0100_0000_0000_0000_0000_013B);
        index += 1;
    }
    hash
}

/// The most names that a process makes at run time.
const MOST_NAMES: usize = 10_000;

/// The names that were made at run time.
static NAMES: Mutex<NameTable> = Mutex::new(NameTable::new());

/// The names that other processes have announced. They have places of their own: any number can be announced.
static ANNOUNCED: Mutex<NameTable> = Mutex::new(NameTable::new());

/// The names of the trials of rules, which take no places of other names either.
static TRIALS: Mutex<NameTable> = Mutex::new(NameTable::new());

/// The end of the name of a trial.
pub(super) const OF_TRIAL: &str = ":trial";

/// The most bytes of an announced name.
const MAX_ANNOUNCED: usize = 1_000;

type NameTable = BTreeSet<&'static str>;

/// The name of a limit, as it appears in Redis keys, rejections, logs and metrics.
pub(crate) type Name = &'static str;

impl Limit {
    /// Makes a name at run time. The process keeps each such name once, for as long as it runs, so it makes 10,000
    /// different names at most.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ratelimit_runtime::{Algorithm, Limit};
    ///
    /// let service = String::from("billing");
    /// let name = Limit::kept_name(&format!("{service}.export"))?;
    /// let limit = Limit::new(name, Algorithm::Fixed, 5, Duration::from_secs(60))?;
    /// # Ok::<(), ratelimit_runtime::LimitError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// On an empty name; on the 10,001st different name.
    pub fn kept_name(name: &str) -> Result<&'static str, LimitError> {
        if name.is_empty() { Err(LimitError::NO_NAME) } else { keep(name, &NAMES) }
    }
}

/// Keeps the name of a limit that another process has announced.
pub(crate) fn announced_name(name: &str) -> Result<Name, LimitError> {
    if name.is_empty() || name.len() > MAX_ANNOUNCED {
        return Err(LimitError::NO_NAME);
    }
    keep(name, &ANNOUNCED)
}

/// Returns the name of the trials of a limit.
pub(super) fn name_of_trial(name: Name) -> Result<Name, LimitError> {
    keep(&format!("{name}{OF_TRIAL}"), &TRIALS)
}

fn keep(name: &str, names: &Mutex<NameTable>) -> Result<Name, LimitError> {
    let mut names = names.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(kept) = names.get(name) {
        return Ok(kept);
    }
    if names.len() >= MOST_NAMES {
        return Err(LimitError(
            "a process makes 10,000 names of limits at most: what is counted separately, such as a \
             user, is the key of a limit and not its name",
        ));
    }
    let kept: &'static str = String::from(name).leak();
    names.insert(kept);
    Ok(kept)
}

/// The length of a window, or the time in which a bucket refills its threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Period {
    /// Of a unit of the calendar, its longest length.
    pub(super) micros: u64,
    pub(crate) calendar: Option<Calendar>,
}

impl Period {
    pub(super) const SECOND: Self = Self { micros: 1_000_000, calendar: None };

    pub(super) const fn of(unit: Calendar) -> Self {
        Self { micros: CALENDAR[unit as usize].1, calendar: Some(unit) }
    }

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
        Ok(Self { micros: micros as u64, calendar: None })
    }

    /// Reads a text such as `1h30m` or `month`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (micros, word) = parse_period(text).ok()?;
        let unit = word.and_then(Calendar::find);
        unit.map(Self::of).or_else(|| Self::new(Duration::from_micros(micros)).ok())
    }

    pub(crate) const fn micros(self) -> u64 {
        self.micros
    }

    pub(crate) const fn duration(self) -> Duration {
        Duration::from_micros(self.micros)
    }

    pub(super) const fn is_week(self) -> bool {
        self.micros == 7 * DAY_US
    }

    /// Returns whether windows of this period can start at the boundaries of `align`.
    pub(super) const fn fits(self, align: Align) -> bool {
        let is_month = matches!(self.calendar, Some(Calendar::Month));
        let is_part = DAY_US.is_multiple_of(self.micros) && align.get_offset_minutes().is_some();
        let is_day = self.micros == DAY_US || self.is_week();
        (is_part || is_day || self.calendar.is_some()) && (is_month || align.day == 1)
    }

    /// Returns the time from a calendar boundary of `align` to the next multiple of this period since the epoch, in
    /// microseconds; `None` if the windows have several lengths.
    pub(super) const fn shift_us(self, align: Align) -> Option<u64> {
        let (Some(minutes), None) = (align.get_offset_minutes(), self.calendar) else {
            return None;
        };
        // The epoch was a Thursday; weeks begin on Monday.
        let week = if self.is_week() { 3 * DAY_US } else { 0 };
        let offset = minutes as i64 * 60_000_000 + week as i64;
        Some(offset.rem_euclid(self.micros as i64) as u64)
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

/// Writes the number and the unit of [`Period::in_units`]: `1m`; or the unit of the calendar: `month`.
impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(unit) = self.calendar {
            return f.write_str(unit.as_str());
        }
        let (count, unit) = self.in_units();
        write!(f, "{count}{unit}")
    }
}
