//! One rule, and the error of invalid rules.

use std::fmt;
use std::time::SystemTime;

use crate::limit::{Access, Limit, LimitError};
use crate::printing::error_of_text;

/// What changes about a limit, or about one key of it. What a rule does not set stays as it is: for a key, as the rule
/// of its limit says, and for a limit, as the code says.
///
/// ```
/// use ratelimit_runtime::{Rule, RuleSet};
///
/// let mut rules = RuleSet::new();
/// rules.set("api", Rule::new().threshold(300))?;
/// rules.set_key("api", "acme", Rule::new().threshold(5_000).burst(200))?;
/// rules.set_key("api", "mallory", Rule::new().blocked(true))?;
///
/// let of_acme = rules.key_rule("api", "acme").expect("set above");
/// assert_eq!((of_acme.threshold, of_acme.blocked), (Some(5_000), None));
/// # Ok::<(), ratelimit_runtime::RuleSetError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub struct Rule {
    /// The units that are admitted per period.
    pub threshold: Option<u64>,
    /// The capacity of a bucket.
    pub burst: Option<u64>,
    /// The units that may be in flight.
    pub in_flight: Option<u64>,
    /// Whether all calls are rejected.
    pub blocked: Option<bool>,
    /// Whether all calls are admitted, without counting them.
    pub exempt: Option<bool>,
    /// Whether the limit is a shadow.
    pub shadow: Option<bool>,
    /// The threshold that is tried beside the limit.
    pub trial: Option<u64>,
    /// The end of the rule.
    pub until: Option<SystemTime>,
}

impl Rule {
    /// Creates a rule that changes nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the units that are admitted per period.
    pub fn threshold(mut self, threshold: u64) -> Self {
        self.threshold = Some(threshold);
        self
    }

    /// Sets the capacity of a bucket. Without it, a threshold leaves a burst that the code sets as it is.
    pub fn burst(mut self, burst: u64) -> Self {
        self.burst = Some(burst);
        self
    }

    /// Sets the units that may be [in flight](crate::Limit::in_flight). The threshold and the burst of a rule are not
    /// for such a limit, and this is not for a rate: limits of both kinds can have one name.
    pub fn in_flight(mut self, in_flight: u64) -> Self {
        self.in_flight = Some(in_flight);
        self
    }

    /// With `true`, rejects all calls with [`Rejection::Blocked`](crate::Rejection::Blocked). With `false`, limits
    /// calls also if a rule for the whole limit blocks or exempts them.
    pub fn blocked(mut self, blocked: bool) -> Self {
        (self.blocked, self.exempt) = (Some(blocked), None);
        self
    }

    /// With `true`, admits all calls without counting and reporting them. With `false`, limits calls also if a rule for
    /// the whole limit blocks or exempts them.
    pub fn exempt(mut self, exempt: bool) -> Self {
        (self.blocked, self.exempt) = (None, Some(exempt));
        self
    }

    /// Sets whether the limit is a [shadow](crate::Limit::shadow), which decides and reports, and rejects nothing.
    pub fn shadow(mut self, shadow: bool) -> Self {
        self.shadow = Some(shadow);
        self
    }

    /// Tries another threshold beside the limit: a [shadow](crate::Limit::shadow) with this threshold and a count of
    /// its own decides and reports each call that the limit decides, and rejects nothing. The limit stays as it is.
    ///
    /// The name of the shadow is the name of the limit and `:trial`: `api:trial` in metrics, events and
    /// [`rejected_keys`](crate::Operator::rejected_keys). It sees all calls, also those that the limit rejects, so
    /// it admits what the limit would admit with this threshold. Both are decided at the same time. The trial takes
    /// the cost of a call as it is before the call, and is not [settled](crate::Permit::settle). Beside
    /// [`Limit::once`](crate::Limit::once), it decides after the limit, and not about a repeated call.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ratelimit_runtime::{Limit, RateLimiter, Rule, RuleSet};
    ///
    /// const API: Limit = Limit::sliding("api", 3, Duration::from_secs(60));
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::embedded();
    /// let mut rules = RuleSet::new();
    /// rules.set("api", Rule::new().trial(1))?;
    /// limiter.set_rules(rules)?;
    ///
    /// assert_eq!(limiter.check(&API, "acme", 1).await?.remaining, 2);
    /// assert_eq!(limiter.check(&API, "acme", 1).await?.remaining, 1);
    /// let keys = limiter.operator().rejected_keys(1);
    /// assert_eq!((keys[0].limit, keys[0].rejected), ("api:trial", 1));
    /// # Ok(())
    /// # }
    /// ```
    pub fn trial(mut self, threshold: u64) -> Self {
        self.trial = Some(threshold);
        self
    }

    /// Ends the rule at a moment, by the clock of the limiter. From then on, all is as without the rule.
    pub fn until(mut self, until: SystemTime) -> Self {
        self.until = Some(until);
        self
    }

    /// Succeeds if each amount of this rule fits a limit. Each process ignores or shortens an amount that does not fit,
    /// and reports it by an `ERROR` event, so check a rule before you write it: the limits of a fleet are in
    /// [`Operator::fleet`](crate::Operator::fleet). An amount that this rule does not set is that of `limit`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ratelimit_runtime::{Limit, Rule};
    ///
    /// let window = Limit::sliding("api", 100, Duration::from_secs(60));
    /// assert!(Rule::new().threshold(300).check_fits(&window).is_ok());
    ///
    /// let error = Rule::new().burst(20).check_fits(&window).unwrap_err();
    /// assert!(error.to_string().contains("`burst` is the capacity of a bucket"));
    /// ```
    ///
    /// # Errors
    ///
    /// On an amount of 0; on a burst of a limit that is not a bucket; on a bucket that takes more than 100 years to
    /// fill; on the amounts of rates alone for calls in flight, and the other way round; on amounts of
    /// a limit that [remembers](crate::Limit::once) calls.
    pub fn check_fits(&self, limit: &Limit) -> Result<(), RuleSetError> {
        let has_rate = self.threshold.or(self.burst).or(self.trial).is_some();
        let misfit_of =
            |threshold, burst| limit.under_rule(threshold, burst).1.map(|error| error.0);
        let misfit = || match (limit.is_in_flight(), self.in_flight) {
            (true, None) if has_rate => {
                Some("`threshold`, `burst` and `trial` are for rates: write `in_flight`")
            }
            (true, in_flight) => misfit_of(in_flight, None),
            (false, Some(_)) if !has_rate => Some(
                "`in_flight` is for calls in flight, and this limit is a rate: write `threshold`",
            ),
            (false, _) => {
                misfit_of(self.threshold, self.burst).or_else(|| misfit_of(Some(self.trial?), None))
            }
        };
        match self.mistake().or_else(misfit) {
            Some(wrong) => Err(RuleSetError::new(wrong)),
            None => Ok(()),
        }
    }

    /// Returns the end of the rule, in microseconds since 1970.
    pub(super) fn end(&self) -> Option<u64> {
        let since = self.until?.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Some(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
    }

    pub(super) fn is_in_force(&self, now: impl FnOnce() -> u64) -> bool {
        self.end().is_none_or(|end| now() < end)
    }

    /// Returns how much a call may take; `None` if the rule does not say it.
    pub(super) fn access(&self) -> Option<Access> {
        match (self.blocked, self.exempt) {
            (None, None) => None,
            (Some(true), _) => Some(Access::Blocked),
            (_, Some(true)) => Some(Access::Unlimited),
            _ => Some(Access::Limited),
        }
    }

    /// Returns what is wrong with the rule, whatever its limit is.
    pub(super) fn mistake(&self) -> Option<&'static str> {
        if self.blocked == Some(true) && self.exempt == Some(true) {
            return Some("a limit cannot be both `blocked` and `exempt`");
        }
        let amounts = [self.threshold, self.burst, self.in_flight, self.trial];
        amounts.into_iter().flatten().find_map(wrong_amount)
    }
}

/// Returns what is wrong with an amount: it is 0, or too large.
pub(super) fn wrong_amount(amount: u64) -> Option<&'static str> {
    match amount {
        0 => Some("an amount must be at least 1: to admit nothing, write `blocked = true`"),
        1..=LimitError::MAX_AMOUNT => None,
        _ => Some(LimitError::TOO_LARGE.0),
    }
}

/// The error of rules with a mistake. Its text names the limit and the key of the rule, and in a file the line, and
/// says what to write.
#[derive(Clone, PartialEq, Eq)]
pub struct RuleSetError(String);

impl RuleSetError {
    pub(crate) fn new(message: impl fmt::Display) -> Self {
        Self(message.to_string())
    }
}

error_of_text!(RuleSetError);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_about_access_counts() {
        for (rule, access) in [
            (Rule::new(), None),
            (Rule::new().exempt(true), Some(Access::Unlimited)),
            (Rule::new().exempt(true).blocked(true), Some(Access::Blocked)),
            (Rule::new().blocked(true).exempt(true), Some(Access::Unlimited)),
            (Rule::new().exempt(true).blocked(false), Some(Access::Limited)),
            (Rule::new().blocked(true).exempt(false), Some(Access::Limited)),
        ] {
            assert_eq!(rule.access(), access, "{rule:?}");
        }
    }
}
