//! The refill rate of a bucket, in integers.

use super::LimitError;

/// The largest capacity of a bucket in units. The sum of two such numbers is exact in an `f64`.
const MAX_LEVEL: u64 = 1 << 52;

/// The refill rate in lowest terms: a token is `token` units, and `drain` units refill each
/// microsecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Rate {
    pub(crate) token: u64,
    pub(crate) drain: u64,
}

impl Rate {
    /// Returns whether this is the rate of `threshold` per `period_us`, to 0.1 %.
    pub(super) const fn is_close_to(self, threshold: u64, period_us: u64) -> bool {
        let (given, own) =
            (self.token as u128 * threshold as u128, period_us as u128 * self.drain as u128);
        given.abs_diff(own) <= own / 1_000
    }

    /// Returns the rate of `threshold` per `period_us` into a bucket of `burst`; `None` if the bucket takes
    /// over 100 years to fill.
    ///
    /// The rate is exact if `burst × period / gcd(period, threshold)` is at most 2⁵² µs, as it is for any burst up
    /// to 52,000 in a day. Otherwise, it is the next slower rate that can be counted, slower by less than `burst`
    /// parts in 2⁵¹. [`Limit::token_bucket`] documents this.
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
        Some(Self { token, drain }.next_slower(max_token))
    }

    /// Returns the most tokens of this rate that a bucket can have: their units are exact in an `f64`, and refill in
    /// 100 years.
    pub(super) const fn most_tokens(self) -> u64 {
        let refilled = LimitError::MAX_US.saturating_mul(self.drain);
        let exact = (1 << 53) - 1;
        if refilled < exact { refilled / self.token } else { exact / self.token }
    }

    /// Returns the fastest rate that is not above this one and has at most `max_token` units in a token. This
    /// rate must have more. The result is the last smaller fraction on the path to this one down the Stern-Brocot
    /// tree.
    const fn next_slower(self, max_token: u64) -> Self {
        let (token, drain, max_token) = (self.token as u128, self.drain as u128, max_token as u128);
        // Neighbours around `drain / token`, as (numerator, denominator). The denominators grow up to
        // `max_token`, which is below `token`, so neither becomes equal to it.
        let (mut low, mut high) = ((0, 1), (1, 0));
        loop {
            let below = drain * low.1 - token * low.0;
            let above = token * high.0 - drain * high.1;
            let mut steps = below / above;
            if high.1 > 0 && steps > (max_token - low.1) / high.1 {
                steps = (max_token - low.1) / high.1;
            }
            low = (low.0 + steps * high.0, low.1 + steps * high.1);
            let below = drain * low.1 - token * low.0;
            let mut steps = (above - 1) / below;
            if steps > (max_token - high.1) / low.1 {
                steps = (max_token - high.1) / low.1;
            }
            if steps == 0 {
                return Self { token: low.1 as u64, drain: low.0 as u64 };
            }
            high = (high.0 + steps * low.0, high.1 + steps * low.1);
        }
    }
}

const fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_slower_rate_is_the_fastest_that_can_be_counted() {
        for token in 2..60_u64 {
            for drain in 1..90 {
                if gcd(token, drain) != 1 {
                    continue;
                }
                // With a smaller `max_token`, no rate is slow enough.
                for max_token in token.div_ceil(drain)..token {
                    let found = Rate { token, drain }.next_slower(max_token);
                    let rates = (1..=max_token)
                        .map(|other| Rate { token: other, drain: drain * other / token });
                    let best = rates.reduce(|best, other| {
                        if other.drain * best.token > best.drain * other.token {
                            other
                        } else {
                            best
                        }
                    });
                    assert_eq!(
                        found,
                        best.expect("a rate"),
                        "{drain} / {token}, up to {max_token}"
                    );
                }
            }
        }
    }

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
        assert!(lag_ps(1_000_003, DAY_US, 1_000_003) < 1_000);
        assert!((1..200_000_000).contains(&lag_ps(4_000_000_007, DAY_US, 4_000_000_007)));
        for threshold in (1_000..u64::from(u32::MAX)).step_by(1_000_003) {
            for (period_us, share) in
                [(DAY_US, 1), (7 * DAY_US, 3), (30 * DAY_US, 7), (DAY_US / 24 + 1, 1)]
            {
                let burst = threshold / share;
                let fills_ps =
                    u128::from(period_us) * 1_000_000 * u128::from(burst) / u128::from(threshold);
                let most = (fills_ps * u128::from(burst)) >> 51;
                let lag = lag_ps(threshold, period_us, burst);
                assert!(lag <= most, "{burst} at {threshold} per {period_us}: {lag} ps");
            }
        }
    }
}
