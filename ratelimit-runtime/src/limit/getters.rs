//! What a [`Limit`] says, for code that reads it.

use std::time::Duration;

use super::{Algorithm, Align, Lease, Limit};

impl Limit {
    /// Returns the name of this limit. Limits with the same name, algorithm, period, align and
    /// scope share their counts.
    #[must_use]
    pub const fn name(&self) -> &str {
        self.terms.identity.name.as_str()
    }

    /// Returns the algorithm.
    #[must_use]
    #[inline]
    pub const fn algorithm(&self) -> Algorithm {
        self.terms.identity.algorithm
    }

    /// Returns the units that are admitted per period, or that may be in flight; 0 if an
    /// [amount of 0](Self::try_amounts) blocks the limit.
    #[must_use]
    pub const fn threshold(&self) -> u64 {
        if self.policy.blocked { 0 } else { self.terms.amounts.threshold }
    }

    /// Returns the length of the window, or the time in which `threshold` tokens refill; zero if the limit is one of
    /// calls [in flight](Self::in_flight).
    #[must_use]
    pub const fn period(&self) -> Duration {
        self.quota().period()
    }

    /// Returns the largest number of units that can be admitted at once: the burst of a bucket, or the threshold of a
    /// window; 0 if an [amount of 0](Self::try_amounts) blocks the limit.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        if self.policy.blocked { 0 } else { self.terms.amounts.capacity }
    }

    /// Returns the [burst](Self::burst), if one is set.
    #[must_use]
    pub const fn get_burst(&self) -> Option<u64> {
        if self.policy.has_burst { Some(self.capacity()) } else { None }
    }

    /// Returns where windows start, if an [align](Self::align) is set.
    #[must_use]
    pub const fn get_align(&self) -> Option<Align> {
        self.terms.identity.align
    }

    /// Returns how many units of a count a process may [lease](Self::lease).
    #[must_use]
    pub const fn get_lease(&self) -> Lease {
        self.policy.lease
    }
}
