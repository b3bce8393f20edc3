//! The answer of a store.

use std::time::Duration;

use crate::algorithm::Outcome;
use crate::limit::{Limit, Quota};

/// The answer of a store about one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decision {
    /// Whether the call may go on.
    pub allowed: bool,
    /// The most that can be admitted at once: the threshold of a window, the burst of a bucket.
    pub limit: u32,
    /// What is left: after the charge of an admitted call, as it stands otherwise.
    pub remaining: u32,
    /// The smallest wait after which the same call is admitted if nothing else comes, rounded up to
    /// a microsecond; zero when it was allowed.
    pub retry_after: Duration,
    /// How long until the key is as if it had never been used, rounded up to a microsecond.
    pub reset_after: Duration,
    /// Who decided.
    pub source: Source,
}

impl Decision {
    #[inline]
    pub(crate) fn new(capacity: u32, Answered { outcome, source }: Answered) -> Self {
        Self {
            allowed: outcome.allowed,
            limit: capacity,
            remaining: outcome.remaining,
            retry_after: Duration::from_micros(outcome.retry_us),
            reset_after: Duration::from_micros(outcome.reset_us),
            source,
        }
    }

    /// What is said of a call that goes on undecided.
    pub(crate) fn undecided(capacity: u32) -> Self {
        Self::new(capacity, Answered::undecided())
    }

    /// What is said of a cost above the capacity: no wait helps.
    pub(crate) fn never(capacity: u32) -> Self {
        Self {
            allowed: false,
            limit: capacity,
            remaining: 0,
            retry_after: Duration::MAX,
            reset_after: Duration::ZERO,
            source: Source::Embedded,
        }
    }
}

/// What a store answered, and who that was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answered {
    pub(crate) outcome: Outcome,
    pub(crate) source: Source,
}

impl Answered {
    /// What is said of a call that goes on undecided.
    pub(crate) fn undecided() -> Self {
        let outcome = Outcome { clock: 0, allowed: true, remaining: 0, retry_us: 0, reset_us: 0 };
        Self { outcome, source: Source::Fallback }
    }
}

/// The decision that speaks for several limits, and what there is to say of its limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Verdict {
    pub(crate) name: &'static str,
    pub(crate) quota: Quota,
    pub(crate) decision: Decision,
}

impl Verdict {
    pub(crate) fn new(limit: &Limit, decision: Decision) -> Self {
        Self { name: limit.name(), quota: limit.quota(), decision }
    }

    /// The one that is harder on the caller: a refusal before an admission, the longer wait of two
    /// refusals, the smaller rest of two admissions; the first of equals.
    pub(crate) fn harder(self, other: Self) -> Self {
        let hardness = |it: &Self| {
            let Decision { allowed, retry_after, remaining, .. } = it.decision;
            (!allowed, retry_after, if allowed { u32::MAX - remaining } else { 0 })
        };
        if hardness(&other) > hardness(&self) { other } else { self }
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
    /// By what [`OnError`](crate::OnError) says, because Redis did not answer.
    Fallback,
    /// By a script in Redis a moment ago: it refused, for longer than has passed since.
    Cache,
    /// By a unit that Redis had charged in advance; see [`Limit::lease`](crate::Limit::lease).
    Lease,
}
