//! Calls that wait and follow the rules meanwhile.

use std::future::pending;
use std::pin::pin;
use std::time::Duration;

use super::ruled::{OwnedPart, RuledCall, TrailingParts, borrowed};
use super::{Checker, Part};
use crate::clock::before;
use crate::key::{Key, OwnedKey};
use crate::reply::Rejection;
use crate::report;
use crate::rules::{Access, Ruled};
use crate::store::OneOrMany;

/// A call that borrows nothing.
pub(super) struct OwnedCall {
    checker: Checker,
    parts: OneOrMany<OwnedPart>,
}

/// Returns whether a call is treated in the same way. The rules can end at other times.
fn is_same(one: &[Ruled], other: &[Ruled]) -> bool {
    let treatment = |ruled: &Ruled| Ruled { changes_at: None, ..ruled.clone() };
    one.iter().map(treatment).eq(other.iter().map(treatment))
}

impl OwnedCall {
    /// Decides a call that waits. `start` starts it under the rules. If they change while it waits, it is started again
    /// under the new ones, with the rest of its wait. What was decided stays decided.
    pub(super) async fn wait<T, F, G>(
        self,
        start: impl Fn(&Checker, &[Part<'_, OwnedKey>], &[Ruled]) -> RuledCall<F>,
        finish: impl FnOnce(TrailingParts, T) -> G,
    ) -> Result<T, Rejection>
    where
        F: Future<Output = Result<T, Rejection>>,
        G: Future<Output = Result<T, Rejection>>,
    {
        let Self { checker, parts } = &self;
        let clock = checker.backend.clock();
        let (parts, began) = (borrowed(parts), clock.steady());
        let mut changed = pin!(checker.rules.changed());
        loop {
            // Before the rules are read, so that no change is missed.
            changed.as_mut().enable();
            let ruled = checker.all_under_rules(&parts);
            let waited = Duration::from_micros(clock.steady().saturating_sub(began));
            if checker.opens_within(&parts, &ruled, waited) {
                checker.rules_change(&ruled, changed.as_mut()).await;
                changed.set(checker.rules.changed());
                continue;
            }
            let mut rest = ruled.clone();
            for Ruled { limit, .. } in &mut rest {
                let wait = limit.policy().wait().unwrap_or_default();
                *limit = limit.clone().wait(wait.saturating_sub(waited));
            }
            let RuledCall { decision, is_waiting, trailing } = start(checker, &parts, &rest);
            let mut decision = pin!(decision);
            let mut present = ruled.clone();
            while is_same(&present, &ruled) {
                let change = async {
                    if is_waiting {
                        checker.rules_change(&present, changed.as_mut()).await;
                    } else {
                        pending::<()>().await;
                    }
                };
                if let Some(result) = before(change, decision.as_mut()).await {
                    return finish(trailing, result?).await;
                }
                changed.set(checker.rules.changed());
                changed.as_mut().enable();
                present = checker.all_under_rules(&parts);
            }
            // Before the decision is dropped: all calls of its line leave with it.
            checker.leave_lines(&parts, &ruled);
            for Ruled { limit, .. } in ruled.iter().filter(|_| ruled.len() > 1) {
                report::expect_no_longer(limit);
            }
        }
    }
}

impl Checker {
    /// Returns a copy of a call that waits.
    pub(super) fn waiting_call<K: Key + ?Sized>(&self, parts: &[Part<'_, K>]) -> Option<OwnedCall> {
        parts[0].limit.policy().wait()?;
        let parts = match parts {
            [part] => OneOrMany::One(OwnedPart::of(part)),
            parts => OneOrMany::Many(parts.iter().map(OwnedPart::of).collect()),
        };
        Some(OwnedCall { checker: self.clone(), parts })
    }

    /// Cancels what calls under superseded rules hold.
    fn leave_lines(&self, parts: &[Part<'_, OwnedKey>], superseded: &[Ruled]) {
        for (part, Ruled { limit, .. }) in parts.iter().zip(superseded) {
            self.waiting.dissolve(&self.backend.charge(self.counted(limit), part.key, part.cost));
        }
    }

    /// Returns whether rules close a call, and open it before its wait ends.
    fn opens_within<K: ?Sized>(
        &self,
        parts: &[Part<'_, K>],
        ruled: &[Ruled],
        waited: Duration,
    ) -> bool {
        let closed = ruled.iter().filter(|it| it.access == Access::Closed && !it.limit.is_shadow());
        let closed_for = closed.map(|ruled| self.closed_for(ruled)).max();
        let wait = parts[0].limit.policy().wait().unwrap_or_default();
        self.backend.clock().can_sleep()
            && closed_for.is_some_and(|closed_for| closed_for <= wait.saturating_sub(waited))
    }

    /// Completes when the rules were replaced, or one of those in force ends.
    async fn rules_change(&self, present: &[Ruled], replaced: impl Future<Output = ()>) {
        let clock = self.backend.clock();
        match present.iter().filter_map(|ruled| ruled.changes_at).min() {
            Some(at) if clock.can_sleep() => {
                let at = clock.steady().saturating_add(at.saturating_sub(clock.local()));
                before(clock.sleep_until_steady(at), replaced).await;
            }
            _ => replaced.await,
        }
    }
}
