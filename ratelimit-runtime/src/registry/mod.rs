//! The limits that this process knows, for its operators. An annotated limit is registered by its first call, with the
//! number of calls that it has decided. The others are registered without that number: a limit of a layer when the
//! layer is built, a limit that code checks by hand when it first rejects a call, or when a call first looks for its
//! rules.

mod others;
mod tally;

use std::sync::{Mutex, MutexGuard, PoisonError};

#[cfg(feature = "tower")]
pub(crate) use self::others::add_of_layer;
pub(crate) use self::others::see;
pub use self::tally::CallCounts;
pub(crate) use self::tally::{CallEnd, SHARDS, count, shard};
use crate::limit::Limit;

/// The annotated limits, in the order of their first calls.
static SEEN: Mutex<Vec<RegisteredLimit>> = Mutex::new(Vec::new());

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
    let (mut limits, mut others) = (seen().clone(), others::limits());
    others.retain(|other| !limits.iter().any(|limit| limit.shares_count(&other.limit)));
    limits.append(&mut others);
    limits
}

/// Returns the annotated limits with the counts of their calls.
pub(crate) fn limits_with_counts() -> Vec<(RegisteredLimit, CallCounts)> {
    let limits = seen().clone().into_iter().enumerate();
    limits.map(|(index, limit)| (limit, tally::counts(index))).collect()
}

/// Returns a number that grows with each change of the registered limits.
#[cfg(feature = "rules")]
pub(crate) fn version() -> usize {
    seen().len() + others::version()
}

/// Adds an annotated limit. Returns its index, and the first one with the same name, algorithm and period, if there is
/// one.
pub(crate) fn add(added: RegisteredLimit) -> (usize, Option<RegisteredLimit>) {
    let mut seen = seen();
    let shares_name = |other: &&RegisteredLimit| {
        let (one, other) = (added.limit.terms(), other.limit.terms());
        one.name() == other.name()
            && one.algorithm() == other.algorithm()
            && one.period() == other.period()
    };
    let first = seen.iter().find(shares_name).cloned();
    seen.push(added);
    (seen.len() - 1, first)
}

impl RegisteredLimit {
    /// Returns whether calls of another limit have the same counts.
    fn shares_count(&self, limit: &Limit) -> bool {
        self.limit.terms().identity() == limit.terms().identity()
    }
}

fn seen() -> MutexGuard<'static, Vec<RegisteredLimit>> {
    SEEN.lock().unwrap_or_else(PoisonError::into_inner)
}
