//! Calls whose charges can be settled.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::future::conclude;
use super::permit::{KeptTerms, MadeCharge, PermitCharge};
use super::several::SeveralCharges;
use super::{Check, Checker, Part, Permit};
use crate::algorithm::{OpeningChange, match_algorithm, with_state};
use crate::key::Key;
use crate::limit::{Limit, LimitLabel, Policy};
use crate::reply::{Decision, Rejection, Source, StoreError};
use crate::report::{self, Report, Started};
use crate::settle::Settlements;
use crate::store::embedded::LocalCharge;
use crate::store::{Charge, OneOrMany, Reply, Request};

/// The future of [`RateLimiter::acquire`](crate::RateLimiter::acquire). Resolves to `Result<Permit, Rejection>`.
#[must_use = "futures do nothing unless polled"]
pub struct Acquire(AcquireStage<Permit>);

/// The future of [`RateLimiter::acquire_all`](crate::RateLimiter::acquire_all). Resolves to
/// `Result<Vec<Permit>, Rejection>`.
#[must_use = "futures do nothing unless polled"]
pub struct AcquireAll(AcquireStage<Vec<Permit>>);

enum AcquireStage<T> {
    Ready(Option<Result<T, Rejection>>),
    Pending(Pin<Box<dyn Future<Output = Result<T, Rejection>> + Send>>),
}

/// A call with its charges, before the decision.
struct AcquiredCall {
    report: Report,
    labels: OneOrMany<LimitLabel>,
    charges: OneOrMany<Arc<Charge>>,
    policy: Policy,
    settlements: Arc<Settlements>,
}

impl Checker {
    /// Checks a call against one limit, under the rules in force. If this process decides it at once, no request is
    /// made, and the permit keeps `terms`, those of the limit.
    #[inline]
    pub(crate) fn acquire(
        &self,
        limit: &Limit,
        key: &impl Key,
        cost: u32,
        terms: impl FnOnce() -> KeptTerms,
    ) -> Acquire {
        if self.rules.may_apply(limit) || limit.max_wait().is_some() {
            return self.acquire_one_under_rules(Part::of(limit, key, cost));
        }
        if self.backend.is_shared(limit.policy()) || cost > limit.capacity() || limit.leases() {
            return self.acquire_by_request(limit, key, cost);
        }
        let (started, key_id) = (Started::now(), self.backend.key_id(limit.terms(), key));
        let charge = LocalCharge { key_id, terms: limit.terms(), cost };
        let (outcome, receipt) =
            with_state!(limit.algorithm(), S => self.backend.local().acquire_as::<S>(charge));
        let charge = || PermitCharge {
            settlements: Arc::clone(&self.settlements),
            made: MadeCharge::Here { key_id, terms: terms() },
            cost,
            charged: cost,
            receipt,
            opening: OpeningChange::None,
        };
        if outcome.is_allowed() && !report::is_observed() {
            let decision = Decision::new(limit.capacity(), &outcome, Source::Embedded);
            return Acquire(AcquireStage::Ready(Some(Ok(Permit::new(decision, Some(charge()))))));
        }
        let check = self.check_decided(started, limit, key, cost, Some(&outcome));
        let permit = |decision| Permit::new(decision, outcome.is_allowed().then(charge));
        let result = check.now(|| limit.label()).map(permit);
        Acquire(AcquireStage::Ready(Some(result)))
    }

    /// Checks a call against one limit that has rules or waits.
    pub(crate) fn acquire_one_under_rules<K: Key + ?Sized>(&self, part: Part<'_, K>) -> Acquire {
        let AcquireAll(permits) = self.acquire_under_rules(&[part]);
        Acquire(AcquireStage::Pending(Box::pin(async move {
            permits.await.map(|mut permits| permits.remove(0))
        })))
    }

    /// Checks a call against one limit, by a request.
    #[inline(never)]
    fn acquire_by_request(&self, limit: &Limit, key: &dyn Key, cost: u32) -> Acquire {
        let (policy, report) = (limit.policy(), Report::start());
        if limit.leases() {
            return Acquire::uncharged(Check::failed(report, limit.label(), StoreError::Leased));
        }
        let charge = self.backend.charge(limit.terms().clone(), key, cost);
        let (label, reports) = (limit.label(), self.backend.reports());
        let report = report.with_key(reports, &charge.terms, key, || charge.key_id);
        if cost > charge.terms.capacity() {
            let rejection = Rejection::exceeds_capacity_of(&label, cost);
            return Acquire::uncharged(Check::rejected(Some(report), label, rejection));
        }
        if limit.max_wait().is_none()
            && !limit.is_shadow()
            && let Some(reply) = self.backend.cached_rejection(&charge)
        {
            let check = Check::decided(report, &label, &reply.first(), reply.source);
            return Acquire::uncharged(check);
        }
        let charges = OneOrMany::One(self.backend.address(policy, charge, key));
        let (labels, settlements) = (OneOrMany::One(label), Arc::clone(&self.settlements));
        let call = AcquiredCall { report, labels, charges, policy, settlements };
        Acquire(self.start(limit, call, |call, reply| {
            let mut permits = call.conclude(reply)?;
            Ok(permits.remove(0))
        }))
    }

    /// Checks a call against several limits, under the rules in force.
    pub(crate) fn acquire_all<K: Key + ?Sized>(&self, parts: &[Part<'_, K>]) -> AcquireAll {
        if self.has_rules_or_waits(parts) {
            return self.acquire_under_rules(parts);
        }
        self.acquire_all_as_written(parts)
    }

    /// Checks a call against several limits as they are.
    pub(super) fn acquire_all_as_written<K: Key + ?Sized>(
        &self,
        parts: &[Part<'_, K>],
    ) -> AcquireAll {
        let leased = parts.iter().find(|part| part.limit.leases());
        if let Some(Part { limit, .. }) = leased {
            let check = Check::failed(Report::start(), limit.label(), StoreError::Leased);
            return AcquireAll::uncharged(check, parts.len());
        }
        let SeveralCharges { report, labels, charges, charge_of } = match self.prepare(parts) {
            Ok(prepared) => prepared,
            Err(rejected) => return AcquireAll::uncharged(*rejected, parts.len()),
        };
        let (first, settlements) = (parts[0].limit, Arc::clone(&self.settlements));
        let policy = first.policy();
        let call = AcquiredCall { report, labels, charges, policy, settlements };
        let costs: Vec<u32> = parts.iter().map(|part| part.cost).collect();
        AcquireAll(self.start(first, call, move |call, reply| {
            let mut permits = call.conclude(reply)?;
            // Parts of one count have one charge.
            Ok(charge_of
                .iter()
                .zip(costs)
                .map(|(index, cost)| permits[*index].part(cost))
                .collect())
        }))
    }

    /// Starts the decision of a call. `finish` makes the permits from the reply.
    fn start<T>(
        &self,
        limit: &Limit,
        call: AcquiredCall,
        finish: impl FnOnce(AcquiredCall, Result<Reply, StoreError>) -> Result<T, Rejection>
        + Send
        + 'static,
    ) -> AcquireStage<T> {
        let policy = call.policy;
        if let Some(wait) = limit.max_wait() {
            let (waiting, charges) = (Arc::clone(&self.waiting), call.charges.clone());
            return AcquireStage::Pending(Box::pin(async move {
                let reply = waiting.admit(policy, charges, wait, true).await;
                finish(call, reply)
            }));
        }
        let request = Request::Acquire(call.charges.clone());
        if let Some(reply) = self.backend.execute_locally(policy, &request) {
            return AcquireStage::Ready(Some(finish(call, Ok(reply))));
        }
        let backend = Arc::clone(&self.backend);
        AcquireStage::Pending(Box::pin(async move {
            let reply = backend.execute(policy, request).await;
            finish(call, reply)
        }))
    }
}

impl AcquiredCall {
    /// Reports the decision. Returns a permit for each charge.
    fn conclude(self, reply: Result<Reply, StoreError>) -> Result<Vec<Permit>, Rejection> {
        let Self { report, labels, charges, policy, settlements } = self;
        let decided = reply.as_ref().ok().cloned();
        let decision = conclude(report, &labels, reply)?;
        let Some(Reply { outcomes, receipts, source }) = decided else {
            return Ok(charges.iter().map(|_| Permit::new(decision, None)).collect());
        };
        let permit = |(index, charge): (usize, &Arc<Charge>)| {
            let decision = outcomes
                .get(index)
                .map_or(decision, |outcome| Decision::new(labels[index].capacity, outcome, source));
            let charge = receipts.get(index).map(|receipt| PermitCharge {
                settlements: Arc::clone(&settlements),
                made: MadeCharge::ByRequest { charge: Arc::clone(charge), policy, source },
                cost: charge.cost,
                charged: settlements.charged_by(source, charge),
                receipt: *receipt,
                opening: OpeningChange::None,
            });
            Permit::new(decision, charge)
        };
        Ok(charges.iter().enumerate().map(permit).collect())
    }
}

impl<T: Unpin> AcquireStage<T> {
    fn now(mut self, label: impl FnOnce() -> LimitLabel) -> Result<T, Rejection> {
        match Pin::new(&mut self).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => result,
            Poll::Pending => Err(Rejection::unavailable_by(&label(), StoreError::NotLocal)),
        }
    }
}

impl<T: Unpin> Future for AcquireStage<T> {
    type Output = Result<T, Rejection>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Self::Ready(result) => Poll::Ready(result.take().expect("polled after it was ready")),
            Self::Pending(pending) => pending.as_mut().poll(context),
        }
    }
}

impl Acquire {
    /// Creates the future of a call that is rejected without a charge, or that a shadow admits without one.
    pub(crate) fn uncharged(check: Check) -> Self {
        Self(AcquireStage::Pending(Box::pin(async move {
            check.await.map(|decision| Permit::new(decision, None))
        })))
    }

    /// Returns the result of a call that this process decides.
    pub(crate) fn now(self, label: impl FnOnce() -> LimitLabel) -> Result<Permit, Rejection> {
        self.0.now(label)
    }
}

impl AcquireAll {
    pub(super) fn pending(
        permits: impl Future<Output = Result<Vec<Permit>, Rejection>> + Send + 'static,
    ) -> Self {
        Self(AcquireStage::Pending(Box::pin(permits)))
    }

    /// Creates the future of a call with `parts` parts, as [`Acquire::uncharged`] does.
    pub(crate) fn uncharged(check: Check, parts: usize) -> Self {
        Self(AcquireStage::Pending(Box::pin(async move {
            let decision = check.await?;
            Ok((0..parts).map(|_| Permit::new(decision, None)).collect())
        })))
    }

    /// Returns the result of a call that this process decides.
    pub(crate) fn now(self, label: impl FnOnce() -> LimitLabel) -> Result<Vec<Permit>, Rejection> {
        self.0.now(label)
    }
}

impl Future for Acquire {
    type Output = Result<Permit, Rejection>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl Future for AcquireAll {
    type Output = Result<Vec<Permit>, Rejection>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").finish_non_exhaustive()
    }
}

impl fmt::Debug for AcquireAll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquireAll").finish_non_exhaustive()
    }
}
