//! The annotated limits that this process has seen, and how many calls each has decided.

mod tally;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use self::tally::CallCounts;
use self::tally::Tallies;
pub(crate) use self::tally::{CallEnd, count};
use crate::limit::Limit;

/// The limits, in the order of their first calls.
static SEEN: Mutex<Vec<SeenLimit>> = Mutex::new(Vec::new());

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

struct SeenLimit {
    registered: RegisteredLimit,
    tallies: Tallies,
}

/// Returns the limits, in the order of their first calls.
#[cfg(feature = "rules")]
pub(crate) fn limits() -> Vec<RegisteredLimit> {
    seen().iter().map(|seen| seen.registered.clone()).collect()
}

/// Returns the limits with the counts of their calls.
pub(crate) fn limits_with_counts() -> Vec<(RegisteredLimit, CallCounts)> {
    seen().iter().map(|seen| (seen.registered.clone(), seen.tallies.counts())).collect()
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
    let first = seen.iter().map(|seen| &seen.registered).find(shares_name).cloned();
    seen.push(SeenLimit { registered: added, tallies: Tallies::default() });
    (seen.len() - 1, first)
}

fn seen() -> MutexGuard<'static, Vec<SeenLimit>> {
    SEEN.lock().unwrap_or_else(PoisonError::into_inner)
}
