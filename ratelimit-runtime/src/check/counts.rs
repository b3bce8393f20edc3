//! Changes a count by hand, or looks at it, under the rules in force.

use std::sync::Arc;

use super::judge::apply_shadow;
use super::{Check, Checker, Part};
use crate::algorithm::{Op, OpeningChange, Verdict};
use crate::key::Key;
use crate::limit::{Access, Limit, LimitLabel};
use crate::reply::{Answer, Decision, Rejection};
use crate::store::{Calls, Charge, DecideOp, OneOrMany, Reply, Request};

impl Checker {
    /// Peeks at the decision about a call.
    pub(crate) fn peek(&self, limit: &Limit, key: &dyn Key, cost: u32) -> Check {
        let ruled = self.under_rules(&Part::of(limit, key, cost));
        let limit = &ruled.limit;
        let label = LimitLabel { shadow: true, ..limit.label() };
        match ruled.access {
            Access::Limited => {}
            Access::Unlimited => return Check::unlimited(),
            Access::Closed => {
                let rejection = Rejection::closed_without_count(limit, self.closed_for(&ruled));
                return Check::from(apply_shadow(&label, Err(rejection)));
            }
        }
        let policy = limit.policy();
        let charge = self.charge(limit, key, cost);
        let capacity = charge.terms.capacity();
        if cost > capacity {
            let label = limit.label_for(&charge.terms);
            let rejection = Rejection::exceeds_capacity_of(&label, cost);
            return Check::from(apply_shadow(&label, Err(rejection)));
        }
        let decision = move |reply: Reply| Decision::new(capacity, &reply.first(), reply.source);
        let request = Request::Decide(Calls::one(DecideOp::Peek, OneOrMany::One(charge)));
        if !self.backend.is_shared(policy) {
            return Check::from(Ok(decision(self.backend.execute_here(&request))));
        }
        let lease = self.leases_of(limit).cloned();
        let lease = lease.map(|leases| (leases, self.backend.key_id(limit.terms(), key)));
        let backend = Arc::clone(&self.backend);
        let terms = *limit.terms();
        Check::boxed(async move {
            let reply = backend.execute(policy, request).await;
            let mut reply = reply.map_err(|error| Rejection::unavailable_by(&label, error))?;
            if let Some((leases, key_id)) = lease {
                // The leased units that this process holds are left as well.
                let (mut outcome, held) = (reply.first(), leases.spendable(key_id, &terms));
                outcome.remaining = outcome.remaining.saturating_add(held).min(capacity);
                if cost > 0 && held >= cost {
                    (outcome.verdict, outcome.retry_us) = (Verdict::Admitted, 0);
                }
                reply = Reply::one(outcome, reply.source);
            }
            Ok(decision(reply))
        })
    }

    /// Gives back units that were charged under `limit`.
    pub(crate) fn give_back(
        &self,
        op: Op,
        limit: &Limit,
        key: &dyn Key,
        cost: u32,
    ) -> Answer<Decision> {
        let limit = &self.under_rules(&Part::of(limit, key, 0)).limit;
        let (backend, policy) = (Arc::clone(&self.backend), limit.policy());
        let charge = self.charge(limit, key, cost);
        let capacity = charge.terms.capacity();
        let decision = move |reply: Reply| Decision::new(capacity, &reply.first(), reply.source);
        let request = Request::GiveBack(op, charge);
        if !self.backend.is_shared(policy) {
            return Answer::ready(Ok(decision(self.backend.execute_here(&request))));
        }
        Answer::pending(async move { backend.execute(policy, request).await.map(decision) })
    }

    /// Gives back units that were charged under `limit` itself at the moment `at`, for tests. Does not fall
    /// back if Redis fails.
    pub(crate) fn return_units(
        &self,
        limit: &Limit,
        key: &dyn Key,
        cost: u32,
        at: u64,
    ) -> Answer<Decision> {
        let (backend, policy) = (Arc::clone(&self.backend), limit.policy());
        let charge = self.backend.charge(*limit.terms(), key, cost);
        let (capacity, source) = (charge.terms.capacity(), self.backend.source());
        let charge = self.backend.address(policy, charge, key);
        let request = Request::GiveBack(Op::Return { at }, charge);
        Answer::pending(async move {
            let reply = backend.give_back(policy, source, request).await?;
            Ok(Decision::new(capacity, &reply.first(), reply.source))
        })
    }

    /// Removes the count of a key, and the leased units of this process. Returns whether the count was there.
    pub(crate) fn reset(&self, limit: &Limit, key: &dyn Key) -> Answer<bool> {
        let limit = &self.under_rules(&Part::of(limit, key, 0)).limit;
        let (policy, charge) = (limit.policy(), self.charge(limit, key, 0));
        let reset = self.backend.reset(policy, charge);
        // Other calls of the count may lease, although this limit does not.
        let leases = self.leases.clone().filter(|_| self.backend.is_shared(policy));
        let Some(leases) = leases else { return reset };
        let key_id = self.backend.key_id(limit.terms(), key);
        Answer::pending(async move {
            // Discards twice, because units can be leased while the reset is pending.
            leases.discard(key_id);
            let result = reset.await;
            leases.discard(key_id);
            result
        })
    }

    /// Closes or opens a key. Leased units of this process go back. Returns whether the key was closed.
    pub(crate) fn close(
        &self,
        limit: &Limit,
        key: &dyn Key,
        opening: OpeningChange,
    ) -> Answer<bool> {
        let limit = &self.under_rules(&Part::of(limit, key, 0)).limit;
        let (policy, charge) = (limit.policy(), self.charge(limit, key, 0));
        let key_id = self.backend.key_id(limit.terms(), key);
        // The backend gives back the leases with the key id that it closes. A lease of a sliding window has another key
        // id than its count, whose period is longer.
        let others = self.leases_of(limit).filter(|_| key_id != charge.key_id).cloned();
        let answer = self.backend.close(policy, charge, opening);
        let Some(leases) = others else { return answer };
        Answer::pending(async move {
            leases.give_back(key_id);
            let result = answer.await;
            // Units can be leased while the request is pending.
            leases.give_back(key_id);
            result
        })
    }

    /// Returns the charge of units of a count.
    fn charge(&self, limit: &Limit, key: &dyn Key, cost: u32) -> Arc<Charge> {
        let charge = self.backend.charge(self.counted(limit), key, cost);
        self.backend.address(limit.policy(), charge, key)
    }
}
