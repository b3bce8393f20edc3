//! Reports rules that are of no limit: their names may be mistyped.

use std::time::{Duration, Instant};

use super::fleet::{AnnouncedProcess, PROCESS};
use crate::limit::Limit;
use crate::registry;
use crate::rules::RulesInForce;
use crate::store::RuleStore;
use crate::text::closest::closest;

/// How long rules are in force before they are reported. A process has not called all of its limits when it has just
/// started.
const UNSEEN_FOR: Duration = Duration::from_secs(60);

/// When the rules in force are to be compared with the limits; `None` once they were.
pub(super) struct UnseenReport(Option<Instant>);

impl UnseenReport {
    pub(super) fn new() -> Self {
        Self(Some(Instant::now() + UNSEEN_FOR))
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

/// Reports the rules that no process of the fleet has a limit for. One process does so, that with the first id.
pub(super) async fn report_of_fleet(rules: &RulesInForce, store: &impl RuleStore) {
    let unasked = rules.unasked();
    if unasked.is_empty() {
        return;
    }
    let Ok(texts) = store.announcements().await else { return };
    let fleet = AnnouncedProcess::read(&texts);
    if fleet.iter().map(|process| &process.id).min() != Some(&*PROCESS) {
        return;
    }
    let limits =
        || fleet.iter().flat_map(|process| &process.limits).map(|announced| &announced.limit);
    for rule in unasked {
        if !limits().any(|limit| rule.is_of(limit)) {
            let nearest = closest(&rule.name, limits().map(Limit::name));
            tracing::warn!(
                rule = rule.written,
                nearest,
                "no annotated limit of the running processes has the name of this rule"
            );
        }
    }
}
