//! Compares rules with the limits that the process has seen.

use super::set::{LimitName, LimitRules};
use super::{InvalidRules, Rule, RuleSet};
use crate::limit::{Algorithm, Period};
use crate::registry::RegisteredLimit;

impl RuleSet {
    /// Fails if a rule cannot be one of the limits that have its name.
    pub(crate) fn check(&self, known: &[RegisteredLimit]) -> Result<(), InvalidRules> {
        for (name, rules) in &self.limits {
            let of_name = known.iter().filter(|known| known.limit.name() == name.name);
            if rules.have_amounts() {
                name.check_period(of_name.clone().map(|known| known.limit.terms().period()))?;
            }
            let period = |known: &&RegisteredLimit| {
                name.period.is_none_or(|period| period == known.limit.terms().period())
            };
            let mut algorithms = of_name.filter(period).map(|known| known.limit.algorithm());
            let Some(first) = algorithms.next() else { continue };
            if rules.have_burst() && !first.is_bucket() && !algorithms.any(Algorithm::is_bucket) {
                return Err(InvalidRules::new(format_args!(
                    "the rule of `{}`: `burst` is the capacity of a bucket, and the algorithm of this limit is \
                     `{first}`: remove `burst`",
                    name.written
                )));
            }
        }
        Ok(())
    }
}

impl LimitName {
    /// Fails if the name stands for limits of several periods.
    fn check_period(&self, known: impl Iterator<Item = Period>) -> Result<(), InvalidRules> {
        let mut periods: Vec<_> = known.collect();
        periods.sort_unstable();
        periods.dedup();
        if self.period.is_some() || periods.len() < 2 {
            return Ok(());
        }
        let names = periods.iter().map(|period| format!("`{}/{period}`", self.name));
        Err(InvalidRules::new(format_args!(
            "the rule of `{}`: limits of several periods have this name: write {}",
            self.name,
            names.collect::<Vec<_>>().join(" or ")
        )))
    }
}

impl LimitRules {
    fn have_amounts(&self) -> bool {
        let has_amounts = |rule: &Rule| rule.threshold.is_some() || rule.burst.is_some();
        has_amounts(&self.rule) || self.keys.values().any(has_amounts)
    }

    fn have_burst(&self) -> bool {
        self.rule.burst.is_some() || self.keys.values().any(|rule| rule.burst.is_some())
    }
}
