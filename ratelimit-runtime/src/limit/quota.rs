//! The quota of a limit: its amounts and its period, as clients receive them.

use std::fmt;
use std::time::Duration;

use super::Limit;

/// The threshold, the capacity and the period of a limit: the facts that responses report to clients, for every
/// algorithm. Calls in flight have no period: it is zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Quota {
    threshold: u64,
    capacity: u64,
    /// The period in microseconds, with [`HIDDEN`] and [`BUCKET`]. Saves a word in each check
    /// (`benches/all -- instructions`).
    period: u64,
}

/// Set in the period of a limit that responses do not report. A period is below 2⁵² microseconds.
const HIDDEN: u64 = 1 << 63;

/// Set in the period of a bucket.
const BUCKET: u64 = 1 << 62;

impl Quota {
    pub(super) const NONE: Self = Self { threshold: 0, capacity: 0, period: 0 };

    /// Returns this quota for a call whose threshold or burst is 0.
    pub(crate) const fn blocked(self) -> Self {
        Self { threshold: 0, capacity: 0, period: self.period }
    }

    /// Returns whether responses do not report the limit.
    pub(crate) const fn is_hidden(self) -> bool {
        self.period & HIDDEN != 0
    }

    /// Returns the time in which all units but one refill, in microseconds; `None` if this is not a bucket.
    #[cfg(feature = "tower")]
    pub(crate) fn refill_but_one(self) -> Option<u64> {
        let units = u128::from(self.capacity.saturating_sub(1));
        let micros = self.period().as_micros() * units / u128::from(self.threshold.max(1));
        (self.period & BUCKET != 0).then(|| u64::try_from(micros).unwrap_or(u64::MAX))
    }

    /// Returns the units that are admitted per period, or that may be in flight.
    #[must_use]
    pub const fn threshold(self) -> u64 {
        self.threshold
    }

    /// Returns the units that can be admitted at once: the burst of a bucket, otherwise the threshold.
    #[must_use]
    pub const fn capacity(self) -> u64 {
        self.capacity
    }

    /// Returns the length of the window, or the time in which `threshold` tokens refill; zero for calls in flight.
    #[must_use]
    pub const fn period(self) -> Duration {
        Duration::from_micros(self.period & !(HIDDEN | BUCKET))
    }

    /// Returns whether this is a number of calls in flight.
    #[must_use]
    pub const fn is_in_flight(self) -> bool {
        self.period & !(HIDDEN | BUCKET) == 0
    }
}

impl fmt::Debug for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quota")
            .field("threshold", &self.threshold)
            .field("capacity", &self.capacity)
            .field("period", &self.period())
            .finish_non_exhaustive()
    }
}

impl Limit {
    /// Returns the threshold, the capacity and the period.
    #[must_use]
    #[inline]
    pub const fn quota(&self) -> Quota {
        let amounts = &self.terms.amounts;
        let (threshold, capacity) = (amounts.threshold, amounts.capacity);
        let hidden = (self.policy.hidden as u64) << HIDDEN.trailing_zeros();
        let period = if self.is_in_flight() { 0 } else { self.terms.identity.period.micros() };
        let bucket = (self.terms.is_bucket() as u64) << BUCKET.trailing_zeros();
        Quota { threshold, capacity, period: period | hidden | bucket }
    }
}
