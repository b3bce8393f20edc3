//! The amounts of a limit: what may differ from call to call on one count.

use super::{LimitError, Period, Rate, WindowScale};

/// Threshold and burst, and the values that a decision derives from them and the period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Amounts {
    pub(super) threshold: u64,
    /// The most that is admitted at once: the burst of a bucket, the threshold of a window.
    pub(super) capacity: u64,
    /// The level below which a bucket does not drain while leased units can be spent, in tokens; 0 unless
    /// these are the amounts of a lease.
    pub(super) lease_reserve: u64,
    pub(super) rate: Rate,
    pub(super) scale: WindowScale,
}

impl Amounts {
    /// Derives the amounts. Fails if a bucket with them takes over 100 years to fill.
    pub(super) const fn new(
        threshold: u64,
        capacity: u64,
        period: Period,
    ) -> Result<Self, LimitError> {
        match Rate::new(threshold, period.micros(), capacity) {
            Some(rate) => {
                let scale = WindowScale::new(threshold, period.micros());
                Ok(Self { threshold, capacity, lease_reserve: 0, rate, scale })
            }
            None => Err(LimitError::SLOW_FILL),
        }
    }

    /// Derives the amounts with the largest burst that fills within 100 years.
    pub(super) fn with_largest_burst(threshold: u64, period: Period) -> Self {
        let most = u128::from(LimitError::MAX_US) * u128::from(threshold);
        let burst = most / u128::from(period.micros());
        let burst = u64::try_from(burst).unwrap_or(u64::MAX).clamp(1, u32::MAX.into());
        // The threshold itself always fills within a period.
        Self::new(threshold, burst, period)
            .or_else(|_| Self::new(threshold, threshold, period))
            .unwrap_or_else(|_| unreachable!("a period is at most 100 years"))
    }

    /// Returns the share of one of `instances` processes: the amounts divided by `instances`, at least 1.
    pub(super) fn share(self, instances: u32, period: Period) -> Self {
        if instances <= 1 {
            return self;
        }
        let threshold = (self.threshold / u64::from(instances)).max(1);
        let capacity = (self.capacity / u64::from(instances)).max(1);
        let rate = Rate::new(threshold, period.micros(), capacity).unwrap_or(self.rate);
        let scale = WindowScale::new(threshold, period.micros());
        Self { threshold, capacity, rate, scale, ..self }
    }
}
