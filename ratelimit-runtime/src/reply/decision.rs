//! The decision of a check, and the units of a count that are in use.

use std::time::Duration;

use crate::algorithm::Outcome;

/// The decision of a limit about a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decision {
    /// Whether the call may proceed.
    pub allowed: bool,
    /// The largest number of units that can be admitted at once: the threshold of a window, or the burst of a bucket.
    pub limit: u64,
    /// The remaining units; for an admitted call, the units that remain after its charge.
    pub remaining: u64,
    /// The shortest wait after which the same call is admitted if no other call comes, rounded up to a microsecond.
    /// Zero if the call was allowed.
    pub retry_after: Duration,
    /// The time until the count is reset if no other call comes, rounded up to a microsecond. After that time, calls
    /// are decided as if the key had never been used.
    pub reset_after: Duration,
    /// Where the decision was made.
    pub source: Source,
}

impl Decision {
    #[inline]
    pub(crate) fn new(capacity: u64, outcome: &Outcome, source: Source) -> Self {
        Self {
            allowed: outcome.is_allowed(),
            limit: capacity,
            remaining: outcome.remaining,
            retry_after: Duration::from_micros(outcome.retry_us),
            reset_after: Duration::from_micros(outcome.reset_us),
            source,
        }
    }

    /// Returns the decision about a call without a limit.
    pub(crate) fn unlimited() -> Self {
        let all = Outcome { remaining: u64::MAX, ..Outcome::UNDECIDED };
        Self::new(u64::MAX, &all, Source::Embedded)
    }

    /// Returns the decision of this process about a call that it rejects. `limit` is the capacity.
    pub(crate) fn rejected_here(limit: u64, retry_after: Duration, reset_after: Duration) -> Self {
        let (allowed, source) = (false, Source::Embedded);
        Self { allowed, limit, remaining: 0, retry_after, reset_after, source }
    }
}

/// Where a decision was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// In this process, by the embedded store.
    Embedded,
    /// By a script in Redis.
    Redis,
    /// By [`OnError`](crate::OnError), because Redis did not decide.
    Fallback,
    /// In this process, by a rejection that it knows: Redis rejected a call on the key at most a second ago, and its
    /// `retry_after` has not passed; or this process is about to block the key in Redis.
    Cache,
    /// In this process, from leased units, which Redis charged in advance; see [`Limit::lease`](crate::Limit::lease).
    Lease,
}

/// The units of a key that are in use: [`Operator::usage`](crate::Operator::usage).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// The charged units that still count: in a window, all that its calls have taken; in a bucket, all that have not
    /// refilled yet. A part of a unit counts as a whole one.
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
