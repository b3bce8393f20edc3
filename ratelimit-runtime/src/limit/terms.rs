//! The terms of a limit, which a store receives: its identity and its amounts.

use super::{Algorithm, Align, Amounts, Identity, Name, Period, Rate, WindowScale};

/// Identity and amounts, without the policy. Calls with equal terms and one key can share a batch entry, a lease,
/// a line and a cached rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Terms {
    pub(super) identity: Identity,
    pub(super) amounts: Amounts,
}

impl Terms {
    #[inline]
    pub(crate) const fn identity(&self) -> &Identity {
        &self.identity
    }

    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "keys in Redis contain it"))]
    pub(crate) const fn name(&self) -> &Name {
        &self.identity.name
    }

    #[inline]
    pub(crate) const fn algorithm(&self) -> Algorithm {
        self.identity.algorithm
    }

    /// Returns whether the count is a bucket. Its units drain, and it can reserve moments ahead.
    #[inline]
    pub(crate) const fn is_bucket(&self) -> bool {
        self.identity.algorithm.is_bucket()
    }

    #[inline]
    pub(crate) const fn period(&self) -> Period {
        self.identity.period
    }

    #[inline]
    pub(crate) const fn period_us(&self) -> u64 {
        self.identity.period.micros()
    }

    #[inline]
    pub(crate) const fn threshold(&self) -> u64 {
        self.amounts.threshold
    }

    /// Returns the most that is admitted at once.
    #[inline]
    pub(crate) const fn capacity(&self) -> u64 {
        self.amounts.capacity
    }

    #[inline]
    pub(crate) const fn rate(&self) -> Rate {
        self.amounts.rate
    }

    #[inline]
    pub(crate) const fn scale(&self) -> WindowScale {
        self.amounts.scale
    }

    /// Returns the level below which a bucket does not drain while leased units can be spent, in tokens; 0 unless
    /// these are the terms of a [lease](Self::leased).
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "an argument of scripts"))]
    pub(crate) const fn lease_reserve(&self) -> u64 {
        self.amounts.lease_reserve
    }

    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "keys in Redis contain it"))]
    pub(crate) const fn align(&self) -> Option<Align> {
        self.identity.align
    }

    /// Returns the time from a calendar boundary to the next multiple of the period since the epoch, in
    /// microseconds; `None` for windows that start with their first call.
    #[inline]
    pub(crate) const fn shift_us(&self) -> Option<u64> {
        match self.identity.align {
            None => None,
            Some(Align { offset_minutes }) => Some(self.identity.period.shift_us(offset_minutes)),
        }
    }

    /// Returns these terms at another rate, with at most the capacity that a bucket can count at that rate.
    pub(crate) fn with_rate(&self, rate: Rate) -> Self {
        let capacity = self.amounts.capacity.min(rate.most_tokens());
        let amounts = Amounts { capacity, rate, ..self.amounts };
        Self { amounts, ..*self }
    }

    /// Returns these terms with the share of one of `instances` processes.
    pub(crate) fn share(&self, instances: u32) -> Self {
        let amounts = self.amounts.share(instances, self.identity.period);
        Self { amounts, ..*self }
    }
}
