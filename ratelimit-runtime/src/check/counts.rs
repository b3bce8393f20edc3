//! Changes a count by hand, or looks at it, under the rules in force.

use std::future::ready;
use std::sync::Arc;

use super::decide::{StartedCall, apply_shadow};
use super::{Check, Checker, Part};
use crate::algorithm::{BlockChange, Op, Verdict};
use crate::key::{Key, KeyId};
use crate::lease::Leases;
use crate::limit::{Access, Limit, OnError};
use crate::one_or_many::OneOrMany;
use crate::reply::{Answer, Decision, Rejection, Usage};
use crate::rules::{Asker, Ruled};
use crate::store::{Calls, Charge, Reply};

/// The count of a key under a limit, for an operator.
pub(crate) struct Count<'a> {
    checker: &'a Checker,
    /// The limit under the rules in force.
    ruled: Ruled,
    key: &'a dyn Key,
}

impl Checker {
    /// Returns the count of a key.
    pub(crate) fn count<'a>(&'a self, limit: &Limit, key: &'a dyn Key) -> Count<'a> {
        let part = Part::of(limit, key, 0);
        let table = self.rules.may_apply(limit).then(|| self.rules.table()).flatten();
        let ruled = part.under(table.as_deref(), &self.backend, Asker::Operator);
        Count { checker: self, ruled, key }
    }
}

impl Count<'_> {
    /// Peeks at the decision about a call.
    pub(crate) fn peek(&self, cost: u64) -> Check {
        let Self { checker: Checker { backend, .. }, ruled, .. } = self;
        let limit = &ruled.limit;
        let shadow = limit.shadow(true);
        match ruled.access {
            Access::Limited => {}
            Access::Unlimited => return Check::from(Ok(Decision::unlimited())),
            Access::Blocked => {
                let blocked_for = ruled.blocked_for(backend.clock().local());
                let rejection = Rejection::blocked_without_count(limit, blocked_for);
                return Check::from(apply_shadow(&shadow, Err(rejection)));
            }
        }
        let policy = limit.policy();
        let charge = self.charge(cost);
        let capacity = charge.terms.capacity;
        if cost > capacity {
            let charged = limit.charged_under(&charge.terms);
            let rejection = Rejection::cost_exceeds_capacity(&charged, cost);
            return Check::from(apply_shadow(&charged, Err(rejection)));
        }
        let calls = Calls::one(Op::Peek, OneOrMany::from([charge]));
        if !backend.is_shared(policy.scope) {
            let Reply { outcomes, source, .. } = backend.execute_here(&calls);
            return Check::from(Ok(Decision::new(capacity, &outcomes[0], source)));
        }
        let (backend, held) = (Arc::clone(backend), self.held());
        let call = StartedCall::boxed(&self.checker.backend, move || async move {
            let reply = backend.execute(policy, &calls).await;
            let reply = reply.map_err(|error| Rejection::unavailable(&shadow, error))?;
            // The leased units that this process holds are left as well.
            let (mut outcome, held) = (reply.first(), held());
            outcome.remaining = outcome.remaining.saturating_add(held).min(capacity);
            if cost > 0 && held >= cost {
                (outcome.verdict, outcome.retry_us) = (Verdict::Admitted, 0);
            }
            Ok(Decision::new(capacity, &outcome, reply.source).into())
        });
        call.into()
    }

    /// Counts the units in use.
    pub(crate) fn usage(&self) -> Answer<Usage> {
        let (policy, charge) = (self.ruled.limit.policy(), self.charge(0));
        let backend = &self.checker.backend;
        let calls = Calls::one(Op::Measure, OneOrMany::from([charge]));
        let usage = |reply: Reply| Usage::new(&reply.first(), reply.source);
        if !backend.is_shared(policy.scope) {
            return Box::pin(ready(Ok(usage(backend.execute_here(&calls)))));
        }
        let held = self.held();
        backend.answer(move |backend| async move {
            let reply = match backend.try_execute(policy, &calls).await {
                Err(error) if backend.on_error(policy) != OnError::Local => return Err(error),
                Err(_) => backend.apply_share(&calls),
                Ok(reply) => reply,
            };
            let usage = usage(reply);
            Ok(Usage { used: usage.used.saturating_sub(held()), ..usage })
        })
    }

    /// Gives back the newest units.
    pub(crate) fn credit(&self, units: u64) -> Answer<Decision> {
        let (policy, charge) = (self.ruled.limit.policy(), self.charge(units));
        let capacity = charge.terms.capacity;
        let credited = self.checker.backend.credit(policy, charge);
        Box::pin(async move {
            let (outcome, source) = credited.await?;
            Ok(Decision::new(capacity, &outcome, source))
        })
    }

    /// Removes the count of a key, and the leased units of this process. Returns whether the count was there.
    pub(crate) fn reset(&self) -> Answer<bool> {
        let Checker { backend, leases, .. } = self.checker;
        let (policy, charge) = (self.ruled.limit.policy(), self.charge(0));
        let reset = backend.change_key(policy, charge, BlockChange::Reset);
        // Other calls of the count may lease, although this limit does not.
        let leases = backend.is_shared(policy.scope).then_some(leases);
        self.around(reset, leases, Leases::discard)
    }

    /// Blocks or unblocks a key. Leased units of this process go back. Returns whether the key was blocked.
    pub(crate) fn block(&self, block: BlockChange) -> Answer<bool> {
        let (Checker { backend, leases, .. }, limit) = (self.checker, &self.ruled.limit);
        let charge = self.charge(0);
        // The backend gives back the leases with the key id that it blocks. A lease of a sliding window has another key
        // id than its count, whose period is longer.
        let others = leases.of(limit).filter(|_| self.lease_id() != charge.key_id);
        self.around(backend.change_key(limit.policy(), charge, block), others, Leases::give_back)
    }

    /// Calls `end` with the lease of the count before a request and after it, because units can be leased while the
    /// request is pending.
    fn around(
        &self,
        request: Answer<bool>,
        leases: Option<&Arc<Leases>>,
        end: fn(&Leases, KeyId),
    ) -> Answer<bool> {
        let Some(leases) = leases.cloned() else { return request };
        let lease_id = self.lease_id();
        Box::pin(async move {
            end(&leases, lease_id);
            let result = request.await;
            end(&leases, lease_id);
            result
        })
    }

    fn charge(&self, cost: u64) -> Arc<Charge> {
        let backend = &self.checker.backend;
        backend.count(&self.ruled.limit, self.key, cost).address(backend)
    }

    /// Returns a function that counts the leased units of this process which calls can spend.
    fn held(&self) -> impl FnOnce() -> u64 + use<> {
        let leases = self.checker.leases.of(&self.ruled.limit).cloned();
        let (lease_id, terms) = (self.lease_id(), *self.ruled.limit.terms());
        move || leases.map_or(0, |leases| leases.spendable(lease_id, &terms))
    }

    /// Returns the key id of the lease of the count.
    fn lease_id(&self) -> KeyId {
        self.checker.backend.key_id(self.ruled.limit.terms(), self.key)
    }
}
