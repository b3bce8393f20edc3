//! What a call has made of a bucket.

use super::{capacity_of, ceil};
use crate::algorithm::Outcome;
use crate::limit::{Rate, Terms};

/// A bucket after a call.
#[derive(Clone, Copy)]
pub(crate) struct DecidedBucket {
    pub(super) allowed: bool,
    pub(super) level: u64,
    /// The time from the clock to the last change, if that is later.
    pub(super) lag: u64,
    /// As in [`BucketAtCall`](super::BucketAtCall).
    pub(super) full: u64,
}

impl DecidedBucket {
    /// Returns a bucket that was changed by its last call, or would have been.
    #[cfg(feature = "redis")]
    pub(crate) fn at_level(level: u64, allowed: bool) -> Self {
        Self { allowed, level, lag: 0, full: u64::MAX }
    }

    /// Returns the outcome of the last call.
    #[inline(always)]
    pub(crate) fn outcome(self, terms: &Terms, clock: u64, cost: u64) -> Outcome {
        let Self { allowed, level, lag, full } = self;
        let (Rate { token, drain }, capacity) = (terms.rate, capacity_of(terms));
        let retry = || {
            let charge = cost.saturating_mul(token);
            ceil((level + charge).saturating_sub(capacity), drain).min(full) + lag
        };
        Outcome {
            clock,
            verdict: allowed.into(),
            remaining: capacity.saturating_sub(level) / token,
            retry_us: if allowed { 0 } else { retry() },
            reset_us: if level == 0 { 0 } else { ceil(level, drain).min(full) + lag },
        }
    }
}
