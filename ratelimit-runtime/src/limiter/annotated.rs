//! The annotated limits of this process, for its operators.

use super::global::with_set;
use crate::limit::Limit;
use crate::registry::{self, CallCounts, RegisteredLimit};
use crate::rules::Rule;

/// An annotated function with a limit, after its first call: [`limits`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AnnotatedLimit {
    /// The limit as the code says. If each call computes the amounts, they are 1 here.
    pub limit: Limit,
    /// Where it is in the code: the file, the line and the column.
    pub place: &'static str,
    /// Whether each call computes the threshold or the burst.
    pub is_computed: bool,
    /// The rule in force for this limit, in the limiter that a function called here would use. The rules of single keys
    /// are in [`RateLimiter::rules`](crate::RateLimiter::rules).
    pub rule: Option<Rule>,
    /// How many calls it has decided in this process.
    pub calls: CallCounts,
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
/// # async fn main() {
/// for _ in 0..7 {
///     let _ = report().await;
/// }
/// let limits = ratelimit_runtime::limits();
/// assert_eq!((limits[0].limit.name(), limits[0].limit.threshold()), ("report", 5));
/// assert_eq!((limits[0].calls.admitted, limits[0].calls.rejected), (5, 2));
/// # }
/// ```
#[must_use]
pub fn limits() -> Vec<AnnotatedLimit> {
    let seen = registry::limits_with_counts().into_iter();
    let rules = with_set(|limiter| {
        let checker = limiter.checker();
        (checker.rules.table(), checker.backend.clock().local())
    });
    let annotated = seen.map(|(RegisteredLimit { limit, place, is_computed }, calls)| {
        let rule = rules.as_ref().and_then(|(rules, now)| rules.as_ref()?.rule_of(&limit, *now));
        AnnotatedLimit { limit, place, is_computed, rule, calls }
    });
    annotated.collect()
}
