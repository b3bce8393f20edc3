//! The numbers of a bucket.

use super::{MOST, WIDTH};
use crate::limit::Rate;

/// An unpacked [`Bucket`].
#[derive(Clone, Copy)]
pub(super) struct UnpackedBucket {
    /// The time of the last change.
    pub(super) at: u64,
    /// The level at that time, in units of the rate of that time.
    pub(super) level: u64,
    pub(super) token: u64,
    pub(super) drain: u64,
}

impl From<UnpackedBucket> for [u64; 3] {
    #[inline(always)]
    fn from(UnpackedBucket { at, level, token, drain }: UnpackedBucket) -> Self {
        let high = |bits: u64| bits << WIDTH;
        [at | high(drain), level | high(drain >> 11), token | high(drain >> 22)]
    }
}

impl UnpackedBucket {
    /// Returns the time until the level has drained at the rate of its last charge. Then the bucket is full
    /// at any new rate as well, because its key in Redis may have expired.
    pub(super) fn full_in(&self, now: u64) -> u64 {
        self.full_at().saturating_sub(now)
    }

    /// Returns the time at which the bucket is full again. Every charge moves it. Without a birth, it also tells
    /// whether another charge came after a reservation.
    pub(super) fn full_at(&self) -> u64 {
        self.at + self.level.div_ceil(self.drain.max(1))
    }

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
