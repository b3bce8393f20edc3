//! The limits that this process knows, for its operators. An annotated limit is registered by its first call, with the
//! number of calls that it has decided. The others are registered without that number: a limit of a layer when the
//! layer is built, a limit that code checks by hand when it first rejects a call, or when a call first looks for its
//! rules. The number of others is bounded, because code can make any number of limits.

use std::panic::Location;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::limit::Limit;

static REGISTRY: Mutex<Registry> =
    Mutex::new(Registry { annotated: Vec::new(), others: Vec::new(), version: 0 });

/// The limits of this process.
#[derive(Default)]
struct Registry {
    /// The annotated limits, in the order of their first calls.
    annotated: Vec<(RegisteredLimit, &'static Tally)>,
    others: Vec<RegisteredLimit>,
    /// Grows with each change.
    version: usize,
}

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
pub(crate) fn limits() -> Vec<RegisteredLimit> {
    let registry = lock();
    let is_other = |other: &&RegisteredLimit| !registry.is_annotated(&other.limit);
    let annotated = registry.annotated.iter().map(|(limit, _)| limit);
    annotated.chain(registry.others.iter().filter(is_other)).cloned().collect()
}

/// Returns the annotated limits with the counts of their calls.
pub(crate) fn limits_with_counts() -> Vec<(RegisteredLimit, CallCounts)> {
    lock().annotated.iter().map(|(limit, tally)| (limit.clone(), tally.counts())).collect()
}

/// Returns a number that grows with each change of the registered limits.
pub(crate) fn version() -> usize {
    lock().version
}

/// Adds an annotated limit. Returns the first one with the same name, algorithm and period, if there is one.
pub(crate) fn add(added: RegisteredLimit, tally: &'static Tally) -> Option<RegisteredLimit> {
    let mut registry = lock();
    let shares_name = |other: &&RegisteredLimit| {
        let (one, other) = (&added.limit.terms().identity, &other.limit.terms().identity);
        one.name == other.name && one.algorithm == other.algorithm && one.period == other.period
    };
    let first = registry.annotated.iter().map(|(limit, _)| limit).find(shares_name).cloned();
    registry.annotated.push((added, tally));
    registry.version += 1;
    first
}

impl RegisteredLimit {
    /// Returns whether calls of another limit have the same counts.
    fn shares_count(&self, limit: &Limit) -> bool {
        self.limit.terms().identity == limit.terms().identity
    }
}

/// The most limits that are kept, beside the annotated ones.
const MOST: usize = 256;

/// Registers a limit of a layer.
pub(crate) fn add_of_layer(limit: &Limit, place: &'static Location<'static>) {
    lock().add(limit, || {
        // Leaked once for each limit. A program has few limits.
        format!("{}:{}:{}", place.file(), place.line(), place.column()).leak()
    });
}

/// Registers a limit of a call, if it is not registered.
#[cold]
pub(crate) fn see(limit: &Limit) {
    lock().see(limit);
}

impl Registry {
    fn is_annotated(&self, limit: &Limit) -> bool {
        self.annotated.iter().any(|(annotated, _)| annotated.shares_count(limit))
    }

    /// Adds a limit that is not annotated, unless it is there.
    fn add(&mut self, limit: &Limit, place: impl FnOnce() -> &'static str) {
        let is_known = self.others.iter().any(|other| other.shares_count(limit));
        if is_known || self.others.len() >= MOST {
            return;
        }
        // A rule, or a computed amount, as 0 always is: neither is what the code says of each call.
        let is_computed = limit.policy().varies || limit.threshold() == 0;
        let limit = if is_computed { without_amounts(limit) } else { *limit };
        self.others.push(RegisteredLimit { limit, place: place(), is_computed });
        self.version += 1;
    }

    /// Adds the limit of a call, unless it is there, and notes whether its calls have different amounts.
    fn see(&mut self, limit: &Limit) {
        // Annotated limits were registered by their first calls.
        if self.is_annotated(limit) {
            return;
        }
        self.add(limit, || "");
        let Some(known) = self.others.iter_mut().find(|other| other.shares_count(limit)) else {
            return;
        };
        let has_other_amounts = (known.limit.threshold(), known.limit.capacity())
            != (limit.threshold(), limit.capacity());
        if !known.is_computed && !limit.policy().varies && has_other_amounts {
            known.is_computed = true;
            known.limit = without_amounts(limit);
            self.version += 1;
        }
    }
}

/// Returns a limit with 1 in place of the amounts that each call computes.
fn without_amounts(limit: &Limit) -> Limit {
    limit.try_amounts(1, None).unwrap_or(*limit)
}

fn lock() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
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

/// The counts of one annotated limit: a number for each [`CallEnd`].
#[derive(Debug)]
pub(crate) struct Tally([AtomicU64; 3]);

impl Tally {
    pub(crate) const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; 3])
    }

    /// Counts a call.
    #[inline]
    pub(crate) fn add(&self, end: CallEnd) {
        self.0[end as usize].fetch_add(1, Relaxed);
    }

    fn counts(&self) -> CallCounts {
        let [admitted, rejected, undecided] = self.0.each_ref().map(|count| count.load(Relaxed));
        CallCounts { admitted, rejected, undecided }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;

    const LIMIT: Limit = Limit::token_bucket("by hand", 5, Duration::from_secs(60));

    #[test]
    fn a_limit_with_other_amounts_is_a_computed_one() {
        let is_computed = |registry: &Registry| registry.others[0].is_computed;
        let mut registry = Registry::default();
        registry.see(&LIMIT);
        registry.see(&LIMIT);
        assert!(!is_computed(&registry));
        assert_eq!((registry.version, registry.others[0].limit), (1, LIMIT));
        let (ruled, _) = LIMIT.under_rule(Some(50), None);
        registry.see(&ruled);
        assert!(!is_computed(&registry), "a rule does not change what the code says");
        let other = LIMIT.try_amounts(50, Some(7)).expect("valid");
        registry.see(&other);
        registry.see(&LIMIT);
        assert_eq!((registry.version, registry.others.len()), (2, 1));
        assert!(is_computed(&registry));
        assert_eq!(registry.others[0].limit.threshold(), 1);
        let mut registry = Registry::default();
        registry.see(&LIMIT.try_amounts(0, None).expect("valid"));
        assert!(is_computed(&registry), "0 is no amount that all calls have");
        assert_eq!(registry.others[0].limit.threshold(), 1);
    }

    #[test]
    fn limits_are_bounded_in_number() {
        let mut registry = Registry::default();
        for period in 1..=2 * MOST as u64 {
            registry.see(&Limit::fixed("by hand", 5, Duration::from_secs(period)));
        }
        assert_eq!(registry.others.len(), MOST);
    }
}
