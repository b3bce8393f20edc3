//! The annotated limits that this process has seen.

use std::sync::{Mutex, PoisonError};

use crate::limit::Limit;

/// The limits, in the order of their first calls.
static SEEN: Mutex<Vec<AnnotatedLimit>> = Mutex::new(Vec::new());

/// An annotated function with a limit, after its first call: [`limits`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AnnotatedLimit {
    /// The limit. If each call computes the amounts, they are 1 here.
    pub limit: Limit,
    /// Where it is in the code: the file, the line and the column.
    pub place: &'static str,
    /// Whether each call computes the threshold or the burst.
    pub is_computed: bool,
}

/// Returns the annotated limits of this process, in the order of their first calls. A function that was not called yet
/// is not among them. A function with several limits has an entry for each.
///
/// ```
/// use ratelimit_runtime::{Rejection, rate_limit};
///
/// #[rate_limit(name = "report", period = "1h", threshold = 5)]
/// async fn report() -> Result<(), Rejection> {
///     Ok(())
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Rejection> {
/// report().await?;
/// let limits = ratelimit_runtime::limits();
/// assert_eq!((limits[0].limit.name(), limits[0].limit.threshold()), ("report", 5));
/// # Ok(())
/// # }
/// ```
#[must_use]
pub fn limits() -> Vec<AnnotatedLimit> {
    SEEN.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Adds a limit. Returns the first one with the same name, algorithm and period, if there is one.
pub(crate) fn add(added: AnnotatedLimit) -> Option<AnnotatedLimit> {
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    let shares_name = |other: &&AnnotatedLimit| {
        let (one, other) = (added.limit.terms(), other.limit.terms());
        one.name() == other.name()
            && one.algorithm() == other.algorithm()
            && one.period() == other.period()
    };
    let first = seen.iter().find(shares_name).cloned();
    seen.push(added);
    first
}
