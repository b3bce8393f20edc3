//! Reports rules that are of no limit: their names may be mistyped.

use std::collections::{HashSet, hash_map::RandomState};
use std::hash::BuildHasher;
use std::time::{Duration, Instant};

use super::fleet::{process_id, read_announcements};
use crate::limit::Period;
use crate::registry;
use crate::rules::RulesInForce;
use crate::store::RuleStore;
use crate::text::closest::closest;

/// How long rules are in force before they are reported. A process has not called all of its limits when it has just
/// started.
const UNSEEN_FOR: Duration = Duration::from_secs(60);

/// The longest random time after that, so that the processes of a fleet do not all ask Redis at one moment.
const MOST_JITTER_MS: u64 = 20_000;

/// The most announced names that can be the nearest one.
const MOST_NAMES: usize = 10_000;

/// When the rules in force are to be compared with the limits; `None` once they were.
pub(super) struct UnseenReport(Option<Instant>);

impl UnseenReport {
    pub(super) fn new() -> Self {
        let random = RandomState::new().hash_one(0);
        let jitter = Duration::from_millis(random % MOST_JITTER_MS);
        Self(Some(Instant::now() + UNSEEN_FOR + jitter))
    }

    /// Returns whether the rules are to be reported now, once.
    pub(super) fn is_due(&mut self) -> bool {
        self.0.take_if(|at| Instant::now() >= *at).is_some()
    }
}

/// Reports the rules that no call of this process has asked for.
pub(super) fn report_of_process(rules: &RulesInForce) {
    let known = registry::limits();
    for rule in rules.unasked() {
        let nearest = closest(&rule.name, known.iter().map(|known| known.limit.name()));
        tracing::warn!(
            rule = rule.written,
            nearest,
            "no call of this process has a limit with the name of this rule"
        );
    }
}

/// The names of an announcement, to be compared with the names in rules. They are not kept in memory, because a process
/// can announce any number of them.
#[derive(serde::Deserialize)]
struct AnnouncedNames {
    limits: Vec<AnnouncedName>,
    #[serde(default)]
    left_out: usize,
}

#[derive(serde::Deserialize)]
struct AnnouncedName {
    limit: NameAndPeriod,
}

#[derive(serde::Deserialize)]
struct NameAndPeriod {
    name: String,
    period: String,
}

/// Reports the rules that no process of the fleet has a limit for. The first process to ask reads the announcements.
pub(super) async fn report_of_fleet(rules: &RulesInForce, version: &str, store: &impl RuleStore) {
    let mut unasked = rules.unasked();
    if unasked.is_empty() || !matches!(store.claim_report(version, &process_id()).await, Ok(true)) {
        return;
    }
    let (mut names, mut is_whole) = (HashSet::new(), true);
    let read = |text: &str| {
        let Ok(AnnouncedNames { limits, left_out }) = serde_json::from_str(text) else {
            return Ok(());
        };
        is_whole &= left_out == 0;
        for AnnouncedName { limit: NameAndPeriod { name, period } } in limits {
            let period = Period::parse(&period);
            unasked.retain(|rule| !period.is_some_and(|period| rule.is_of(&name, period)));
            if names.len() < MOST_NAMES {
                names.insert(name);
            }
        }
        Ok(())
    };
    if read_announcements(store, read).await.is_err() || !is_whole {
        return;
    }
    for rule in unasked {
        let nearest = closest(&rule.name, names.iter().map(String::as_str));
        tracing::warn!(
            rule = rule.written,
            nearest,
            "no limit that the running processes have announced has the name of this rule"
        );
    }
}
