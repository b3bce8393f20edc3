//! The units of a count that are in use.

use std::time::Duration;

use super::Source;
use crate::algorithm::Outcome;

/// The units of a key that are in use: [`Operator::usage`](crate::Operator::usage).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// The units that were charged and are not free again: the units in the window, or those that have not refilled the
    /// bucket yet. A part of a unit counts as a whole one.
    pub used: u64,
    /// The time until all of them are free if no other call comes, rounded up to a microsecond.
    pub reset_after: Duration,
    /// For how long the key is still [blocked](crate::RateLimiter::block); `None` if it is not.
    pub blocked_for: Option<Duration>,
    /// The store that has counted them.
    pub source: Source,
}

impl Usage {
    /// Returns the usage that the outcome of a measure describes.
    pub(crate) fn new(outcome: &Outcome, source: Source) -> Self {
        let Outcome { remaining: used, retry_us, reset_us, .. } = *outcome;
        let blocked_for = outcome.is_blocked().then(|| Duration::from_micros(retry_us));
        Self { used, reset_after: Duration::from_micros(reset_us), blocked_for, source }
    }
}
