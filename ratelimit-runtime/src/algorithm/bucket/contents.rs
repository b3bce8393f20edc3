//! The numbers of a bucket.

use crate::algorithm::MOST;
use crate::limit::Rate;

/// How full a bucket was at its last change, and the rate of that time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contents {
    /// The time of the last change.
    pub(super) at: u64,
    /// The level at that time, in units of the rate of that time.
    pub(super) level: u64,
    pub(super) token: u64,
    pub(super) drain: u64,
}

impl Contents {
    pub(super) const EMPTY: Self = Self { at: 0, level: 0, token: 0, drain: 0 };

    /// Returns the time until the level has drained at the rate of its last charge. Then the bucket is full
    /// at any new rate as well, because its key in Redis may have expired.
    pub(super) fn full_in(&self, now: u64) -> u64 {
        self.full_at().saturating_sub(now)
    }

    /// Returns the time at which the bucket is full again.
    pub(super) fn full_at(&self) -> u64 {
        self.at + self.level.div_ceil(self.drain.max(1))
    }

    #[inline]
    pub(super) fn has_rate(&self, rate: Rate) -> bool {
        self.token == rate.token && self.drain == rate.drain
    }

    /// Returns the level at `now`, as if `rate` had been in force since the last change.
    pub(super) fn level_at(&self, now: u64, rate: Rate, full: u64) -> u64 {
        if full == 0 {
            return 0;
        }
        let level = if self.token == rate.token {
            self.level
        } else {
            // The only step that rounds: converts the tokens to the units of another rate.
            (self.level as f64 * rate.token as f64 / self.token as f64).ceil() as u64
        };
        level.min(MOST).saturating_sub((now - self.at).saturating_mul(rate.drain))
    }
}
