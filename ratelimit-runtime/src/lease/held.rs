//! The units that a process holds of one charge, as a plain value.

use std::mem;

/// The units of a charge that are not spent yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct HeldUnits {
    pub(super) units: u64,
    /// The number of units that were charged.
    pub(super) charged: u64,
    /// The time of the charge, by the clock of the store.
    pub(super) at: u64,
    /// The time that the count has recorded for the charge.
    pub(super) place: u64,
    /// The time of the request, by the clock of this process.
    pub(super) requested: u64,
    /// The time until which the units may be spent, by the clock of this process.
    pub(super) until: u64,
    /// From the reply of the store, as is `reset_us`.
    pub(super) remaining: u64,
    pub(super) reset_us: u64,
}

impl HeldUnits {
    /// Forgets the units of a charge, and keeps its end.
    pub(super) fn forget(&mut self) {
        *self = Self { until: self.until, ..Self::default() };
    }

    /// Takes the unspent units; `charged` keeps the number of the spent ones. Returns the units as they were.
    pub(super) fn take(&mut self) -> Self {
        let charged = self.spent();
        mem::replace(self, Self { units: 0, charged, at: 0, ..*self })
    }

    pub(super) fn spent(&self) -> u64 {
        self.charged.saturating_sub(self.units)
    }

    pub(super) fn spendable(&self, now: u64) -> u64 {
        if (self.requested..self.until).contains(&now) { self.units } else { 0 }
    }
}
