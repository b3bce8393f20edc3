//! The amounts of a limit: what may differ from call to call on one count.

use super::{Algorithm, LimitError, Period, Rate, WindowScale};

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
    /// The largest burst, and the largest threshold of a sliding counter, that no period rounds by more than 0.1 %.
    const MOST_PRECISE: u64 = 1 << 41;

    /// Derives the amounts. Fails if they are too large, if a bucket with them takes over 100 years to fill, or if the
    /// algorithm would round them by more than 0.1 %.
    pub(super) const fn new(
        algorithm: Algorithm,
        threshold: u64,
        capacity: u64,
        period: Period,
    ) -> Result<Self, LimitError> {
        let period_us = period.micros();
        if threshold > LimitError::MAX_AMOUNT || capacity > LimitError::MAX_AMOUNT {
            return Err(LimitError::TOO_LARGE);
        }
        let Some(rate) = Rate::new(threshold, period_us, capacity) else {
            return Err(LimitError::SLOW_FILL);
        };
        let scale = WindowScale::new(threshold, period_us);
        let is_precise = match algorithm {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                rate.is_close_to(threshold, period_us)
            }
            Algorithm::SlidingCounter => scale.is_precise(),
            Algorithm::Sliding | Algorithm::Fixed | Algorithm::InFlight => true,
        };
        if is_precise {
            Ok(Self { threshold, capacity, lease_reserve: 0, rate, scale })
        } else {
            Err(LimitError::IMPRECISE)
        }
    }

    /// Derives the largest amounts up to `threshold` that the algorithm can count, and of a bucket the largest burst
    /// that fills within 100 years.
    pub(super) fn largest(algorithm: Algorithm, threshold: u64, period: Period) -> Self {
        let most = if matches!(algorithm, Algorithm::SlidingCounter) {
            Self::MOST_PRECISE
        } else {
            LimitError::MAX_AMOUNT
        };
        let threshold = threshold.clamp(1, most);
        let filled = u128::from(LimitError::MAX_US) * u128::from(threshold);
        let burst = u64::try_from(filled / u128::from(period.micros())).unwrap_or(u64::MAX);
        let capacity =
            if algorithm.is_bucket() { burst.clamp(1, Self::MOST_PRECISE) } else { threshold };
        Self::new(algorithm, threshold, capacity, period)
            .unwrap_or_else(|_| unreachable!("the bounds are those of `new`"))
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn exponential(most: u64) -> impl Strategy<Value = u64> {
        (0..u64::BITS, any::<u64>()).prop_map(move |(bits, any)| (any >> bits).clamp(1, most))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..Default::default() })]

        #[test]
        fn the_largest_amounts_can_be_counted(
            threshold in exponential(u64::MAX),
            micros in exponential(LimitError::MAX_US),
            near in 0_u64..3,
        ) {
            let period = Period::new(Duration::from_micros(micros)).expect("a period");
            for algorithm in Algorithm::RATES {
                for threshold in [threshold, micros.saturating_add(near), micros.div_ceil(near + 1)] {
                    let largest = Amounts::largest(algorithm, threshold, period);
                    prop_assert!(largest.threshold <= threshold && largest.threshold > 0);
                }
            }
        }
    }
}
