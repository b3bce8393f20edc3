//! A set of rules as a table, which resolves the rules of a limit and a key, and what the rules in force make of a
//! limit.

use std::cell::LazyCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use once_cell::sync::OnceCell;

use super::set::{LimitName, LimitRules};
use super::{Rule, RuleSet};
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
    pub(super) set: RuleSet,
    /// By the name of a limit, and its period if the rules have it. Few names: to compare them takes less time than to
    /// hash one (`benches/all -- embedded`).
    by_name: BTreeMap<String, BTreeMap<Option<Period>, Arc<CountRules>>>,
}

/// The rules of a limit.
#[derive(Default)]
struct CountRules {
    rule: Rule,
    by_key: HashMap<u128, Rule>,
    /// Set when a call has asked for these rules.
    was_asked: OnceCell<()>,
    /// Set when an amount that does not fit was reported.
    has_misfit: OnceCell<()>,
    /// The period of the first limit, if the rules have no period.
    first_period: OnceCell<Period>,
    /// Set when a limit has another period.
    has_periods: OnceCell<()>,
}

impl RuleTable {
    /// Creates the table of a set of rules. `fingerprint` returns the fingerprint of a key.
    pub(super) fn new(set: RuleSet, fingerprint: impl Fn(&OwnedKey) -> u128) -> Self {
        let mut by_name = BTreeMap::<_, BTreeMap<_, _>>::new();
        for (name, LimitRules { written, rule, keys }) in &set.limits {
            let by_key = keys.iter().map(|(key, rule)| (fingerprint(key), *rule)).collect();
            let rules = Arc::new(CountRules { rule: *rule, by_key, ..CountRules::default() });
            if name.period.is_some() {
                let named = by_name.entry(name.name.clone()).or_default();
                named.insert(name.period, Arc::clone(&rules));
            }
            // A name that ends like a period is also tried as it is written.
            by_name.entry(written.clone()).or_default().insert(None, rules);
        }
        Self { set, by_name }
    }

    /// Returns the rule of a limit at `now`, without those of its keys.
    pub(crate) fn rule_of(&self, limit: &Limit, now: u64) -> Option<Rule> {
        let rules = self.rules_of(limit)?;
        let rule = Some(rules.rule).filter(|rule| rule.is_in_force(|| now))?;
        let is_empty = Rule { until: None, ..rule } == Rule::default();
        (!is_empty).then_some(rule)
    }

    /// Returns the rules of limits for which no call has asked, without those of keys.
    pub(crate) fn unasked(&self) -> RuleSet {
        let is_unasked = |name: &LimitName| {
            let rules = self.by_name.get(&name.name).and_then(|rules| rules.get(&name.period));
            rules.is_some_and(|rules| rules.was_asked.get().is_none())
        };
        let unasked = self.set.limits.iter().filter(|(name, _)| is_unasked(name));
        // Copies no rules of keys: a limit can have many.
        let named = unasked.map(|(name, LimitRules { written, rule, .. })| {
            let rules =
                LimitRules { written: written.clone(), rule: *rule, ..LimitRules::default() };
            (name.clone(), rules)
        });
        RuleSet { limits: named.collect() }
    }

    /// Returns the rules of a limit.
    fn rules_of(&self, limit: &Limit) -> Option<&CountRules> {
        let (named, period) = (self.by_name.get(limit.name())?, limit.terms().identity.period);
        let Some(rules) = named.get(&None) else {
            let rules = named.get(&Some(period)).filter(|_| !limit.is_in_flight());
            return rules.map(|rules| &**rules);
        };
        if !limit.is_in_flight() {
            rules.compare_periods(limit.name(), period);
        }
        Some(rules)
    }
}

impl CountRules {
    /// Warns once if the amounts of rules without a period are in force for limits of several periods.
    fn compare_periods(&self, name: &str, period: Period) {
        let first = *self.first_period.get_or_init(|| period);
        let mut rules = self.by_key.values().chain([&self.rule]);
        if first != period
            && self.has_periods.set(()).is_ok()
            && rules.any(|rule| rule.threshold.is_some() || rule.burst.is_some())
        {
            tracing::warn!(
                name,
                "the amounts in the rules of this name are in force for limits of several periods: to change \
                 one of them, write the rules with its period, as `{name}/{first}` or `{name}/{period}`"
            );
        }
    }
}

/// A limit under the rules in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ruled {
    pub(crate) limit: Limit,
    pub(crate) access: Access,
    /// The first moment at which no rule blocks the limit any more; `None` if there is none.
    pub(crate) blocked_until: Option<u64>,
    /// When the first of the rules ends.
    pub(crate) changes_at: Option<u64>,
    /// The shadow that decides each call beside the limit.
    pub(crate) trial: Option<Arc<Limit>>,
}

impl Ruled {
    /// Returns a limit under the rules of `table` at `now`, for a key. `access` is what the code says: a rule that sets
    /// a threshold or an access has precedence. `asker` is who looks.
    pub(crate) fn under(
        table: Option<&RuleTable>,
        limit: &Limit,
        access: Access,
        key_id: &dyn Fn() -> KeyId,
        now: &dyn Fn() -> u64,
        asker: Asker,
    ) -> Self {
        let (blocked_until, changes_at, trial) = (None, None, None);
        let mut ruled = Self { limit: *limit, access, blocked_until, changes_at, trial };
        let Some(count) = table.and_then(|table| table.rules_of(limit)) else { return ruled };
        if asker == Asker::Call && count.was_asked.set(()).is_ok() {
            registry::see(limit);
        }
        let by_key = Some(&count.by_key).filter(|by_key| !by_key.is_empty());
        let of_key =
            by_key.and_then(|by_key| by_key.get(&key_id().fingerprint(&limit.terms().identity)));
        // Rules without an end do not read the clock.
        let now = LazyCell::new(now);
        let both = || of_key.into_iter().chain([&count.rule]);
        let in_force = || both().filter(|rule| rule.is_in_force(|| *now));
        let is_rate = !limit.is_in_flight();
        let threshold =
            in_force().find_map(|rule| if is_rate { rule.threshold } else { rule.in_flight });
        let burst = in_force().find_map(|rule| rule.burst.filter(|_| is_rate));
        if threshold.is_some() || burst.is_some() {
            let (with_amounts, misfit) = limit.under_rule(threshold, burst);
            if let Some(misfit) = misfit
                && count.has_misfit.set(()).is_ok()
            {
                let (name, algorithm) = (limit.name(), limit.algorithm().as_str());
                tracing::error!(name, algorithm, "a rule does not fit this limit: {misfit}");
            }
            ruled.limit = with_amounts;
        }
        if let Some(shadow) = in_force().find_map(|rule| rule.shadow) {
            ruled.limit = ruled.limit.shadow(shadow);
        }
        let by_rule = in_force().find_map(Rule::access).unwrap_or(Access::Limited);
        if threshold.is_some() || by_rule != Access::Limited {
            ruled.access = by_rule;
        }
        if by_rule == Access::Blocked {
            let is_blocked = |at: u64| {
                let mut in_force = both().filter(|rule| rule.is_in_force(|| at));
                in_force.find_map(Rule::access) == Some(Access::Blocked)
            };
            let ends = both().filter_map(Rule::end);
            ruled.blocked_until = ends.filter(|at| *at > *now && !is_blocked(*at)).min();
        }
        ruled.changes_at = in_force().filter_map(Rule::end).min();
        let trial = in_force().find_map(|rule| rule.trial);
        ruled.trial = trial.and_then(|trial| limit.trial(trial)).map(Arc::new);
        ruled
    }

    /// Returns for how long a rule blocks the limit after `now`; `Duration::MAX` if it has no end.
    pub(crate) fn blocked_for(&self, now: u64) -> Duration {
        let rest = |until: u64| Duration::from_micros(until.saturating_sub(now));
        self.blocked_until.map_or(Duration::MAX, rest)
    }
}
