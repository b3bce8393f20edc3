//! A set of rules, as an operator writes it.

use std::collections::BTreeMap;

use super::{Rule, RuleSetError};
use crate::key::{Key, OwnedKey};
use crate::limit::{Limit, Period};

/// Rules for limits and for keys of limits. A limiter replaces its rules by a set as a whole:
/// [`RateLimiter::set_rules`](crate::RateLimiter::set_rules).
///
/// - A limit is written by its name, `api`. If limits of different periods have the name, this means all of them; one
///   is written with its period: `api/1m`. A limit whose own name is `api/1m` is written so, too.
/// - A key is written as the attribute writes it into Redis and into logs: `alice`, the tuple `(alice:42)`, the format
///   string `user:(42)`. In the parts of tuples and of format strings, `( ) : % { }` are `%28 %29 %3A %25 %7B %7D`. The
///   key of a limit without `key` is `%`. A byte that is not ASCII, or that is a control, can be written as `%FF`.
///
/// ```
/// use std::time::Duration;
/// use ratelimit_runtime::{Limit, RateLimiter, Rule, RuleSet};
///
/// const API: Limit = Limit::sliding("api", 2, Duration::from_secs(60));
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut rules = RuleSet::new();
/// rules.set_key("api", "acme", Rule::new().threshold(5_000))?;
///
/// let limiter = RateLimiter::embedded();
/// limiter.set_rules(rules)?;
/// assert_eq!(limiter.check(&API, "acme", 1).await?.remaining, 4_999);
/// assert_eq!(limiter.check(&API, "alice", 1).await?.remaining, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSet {
    pub(crate) limits: BTreeMap<LimitName, LimitRules>,
}

/// The name of a limit, and its period if the rule names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LimitName {
    pub(crate) name: String,
    pub(crate) period: Option<Period>,
}

/// The rules of a limit.
#[derive(Clone, Debug, Default)]
pub(crate) struct LimitRules {
    /// The name as it is written: it can be the name of a limit as a whole.
    pub(crate) written: String,
    pub(super) rule: Rule,
    /// By the text of the key.
    pub(super) keys: BTreeMap<OwnedKey, Rule>,
}

/// Rules of names with the same period are equal, however it is written.
impl PartialEq for LimitRules {
    fn eq(&self, other: &Self) -> bool {
        (self.rule, &self.keys) == (other.rule, &other.keys)
    }
}

impl Eq for LimitRules {}

impl LimitRules {
    /// Returns the rule of the limit itself, unless only its keys have rules.
    fn own(&self) -> Option<&Rule> {
        (self.rule != Rule::default() || self.keys.is_empty()).then_some(&self.rule)
    }
}

impl LimitName {
    /// Reads `api` or `api/1m`. If no period follows the last `/`, it is a part of the name.
    pub(super) fn read(written: &str) -> Result<Self, RuleSetError> {
        if written.is_empty() {
            return Err(RuleSetError::new("a rule has an empty name: write the name of a limit"));
        }
        let with_period = written.rsplit_once('/').and_then(|(name, period)| {
            Some((name, Period::parse(period).filter(|_| !name.is_empty())?))
        });
        let (name, period) = with_period.map_or((written, None), |(name, it)| (name, Some(it)));
        Ok(Self { name: name.to_owned(), period })
    }
}

impl RuleSet {
    /// Creates an empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the rule of a limit, in place of the one that the set has.
    ///
    /// # Errors
    ///
    /// On an empty name; on an amount of 0 or above 999,999,999,999,999; on a limit that the set names both with a
    /// period and without.
    pub fn set(&mut self, limit: &str, rule: Rule) -> Result<(), RuleSetError> {
        self.edit(limit, None, &rule)?.rule = rule;
        Ok(())
    }

    /// Sets the rule of one key of a limit, in place of the one that the set has.
    ///
    /// # Errors
    ///
    /// As for [`set`](Self::set), and on a key that is not written as the attribute writes it.
    pub fn set_key(&mut self, limit: &str, key: &str, rule: Rule) -> Result<(), RuleSetError> {
        let key = OwnedKey::parse(key).map_err(|error| {
            RuleSetError::new(format_args!("the rule of the key `{key}` of `{limit}`: {error}"))
        })?;
        self.edit(limit, Some(&key), &rule)?.keys.insert(key, rule);
        Ok(())
    }

    /// Sets the rule of one key of a limit, with the values of a call: the text of the key needs no escapes then.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ratelimit_runtime::{Limit, Rule, RuleSet};
    ///
    /// const API: Limit = Limit::sliding("api", 2, Duration::from_secs(60));
    ///
    /// let mut rules = RuleSet::new();
    /// rules.set_key_of(&API, ("acme", 42), Rule::new().threshold(5_000))?;
    /// assert!(rules.key_rule("api", "(acme:42)").is_some());
    /// # Ok::<(), ratelimit_runtime::RuleSetError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`set`](Self::set).
    pub fn set_key_of(
        &mut self,
        limit: &Limit,
        key: impl Key,
        rule: Rule,
    ) -> Result<(), RuleSetError> {
        let key = OwnedKey::of(&key);
        self.edit(limit.name(), Some(&key), &rule)?.keys.insert(key, rule);
        Ok(())
    }

    /// Removes the rule of a limit. The rules of its keys stay. Returns whether there was one.
    pub fn unset(&mut self, limit: &str) -> bool {
        self.remove(limit, |rules| {
            let was_there = rules.own().is_some();
            rules.rule = Rule::default();
            was_there
        })
    }

    /// Removes the rule of one key of a limit. Returns whether there was one.
    pub fn unset_key(&mut self, limit: &str, key: &str) -> bool {
        let Ok(key) = OwnedKey::parse(key) else { return false };
        self.remove(limit, |rules| rules.keys.remove(&key).is_some())
    }

    /// Returns the rule of a limit.
    #[must_use]
    pub fn rule(&self, limit: &str) -> Option<Rule> {
        self.limits.get(&LimitName::read(limit).ok()?).and_then(|rules| rules.own().copied())
    }

    /// Returns the rule of one key of a limit.
    #[must_use]
    pub fn key_rule(&self, limit: &str, key: &str) -> Option<Rule> {
        let rules = self.limits.get(&LimitName::read(limit).ok()?)?;
        rules.keys.get(&OwnedKey::parse(key).ok()?).copied()
    }

    /// Returns whether the set has no rules.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.limits.is_empty()
    }

    /// Returns the rules in the order of their names: the limit, the key if the rule is of one key, and the rule.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Option<&OwnedKey>, &Rule)> {
        self.limits.values().flat_map(|rules| {
            let own = rules.own().map(|rule| (None, rule));
            let keys = rules.keys.iter().map(|(key, rule)| (Some(key), rule));
            own.into_iter().chain(keys).map(|(key, rule)| (rules.written.as_str(), key, rule))
        })
    }

    /// Removes a rule of a limit by `remove`, and the limit if it then has none. Returns what `remove` returns.
    fn remove(&mut self, limit: &str, remove: impl FnOnce(&mut LimitRules) -> bool) -> bool {
        let Ok(name) = LimitName::read(limit) else { return false };
        let Some(rules) = self.limits.get_mut(&name) else { return false };
        let was_there = remove(rules);
        if rules.rule == Rule::default() && rules.keys.is_empty() {
            self.limits.remove(&name);
        }
        was_there
    }

    /// Returns the rules of a limit for a change, if a rule with these values can be one of them.
    fn edit(
        &mut self,
        limit: &str,
        key: Option<&OwnedKey>,
        rule: &Rule,
    ) -> Result<&mut LimitRules, RuleSetError> {
        let name = LimitName::read(limit)?;
        if let Some(wrong) = rule.mistake() {
            let of_key = key.map(|key| format!(" of the key `{key}`")).unwrap_or_default();
            return Err(RuleSetError::new(format_args!("the rule{of_key} of `{limit}`: {wrong}")));
        }
        // A name without a period sorts before the same name with one.
        let alone = LimitName { period: None, ..name.clone() };
        if let Some((other, rules)) = self.limits.range(alone..).next()
            && other.name == name.name
            && other.period.is_some() != name.period.is_some()
        {
            let with_period = if name.period.is_some() { limit } else { &rules.written };
            return Err(RuleSetError::new(format_args!(
                "`{}` and `{with_period}` name the same limit: write both with their period",
                name.name
            )));
        }
        let new = || LimitRules { written: limit.to_owned(), ..LimitRules::default() };
        Ok(self.limits.entry(name).or_insert_with(new))
    }
}
