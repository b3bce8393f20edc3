//! Token bucket and leaky bucket: what was taken drains at a steady rate. Twin of `lua/bucket.lua`.
//!
//! The bucket is kept as the level of what was taken and not yet refilled, counted in units so
//! small that both one token and the refill of one microsecond are whole numbers of them: nothing
//! is rounded, however long the bucket runs. A level above the capacity is what was booked ahead, or
//! taken while the capacity was larger: nothing is admitted before it has drained. (This is the generic cell rate algorithm of ITU-T
//! I.371 in its leaky-bucket form, with the level scaled to integers.)
//!
//! The embedded store leases nothing, so the reserve that the script keeps for leased units is not here.

use super::{BucketOp, Op, Outcome, State};
use crate::limit::{InvalidLimit, Limit};

/// The largest level: two of them still add up exactly in an `f64`.
const MAX_LEVEL: u64 = 1 << 52;

/// The most that is ever taken, ahead of time as well, and the latest time.
const MOST: u64 = (1 << WIDTH) - 1;

/// The bits of a number that an `f64` holds exactly.
const WIDTH: u32 = 53;

/// The refill rate in lowest terms: a token is `token` units, and `drain` units refill each
/// microsecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Rate {
    pub(crate) token: u64,
    pub(crate) drain: u64,
}

impl Rate {
    /// `threshold` per `period_us` into a bucket of `burst`; `None` if it takes over 100 years to
    /// fill.
    ///
    /// The rate is exact when `burst × period / gcd(period, threshold)` is at most 2⁵² µs, as it is
    /// for any burst up to 52,000 in a day. Beyond, it is the next slower rate that can be counted:
    /// never faster, and slower by less than `burst` parts in 2⁵¹. Users read this at
    /// [`Limit::token_bucket`].
    pub(crate) const fn new(threshold: u32, period_us: u64, burst: u32) -> Option<Self> {
        let (threshold, burst) = (threshold as u64, burst as u64);
        if burst as u128 * period_us as u128 > InvalidLimit::MAX_US as u128 * threshold as u128 {
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

    /// Returns the fastest rate of at most `max_token` units a token that is not above this one, which
    /// has more units: the last fraction below this one in the walk down the Stern-Brocot tree.
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

/// What was taken, as of the last change, in units of the rate it was taken under.
///
/// Three numbers below 2⁵³ in the low bits of a word each, and what drains, which is below 2³², in
/// what they leave: a key costs the embedded store three words.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bucket([u64; 3]);

/// A [`Bucket`] to work on.
#[derive(Clone, Copy)]
struct Taken {
    at: u64,
    level: u64,
    token: u64,
    drain: u64,
}

impl Bucket {
    fn taken(&self) -> Taken {
        let Self([at, level, token]) = *self;
        let drain = at >> WIDTH | level >> WIDTH << 11 | token >> WIDTH << 22;
        Taken { at: at & MOST, level: level & MOST, token: token & MOST, drain }
    }
}

impl From<Taken> for Bucket {
    #[inline(always)]
    fn from(Taken { at, level, token, drain }: Taken) -> Self {
        let high = |bits: u64| bits << WIDTH;
        Self([at | high(drain), level | high(drain >> 11), token | high(drain >> 22)])
    }
}

impl State for Bucket {
    #[inline(always)]
    fn apply(&mut self, op: Op, limit: &Limit, clock: u64, cost: u32) -> Outcome {
        if op == Op::Decide
            && let Some(outcome) = self.decide(limit, clock, cost)
        {
            return outcome;
        }
        self.apply_any(op, limit, clock, cost)
    }

    fn expires(&self) -> u64 {
        self.taken().full_at()
    }
}

impl Bucket {
    /// Decides what nearly all calls are: one at the rate of the one before it.
    #[inline(always)]
    fn decide(&mut self, limit: &Limit, clock: u64, cost: u32) -> Option<Outcome> {
        let Rate { token, drain } = limit.rate;
        let capacity = u64::from(limit.capacity()) * token;
        let Self(empty) = Taken { at: 0, level: 0, token, drain }.into();
        let [at, level, other] = [0, 1, 2].map(|word| self.0[word] ^ empty[word]);
        if other != 0 || (at | level) > MOST || cost == 0 {
            return None;
        }
        let now = clock.max(at);
        let drained = (now - at).saturating_mul(drain);
        let level = level.saturating_sub(drained) + u64::from(cost) * token;
        if level > capacity {
            let charge = u64::from(cost) * token;
            return Some(refused(limit, clock, now - clock, level - charge, charge, u64::MAX));
        }
        *self = Taken { at: now, level, token, drain }.into();
        Some(Outcome {
            clock,
            allowed: true,
            remaining: ((capacity - level) / token) as u32,
            retry_us: 0,
            reset_us: ceil(level, drain) + (now - clock),
        })
    }

    /// The same for whatever is asked.
    #[inline(never)]
    fn apply_any(&mut self, op: Op, limit: &Limit, clock: u64, cost: u32) -> Outcome {
        let Levels { taken, now, lag, level, full, capacity, charge } = self.at(limit, clock, cost);
        let allowed = op.gives_back() || cost == 0 || level + charge <= capacity;
        if !allowed {
            return refused(limit, clock, lag, level, charge, full);
        }
        let changed = match op {
            Op::Peek => None,
            Op::Decide => Some(level + charge),
            Op::Refund | Op::Return { .. } if level > capacity => Some(level),
            Op::Refund => Some(level.saturating_sub(charge)),
            // What has drained since might have been drained from others.
            Op::Return { at } if taken.is_of(limit.rate) => {
                let drained = now.saturating_sub(at).saturating_mul(limit.rate.drain);
                Some(level.saturating_sub(charge.min(capacity).saturating_sub(drained)))
            }
            Op::Return { .. } => Some(level),
        };
        self.keep(limit, clock, now, changed.filter(|_| cost > 0), (level, full))
    }

    /// Books a moment ahead, or gives one back.
    pub(crate) fn apply_ahead(
        &mut self,
        op: BucketOp,
        limit: &Limit,
        clock: u64,
        cost: u32,
    ) -> Outcome {
        let Levels { taken, now, lag, level, full, capacity, charge } = self.at(limit, clock, cost);
        let changed = match op {
            BucketOp::Unbook { slot } if slot != taken.slot(capacity) => {
                return Outcome { retry_us: 0, ..refused(limit, clock, lag, level, charge, full) };
            }
            BucketOp::Unbook { .. } => level.saturating_sub(charge),
            BucketOp::Book { wait } => {
                let refusal = refused(limit, clock, lag, level, charge, full);
                let is_now = cost == 0 || level + charge <= capacity;
                let retry = if is_now { 0 } else { refusal.retry_us };
                if retry > wait || level + charge > MOST {
                    return refusal;
                }
                let changed = (cost > 0).then_some(level + charge);
                let booked = self.keep(limit, clock, now, changed, (level, full));
                return Outcome { retry_us: retry, ..booked };
            }
        };
        self.keep(limit, clock, now, (cost > 0).then_some(changed), (level, full))
    }

    /// The state of the bucket at the moment of a call.
    fn at(&self, limit: &Limit, clock: u64, cost: u32) -> Levels {
        let taken = self.taken();
        let now = clock.max(taken.at);
        // At one rate a level says by itself how long it lasts.
        let full = if taken.is_of(limit.rate) { u64::MAX } else { taken.full_in(now) };
        Levels {
            taken,
            now,
            lag: now - clock,
            level: taken.level_at(now, limit.rate, full),
            full,
            capacity: u64::from(limit.capacity()) * limit.rate.token,
            charge: u64::from(cost).saturating_mul(limit.rate.token),
        }
    }

    /// Stores a changed level and returns the outcome. An unchanged level comes with the time until the bucket
    /// is full.
    fn keep(
        &mut self,
        limit: &Limit,
        clock: u64,
        now: u64,
        changed: Option<u64>,
        (level, full): (u64, u64),
    ) -> Outcome {
        let Rate { token, drain } = limit.rate;
        let (level, full) = changed.map_or((level, full), |level| (level, u64::MAX));
        if changed.is_some() {
            *self = match level {
                0 => Self::default(),
                _ => Taken { at: now, level, token, drain }.into(),
            };
        }
        let lag = now - clock;
        Outcome {
            clock,
            allowed: true,
            remaining: (capacity_of(limit).saturating_sub(level) / token) as u32,
            retry_us: 0,
            reset_us: if level == 0 { 0 } else { ceil(level, drain).min(full) + lag },
        }
    }
}

/// A bucket at the moment of a call.
struct Levels {
    taken: Taken,
    /// Never before the last change, and so much later than the clock.
    now: u64,
    lag: u64,
    level: u64,
    /// In how long the bucket is full at the rate it was charged under.
    full: u64,
    capacity: u64,
    charge: u64,
}

impl Taken {
    /// The moment for which the last call was booked: that at which no more is taken than the
    /// bucket holds.
    fn slot(&self, capacity: u64) -> u64 {
        self.at + self.level.saturating_sub(capacity).div_ceil(self.drain.max(1))
    }

    /// How long until all that was taken has refilled at the rate it was taken under. The bucket is
    /// full then, whatever the rate is by now: a store may have forgotten it.
    fn full_in(&self, now: u64) -> u64 {
        self.full_at().saturating_sub(now)
    }

    fn full_at(&self) -> u64 {
        self.at + self.level.div_ceil(self.drain.max(1))
    }

    fn is_of(&self, rate: Rate) -> bool {
        self.token == rate.token && self.drain == rate.drain
    }

    /// The level at `now`: as if this rate had been in force since the last change.
    fn level_at(&self, now: u64, rate: Rate, full: u64) -> u64 {
        if full == 0 {
            return 0;
        }
        let level = if self.token == rate.token {
            self.level
        } else {
            // The one place where a fraction occurs: the same tokens in the units of another rate.
            (self.level as f64 * rate.token as f64 / self.token as f64).ceil() as u64
        };
        level.min(MOST).saturating_sub((now - self.at).saturating_mul(rate.drain))
    }
}

/// A call that would raise `level` to more than there is room for.
#[inline(never)]
fn refused(limit: &Limit, clock: u64, lag: u64, level: u64, charge: u64, full: u64) -> Outcome {
    let (Rate { token, drain }, capacity) = (limit.rate, capacity_of(limit));
    Outcome {
        clock,
        allowed: false,
        remaining: (capacity.saturating_sub(level) / token) as u32,
        retry_us: ceil((level + charge).saturating_sub(capacity), drain).min(full) + lag,
        reset_us: if level == 0 { 0 } else { ceil(level, drain).min(full) + lag },
    }
}

fn capacity_of(limit: &Limit) -> u64 {
    u64::from(limit.capacity()) * limit.rate.token
}

/// Rounded up. A division is what takes longest in a decision, and many rates need none.
fn ceil(units: u64, drain: u64) -> u64 {
    if drain == 1 { units } else { units.div_ceil(drain) }
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
                // A token takes at most `max_token` microseconds, or no rate is slow enough.
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

    /// How much later than it should be a bucket is full, in picoseconds.
    fn lag_ps(threshold: u32, period_us: u64, burst: u32) -> u128 {
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
        for threshold in (1_000..u32::MAX).step_by(1_000_003) {
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
