//! Calls under the rules in force: a limit can have other amounts, admit nothing, or not limit a call at all. A call
//! that waits follows the rules while it waits.

use std::future::pending;
use std::mem;
use std::pin::pin;
use std::time::Duration;

use super::{Acquire, AcquireAll, Check, Checker, KeptTerms, Part, Permit, WrittenAmounts};
use crate::clock::before;
use crate::key::{Key, OwnedKey};
use crate::limit::Limit;
use crate::reply::{Decision, Rejection};
use crate::rules::{Access, RuleTable, Ruled};
use crate::store::OneOrMany;

/// A call that borrows nothing.
struct OwnedCall {
    checker: Checker,
    parts: OneOrMany<OwnedPart>,
}

struct OwnedPart {
    limit: Limit,
    key: OwnedKey,
    cost: u32,
    amounts: WrittenAmounts,
}

/// A call as the rules say. `F` decides its limits that can reject it.
struct RuledCall<F> {
    decision: F,
    /// Whether the decision waits in a line, and takes nothing if it is dropped there.
    is_waiting: bool,
    trailing: TrailingParts,
}

/// What follows once the limits that can reject a call have admitted it.
struct TrailingParts {
    checker: Checker,
    /// The number of parts of the call, and the indexes of those that are decided first.
    parts: usize,
    first: Vec<usize>,
    /// The parts that only report, with their indexes.
    shadows: Vec<OwnedPart>,
    shadow_indexes: Vec<usize>,
    /// The reports of shadows that a rule closes.
    closed: Vec<Check>,
}

/// The parts of a call, with their indexes.
struct SortedParts<'a, K: ?Sized> {
    /// The parts that are decided first.
    first: Vec<(usize, Part<'a, K>)>,
    shadows: Vec<(usize, Part<'a, K>)>,
    closed: Vec<Check>,
}

impl Checker {
    /// Returns the limit of a part under the rules in force.
    pub(super) fn under_rules<K: Key + ?Sized>(&self, part: &Part<'_, K>) -> Ruled {
        if !self.rules.may_apply(part.limit) {
            return Ruled::as_written(part.limit);
        }
        self.under(&self.rules.table(), part)
    }

    /// Returns the limit of a part under a set of rules.
    fn under<K: Key + ?Sized>(&self, table: &RuleTable, part: &Part<'_, K>) -> Ruled {
        let Part { limit, key, amounts, .. } = *part;
        let key_id = self.backend.key_id(limit.terms(), key);
        let ruled = table.resolve(limit, key_id, self.backend.clock().local());
        let mut ruled = ruled.unwrap_or_else(|| Ruled::as_written(limit));
        if !ruled.has_threshold && ruled.access == Access::Limited {
            ruled.access = match amounts {
                WrittenAmounts::OfLimit => Access::Limited,
                WrittenAmounts::Unlimited => Access::Exempt,
                WrittenAmounts::Zero => Access::Closed,
            };
        }
        ruled
    }

    /// Checks a call of the attribute.
    #[inline]
    pub(crate) fn check_written(
        &self,
        limit: &Limit,
        key: &impl Key,
        cost: u32,
        amounts: WrittenAmounts,
    ) -> Check {
        match amounts {
            WrittenAmounts::OfLimit => self.check(limit, key, cost),
            // Rules can set other amounts.
            computed => {
                let part = Part { amounts: computed, ..Part::of(limit, key, cost) };
                self.check_under_rules(&[part])
            }
        }
    }

    /// Checks a call of the attribute whose charge can be settled.
    #[inline]
    pub(crate) fn acquire_written(
        &self,
        limit: &Limit,
        key: &impl Key,
        cost: u32,
        amounts: WrittenAmounts,
        terms: impl FnOnce() -> KeptTerms,
    ) -> Acquire {
        match amounts {
            WrittenAmounts::OfLimit => self.acquire(limit, key, cost, terms),
            computed => {
                let part = Part { amounts: computed, ..Part::of(limit, key, cost) };
                self.acquire_one_under_rules(part)
            }
        }
    }

    /// Returns for how long a rule closes a limit; `Duration::MAX` if it has no end.
    pub(super) fn closed_for(&self, ruled: &Ruled) -> Duration {
        let now = self.backend.clock().local();
        ruled
            .closed_until
            .map_or(Duration::MAX, |until| Duration::from_micros(until.saturating_sub(now)))
    }

    /// Checks a call of limits that have rules or wait.
    #[cold]
    pub(super) fn check_under_rules<K: Key + ?Sized>(&self, parts: &[Part<'_, K>]) -> Check {
        if let Some(call) = self.waiting_call(parts) {
            return Check::boxed(call.wait(Self::start_check, TrailingParts::check));
        }
        let ruled = self.all_under_rules(parts);
        let RuledCall { decision, trailing, .. } = self.start_check(parts, &ruled);
        if trailing.is_empty() {
            return decision;
        }
        Check::boxed(async move { trailing.check(decision.await?).await })
    }

    /// Checks a call whose charges can be settled, of limits that have rules or wait.
    #[cold]
    pub(super) fn acquire_under_rules<K: Key + ?Sized>(&self, parts: &[Part<'_, K>]) -> AcquireAll {
        if let Some(call) = self.waiting_call(parts) {
            return AcquireAll::pending(call.wait(Self::start_acquire, TrailingParts::acquire));
        }
        let ruled = self.all_under_rules(parts);
        let RuledCall { decision, trailing, .. } = self.start_acquire(parts, &ruled);
        AcquireAll::pending(async move { trailing.acquire(decision.await?).await })
    }

    fn all_under_rules<K: Key + ?Sized>(&self, parts: &[Part<'_, K>]) -> Vec<Ruled> {
        // One set of rules for all parts.
        let table = self.rules.table();
        parts.iter().map(|part| self.under(&table, part)).collect()
    }

    /// Returns a copy of a call that waits.
    fn waiting_call<K: Key + ?Sized>(&self, parts: &[Part<'_, K>]) -> Option<OwnedCall> {
        parts[0].limit.policy().wait()?;
        let parts = match parts {
            [part] => OneOrMany::One(OwnedPart::of(part)),
            parts => OneOrMany::Many(parts.iter().map(OwnedPart::of).collect()),
        };
        Some(OwnedCall { checker: self.clone(), parts })
    }

    /// Starts the check of a call, as `ruled` says.
    fn start_check<K: Key + ?Sized>(
        &self,
        parts: &[Part<'_, K>],
        ruled: &[Ruled],
    ) -> RuledCall<Check> {
        let (sorted, decision) = match self.sort(parts, ruled) {
            Ok(sorted) => (sorted, None),
            Err(rejected) => (SortedParts::none(), Some(*rejected)),
        };
        let check = || match &sorted.first[..] {
            [] => Check::unlimited(),
            [(_, Part { limit, key, cost, .. })] => self.check_as_written(limit, key, *cost),
            several => self.check_all_as_written(&without_indexes(several)),
        };
        let decision = decision.unwrap_or_else(check);
        self.call(decision, parts.len(), sorted)
    }

    /// Starts the check of a call whose charges can be settled, as `ruled` says.
    fn start_acquire<K: Key + ?Sized>(
        &self,
        parts: &[Part<'_, K>],
        ruled: &[Ruled],
    ) -> RuledCall<AcquireAll> {
        let (sorted, decision) = match self.sort(parts, ruled) {
            Ok(sorted) => (sorted, None),
            Err(rejected) => {
                (SortedParts::none(), Some(AcquireAll::uncharged(*rejected, parts.len())))
            }
        };
        let acquire = || match &sorted.first[..] {
            [] => AcquireAll::pending(async { Ok(Vec::new()) }),
            first => self.acquire_all_as_written(&without_indexes(first)),
        };
        let decision = decision.unwrap_or_else(acquire);
        self.call(decision, parts.len(), sorted)
    }

    fn call<F, K: Key + ?Sized>(
        &self,
        decision: F,
        parts: usize,
        sorted: SortedParts<'_, K>,
    ) -> RuledCall<F> {
        let SortedParts { first, shadows, closed } = sorted;
        let is_waiting = first.first().is_some_and(|(_, part)| part.limit.max_wait().is_some());
        let indexes = |parts: &[(usize, _)]| parts.iter().map(|(index, _)| *index).collect();
        let trailing = TrailingParts {
            checker: self.clone(),
            parts,
            first: indexes(&first),
            shadow_indexes: indexes(&shadows),
            shadows: shadows.iter().map(|(_, part)| OwnedPart::of(part)).collect(),
            closed,
        };
        RuledCall { decision, is_waiting, trailing }
    }

    /// Sorts the parts of a call, or rejects it if a rule closes one of them.
    fn sort<'a, K: Key + ?Sized>(
        &self,
        parts: &[Part<'a, K>],
        ruled: &'a [Ruled],
    ) -> Result<SortedParts<'a, K>, Box<Check>> {
        let (mut sorted, mut longest) = (SortedParts::none(), None);
        for (index, (part, ruled)) in parts.iter().zip(ruled).enumerate() {
            let limit = &ruled.limit;
            let part = Part::of(limit, part.key, part.cost);
            match ruled.access {
                Access::Exempt => {}
                Access::Closed => {
                    let closed_for = self.closed_for(ruled);
                    let reject = || self.reject_closed(limit, part.key, part.cost, closed_for);
                    if limit.is_shadow() && parts.len() > 1 {
                        sorted.closed.push(reject());
                    } else if longest.as_ref().is_none_or(|(other, _)| *other < closed_for) {
                        longest = Some((closed_for, reject()));
                    }
                }
                Access::Limited if limit.is_shadow() => sorted.shadows.push((index, part)),
                Access::Limited => sorted.first.push((index, part)),
            }
        }
        if let Some((_, rejected)) = longest {
            return Err(Box::new(rejected));
        }
        if sorted.first.is_empty() {
            // Shadows alone are decided together.
            sorted.first = mem::take(&mut sorted.shadows);
        }
        Ok(sorted)
    }
}

impl<K: ?Sized> SortedParts<'_, K> {
    fn none() -> Self {
        Self { first: Vec::new(), shadows: Vec::new(), closed: Vec::new() }
    }
}

fn without_indexes<'a, K: ?Sized>(parts: &[(usize, Part<'a, K>)]) -> Vec<Part<'a, K>> {
    parts.iter().map(|(_, part)| *part).collect()
}

impl TrailingParts {
    fn is_empty(&self) -> bool {
        self.shadows.is_empty() && self.closed.is_empty()
    }

    /// Decides the shadows of a call that was admitted.
    async fn check(self, decision: Decision) -> Result<Decision, Rejection> {
        for closed in self.closed {
            let _ = closed.await;
        }
        if !self.shadows.is_empty() {
            let _ = self.checker.check_all_as_written(&borrowed(&self.shadows)).await;
        }
        Ok(decision)
    }

    /// Decides the shadows of a call that was admitted. Returns a permit for each part, in their order.
    async fn acquire(self, acquired: Vec<Permit>) -> Result<Vec<Permit>, Rejection> {
        let mut permits: Vec<_> = (0..self.parts).map(|_| Permit::unlimited()).collect();
        let mut place = |indexes: &[usize], acquired: Vec<Permit>| {
            for (index, permit) in indexes.iter().zip(acquired) {
                permits[*index] = permit;
            }
        };
        place(&self.first, acquired);
        for closed in self.closed {
            let _ = closed.await;
        }
        if !self.shadows.is_empty()
            && let Ok(acquired) =
                self.checker.acquire_all_as_written(&borrowed(&self.shadows)).await
        {
            place(&self.shadow_indexes, acquired);
        }
        Ok(permits)
    }
}

impl OwnedPart {
    fn of<K: Key + ?Sized>(part: &Part<'_, K>) -> Self {
        let Part { limit, key, cost, amounts } = *part;
        Self { limit: limit.clone(), key: OwnedKey::of(&key), cost, amounts }
    }

    fn part(&self) -> Part<'_, OwnedKey> {
        Part { limit: &self.limit, key: &self.key, cost: self.cost, amounts: self.amounts }
    }
}

fn borrowed(parts: &[OwnedPart]) -> Vec<Part<'_, OwnedKey>> {
    parts.iter().map(OwnedPart::part).collect()
}

/// Returns whether a call is treated in the same way. The rules can end at other times.
fn is_same(one: &[Ruled], other: &[Ruled]) -> bool {
    let treatment = |ruled: &Ruled| Ruled { changes_at: None, ..ruled.clone() };
    one.iter().map(treatment).eq(other.iter().map(treatment))
}

impl OwnedCall {
    /// Decides a call that waits. `start` starts it under the rules. If they change while it waits, it is started again
    /// under the new ones, with the rest of its wait. What was decided stays decided.
    async fn wait<T, F, G>(
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
        }
    }
}

impl Checker {
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
