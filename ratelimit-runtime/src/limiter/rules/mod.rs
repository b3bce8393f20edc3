//! The rules of a limiter: what an operator changes about limits while the service runs.

#[cfg(feature = "rules")]
mod feed;
#[cfg(feature = "rules")]
mod file;
#[cfg(feature = "rules")]
mod fleet;
#[cfg(feature = "rules")]
mod shared;

#[cfg(feature = "rules")]
pub(super) use self::feed::RuleFeed;
#[cfg(feature = "rules")]
pub use self::feed::Rules;
#[cfg(feature = "rules")]
pub use self::fleet::{AnnouncedLimit, AnnouncedProcess, KeysCursor, KeysPage};
#[cfg(feature = "rules")]
pub use self::shared::{RuleChange, SharedRules};
use super::RateLimiter;
use crate::backend::Backend;
#[cfg(feature = "rules")]
use crate::check::Checker;
#[cfg(feature = "rules")]
use crate::reply::BuildError;
use crate::rules::{RuleSet, RuleSetError, RulesInForce};

impl RateLimiter {
    /// Replaces the rules of this limiter and its clones. Calls that begin after it and calls that
    /// [wait](crate::Limit::wait) obey the new rules, and [leases](crate::Limit::lease) obey them within their term.
    ///
    /// Rules change neither counts nor what was charged: with a new threshold, the next call is decided by what is
    /// charged already. An amount that does not fit a limit is reported by an `ERROR` event and ignored; the rest is in
    /// force. See [`RuleSet`] for an example.
    ///
    /// # Errors
    ///
    /// If the limiter reads its rules from a file or from Redis. The rules in force then stay.
    pub fn set_rules(&self, rules: RuleSet) -> Result<(), RuleSetError> {
        #[cfg(feature = "rules")]
        if let Some(feed) = &self.feed {
            return Err(feed.owns_rules());
        }
        replace_rules(&self.checker.rules, &self.checker.backend, rules)
    }

    /// Reads the rules from their source, and looks for new ones from then on.
    #[cfg(feature = "rules")]
    pub(super) fn feed_rules(&mut self, source: Option<Rules>) -> Result<(), BuildError> {
        if let Some(source) = source {
            let Checker { rules, backend, .. } = &self.checker;
            self.feed = Some(RuleFeed::start(source, rules, backend)?);
        }
        Ok(())
    }

    /// Returns the rules in force.
    #[must_use]
    pub fn rules(&self) -> RuleSet {
        self.checker.rules.set()
    }
}

/// Replaces the rules in force.
fn replace_rules(
    rules: &RulesInForce,
    backend: &Backend,
    set: RuleSet,
) -> Result<(), RuleSetError> {
    rules.replace(set, |key| backend.local().fingerprint(key))
}
