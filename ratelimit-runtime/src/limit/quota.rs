//! The quota of a limit: its threshold and its period, as clients receive them.

use std::time::Duration;

use super::{Limit, Period};

/// A threshold per period: what a client is told about a limit, whatever its algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    threshold: u32,
    period: Period,
}

impl Quota {
    pub(super) const NONE: Self = Self { threshold: 0, period: Period::ZERO };

    /// Returns the cost admitted per period.
    #[must_use]
    pub const fn threshold(self) -> u32 {
        self.threshold
    }

    /// Returns the length of the window, or the time in which a bucket gains `threshold` tokens.
    #[must_use]
    pub const fn period(self) -> Duration {
        self.period.duration()
    }
}

impl Limit {
    /// Returns what this limit admits in which time.
    #[must_use]
    #[inline]
    pub const fn quota(&self) -> Quota {
        Quota { threshold: self.terms.amounts.threshold, period: self.terms.identity.period }
    }
}
