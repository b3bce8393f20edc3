//! One rule.

use std::time::{Duration, SystemTime};

use crate::limit::Access;

/// What changes about a limit, or about one key of it. What a rule does not set stays as it is: for a key, as the rule
/// of its limit says, and for a limit, as the code says.
///
/// ```
/// use ratelimit_runtime::{Rule, RuleSet};
///
/// let mut rules = RuleSet::new();
/// rules.set("api", Rule::new().threshold(300))?;
/// rules.set_key("api", "acme", Rule::new().threshold(5_000).burst(200))?;
/// rules.set_key("api", "mallory", Rule::new().closed(true))?;
/// # Ok::<(), ratelimit_runtime::InvalidRules>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Rule {
    pub(super) threshold: Option<u32>,
    pub(super) burst: Option<u32>,
    pub(super) access: Option<Access>,
    pub(super) shadow: Option<bool>,
    /// In microseconds since the epoch.
    pub(super) until: Option<u64>,
}

/// The message of an amount of 0.
pub(super) const NO_AMOUNT: &str =
    "an amount must be at least 1: to admit nothing, write `closed = true`";

impl Rule {
    /// Creates a rule that changes nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the units that are admitted per period.
    pub fn threshold(mut self, threshold: u32) -> Self {
        self.threshold = Some(threshold);
        self
    }

    /// Sets the capacity of a bucket. Without it, a threshold leaves a burst that the code sets as it is.
    pub fn burst(mut self, burst: u32) -> Self {
        self.burst = Some(burst);
        self
    }

    /// With `true`, rejects all calls with [`Rejection::Closed`](crate::Rejection::Closed). With `false`, limits calls
    /// also if a rule for the whole limit closes or exempts them.
    pub fn closed(mut self, closed: bool) -> Self {
        self.access = Some(if closed { Access::Closed } else { Access::Limited });
        self
    }

    /// With `true`, admits all calls without counting and reporting them. With `false`, limits calls also if a rule for
    /// the whole limit closes or exempts them.
    pub fn exempt(mut self, exempt: bool) -> Self {
        self.access = Some(if exempt { Access::Unlimited } else { Access::Limited });
        self
    }

    /// Sets whether the limit is a [shadow](crate::Limit::shadow), which decides and reports, and rejects nothing.
    pub fn shadow(mut self, shadow: bool) -> Self {
        self.shadow = Some(shadow);
        self
    }

    /// Ends the rule at a moment, by the clock of the limiter. From then on, all is as without the rule.
    pub fn until(mut self, until: SystemTime) -> Self {
        let since = until.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        self.until = Some(u64::try_from(since.as_micros()).unwrap_or(u64::MAX));
        self
    }

    pub(super) fn is_in_force(&self, now: u64) -> bool {
        self.until.is_none_or(|until| now < until)
    }

    /// Returns whether an amount is 0.
    pub(super) fn lacks_amount(&self) -> bool {
        self.threshold == Some(0) || self.burst == Some(0)
    }
}
