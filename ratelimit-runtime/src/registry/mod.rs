//! The limits that this process knows, for its operators. An annotated limit is registered by its first call, with the
//! number of calls that it has decided. The others are registered without that number: a limit of a layer when the
//! layer is built, a limit that code checks by hand when it first rejects a call, or when a call first looks for its
//! rules. The number of others is bounded, because code can make any number of limits.

#[cfg(feature = "tower")]
use std::panic::Location;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::limit::Limit;

/// The annotated limits, in the order of their first calls.
static SEEN: Mutex<Vec<(RegisteredLimit, &'static Tally)>> = Mutex::new(Vec::new());

/// A limit of this process.
#[derive(Clone, Debug)]
pub(crate) struct RegisteredLimit {
    /// If each call computes the amounts, they are 1 here.
    pub(crate) limit: Limit,
    /// The file, the line and the column; empty if code checks the limit by hand.
    pub(crate) place: &'static str,
    /// Whether each call computes the threshold or the burst.
    pub(crate) is_computed: bool,
}

/// Returns all limits: first the annotated ones, in the order of their first calls, then the others.
#[cfg(feature = "rules")]
pub(crate) fn limits() -> Vec<RegisteredLimit> {
    let mut limits: Vec<_> = seen().iter().map(|(limit, _)| limit.clone()).collect();
    let mut others = lock().limits.clone();
    others.retain(|other| !limits.iter().any(|limit| limit.shares_count(&other.limit)));
    limits.append(&mut others);
    limits
}

/// Returns the annotated limits with the counts of their calls.
pub(crate) fn limits_with_counts() -> Vec<(RegisteredLimit, CallCounts)> {
    seen().iter().map(|(limit, tally)| (limit.clone(), tally.counts())).collect()
}

/// Returns a number that grows with each change of the registered limits.
#[cfg(feature = "rules")]
pub(crate) fn version() -> usize {
    seen().len() + lock().version
}

/// Adds an annotated limit. Returns the first one with the same name, algorithm and period, if there is one.
pub(crate) fn add(added: RegisteredLimit, tally: &'static Tally) -> Option<RegisteredLimit> {
    let mut seen = seen();
    let shares_name = |other: &&RegisteredLimit| {
        let (one, other) = (added.limit.terms(), other.limit.terms());
        one.name() == other.name()
            && one.algorithm() == other.algorithm()
            && one.period() == other.period()
    };
    let first = seen.iter().map(|(limit, _)| limit).find(shares_name).cloned();
    seen.push((added, tally));
    first
}

impl RegisteredLimit {
    /// Returns whether calls of another limit have the same counts.
    fn shares_count(&self, limit: &Limit) -> bool {
        self.limit.terms().identity() == limit.terms().identity()
    }
}

fn seen() -> MutexGuard<'static, Vec<(RegisteredLimit, &'static Tally)>> {
    SEEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The most limits that are kept.
const MOST: usize = 256;

static OTHERS: Mutex<Others> = Mutex::new(Others { limits: Vec::new(), version: 0 });

struct Others {
    limits: Vec<RegisteredLimit>,
    version: usize,
}

/// Registers a limit of a layer.
#[cfg(feature = "tower")]
pub(crate) fn add_of_layer(limit: &Limit, place: &'static Location<'static>) {
    lock().add(limit, || {
        // Leaked once for each limit. A program has few limits.
        format!("{}:{}:{}", place.file(), place.line(), place.column()).leak()
    });
}

/// Registers a limit of a call, if it is not registered. Returns whether its calls have different amounts, as far as it
/// is known.
#[cold]
pub(crate) fn see(limit: &Limit) -> bool {
    // Annotated limits were registered by their first calls.
    seen().iter().any(|(annotated, _)| annotated.shares_count(limit)) || lock().see(limit)
}

impl Others {
    /// Adds a limit, unless it is there.
    fn add(&mut self, limit: &Limit, place: impl FnOnce() -> &'static str) {
        let is_known = self.limits.iter().any(|other| other.shares_count(limit));
        if is_known || self.limits.len() >= MOST {
            return;
        }
        // A rule, or a computed amount, as 0 always is: neither is what the code says of each call.
        let is_computed = limit.varies() || limit.threshold() == 0;
        let limit = if is_computed { without_amounts(limit) } else { *limit };
        self.limits.push(RegisteredLimit { limit, place: place(), is_computed });
        self.version += 1;
    }

    /// Adds the limit of a call, unless it is there. Returns whether its calls have different amounts.
    fn see(&mut self, limit: &Limit) -> bool {
        self.add(limit, || "");
        let Some(known) = self.limits.iter_mut().find(|other| other.shares_count(limit)) else {
            return true;
        };
        let has_other_amounts = (known.limit.threshold(), known.limit.capacity())
            != (limit.threshold(), limit.capacity());
        if !known.is_computed && !limit.varies() && has_other_amounts {
            known.is_computed = true;
            known.limit = without_amounts(limit);
            self.version += 1;
        }
        known.is_computed
    }
}

/// Returns a limit with 1 in place of the amounts that each call computes.
fn without_amounts(limit: &Limit) -> Limit {
    limit.try_amounts(1, None).unwrap_or(*limit)
}

fn lock() -> MutexGuard<'static, Others> {
    OTHERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many calls an annotated limit has decided since the process started, as their callers saw it: a call that a
/// shadow or `on_error` admits is admitted. A call that still waits, or was dropped, is not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallCounts {
    /// The calls that ran.
    pub admitted: u64,
    /// The calls that this limit has rejected. If several limits are decided together, only the limit that the
    /// [`Rejection`](crate::Rejection) names counts the call.
    pub rejected: u64,
    /// The calls that were rejected without a decision: [`Rejection::Unavailable`] and [`Rejection::Mistake`].
    ///
    /// [`Rejection::Unavailable`]: crate::Rejection::Unavailable
    /// [`Rejection::Mistake`]: crate::Rejection::Mistake
    pub undecided: u64,
}

/// How a call has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CallEnd {
    Admitted,
    Rejected,
    Undecided,
}

/// The counts of one annotated limit.
#[derive(Debug)]
pub(crate) struct Tally {
    admitted: AtomicU64,
    rejected: AtomicU64,
    undecided: AtomicU64,
}

impl Tally {
    pub(crate) const fn new() -> Self {
        Self {
            admitted: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            undecided: AtomicU64::new(0),
        }
    }

    /// Counts a call.
    #[inline]
    pub(crate) fn add(&self, end: CallEnd) {
        let count = match end {
            CallEnd::Admitted => &self.admitted,
            CallEnd::Rejected => &self.rejected,
            CallEnd::Undecided => &self.undecided,
        };
        count.fetch_add(1, Relaxed);
    }

    fn counts(&self) -> CallCounts {
        let Self { admitted, rejected, undecided } = self;
        let [admitted, rejected, undecided] =
            [admitted, rejected, undecided].map(|count| count.load(Relaxed));
        CallCounts { admitted, rejected, undecided }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;

    fn others() -> Others {
        Others { limits: Vec::new(), version: 0 }
    }

    const LIMIT: Limit = Limit::token_bucket("by hand", 5, Duration::from_secs(60));

    #[test]
    fn a_limit_with_other_amounts_is_a_computed_one() {
        let mut others = others();
        assert!(!others.see(&LIMIT) && !others.see(&LIMIT));
        assert_eq!((others.version, others.limits[0].limit), (1, LIMIT));
        let (ruled, _) = LIMIT.under_rule(Some(50), None);
        assert!(!others.see(&ruled), "a rule does not change what the code says");
        let other = LIMIT.try_amounts(50, Some(7)).expect("valid");
        assert!(others.see(&other) && others.see(&LIMIT));
        assert_eq!((others.version, others.limits.len()), (2, 1));
        let amount_and_kind =
            |others: &Others| (others.limits[0].limit.threshold(), others.limits[0].is_computed);
        assert_eq!(amount_and_kind(&others), (1, true));
        let (mut others, blocked) = (self::others(), LIMIT.try_amounts(0, None).expect("valid"));
        assert!(others.see(&blocked));
        assert_eq!(amount_and_kind(&others), (1, true), "0 is no amount that all calls have");
    }

    #[test]
    fn limits_are_bounded_in_number() {
        let mut others = others();
        for period in 1..=2 * MOST as u64 {
            others.see(&Limit::fixed("by hand", 5, Duration::from_secs(period)));
        }
        assert_eq!(others.limits.len(), MOST);
    }
}
