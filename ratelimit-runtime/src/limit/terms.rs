//! The terms of a limit, which a store receives: its identity and its amounts, which may differ from call to call on
//! one count. The amounts and the period are the quota, which clients receive.

use std::fmt;
use std::time::Duration;

use super::{Algorithm, Align, Identity, Limit, LimitError};

/// The unit of time in which the overlap is counted.
///
/// `grain` is the smallest number of microseconds that keeps `threshold × span` within 2⁵². The rounding to grains
/// never shortens the overlap, and lengthens it by less than a grain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct WindowScale {
    pub(crate) grain: u64,
    /// The period in grains, rounded up.
    pub(crate) span: u64,
}

impl WindowScale {
    pub(super) const fn new(threshold: u64, period_us: u64) -> Self {
        let product = threshold as u128 * period_us as u128;
        // Rounding up the span adds less than `threshold` to the product.
        let room = (1u128 << 52) - threshold as u128;
        let grain = product.div_ceil(room) as u64;
        Self { grain, span: period_us.div_ceil(grain) }
    }

    /// Returns the time from the start of a window until `count`, the count of the window before it, weighs at
    /// most `room`; at most `period`.
    pub(crate) fn until(self, count: u64, room: u64, period: u64) -> u64 {
        let fits = room * self.span / count;
        (self.grain * (self.span - fits.min(self.span))).min(period)
    }
}

/// The largest capacity of a bucket in units. The sum of two such numbers is exact in an `f64`.
const MAX_LEVEL: u64 = 1 << 52;

/// The refill rate: a token is `token` units, and `drain` units refill each microsecond. In lowest terms, unless it is
/// rounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Rate {
    pub(crate) token: u64,
    pub(crate) drain: u64,
}

impl Rate {
    /// Returns whether this is the rate of `threshold` per `period_us`, to 0.1 %.
    const fn is_close_to(self, threshold: u64, period_us: u64) -> bool {
        let (given, own) =
            (self.token as u128 * threshold as u128, period_us as u128 * self.drain as u128);
        given.abs_diff(own) <= own / 1_000
    }

    /// Returns the rate of `threshold` per `period_us` into a bucket of `burst`; `None` if the bucket takes
    /// over 100 years to fill.
    ///
    /// The rate is exact if `burst × period / gcd(period, threshold)` is at most 2⁵² µs, as it is for any burst up
    /// to 52,000 in a day. Otherwise it is slower by less than `burst` parts in 2⁵⁰: see [`Limit::token_bucket`].
    ///
    /// [`Limit::token_bucket`]: super::Limit::token_bucket
    pub(super) const fn new(threshold: u64, period_us: u64, burst: u64) -> Option<Self> {
        if burst as u128 * period_us as u128 > LimitError::MAX_US as u128 * threshold as u128 {
            return None;
        }
        let divisor = gcd(period_us, threshold);
        let (token, drain) = (period_us / divisor, threshold / divisor);
        let max_token = MAX_LEVEL / burst;
        if token <= max_token {
            return Some(Self { token, drain });
        }
        // At least 1, because the bucket fills within 100 years. Rounded down, and then the token up: never faster.
        let rounded = drain as u128 * max_token as u128 / token as u128;
        let token = (token as u128 * rounded).div_ceil(drain as u128);
        Some(Self { token: token as u64, drain: rounded as u64 })
    }

    /// Returns the most tokens of this rate that a bucket can have: their units are exact in an `f64`, and refill in
    /// 100 years.
    const fn most_tokens(self) -> u64 {
        let refilled = LimitError::MAX_US.saturating_mul(self.drain);
        let exact = (1 << 53) - 1;
        if refilled < exact { refilled / self.token } else { exact / self.token }
    }
}

const fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The identity and the amounts of a limit: threshold, burst, and the values that a decision derives from them and the
/// period. Calls with equal terms and one key can share a batch entry, a lease, a line and a cached rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Terms {
    pub(crate) identity: Identity,
    pub(crate) threshold: u64,
    /// The most that is admitted at once: the burst of a bucket, the threshold of a window.
    pub(crate) capacity: u64,
    /// The level below which a bucket does not drain while leased units can be spent, in tokens; 0 unless these are the
    /// terms of a [lease](Self::leased).
    pub(crate) lease_reserve: u64,
    pub(crate) rate: Rate,
    pub(crate) scale: WindowScale,
    /// Where windows begin that depend on the caller. The count does not, so a window begins when the last one is over.
    pub(super) windows: Option<Align>,
}

impl Terms {
    /// The largest burst, and the largest threshold of a sliding counter, that no period rounds by more than 0.1 %.
    const MOST_PRECISE: u64 = 1 << 41;

    /// The most units that can be in flight. The sum of all processes then fits the numbers of the scripts.
    const MOST_IN_FLIGHT: u64 = 1_000_000_000;

    /// Creates terms. Fails if the amounts are too large, if a bucket with them takes over 100 years to fill, or if the
    /// algorithm would round them by more than 0.1 %.
    pub(super) const fn new(
        identity: Identity,
        threshold: u64,
        capacity: u64,
    ) -> Result<Self, LimitError> {
        let period_us = identity.period.micros();
        if identity.name.is_empty() {
            return Err(LimitError::NO_NAME);
        }
        if matches!(identity.algorithm, Algorithm::InFlight) && threshold > Self::MOST_IN_FLIGHT {
            return Err(LimitError("`in_flight` must be at most 1,000,000,000"));
        }
        if threshold > LimitError::MAX_AMOUNT || capacity > LimitError::MAX_AMOUNT {
            return Err(LimitError::TOO_LARGE);
        }
        let Some(rate) = Rate::new(threshold, period_us, capacity) else {
            return Err(LimitError(
                "this bucket takes more than 100 years to fill: lower `burst` or `period`, or raise `threshold`",
            ));
        };
        let scale = WindowScale::new(threshold, period_us);
        let is_precise = match identity.algorithm {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                rate.is_close_to(threshold, period_us)
            }
            Algorithm::SlidingCounter => scale.grain == 1 || scale.span >= 1_000,
            Algorithm::Sliding | Algorithm::Fixed | Algorithm::InFlight => true,
        };
        if !is_precise {
            return Err(LimitError(
                "amounts of this size would be rounded by more than 0.1 %: count in a larger unit, such as \
                 thousands, or use sliding or fixed",
            ));
        }
        Ok(Self { identity, threshold, capacity, lease_reserve: 0, rate, scale, windows: None })
    }

    /// Creates terms with the largest amounts up to `threshold` that the algorithm can count, and of a bucket the
    /// largest burst that fills within 100 years.
    pub(super) fn largest(identity: Identity, threshold: u64) -> Self {
        let most = match identity.algorithm {
            Algorithm::SlidingCounter => Self::MOST_PRECISE,
            Algorithm::InFlight => Self::MOST_IN_FLIGHT,
            _ => LimitError::MAX_AMOUNT,
        };
        let threshold = threshold.clamp(1, most);
        let filled = u128::from(LimitError::MAX_US) * u128::from(threshold);
        let burst = filled / u128::from(identity.period.micros());
        let burst = burst.clamp(1, u128::from(Self::MOST_PRECISE)) as u64;
        let capacity = if identity.algorithm.is_bucket() { burst } else { threshold };
        Self::new(identity, threshold, capacity)
            .unwrap_or_else(|_| unreachable!("the bounds are those of `new`"))
    }

    /// Returns whether the count is a bucket. Its units drain, and it can reserve moments ahead.
    pub(crate) const fn is_bucket(&self) -> bool {
        self.identity.algorithm.is_bucket()
    }

    pub(crate) const fn period_us(&self) -> u64 {
        self.identity.period.micros()
    }

    /// Returns where windows begin.
    pub(crate) const fn align(&self) -> Option<Align> {
        if self.windows.is_some() { self.windows } else { self.identity.align }
    }

    /// Returns the time from a calendar boundary to the next multiple of the period since the epoch, in
    /// microseconds; `None` for windows that start with their first call, or that have several lengths.
    pub(crate) fn shift_us(&self) -> Option<u64> {
        self.identity.period.shift_us(self.align()?)
    }

    /// Returns whether the windows are of the calendar, and have several lengths.
    pub(crate) fn has_calendar_windows(&self) -> bool {
        self.align().is_some() && self.shift_us().is_none()
    }

    /// Returns the boundaries of the window of the calendar at the time `now`, and of those before and after it.
    pub(crate) fn boundaries(&self, now: u64) -> [u64; 4] {
        let window = |at: u64| self.calendar_window(at).unwrap_or_default();
        let (start, end) = window(now);
        [window(start.saturating_sub(1)).0, start, end, window(end).1]
    }

    /// Returns when the window of the calendar at the time `now` starts and ends; `None` for other windows.
    pub(crate) fn calendar_window(&self, now: u64) -> Option<(u64, u64)> {
        let align = self.align().filter(|_| self.shift_us().is_none())?;
        Some(align.window(self.identity.period, now))
    }

    /// Returns these terms at another rate, with at most the capacity that a bucket can count at that rate.
    pub(crate) fn with_rate(&self, rate: Rate) -> Self {
        Self { capacity: self.capacity.min(rate.most_tokens()), rate, ..*self }
    }

    /// Returns these terms with the share of one of `instances` processes: the amounts divided by `instances`, at least
    /// 1.
    pub(crate) fn share(&self, instances: u32) -> Self {
        if instances <= 1 {
            return *self;
        }
        let [threshold, capacity] =
            [self.threshold, self.capacity].map(|amount| (amount / u64::from(instances)).max(1));
        let rate = Rate::new(threshold, self.period_us(), capacity).unwrap_or(self.rate);
        let scale = WindowScale::new(threshold, self.period_us());
        Self { threshold, capacity, rate, scale, ..*self }
    }
}

/// The threshold, the capacity and the period of a limit: the facts that responses report to clients, for every
/// algorithm. Calls in flight have no period: it is zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Quota {
    threshold: u64,
    capacity: u64,
    /// The period in microseconds, with [`HIDDEN`] and [`BUCKET`]. Saves a word in each future of a call
    /// (`tests/shapes/future_size.rs`).
    period: u64,
}

/// Set in the period of a limit that responses do not report. A period is below 2⁵² microseconds.
const HIDDEN: u64 = 1 << 63;

/// Set in the period of a bucket.
const BUCKET: u64 = 1 << 62;

impl Quota {
    /// Returns this quota for a call whose threshold or burst is 0.
    pub(crate) const fn blocked(self) -> Self {
        Self { threshold: 0, capacity: 0, period: self.period }
    }

    /// Returns whether responses do not report the limit.
    pub(crate) const fn is_hidden(self) -> bool {
        self.period & HIDDEN != 0
    }

    /// Returns the time in which all units but one refill, in microseconds; `None` if this is not a bucket.
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
    pub const fn quota(&self) -> Quota {
        let Terms { threshold, capacity, .. } = self.terms;
        let hidden = (self.policy.hidden as u64) << HIDDEN.trailing_zeros();
        let period = if self.is_in_flight() { 0 } else { self.terms.identity.period.micros() };
        let bucket = (self.terms.is_bucket() as u64) << BUCKET.trailing_zeros();
        Quota { threshold, capacity, period: period | hidden | bucket }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Period;
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
                    let identity = Identity::new("largest", algorithm, period);
                    let largest = Terms::largest(identity, threshold);
                    prop_assert!(largest.threshold <= threshold && largest.threshold > 0);
                }
            }
        }
    }
}

#[cfg(test)]
mod rate_tests {
    use super::*;

    const DAY_US: u64 = 86_400_000_000;

    /// Returns how much later an empty bucket is full than at the exact rate, in picoseconds.
    fn lag_ps(threshold: u64, period_us: u64, burst: u64) -> u128 {
        let Rate { token, drain } = Rate::new(threshold, period_us, burst).expect("a rate");
        let (token, drain) = (u128::from(token), u128::from(drain));
        let (threshold, period, burst) =
            (u128::from(threshold), u128::from(period_us), u128::from(burst));
        assert!(token * burst <= u128::from(MAX_LEVEL) && drain <= u128::from(u32::MAX));
        // token / drain - period / threshold, for each token of the burst.
        let lag = token * threshold - period * drain;
        lag * burst * 1_000_000 / (drain * threshold)
    }

    #[test]
    fn a_bucket_fills_as_late_as_documented_and_no_later() {
        for burst in [52_000, 60_000, 86_400, 100_000, 1_000_000] {
            assert_eq!(lag_ps(burst, DAY_US, burst), 0, "{burst}");
        }
        assert_eq!(lag_ps(51_991, DAY_US, 51_991), 0, "a prime");
        // The examples of `Limit::token_bucket`.
        assert!((1..50_000_000).contains(&lag_ps(1_000_003, DAY_US, 1_000_003)));
        assert!((1..100_000_000_000).contains(&lag_ps(4_000_000_007, DAY_US, 4_000_000_007)));
        for threshold in (1_000..u64::from(u32::MAX)).step_by(1_000_003) {
            for (period_us, share) in
                [(DAY_US, 1), (7 * DAY_US, 3), (30 * DAY_US, 7), (DAY_US / 24 + 1, 1)]
            {
                let burst = threshold / share;
                let fills_ps =
                    u128::from(period_us) * 1_000_000 * u128::from(burst) / u128::from(threshold);
                let most = (fills_ps * u128::from(burst)) >> 50;
                let lag = lag_ps(threshold, period_us, burst);
                assert!(lag <= most, "{burst} at {threshold} per {period_us}: {lag} ps");
            }
        }
    }
}
