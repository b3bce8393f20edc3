//! The rules of a limiter: what an operator changes about limits while the service runs.

use super::RateLimiter;
use crate::rules::{InvalidRules, RuleSet};

impl RateLimiter {
    /// Replaces the rules of this limiter and its clones. Calls that begin after it obey the new rules; calls that
    /// [wait](crate::Limit::wait) obey them within a second, and [leases](crate::Limit::lease) within their term.
    ///
    /// Rules change neither counts nor what was charged: with a new threshold, the next call is decided by what is
    /// charged already. See [`RuleSet`] for an example.
    ///
    /// # Errors
    ///
    /// On a set with a mistake. The rules in force then stay.
    pub fn set_rules(&self, rules: RuleSet) -> Result<(), InvalidRules> {
        let backend = &self.checker.backend;
        self.checker.rules.replace(rules, |key| backend.local().fingerprint(key))
    }

    /// Returns the rules in force.
    #[must_use]
    pub fn rules(&self) -> RuleSet {
        self.checker.rules.set()
    }
}
