//! The rules in Redis, which all processes share: reading them, replacing them, and the list of their changes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use tokio::time::sleep;

use super::fleet::unreadable;
use crate::backend::Backend;
use crate::key::OwnedKey;
use crate::limiter::Operator;
use crate::reply::{Answer, StoreError};
use crate::rules::{Rule, RuleSet};
use crate::store::{SharedStore, StoredRules};

/// The most lines that describe a change.
const MOST_LINES: usize = 1_000;

/// The pause before Redis is asked again whether it has the new rules.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// The rules that all processes share, as they were read: [`Operator::shared_rules`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedRules {
    /// The rules. Change them, and pass this value to [`Operator::share_rules`].
    pub rules: RuleSet,
    version: String,
    before: RuleSet,
}

/// A change of the rules that all processes share: [`Operator::rule_changes`].
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[non_exhaustive]
pub struct RuleChange {
    /// When they changed, by the clock of Redis.
    #[serde(skip, default = "SystemTime::now")]
    pub at: SystemTime,
    /// The author of the change, as the caller of [`share_rules`](crate::Operator::share_rules) named it.
    pub by: String,
    /// The changed rules, one line each, 1,000 at most.
    pub what: Vec<String>,
    /// The version of the rules since then.
    pub version: String,
}

impl SharedRules {
    /// Returns the version of the rules; empty if there are none.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }
}

impl Operator<'_> {
    /// Reads the rules that all processes with [`Rules::redis`](crate::Rules::redis) share. They are beside the counts,
    /// under the key prefix of the limiter.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when Redis does not reply, or when the rules in Redis have a mistake. [`StoreError::NotShared`]
    /// without Redis.
    #[must_use]
    pub fn shared_rules(&self) -> Answer<SharedRules> {
        self.0.checker.backend.answer(move |backend| async move {
            let store = backend.shared.as_ref().ok_or(StoreError::NotShared)?;
            let Some(StoredRules { version, rules }) = store.read_rules("").await? else {
                return Ok(SharedRules::default());
            };
            let rules = RuleSet::from_json(&rules).map_err(|error| {
                unreadable(&format!("the rules in Redis have a mistake: {error}"))
            })?;
            Ok(SharedRules { before: rules.clone(), rules, version })
        })
    }

    /// Replaces the rules that all processes share, if they have not changed since `shared` was read. All processes
    /// obey the new rules within two seconds. `by` is the name of the operator in the [list](Self::rule_changes) of
    /// changes.
    ///
    /// ```no_run
    /// use ratelimit_runtime::{RateLimiter, Rule, StoreError};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::builder().redis("redis://127.0.0.1").build()?;
    /// loop {
    ///     let mut shared = limiter.operator().shared_rules().await?;
    ///     shared.rules.set_key("api", "acme", Rule::new().threshold(5_000))?;
    ///     match limiter.operator().share_rules(shared, "alice").await {
    ///         Err(StoreError::RulesChanged) => continue,
    ///         result => break result?,
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`StoreError::RulesChanged`] when the rules have changed since they were read: nothing was written.
    /// [`StoreError::NotShared`] without Redis. Another [`StoreError`] when Redis does not reply: the rules may have
    /// been replaced.
    #[must_use]
    pub fn share_rules(&self, shared: SharedRules, by: &str) -> Answer<()> {
        let by = by.to_owned();
        self.0.checker.backend.answer(move |backend| async move {
            let store = backend.shared.as_ref().ok_or(StoreError::NotShared)?;
            let SharedRules { rules, version: replaces, before } = shared;
            let version = next_version(&replaces);
            let (at, what) = (SystemTime::now(), differences(&before, &rules));
            let change = RuleChange { at, by, what, version: version.clone() };
            let change = serde_json::to_string(&change).unwrap_or_default();
            let new = StoredRules { version, rules: rules.to_json() };
            match store.write_rules(&replaces, &new, &change).await {
                Ok(present) if present == replaces => Ok(()),
                Ok(_) => Err(StoreError::RulesChanged),
                // The reply may be lost, and the request executed.
                Err(error @ (StoreError::Timeout { .. } | StoreError::Connection { .. }))
                    if was_executed(&backend, store, &new.version).await =>
                {
                    tracing::debug!(%error, "the rules were replaced, and the reply was lost");
                    Ok(())
                }
                Err(error) => Err(error),
            }
        })
    }

    /// Returns the last changes of the rules that all processes share, the newest first. Redis keeps 1,000. Changes
    /// above 1 MiB each, or above 16 MiB together, are left out. Escape the texts for their destination.
    ///
    /// # Errors
    ///
    /// As for [`shared_rules`](Self::shared_rules).
    #[must_use]
    pub fn rule_changes(&self, most: usize) -> Answer<Vec<RuleChange>> {
        self.0.checker.backend.answer(move |backend| async move {
            let store = backend.shared.as_ref().ok_or(StoreError::NotShared)?;
            let changes = store.rule_changes(most).await?;
            let read = |(at, text): (u64, String)| {
                let at = SystemTime::UNIX_EPOCH + Duration::from_micros(at);
                Some(RuleChange { at, ..serde_json::from_str(&text).ok()? })
            };
            Ok(changes.into_iter().filter_map(read).collect())
        })
    }
}

/// Returns whether Redis has this version of the rules: then a request that failed was executed, and only its reply was
/// lost. Asks again for one deadline, because the connection was lost as well.
async fn was_executed(backend: &Backend, store: &SharedStore, version: &str) -> bool {
    let until = Instant::now() + backend.settings.deadline;
    loop {
        match store.read_rules(version).await {
            Ok(present) => return present.is_none(),
            Err(_) if Instant::now() < until => sleep(ASK_AGAIN).await,
            Err(_) => return false,
        }
    }
}

/// Returns a version that no other rules have: a number, and a random part, because the number can be used again after
/// a failover.
fn next_version(version: &str) -> String {
    let number = version.split('-').next().and_then(|number| number.parse::<u64>().ok());
    let random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), version);
    format!("{}-{random:016x}", number.unwrap_or(0).wrapping_add(1))
}

/// Returns a line for each rule that differs.
fn differences(before: &RuleSet, after: &RuleSet) -> Vec<String> {
    let mut places = BTreeMap::<_, [Option<&Rule>; 2]>::new();
    for (side, set) in [before, after].into_iter().enumerate() {
        for (limit, key, rule) in set.iter() {
            places.entry((limit, key)).or_default()[side] = Some(rule);
        }
    }
    let written =
        |rule: Option<&Rule>| rule.map_or_else(|| "none".to_owned(), |rule| format!("`{rule}`"));
    let changed = places.into_iter().filter(|(_, [old, new])| old != new);
    let line = |((limit, key), rules): ((&str, Option<&OwnedKey>), [Option<&Rule>; 2])| {
        let of_key = key.map(|key| format!(" of `{key}`")).unwrap_or_default();
        let [old, new] = rules.map(written);
        format!("`{limit}`{of_key}: {old} becomes {new}")
    };
    let mut lines: Vec<_> = changed.map(line).collect();
    if lines.len() > MOST_LINES {
        let more = lines.split_off(MOST_LINES).len();
        lines.push(format!("and {more} more"));
    }
    lines
}
