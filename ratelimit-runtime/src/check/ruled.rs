//! Calls under the rules in force: a limit can have other amounts, admit nothing, or not limit a call at all. A call
//! that waits follows the rules while it waits.

use std::future::pending;
use std::pin::pin;
use std::time::Duration;

use super::{AcquireAll, Check, Checker, Part, Permit};
use crate::clock::before;
use crate::key::{Key, OwnedKey};
use crate::limit::Limit;
use crate::reply::Rejection;
use crate::rules::{Access, Ruled};
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
}

/// What the rules leave of a call.
struct RuledParts<'a, K: ?Sized> {
    /// The parts that can reject the call, and their indexes.
    enforced: Vec<(usize, Part<'a, K>)>,
    /// The parts that only report.
    shadows: Vec<(usize, Part<'a, K>)>,
    /// The reports of shadows that a rule closes.
    closed: Vec<Check>,
}

impl Checker {
    /// Returns a limit under the rules in force.
    pub(super) fn under_rules<K: Key + ?Sized>(&self, limit: &Limit, key: &K) -> Ruled {
        if !self.rules.may_apply(limit) {
            return Ruled::as_written(limit);
        }
        let key_id = self.backend.key_id(limit.terms(), key);
        let ruled = self.rules.resolve(limit, key_id, self.backend.clock().local());
        ruled.unwrap_or_else(|| Ruled::as_written(limit))
    }

    /// Returns whether rules say what a limit admits, whatever its code says.
    pub(crate) fn overrides_amounts<K: Key + ?Sized>(&self, limit: &Limit, key: &K) -> bool {
        self.under_rules(limit, key).overrides_amounts
    }

    /// Rejects a call whose threshold or burst is 0.
    pub(crate) fn reject_by_amounts(&self, limit: &Limit, key: &dyn Key, cost: u32) -> Check {
        let Ruled { limit, .. } = self.under_rules(limit, key);
        self.reject_closed(&limit, key, cost, Duration::MAX)
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
            return Check::boxed(call.wait(Checker::check_ruled));
        }
        self.check_ruled(parts, &self.all_under_rules(parts))
    }

    /// Checks a call whose charges can be settled, of limits that have rules or wait.
    #[cold]
    pub(super) fn acquire_under_rules<K: Key + ?Sized>(&self, parts: &[Part<'_, K>]) -> AcquireAll {
        if let Some(call) = self.waiting_call(parts) {
            return AcquireAll::pending(call.wait(Checker::acquire_ruled));
        }
        self.acquire_ruled(parts, &self.all_under_rules(parts))
    }

    fn all_under_rules<K: Key + ?Sized>(&self, parts: &[Part<'_, K>]) -> Vec<Ruled> {
        parts.iter().map(|part| self.under_rules(part.limit, part.key)).collect()
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

    /// Checks a call as `ruled` says.
    fn check_ruled<K: Key + ?Sized>(&self, parts: &[Part<'_, K>], ruled: &[Ruled]) -> Check {
        let RuledParts { enforced, shadows, closed } = match self.ruled_parts(parts, ruled) {
            Ok(parts) => parts,
            Err(rejected) => return *rejected,
        };
        let check = |parts: &[(usize, Part<'_, K>)]| match parts {
            [] => Check::unlimited(),
            [(_, Part { limit, key, cost })] => self.check_as_written(limit, key, *cost),
            several => {
                let parts: Vec<_> = several.iter().map(|(_, part)| *part).collect();
                self.check_all_as_written(&parts)
            }
        };
        if closed.is_empty() && shadows.is_empty() {
            return check(&enforced);
        }
        if closed.is_empty() && enforced.is_empty() {
            return check(&shadows);
        }
        let enforced = check(&enforced);
        let (checker, shadows) = (self.clone(), owned(&shadows));
        Check::boxed(async move {
            let decision = enforced.await?;
            for closed in closed {
                let _ = closed.await;
            }
            if !shadows.is_empty() {
                let _ = checker.check_all_as_written(&borrowed(&shadows)).await;
            }
            Ok(decision)
        })
    }

    /// Checks a call whose charges can be settled, as `ruled` says.
    fn acquire_ruled<K: Key + ?Sized>(&self, parts: &[Part<'_, K>], ruled: &[Ruled]) -> AcquireAll {
        let RuledParts { enforced, shadows, closed } = match self.ruled_parts(parts, ruled) {
            Ok(parts) => parts,
            Err(rejected) => return AcquireAll::uncharged(*rejected, parts.len()),
        };
        let acquire = |parts: &[(usize, Part<'_, K>)]| {
            let parts: Vec<_> = parts.iter().map(|(_, part)| *part).collect();
            self.acquire_all_as_written(&parts)
        };
        if enforced.len() == parts.len() {
            return acquire(&enforced);
        }
        if shadows.len() == parts.len() {
            return acquire(&shadows);
        }
        let indexes = |parts: &[(usize, _)]| parts.iter().map(|(index, _)| *index).collect();
        let (count, indexes): (_, [Vec<usize>; 2]) =
            (parts.len(), [indexes(&enforced), indexes(&shadows)]);
        let enforced = (!enforced.is_empty()).then(|| acquire(&enforced));
        let (checker, shadows) = (self.clone(), owned(&shadows));
        AcquireAll::pending(async move {
            let mut permits: Vec<_> = (0..count).map(|_| Permit::unlimited()).collect();
            let mut place = |indexes: &[usize], acquired: Vec<Permit>| {
                for (index, permit) in indexes.iter().zip(acquired) {
                    permits[*index] = permit;
                }
            };
            if let Some(enforced) = enforced {
                place(&indexes[0], enforced.await?);
            }
            for closed in closed {
                let _ = closed.await;
            }
            if !shadows.is_empty()
                && let Ok(acquired) = checker.acquire_all_as_written(&borrowed(&shadows)).await
            {
                place(&indexes[1], acquired);
            }
            Ok(permits)
        })
    }

    /// Sorts the parts of a call, or rejects it if a rule closes one of them.
    fn ruled_parts<'a, K: Key + ?Sized>(
        &self,
        parts: &[Part<'a, K>],
        ruled: &'a [Ruled],
    ) -> Result<RuledParts<'a, K>, Box<Check>> {
        let mut sorted =
            RuledParts { enforced: Vec::new(), shadows: Vec::new(), closed: Vec::new() };
        for (index, (part, ruled)) in parts.iter().zip(ruled).enumerate() {
            let limit = &ruled.limit;
            let part = Part { limit, key: part.key, cost: part.cost };
            match ruled.access {
                Access::Exempt => {}
                Access::Closed => {
                    let closed =
                        self.reject_closed(limit, part.key, part.cost, self.closed_for(ruled));
                    if !limit.is_shadow() || parts.len() == 1 {
                        return Err(Box::new(closed));
                    }
                    sorted.closed.push(closed);
                }
                Access::Limited if limit.is_shadow() => sorted.shadows.push((index, part)),
                Access::Limited => sorted.enforced.push((index, part)),
            }
        }
        Ok(sorted)
    }
}

impl OwnedPart {
    fn of<K: Key + ?Sized>(part: &Part<'_, K>) -> Self {
        Self { limit: part.limit.clone(), key: OwnedKey::of(&part.key), cost: part.cost }
    }

    fn part(&self) -> Part<'_, OwnedKey> {
        Part { limit: &self.limit, key: &self.key, cost: self.cost }
    }
}

fn owned<K: Key + ?Sized>(parts: &[(usize, Part<'_, K>)]) -> Vec<OwnedPart> {
    parts.iter().map(|(_, part)| OwnedPart::of(part)).collect()
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
    /// Decides a call that waits. `start` starts it under the rules; if they change, it is started again under the new
    /// ones, with the rest of its wait.
    async fn wait<T, F: Future<Output = Result<T, Rejection>>>(
        self,
        start: impl Fn(&Checker, &[Part<'_, OwnedKey>], &[Ruled]) -> F,
    ) -> Result<T, Rejection> {
        let Self { checker, parts } = &self;
        let clock = checker.backend.clock();
        let (parts, began) = (borrowed(parts), clock.steady());
        let mut changed = pin!(checker.rules.changed());
        loop {
            // Before the rules are read, so that no change is missed.
            changed.as_mut().enable();
            let ruled = checker.all_under_rules(&parts);
            let waited = Duration::from_micros(clock.steady().saturating_sub(began));
            let mut rest = ruled.clone();
            for Ruled { limit, .. } in &mut rest {
                let wait = limit.policy().wait().unwrap_or_default();
                *limit = limit.clone().wait(wait.saturating_sub(waited));
            }
            let mut attempt = pin!(start(checker, &parts, &rest));
            let mut present = ruled.clone();
            while is_same(&present, &ruled) {
                let ends_at = present.iter().filter_map(|ruled| ruled.changes_at).min();
                let change = async {
                    match ends_at {
                        Some(at) if clock.can_sleep() => {
                            let left = at.saturating_sub(clock.local());
                            let at = clock.steady().saturating_add(left);
                            before(clock.sleep_until_steady(at), changed.as_mut()).await;
                        }
                        Some(_) => pending().await,
                        None => changed.as_mut().await,
                    }
                };
                if let Some(result) = before(change, attempt.as_mut()).await {
                    return result;
                }
                changed.set(checker.rules.changed());
                changed.as_mut().enable();
                present = checker.all_under_rules(&parts);
            }
        }
    }
}
