//! The operator of the playground, who sets a rule for the key of a visitor.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ratelimit_runtime::{Limit, RateLimiter, Rule, RuleSet};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A rule that a visitor can choose.
#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Choice {
    #[default]
    None,
    /// Twice the threshold.
    Double,
    Blocked,
    Exempt,
}

/// The rules of all visitors.
#[derive(Default)]
pub(crate) struct Operator(Mutex<RuleSet>);

impl Choice {
    /// Returns the rule; `None` for a limit as it is written.
    fn rule(self, limit: &Limit) -> Option<Rule> {
        match self {
            Self::None => None,
            Self::Double => Some(Rule::new().threshold(self.threshold(limit.threshold()))),
            Self::Blocked => Some(Rule::new().blocked(true)),
            Self::Exempt => Some(Rule::new().exempt(true)),
        }
    }

    /// Returns the threshold under this rule.
    pub(crate) fn threshold(self, written: u64) -> u64 {
        if self == Self::Double { written.saturating_mul(2) } else { written }
    }
}

impl Operator {
    /// Replaces the rule of a visitor, whose limits have this name and period.
    pub(crate) fn set<'a>(
        &self,
        limiters: impl Iterator<Item = &'a RateLimiter>,
        visitor: Uuid,
        limit: &Limit,
        choice: Choice,
    ) {
        let mut rules = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (name, key) = (name(limit.name(), limit.period()), visitor.to_string());
        let set = if let Some(rule) = choice.rule(limit) {
            rules.set_key(&name, &key, rule)
        } else {
            rules.unset_key(&name, &key);
            Ok(())
        };
        for limiter in limiters {
            if let Err(error) = set.clone().and_then(|()| limiter.set_rules(rules.clone())) {
                eprintln!("error: the rule of a visitor is not in force: {error}");
            }
        }
    }
}

/// Visitors have limits of different periods under one name, so a rule names the period.
fn name(name: &str, period: Duration) -> String {
    format!("{name}/{}us", period.as_micros())
}
