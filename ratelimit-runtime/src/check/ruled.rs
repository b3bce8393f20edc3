//! Calls under the rules in force: a limit can have other amounts, admit nothing, or not limit a call at all.

use std::mem;
use std::time::Duration;

use super::{Acquire, AcquireAll, Check, Checker, KeptTerms, Part, Permit, WrittenAmounts};
use crate::key::{Key, OwnedKey};
use crate::limit::Limit;
use crate::reply::{Decision, Rejection};
use crate::rules::{Access, RuleTable, Ruled};

/// A part that borrows nothing.
pub(super) struct OwnedPart {
    limit: Limit,
    key: OwnedKey,
    cost: u32,
    amounts: WrittenAmounts,
}

/// A call as the rules say. `F` decides its limits that can reject it.
pub(super) struct RuledCall<F> {
    pub(super) decision: F,
    /// Whether the decision waits in a line, and takes nothing if it is dropped there.
    pub(super) is_waiting: bool,
    pub(super) trailing: TrailingParts,
}

/// What follows once the limits that can reject a call have admitted it.
pub(super) struct TrailingParts {
    checker: Checker,
    /// How many parts the call has.
    parts: usize,
    /// The indexes of the parts that are decided first.
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
        let resolve = || {
            let key_id = || self.backend.key_id(limit.terms(), key);
            table.resolve(limit, key_id, self.backend.clock().local())
        };
        let ruled = if table.is_empty() { None } else { resolve() };
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
        if let [part] = parts {
            return self.check_one_under_rules(part);
        }
        let ruled = self.all_under_rules(parts);
        let RuledCall { decision, trailing, .. } = self.start_check(parts, &ruled);
        if trailing.is_empty() {
            return decision;
        }
        Check::boxed(async move { trailing.check(decision.await?).await })
    }

    /// Checks a call of one limit, which has rules. Nothing follows such a call, so nothing is allocated for it.
    fn check_one_under_rules<K: Key + ?Sized>(&self, part: &Part<'_, K>) -> Check {
        let ruled = self.under(&self.rules.table(), part);
        match ruled.access {
            Access::Exempt => Check::unlimited(),
            Access::Closed => self.reject_closed(&ruled.limit, part.key, self.closed_for(&ruled)),
            Access::Limited => self.check_as_written(&ruled.limit, &part.key, part.cost),
        }
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

    pub(super) fn all_under_rules<K: Key + ?Sized>(&self, parts: &[Part<'_, K>]) -> Vec<Ruled> {
        // One set of rules for all parts.
        let table = self.rules.table();
        parts.iter().map(|part| self.under(&table, part)).collect()
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
                    let reject = || self.reject_closed(limit, part.key, closed_for);
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
    pub(super) fn of<K: Key + ?Sized>(part: &Part<'_, K>) -> Self {
        let Part { limit, key, cost, amounts } = *part;
        Self { limit: limit.clone(), key: OwnedKey::of(&key), cost, amounts }
    }

    fn part(&self) -> Part<'_, OwnedKey> {
        Part { limit: &self.limit, key: &self.key, cost: self.cost, amounts: self.amounts }
    }
}

pub(super) fn borrowed(parts: &[OwnedPart]) -> Vec<Part<'_, OwnedKey>> {
    parts.iter().map(OwnedPart::part).collect()
}
