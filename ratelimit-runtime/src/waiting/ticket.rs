//! The ticket of a waiting call: what the code says about the call, and the line in which it waits now. Rules that
//! change move the call to another line, and its ticket stays (`Waiting::follow_rules`).

use std::sync::Arc;

use super::{SharedLine, lock};
use crate::algorithm::Op;
use crate::backend::{Backend, ChargedCount, MergedCounts};
use crate::key::OwnedKey;
use crate::limit::{Access, Limit, Policy};
use crate::one_or_many::OneOrMany;
use crate::rules::{Asker, RuleTable, Ruled};
use crate::store::{Calls, Charge};
use crate::threads::Mutex;

/// A limit of a call with the key and the cost, as the code says. Borrows nothing.
pub(crate) struct OwnedPart {
    pub(crate) limit: Limit,
    pub(crate) key: OwnedKey,
    pub(crate) cost: u64,
    pub(crate) access: Access,
}

/// A call that may wait.
pub(crate) struct Ticket {
    pub(crate) parts: OneOrMany<OwnedPart>,
    /// Whether the charges can be settled.
    pub(super) settles: bool,
    /// The place of the call in the order of all calls.
    pub(super) arrival: u64,
    /// The end of the wait, by the clock of the limiter.
    pub(super) deadline: u64,
    pub(super) place: Mutex<Place>,
}

/// Where a call waits, and what the rules make of its limits there.
pub(super) struct Place {
    /// `None` if the call does not wait: it was dropped, or rules decide it.
    pub(super) line: Option<Arc<SharedLine>>,
    pub(super) ruled: OneOrMany<Ruled>,
}

/// The line of a call under the rules in force.
pub(super) struct Destination {
    /// The counts, with the units that the call takes from each.
    pub(super) charges: OneOrMany<Arc<Charge>>,
    pub(super) is_shared: bool,
    /// Whether rules block the call, until a time before its wait ends.
    pub(super) is_blocked: bool,
    /// When the first of the rules ends, by the clock of the limiter.
    pub(super) changes_at: Option<u64>,
}

impl Ticket {
    pub(super) fn new(
        parts: OneOrMany<OwnedPart>,
        settles: bool,
        arrival: u64,
        now: u64,
    ) -> Arc<Self> {
        let wait = parts.first().and_then(|part| part.limit.policy().wait()).unwrap_or_default();
        let wait = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
        let place = Mutex::new(Place { line: None, ruled: Vec::new().into() });
        Arc::new(Self { parts, settles, arrival, deadline: now.saturating_add(wait), place })
    }

    /// Returns the policy of the call. Rules change only one part of it: whether a limit is a shadow.
    pub(super) fn policy(&self) -> Policy {
        self.parts[0].limit.policy()
    }

    pub(super) fn line(&self) -> Option<Arc<SharedLine>> {
        lock(&self.place).line.clone()
    }

    /// Returns the limits of the call under the rules that have decided it.
    pub(crate) fn ruled(&self) -> OneOrMany<Ruled> {
        lock(&self.place).ruled.clone()
    }

    /// Returns the limits of the call under `rules`.
    pub(super) fn under(&self, backend: &Backend, rules: Option<&RuleTable>) -> OneOrMany<Ruled> {
        let now = backend.clock().local();
        let under = |OwnedPart { limit, key, access, .. }: &OwnedPart| {
            let key_id = || backend.key_id(limit.terms(), key);
            Ruled::under(rules, limit, *access, &key_id, &|| now, Asker::Call)
        };
        self.parts.iter().map(under).collect()
    }

    /// Returns the line in which the call waits with these limits. Returns `None` if it does not wait: no limit can
    /// reject it, a rule blocks it for longer, it costs more than a capacity, or the limits have a mistake.
    pub(super) fn destination(
        &self,
        backend: &Arc<Backend>,
        ruled: &[Ruled],
    ) -> Option<Destination> {
        let (clock, mut is_blocked) = (backend.clock(), false);
        let (now, rest) = (clock.local(), self.deadline.saturating_sub(clock.steady()));
        let can_reject =
            |ruled: &Ruled| ruled.access != Access::Unlimited && !ruled.limit.is_shadow();
        for blocked in ruled.iter().filter(|it| can_reject(it) && it.access == Access::Blocked) {
            blocked.blocked_until.filter(|until| until.saturating_sub(now) <= rest)?;
            is_blocked = true;
        }
        let parts = self.parts.iter().zip(ruled).filter(|(_, ruled)| can_reject(ruled));
        let mut parts =
            parts.map(|(part, Ruled { limit, .. })| backend.count(limit, &part.key, part.cost));
        let MergedCounts { counts, .. } = MergedCounts::of(&mut parts).ok()?;
        let can_wait = |ChargedCount { limit, charge, .. }: &ChargedCount<'_>| {
            let is_mistaken = if self.settles { limit.leases() } else { limit.is_in_flight() };
            charge.cost <= charge.terms.capacity() && !is_mistaken
        };
        if counts.is_empty() || !counts.iter().all(can_wait) {
            return None;
        }
        let end = ruled.iter().filter_map(|ruled| ruled.changes_at).min();
        Some(Destination {
            charges: counts.into_iter().map(|count| count.address(backend)).collect(),
            is_shared: backend.is_shared(self.policy().scope()),
            is_blocked,
            changes_at: end.map(|end| clock.steady().saturating_add(end.saturating_sub(now))),
        })
    }

    /// Returns the request to decide the call without a line.
    pub(super) fn request(&self, charges: OneOrMany<Arc<Charge>>) -> Calls {
        Calls::one(Op::Take { wait: 0, receipt: self.settles }, charges)
    }
}
