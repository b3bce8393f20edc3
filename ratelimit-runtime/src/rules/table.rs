//! A set of rules as a table, which resolves the rules of a limit and a key, and what the rules in force make of a
//! limit.

use std::cell::LazyCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use once_cell::sync::OnceCell;

#[cfg(feature = "rules")]
use super::set::LimitName;
use super::set::LimitRules;
use super::{Rule, RuleSet, RuleSetError};
use crate::key::{KeyId, OwnedKey};
use crate::limit::{Access, Limit, Period};
use crate::registry;

/// Who looks for the rules of a limit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asker {
    /// A call of the limit.
    Call,
    /// An operator, who looks at a count or changes it.
    Operator,
}

/// The rules in force as they are at one moment, for all limits of a call: by the names of limits and the fingerprints
/// of keys.
pub(crate) struct RuleTable {
    set: RuleSet,
    /// Few names: to compare them takes less time than to hash one (`benches/all -- instructions`).
    by_name: BTreeMap<String, NamedRules>,
}

/// The rules of the limits with one name.
struct NamedRules {
    of_name: Option<Arc<CountRules>>,
    by_period: Vec<(Period, Arc<CountRules>)>,
    /// The first period of a limit with this name.
    period: OnceCell<Period>,
    /// Whether it was reported that limits of several periods have this name.
    was_reported: AtomicBool,
}

/// The rules of a limit.
struct CountRules {
    rule: Rule,
    by_key: HashMap<u128, Rule>,
    /// Whether one of them sets the threshold or the burst of a rate.
    has_amounts: bool,
    /// Whether a call has asked for these rules.
    was_asked: AtomicBool,
    /// Whether an amount that does not fit was reported.
    was_reported: AtomicBool,
    /// The first limit to which these rules were applied without the rule of a key, and what became of it.
    first: OnceCell<(Limit, Option<Ruled>)>,
}

impl RuleTable {
    /// Creates the table of a set of rules. `fingerprint` returns the fingerprint of a key.
    pub(super) fn new(
        set: RuleSet,
        fingerprint: &impl Fn(&OwnedKey) -> u128,
    ) -> Result<Self, RuleSetError> {
        let mut by_name = BTreeMap::new();
        for (name, rules) in &set.limits {
            let rules = Arc::new(CountRules::new(rules, fingerprint)?);
            if let Some(period) = name.period {
                let named = by_name.entry(name.name.clone()).or_insert_with(NamedRules::new);
                named.by_period.push((period, Arc::clone(&rules)));
            }
            // A name that ends like a period is also tried as it is written.
            let named = by_name.entry(name.written.clone()).or_insert_with(NamedRules::new);
            named.of_name = Some(rules);
        }
        Ok(Self { set, by_name })
    }

    pub(super) fn set(&self) -> &RuleSet {
        &self.set
    }

    /// Returns the rule of a limit at `now`, without those of its keys.
    pub(crate) fn rule_of(&self, limit: &Limit, now: u64) -> Option<Rule> {
        let rules = self.by_name.get(limit.name())?.of(limit)?;
        let rule = Some(rules.rule).filter(|rule| rule.is_in_force(|| now))?;
        let is_empty = Rule { until: None, ..rule } == Rule::default();
        (!is_empty).then_some(rule)
    }

    /// Returns a limit under these rules at `now`, for a key; `None` if there are none for it. `asker` is who looks.
    pub(super) fn resolve(
        &self,
        limit: &Limit,
        key_id: &dyn Fn() -> KeyId,
        now: &dyn Fn() -> u64,
        asker: Asker,
    ) -> Option<Ruled> {
        let rules = self.by_name.get(limit.name())?.of(limit)?;
        if asker == Asker::Call && !rules.was_asked.load(Ordering::Relaxed) {
            rules.was_asked.store(true, Ordering::Relaxed);
            registry::see(limit);
        }
        let by_key = Some(&rules.by_key).filter(|by_key| !by_key.is_empty());
        let key =
            by_key.and_then(|by_key| by_key.get(&key_id().fingerprint(limit.terms().identity())));
        rules.apply(limit, key, now)
    }

    /// Returns the names, with their periods if the rules have them, for which no call has asked.
    #[cfg(feature = "rules")]
    pub(super) fn unasked(&self) -> Vec<LimitName> {
        let was_asked = |name: &LimitName| {
            let rules = self.by_name.get(&name.name).and_then(|rules| match name.period {
                None => rules.of_name.as_ref(),
                Some(period) => {
                    rules.by_period.iter().find(|(of, _)| *of == period).map(|(_, rules)| rules)
                }
            });
            rules.is_none_or(|rules| rules.was_asked.load(Ordering::Relaxed))
        };
        let unasked = self.set.limits.keys().filter(|name| !was_asked(name));
        unasked.cloned().collect()
    }
}

impl NamedRules {
    fn new() -> Self {
        Self {
            of_name: None,
            by_period: Vec::new(),
            period: OnceCell::new(),
            was_reported: AtomicBool::new(false),
        }
    }

    /// Returns the rules of a limit.
    fn of(&self, limit: &Limit) -> Option<&CountRules> {
        if limit.is_in_flight() {
            return self.of_name.as_deref();
        }
        let period = limit.terms().period();
        let Some(rules) = &self.of_name else {
            return self.by_period.iter().find(|(of, _)| *of == period).map(|(_, rules)| &**rules);
        };
        let first = *self.period.get_or_init(|| period);
        if first != period && rules.has_amounts && !self.was_reported.swap(true, Ordering::Relaxed)
        {
            let name = limit.name();
            tracing::warn!(
                name,
                "the amounts in the rules of this name are in force for limits of several periods: to change \
                 one of them, write the rules with its period, as `{name}/{first}` or `{name}/{period}`"
            );
        }
        Some(rules)
    }
}

impl CountRules {
    fn new(
        rules: &LimitRules,
        fingerprint: &impl Fn(&OwnedKey) -> u128,
    ) -> Result<Self, RuleSetError> {
        let mut by_key = HashMap::new();
        for (key, rule) in &rules.keys {
            let key = OwnedKey::parse(key).map_err(|error| RuleSetError::new(error.message()))?;
            by_key.insert(fingerprint(&key), *rule);
        }
        let mut all = rules.keys.values().chain([&rules.rule]);
        Ok(Self {
            rule: rules.rule,
            by_key,
            has_amounts: all.any(|rule| rule.threshold.is_some() || rule.burst.is_some()),
            was_asked: AtomicBool::new(false),
            was_reported: AtomicBool::new(false),
            first: OnceCell::new(),
        })
    }

    /// Returns a limit under these rules; `None` if none of them is in force.
    fn apply(&self, limit: &Limit, of_key: Option<&Rule>, now: &dyn Fn() -> u64) -> Option<Ruled> {
        // For the usual call, the clock is not read, and nothing is derived (`benches/all -- attribute`).
        let now = LazyCell::new(now);
        let own = of_key.filter(|rule| rule.is_in_force(|| *now));
        if own.is_none() && self.rule.until.is_none() {
            let (of, ruled) =
                self.first.get_or_init(|| (*limit, self.derive(limit, [None, Some(&self.rule)])));
            if of == limit {
                return ruled.clone();
            }
        }
        let of_limit = Some(&self.rule).filter(|rule| rule.is_in_force(|| *now));
        let mut ruled = self.derive(limit, [own, of_limit])?;
        if ruled.access == Access::Blocked {
            ruled.blocked_until = self.end_of_block(of_key, *now);
        }
        Some(ruled)
    }

    /// Returns a limit under the rule of a key and its own, without the end of a block.
    fn derive(&self, limit: &Limit, in_force: [Option<&Rule>; 2]) -> Option<Ruled> {
        if in_force[0].is_none() && in_force[1].is_none_or(|rule| *rule == Rule::default()) {
            return None;
        }
        let both = || in_force.into_iter().flatten();
        let is_rate = !limit.is_in_flight();
        let threshold =
            both().find_map(|rule| if is_rate { rule.threshold } else { rule.in_flight });
        let burst = both().find_map(|rule| rule.burst.filter(|_| is_rate));
        let mut ruled = Ruled::as_written(limit);
        if threshold.is_some() || burst.is_some() {
            let (with_amounts, misfit) = limit.under_rule(threshold, burst);
            if let Some(misfit) = misfit {
                self.report(limit, misfit);
            }
            ruled.limit = with_amounts;
        }
        if let Some(shadow) = both().find_map(|rule| rule.shadow) {
            ruled.limit = ruled.limit.shadow(shadow);
        }
        let trial = both().find_map(|rule| rule.trial);
        Some(Ruled {
            access: both().find_map(|rule| rule.access).unwrap_or(Access::Limited),
            has_threshold: threshold.is_some(),
            changes_at: both().filter_map(|rule| rule.until).min(),
            trial: trial.and_then(|trial| limit.trial(trial)).map(Arc::new),
            ..ruled
        })
    }

    /// Reports an amount that does not fit a limit, once for each set of rules.
    fn report(&self, limit: &Limit, misfit: &str) {
        if !self.was_reported.swap(true, Ordering::Relaxed) {
            let (name, algorithm) = (limit.name(), limit.algorithm().as_str());
            tracing::error!(name, algorithm, "a rule does not fit this limit: {misfit}");
        }
    }

    /// Returns the first moment after `now` at which no rule blocks the limit; `None` if there is none.
    fn end_of_block(&self, of_key: Option<&Rule>, now: u64) -> Option<u64> {
        let rules = || of_key.into_iter().chain([&self.rule]);
        let mut ends: Vec<_> = rules().filter_map(|rule| rule.until).collect();
        ends.sort_unstable();
        let is_unblocked = |at: &u64| {
            let mut in_force = rules().filter(|rule| rule.is_in_force(|| *at));
            in_force.find_map(|rule| rule.access) != Some(Access::Blocked)
        };
        ends.into_iter().filter(|at| *at > now).find(is_unblocked)
    }
}

/// A limit under the rules in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ruled {
    pub(crate) limit: Limit,
    pub(crate) access: Access,
    /// The end of the rule that blocks the limit.
    pub(crate) blocked_until: Option<u64>,
    /// Whether a rule sets the threshold.
    pub(crate) has_threshold: bool,
    /// When the first of the rules ends.
    pub(crate) changes_at: Option<u64>,
    /// The shadow that decides each call beside the limit.
    pub(crate) trial: Option<Arc<Limit>>,
}

impl Ruled {
    /// Returns a limit without rules.
    pub(crate) fn as_written(limit: &Limit) -> Self {
        Self {
            limit: *limit,
            access: Access::Limited,
            blocked_until: None,
            has_threshold: false,
            changes_at: None,
            trial: None,
        }
    }

    /// Returns a limit under the rules of `table` at `now`, for a key. `access` is what the code says: a rule that sets
    /// a threshold or an access has precedence.
    pub(crate) fn under(
        table: Option<&RuleTable>,
        limit: &Limit,
        access: Access,
        key_id: &dyn Fn() -> KeyId,
        now: &dyn Fn() -> u64,
        asker: Asker,
    ) -> Self {
        let ruled = table.and_then(|table| table.resolve(limit, key_id, now, asker));
        let mut ruled = ruled.unwrap_or_else(|| Self::as_written(limit));
        if !ruled.has_threshold && ruled.access == Access::Limited {
            ruled.access = access;
        }
        ruled
    }

    /// Returns for how long a rule blocks the limit after `now`; `Duration::MAX` if it has no end.
    pub(crate) fn blocked_for(&self, now: u64) -> Duration {
        let rest = |until: u64| Duration::from_micros(until.saturating_sub(now));
        self.blocked_until.map_or(Duration::MAX, rest)
    }
}
