//! The quota of a limit: its amounts and its period, as clients receive them.

use std::time::Duration;

use super::{Limit, Period};

/// The threshold, the capacity and the period of a limit: the facts that responses report to clients, for every
/// algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    threshold: u32,
    capacity: u32,
    period: Period,
}

impl Quota {
    pub(super) const NONE: Self = Self { threshold: 0, capacity: 0, period: Period::ZERO };

    /// Returns this quota for a call whose threshold or burst is 0.
    pub(crate) const fn closed(self) -> Self {
        Self { threshold: 0, capacity: 0, period: self.period }
    }

    /// Returns the units that are admitted per period.
    #[must_use]
    pub const fn threshold(self) -> u32 {
        self.threshold
    }

    /// Returns the units that can be admitted at once: the burst of a bucket, otherwise the threshold.
    #[must_use]
    pub const fn capacity(self) -> u32 {
        self.capacity
    }

    /// Returns the length of the window, or the time in which `threshold` tokens refill.
    #[must_use]
    pub const fn period(self) -> Duration {
        self.period.duration()
    }
}

impl Limit {
    /// Returns the threshold, the capacity and the period.
    #[must_use]
    #[inline]
    pub const fn quota(&self) -> Quota {
        let amounts = &self.terms.amounts;
        let (threshold, capacity) = (amounts.threshold, amounts.capacity);
        Quota { threshold, capacity, period: self.terms.identity.period }
    }
}
