//! The annotated limits that this process has seen, and how many calls each has decided.

mod tally;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use self::tally::CallCounts;
pub(crate) use self::tally::{CallEnd, count};
use crate::limit::Limit;

/// The limits, in the order of their first calls.
static SEEN: Mutex<Vec<RegisteredLimit>> = Mutex::new(Vec::new());

/// An annotated function with a limit, after its first call.
#[derive(Clone, Debug)]
pub(crate) struct RegisteredLimit {
    /// If each call computes the amounts, they are 1 here.
    pub(crate) limit: Limit,
    /// The file, the line and the column.
    pub(crate) place: &'static str,
    /// Whether each call computes the threshold or the burst.
    pub(crate) is_computed: bool,
}

/// Returns the limits, in the order of their first calls.
#[cfg(feature = "rules")]
pub(crate) fn limits() -> Vec<RegisteredLimit> {
    seen().clone()
}

/// Returns the limits with the counts of their calls.
pub(crate) fn limits_with_counts() -> Vec<(RegisteredLimit, CallCounts)> {
    let limits = seen().clone().into_iter().enumerate();
    limits.map(|(index, limit)| (limit, tally::counts(index))).collect()
}

/// Returns the number of limits.
#[cfg(feature = "rules")]
pub(crate) fn len() -> usize {
    seen().len()
}

/// Adds a limit. Returns its index, and the first one with the same name, algorithm and period, if there is one.
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

fn seen() -> MutexGuard<'static, Vec<RegisteredLimit>> {
    SEEN.lock().unwrap_or_else(PoisonError::into_inner)
}
