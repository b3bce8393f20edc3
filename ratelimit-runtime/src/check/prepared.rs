//! A call that is decided by a request, in a line or by a lease. It is prepared here, in one place: its counts, what
//! reports it, and what decides it.

use std::sync::Arc;

use super::call::{AdmittedCall, CallOptions, CallResult, LineReply};
use super::call::{Refusal, StartedCall, conclude};
use super::permit::SettledParts;
use super::{AnyPart, Checker, Part};
use crate::algorithm::Op;
use crate::backend::{Backend, ChargedCount, MergedCounts};
use crate::lease::LeasedCall;
use crate::limit::{Limit, LimitLabel, Policy};
use crate::one_or_many::OneOrMany;
use crate::reply::{Mistake, Rejection, StoreError};
use crate::report::{self, Report, Started};
use crate::store::{Calls, Charge, Reply};

/// A call with its counts. Borrows the keys.
struct CountedCall<'a> {
    report: Report,
    policy: Policy,
    counted: MergedCounts<'a>,
}

/// A call that borrows nothing, until its reply.
struct PreparedCall {
    report: Report,
    labels: OneOrMany<LimitLabel>,
    /// Makes the permits, if the charges can be settled.
    settled: Option<SettledParts>,
}

/// The counts of a call that is pending, with their limits: if one of them rejects the call, its key is listed.
struct RejectableCounts {
    backend: Arc<Backend>,
    limits: OneOrMany<Limit>,
    charges: OneOrMany<Arc<Charge>>,
}

impl Checker {
    /// Decides a call by its limits as they are. If it has waited, the reply to its line decides it.
    pub(super) fn decide_as_written(
        &self,
        parts: &[AnyPart<'_>],
        options: CallOptions,
        reply: Option<LineReply>,
    ) -> StartedCall {
        if let [part] = parts
            && options == CallOptions::CHECK
            && let Some(decision) = self.leases.spend(part.limit, part.key, part.cost)
        {
            return StartedCall::Decided(Ok(AdmittedCall { decision, permits: Vec::new() }));
        }
        let (started, reply) = reply.unzip();
        let call = match CountedCall::new(self, parts, options, started) {
            Ok(call) => call,
            Err(refusal) => return refusal.into_call(options, parts.len()),
        };
        if reply.is_none()
            && let Some(reply) = call.cached_rejection(&self.backend)
        {
            let CountedCall { report, counted: MergedCounts { counts, .. }, .. } = call;
            let labels: OneOrMany<_> = counts.iter().map(ChargedCount::label).collect();
            let outcomes = Ok((&*reply.outcomes, reply.source));
            let result = conclude(report, &labels, outcomes, |index| {
                let ChargedCount { limit, key, charge, .. } = &counts[index];
                let now = self.backend.clock().local();
                self.backend.count_rejection(limit, charge.key_id, *key, now);
            });
            let admitted = |decision| AdmittedCall::uncharged(decision, options, parts.len());
            return StartedCall::Decided(result.map(admitted));
        }
        self.decide_counted(call, parts, options, reply)
    }

    /// Decides a call with its counts.
    fn decide_counted<'a>(
        &self,
        mut call: CountedCall<'a>,
        parts: &[AnyPart<'a>],
        options: CallOptions,
        reply: Option<Result<Reply, StoreError>>,
    ) -> StartedCall {
        let lease = match parts {
            // Asked after the rejection cache: a call that the process rejects by itself does not make its key busy.
            [part] if !options.settles => self.leases.serving(part.limit, part.key, part.cost),
            _ => None,
        };
        if lease.is_some() && parts[0].limit.leases_busy_keys() {
            let terms = parts[0].limit.terms().leased();
            let Part { limit, key, cost, .. } = parts[0];
            let count = ChargedCount::under(terms, limit, key, cost, &self.backend);
            call.counted.counts = OneOrMany::from([count]);
        }
        let CountedCall { report, policy, counted: MergedCounts { counts, count_of } } = call;
        let owners: OneOrMany<_> = counts.iter().map(|it| (it.limit, it.key)).collect();
        let labels = counts.iter().map(ChargedCount::label).collect();
        let charges = counts.into_iter().map(|it| it.address(&self.backend));
        let charges: OneOrMany<_> = charges.collect();
        let costs = parts.iter().map(|part| part.cost);
        let settled = options.settles.then(|| SettledParts {
            backend: Arc::clone(&self.backend),
            charges: charges.clone(),
            scope: policy.scope(),
            parts: count_of.iter().copied().zip(costs).collect(),
        });
        let rejectable = |charges: &[Arc<Charge>]| RejectableCounts {
            backend: Arc::clone(&self.backend),
            limits: owners.iter().map(|(limit, _)| **limit).collect(),
            charges: charges.into(),
        };
        let call = PreparedCall { report, labels, settled };
        if let (Some((leases, lease_id)), [charge]) = (lease, &*charges) {
            let leased = leases.call(parts[0].limit, lease_id, Arc::clone(charge));
            let rejectable = rejectable(&charges);
            return call.pending(rejectable, move || LeasedCall::decide(leased));
        }
        let op = Op::Take { wait: 0, receipt: options.settles };
        let calls = Calls::one(op, charges);
        let on_rejected = |index: usize| {
            let ((limit, key), charge) = (owners[index], &calls.charges[index]);
            let now = self.backend.clock().local();
            self.backend.count_rejection(limit, charge.key_id, key, now);
        };
        if let Some(reply) = reply {
            let reply = reply.or_else(|error| match error {
                StoreError::ShuttingDown => Err(error),
                // No store has decided the call: its deadline has passed, or its line could not be driven.
                error => self.backend.fall_back(policy, &calls, error),
            });
            return StartedCall::Decided(call.conclude(&reply, on_rejected));
        }
        if !self.backend.is_shared(policy.scope()) {
            let reply = self.backend.execute_here(&calls);
            return StartedCall::Decided(call.conclude(&Ok(reply), on_rejected));
        }
        let (backend, rejectable) = (Arc::clone(&self.backend), rejectable(&calls.charges));
        call.pending(rejectable, move || async move { backend.execute(policy, calls).await })
    }
}

impl<'a> CountedCall<'a> {
    /// Returns the counts of a call, or why no store decides it.
    fn new(
        checker: &Checker,
        parts: &[AnyPart<'a>],
        options: CallOptions,
        started: Option<Started>,
    ) -> Result<Self, Box<Refusal>> {
        let backend = &checker.backend;
        let report = Report::since(started.unwrap_or_else(Started::now));
        let mistake =
            |report, label, mistake| Err(Box::new(Refusal::mistake(report, label, mistake)));
        let first = parts[0].limit;
        let policy = first.policy();
        let held = parts.iter().find(|part| !options.settles && part.limit.is_in_flight());
        if let Some(Part { limit, .. }) = held {
            return mistake(report, limit.label(), Mistake::NeedsPermit);
        }
        let leased = parts.iter().find(|part| options.settles && part.limit.leases());
        if let Some(Part { limit, .. }) = leased {
            return mistake(report, limit.label(), Mistake::Leased);
        }
        let count = |part: &AnyPart<'a>| backend.count(part.limit, part.key, part.cost);
        if parts.len() > 1 {
            for part in parts {
                report::expect(part.limit);
            }
        }
        let counted = match MergedCounts::of(&mut parts.iter().map(count)) {
            Ok(counted) => counted,
            Err(shared) => {
                let name = *shared.terms().name();
                return mistake(report, shared.label(), Mistake::SharedCount { name });
            }
        };
        let counts = &*counted.counts;
        let keys = counts.iter().map(|it| (&it.charge.terms, it.charge.key_id, it.key));
        let report = report.with_keys(backend.reports(), keys);
        let is_too_large = |it: &ChargedCount<'_>| it.charge.cost > it.charge.terms.capacity();
        if let Some(index) = counts.iter().position(is_too_large) {
            let (label, report) = (counts[index].label(), report.about(index));
            let rejection = Rejection::exceeds_capacity_of(&label, counts[index].charge.cost);
            return Err(Box::new(Refusal { report, label, rejection }));
        }
        Ok(Self { report, policy, counted })
    }

    /// Returns a rejection of Redis that still holds for the call.
    fn cached_rejection(&self, backend: &Backend) -> Option<Reply> {
        match &*self.counted.counts {
            [ChargedCount { limit, charge, .. }] if !limit.is_shadow() => {
                backend.cached_rejection(charge)
            }
            _ => None,
        }
    }
}

impl RejectableCounts {
    fn count_rejection(&self, index: usize) {
        let (limit, charge) = (&self.limits[index], &self.charges[index]);
        let key_id = charge.key_id.under(charge.terms.identity(), limit.terms().identity());
        self.backend.count_rejection_of(limit, key_id, &charge.count_name);
    }
}

impl PreparedCall {
    /// Decides the call by `decide`, which is called inside the box. Saves a copy of the future that it returns.
    fn pending<F: Future<Output = Result<Reply, StoreError>> + Send>(
        self,
        rejectable: RejectableCounts,
        decide: impl FnOnce() -> F + Send + 'static,
    ) -> StartedCall {
        let backend = Arc::clone(&rejectable.backend);
        StartedCall::boxed(&backend, || async move {
            let reply = decide().await;
            self.conclude(&reply, |index| rejectable.count_rejection(index))
        })
    }

    /// Reports the decision. Makes the permits.
    fn conclude(
        self,
        reply: &Result<Reply, StoreError>,
        on_rejected: impl FnOnce(usize),
    ) -> CallResult {
        let Self { report, labels, settled } = self;
        let outcomes = match reply {
            Ok(reply) => Ok((&*reply.outcomes, reply.source)),
            Err(error) => Err(error.clone()),
        };
        // First the permits: if a recorder of the report panics, they release what they hold.
        let permits = settled.map(|it| it.permits(&labels, reply.as_ref().ok()));
        let decision = conclude(report, &labels, outcomes, on_rejected)?;
        let mut permits = permits.unwrap_or_default();
        if reply.is_err() {
            for permit in &mut permits {
                permit.decide(decision);
            }
        }
        Ok(AdmittedCall { decision, permits })
    }
}
