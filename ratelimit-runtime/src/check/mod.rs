//! Checks: one call against one limit or several.
//!
//! A call that this process decides at once takes the fast path: no request, no allocation. Any other call becomes
//! a [`Request`] to the backend, in one boxed future.

mod acquire;
mod fast;
mod future;
mod judge;
mod part;
mod permit;
mod ruled;
mod ruled_wait;
mod several;

use std::sync::Arc;
use std::time::Duration;

pub use self::acquire::{Acquire, AcquireAll};
pub use self::future::{Check, TryCheck};
pub use self::part::Part;
pub(crate) use self::part::WrittenAmounts;
pub(crate) use self::permit::KeptTerms;
pub use self::permit::Permit;
use crate::algorithm::{Op, OpeningChange, Outcome, Verdict};
use crate::backend::Backend;
use crate::key::Key;
use crate::lease::Leases;
use crate::limit::{Limit, LimitLabel, Terms};
use crate::reply::{Answer, Decision, Rejection, Source, StoreError};
use crate::report::{Report, Started};
use crate::rules::{Access, RulesInForce};
use crate::settle::Settlements;
use crate::store::{OneOrMany, Reply, Request};
use crate::waiting::Waiting;

/// The parts of a limiter that a check needs.
#[derive(Clone)]
pub(crate) struct Checker {
    pub(crate) backend: Arc<Backend>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) waiting: Arc<Waiting>,
    pub(crate) settlements: Arc<Settlements>,
    pub(crate) rules: Arc<RulesInForce>,
}

impl Checker {
    /// Checks a call at once, without waiting. Fails if Redis counts the limit.
    pub(crate) fn check_now(
        &self,
        limit: &Limit,
        key: &impl Key,
        cost: u32,
    ) -> Result<Decision, Rejection> {
        let check = if self.backend.is_shared(limit.policy()) {
            Check::failed(Report::start(), limit.label(), StoreError::NotLocal)
        } else if limit.policy().wait().is_some() {
            self.check(&limit.clone().without_wait(), key, cost)
        } else {
            self.check(limit, key, cost)
        };
        check.now(|| limit.label())
    }

    /// Completes the check of a call that is observed, or whose rejection is reported. Checks all other calls.
    #[inline(never)]
    fn check_slow(
        &self,
        started: Started,
        limit: &Limit,
        key: &dyn Key,
        cost: u32,
        outcome: Option<&Outcome>,
    ) -> Check {
        let Some(outcome) = outcome else {
            if self.rules.may_apply(limit) || limit.max_wait().is_some() {
                return self.check_under_rules(&[Part::of(limit, key, cost)]);
            }
            return self.check_by_request(limit, key, cost);
        };
        let label = limit.label();
        let mut report = Report::since(started);
        if !outcome.is_allowed() {
            let key_id = || self.backend.key_id(limit.terms(), key);
            report = report.with_key(self.backend.reports(), limit.terms(), key, key_id);
        }
        Check::decided(report, &label, outcome, Source::Embedded)
    }

    /// Checks a call that waits, is leased, costs too much, or is decided by Redis.
    fn check_by_request(&self, limit: &Limit, key: &dyn Key, cost: u32) -> Check {
        let (policy, report) = (limit.policy(), Report::start());
        let is_leased = self.is_leased(limit);
        // The lease of a count has the key id under the terms of the limit, not under the terms of the lease.
        let lease_id = is_leased.then(|| self.backend.key_id(limit.terms(), key));
        if let Some(decision) =
            lease_id.and_then(|key_id| self.leases.spend(key_id, limit.terms(), cost))
        {
            return Check::spent(report, || limit.label(), &decision);
        }
        let mut charge = self.backend.charge(self.counted(limit), key, cost);
        let (mut label, shadow) = (limit.label_for(&charge.terms), limit.is_shadow());
        let reports = self.backend.reports();
        let report = report.with_key(reports, &charge.terms, key, || charge.key_id);
        if cost > charge.terms.capacity() {
            let rejection = Rejection::exceeds_capacity_of(&label, cost);
            return Check::rejected(Some(report), label, rejection);
        }
        if limit.max_wait().is_none()
            && !shadow
            && let Some(reply) = self.backend.cached_rejection(&charge)
        {
            return Check::decided(report, &label, &reply.first(), reply.source);
        }
        // A call that the process rejects by itself does not make its key busy.
        let lease_id = lease_id.filter(|key_id| self.leases.serves(limit, *key_id, cost));
        if lease_id.is_some() && limit.leases_busy_keys() {
            charge = self.backend.charge(limit.terms().leased(), key, cost);
            label = limit.label_for(&charge.terms);
        }
        let charge = self.backend.address(policy, charge, key);
        let labels = OneOrMany::One(label);
        if let Some(wait) = limit.max_wait() {
            let waiting = Arc::clone(&self.waiting);
            return Check::pending(report, labels, move || {
                waiting.admit(policy, OneOrMany::One(charge), wait, false)
            });
        }
        if let Some(key_id) = lease_id {
            let call = self.leases.call(limit, key_id, charge);
            return Check::pending(report, labels, move || call.decide());
        }
        let backend = Arc::clone(&self.backend);
        Check::pending(report, labels, move || async move {
            backend.execute(policy, Request::decide(charge)).await
        })
    }

    /// Rejects a call that is closed by its amounts or by a rule, for `retry_after`, or `Duration::MAX` without an end.
    pub(crate) fn reject_closed<K: Key + ?Sized>(
        &self,
        limit: &Limit,
        key: &K,
        retry_after: Duration,
    ) -> Check {
        let key_id = || self.backend.key_id(limit.terms(), key);
        let report = Report::start();
        let report = report.with_key(self.backend.reports(), limit.terms(), &key, key_id);
        let rejection = Rejection::closed_without_count(limit, retry_after);
        Check::rejected(Some(report), limit.label(), rejection)
    }

    /// Peeks at the decision about a call.
    pub(crate) fn peek(&self, limit: &Limit, key: &dyn Key, cost: u32) -> Check {
        let ruled = self.under_rules(&Part::of(limit, key, cost));
        let limit = &ruled.limit;
        match ruled.access {
            Access::Limited => {}
            Access::Exempt => return Check::unlimited(),
            Access::Closed => {
                let rejection = Rejection::closed_without_count(limit, self.closed_for(&ruled));
                return Check::rejected(
                    None,
                    LimitLabel { shadow: true, ..limit.label() },
                    rejection,
                );
            }
        }
        let policy = limit.policy();
        let charge = self.backend.charge(self.counted(limit), key, cost);
        let label = limit.label_for(&charge.terms);
        if cost > charge.terms.capacity() {
            let rejection = Rejection::exceeds_capacity_of(&label, cost);
            return Check::rejected(None, label, rejection);
        }
        let charge = self.backend.address(policy, charge, key);
        let request = Request::Apply(Op::Peek, OneOrMany::One(charge));
        if let Some(reply) = self.backend.execute_locally(policy, &request) {
            return Check::peeked(&label, &reply.first(), reply.source);
        }
        let lease_id = self.is_leased(limit).then(|| self.backend.key_id(limit.terms(), key));
        let (backend, leases) = (Arc::clone(&self.backend), Arc::clone(&self.leases));
        let (capacity, terms) = (label.capacity, limit.terms().clone());
        Check::pending_peek(label, move || async move {
            let reply = backend.execute(policy, request).await?;
            let Some(key_id) = lease_id else { return Ok(reply) };
            // The leased units that this process holds are left as well.
            let (mut outcome, held) = (reply.first(), leases.spendable(key_id, &terms));
            outcome.remaining = outcome.remaining.saturating_add(held).min(capacity);
            if cost > 0 && held >= cost {
                (outcome.verdict, outcome.retry_us) = (Verdict::Admitted, 0);
            }
            Ok(Reply::one(outcome, reply.source))
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
        let charge = self.backend.charge(self.counted(limit), key, cost);
        let capacity = charge.terms.capacity();
        let decision = move |reply: Reply| Decision::new(capacity, &reply.first(), reply.source);
        let request = Request::give_back(op, self.backend.address(policy, charge, key));
        if let Some(reply) = self.backend.execute_locally(policy, &request) {
            return Answer::ready(Ok(decision(reply)));
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
        let charge = self.backend.charge(limit.terms().clone(), key, cost);
        let (capacity, source) = (charge.terms.capacity(), self.backend.source());
        let charge = self.backend.address(policy, charge, key);
        let request = Request::give_back(Op::Return { at }, charge);
        Answer::pending(async move {
            let reply = backend.give_back(policy, source, request).await?;
            Ok(Decision::new(capacity, &reply.first(), reply.source))
        })
    }

    /// Removes the count of a key, and the leased units of this process. Returns whether the count was there.
    pub(crate) fn reset(&self, limit: &Limit, key: &dyn Key) -> Answer<bool> {
        let limit = &self.under_rules(&Part::of(limit, key, 0)).limit;
        let policy = limit.policy();
        let charge = self.backend.charge(self.counted(limit), key, 0);
        let charge = self.backend.address(policy, charge, key);
        let reset = self.backend.reset(policy, charge);
        // Other calls of the count may lease, although this limit does not.
        if !self.backend.is_shared(policy) {
            return reset;
        }
        let (leases, key_id) = (Arc::clone(&self.leases), self.backend.key_id(limit.terms(), key));
        Answer::pending(async move {
            // Discards twice, because units can be leased while the reset is in flight.
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
        let policy = limit.policy();
        let charge = self.backend.charge(self.counted(limit), key, 0);
        let charge = self.backend.address(policy, charge, key);
        let (leases, key_id) = (Arc::clone(&self.leases), self.backend.key_id(limit.terms(), key));
        // The backend gives back the leases with the key id that it closes. A lease of a sliding window has another key
        // id than its count, whose period is longer.
        let is_given_back = key_id == charge.key_id || !self.is_leased(limit);
        let answer = self.backend.close(policy, charge, opening);
        if is_given_back {
            return answer;
        }
        Answer::pending(async move {
            leases.give_back(key_id);
            let result = answer.await;
            // Units can be leased while the request is in flight.
            leases.give_back(key_id);
            result
        })
    }

    /// Returns whether units of this limit are leased: none of one that waits, also if a rule makes it a shadow,
    /// because leases count separately.
    fn is_leased(&self, limit: &Limit) -> bool {
        limit.leases() && limit.policy().wait().is_none() && self.backend.is_shared(limit.policy())
    }

    /// Returns the terms under which the store counts a call that no lease decides.
    pub(crate) fn counted(&self, limit: &Limit) -> Terms {
        if self.is_leased(limit) { limit.counted_beside_leases() } else { limit.terms().clone() }
    }
}
