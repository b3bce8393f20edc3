//! The decision of a call: its counts, the lease, the line or the store that decides it, and what the caller receives
//! and reports observe of the reply.

use std::borrow::Borrow;
use std::cmp::Reverse;
use std::iter;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::permit::PermitCharge;
use super::{AnyPart, Checker, Part, Permit, expect};
use crate::algorithm::{BlockChange, Op, Outcome, Verdict};
use crate::backend::{Backend, ChargedCount, MergedCounts};
use crate::background::BoxedWork;
use crate::key::OwnedKey;
use crate::lease::LeaseTarget;
use crate::limit::{Limit, Policy};
use crate::one_or_many::OneOrMany;
use crate::owner::ended;
use crate::reply::{BuildError, Decision, Mistake, Rejection, Source, StoreError};
use crate::report::{self, Report, Started};
use crate::store::{Calls, Charge, Reply};

/// The reply to a call that has waited, and when the call has started.
pub(super) type LineReply = (Started, Result<Reply, StoreError>);

/// Decides a call.
pub(super) type BoxedCall = BoxedWork<CallResult>;

/// A call that was started.
pub(crate) type StartedCall = CallFuture<AdmittedCall>;

/// The result of a call that was admitted.
pub struct AdmittedCall {
    pub(crate) decision: Decision,
    /// A permit for each part of the call, if its charges can be settled.
    pub(crate) permits: Vec<Permit>,
    /// Whether the call was charged before: see [`Limit::once`].
    pub(super) is_repeated: bool,
}

pub(super) type CallResult = Result<AdmittedCall, Rejection>;

/// The rejection of a call that no store decides, before it is reported.
pub(super) struct Refusal {
    pub(super) report: Report,
    pub(super) limit: Limit,
    pub(super) rejection: Rejection,
}

/// A call with its counts, which borrows nothing.
struct CountedCall {
    backend: Arc<Backend>,
    report: Report,
    policy: Policy,
    /// The limit of each count.
    limits: OneOrMany<Limit>,
    charges: OneOrMany<Arc<Charge>>,
    /// The index of the count and the cost of each part. Empty if there is one part.
    parts: Vec<(usize, u64)>,
    /// Whether the charges can be settled.
    settles: bool,
    /// Whether the charges of this call are reported (see [`Limit::notify_at`]). Those of a lease are reported before.
    notifies: bool,
}

/// A call that resolves to a `T` if it is admitted.
pub enum CallFuture<T> {
    /// The rejection is in a box, so that an admission is not copied with the room for one (`benches/all -- embedded`).
    Decided(Option<Result<T, Box<Rejection>>>),
    Pending(BoxedCall),
}

impl<T: From<AdmittedCall> + Unpin> Future for CallFuture<T> {
    type Output = Result<T, Rejection>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Self::Decided(result) => {
                let result = result.take().expect("polled after it was ready");
                Poll::Ready(result.map_err(|rejection| *rejection))
            }
            Self::Pending(call) => call.as_mut().poll(context).map_ok(T::from),
        }
    }
}

impl<T: From<AdmittedCall>> CallFuture<T> {
    pub(crate) fn decided(result: Result<T, Rejection>) -> Self {
        Self::Decided(Some(result.map_err(Box::new)))
    }

    /// Returns this call, which then resolves to another value.
    pub(crate) fn map<U>(self, convert: impl FnOnce(T) -> U) -> CallFuture<U> {
        match self {
            Self::Decided(result) => CallFuture::Decided(result.map(|result| result.map(convert))),
            Self::Pending(call) => CallFuture::Pending(call),
        }
    }

    /// Returns the result. If the call is pending, blocks this thread until it is decided.
    pub(crate) fn blocking(
        self,
        backend: &Backend,
        limit: impl FnOnce() -> Limit,
    ) -> Result<T, Rejection> {
        match self {
            Self::Decided(result) => {
                let result = result.expect("a call that was not polled has its result");
                result.map_err(|rejection| *rejection)
            }
            Self::Pending(call) => {
                let result = backend.background.block_on(call);
                result
                    .unwrap_or_else(|| Err(Rejection::unavailable(&limit(), ended())))
                    .map(T::from)
            }
        }
    }
}

impl StartedCall {
    /// Creates a call that `decide` decides, in a runtime if it needs one.
    pub(super) fn boxed<F: Future<Output = CallResult> + Send + 'static>(
        backend: &Arc<Backend>,
        decide: impl FnOnce() -> F + Send + 'static,
    ) -> Self {
        Self::Pending(Box::pin(Arc::clone(backend).run(decide)))
    }

    /// Creates the admission of a call whose `parts` parts have no limit.
    pub(super) fn unlimited(settles: bool, parts: usize) -> Self {
        Self::decided(Ok(AdmittedCall::uncharged(Decision::unlimited(), settles, parts)))
    }
}

impl AdmittedCall {
    /// Creates the result of a call of `parts` parts that charged nothing.
    pub(super) fn uncharged(decision: Decision, settles: bool, parts: usize) -> Self {
        let permits = if settles { parts } else { 0 };
        let permits = (0..permits).map(|_| Permit::new(decision, None)).collect();
        Self { decision, permits, is_repeated: false }
    }
}

impl Checker {
    /// Decides a call by its limits as they are. If it has waited, the reply to its line decides it.
    pub(super) fn decide_as_written(
        &self,
        parts: &[AnyPart<'_>],
        settles: bool,
        line: Option<LineReply>,
    ) -> StartedCall {
        if let [part] = parts
            && !settles
            && let Some(decision) = self.leases.spend(part.limit, part.key, part.cost)
        {
            return StartedCall::decided(Ok(decision.into()));
        }
        let (backend, (started, line)) = (&self.backend, line.unzip());
        let mut call = match CountedCall::new(backend, parts, settles, started) {
            Ok(call) => call,
            Err(refusal) => return refusal.into_call(settles, parts.len()),
        };
        let decided = |call: CountedCall, reply| {
            StartedCall::decided(call.conclude(&reply, |index, _| OwnedKey::of(parts[index].key)))
        };
        if line.is_none()
            && let ([limit], [charge]) = (&*call.limits, &*call.charges)
            && !limit.policy().shadow
            && let Some(rejection) = backend.cached_rejection(charge)
        {
            return decided(call, Ok(rejection));
        }
        // Asked after the rejection cache: a call that the process rejects by itself does not make its key busy.
        if let [Part { limit, key, cost, .. }] = *parts
            && !settles
            && let Some(lease_id) = self.leases.serving(limit, key, cost)
        {
            if limit.leases_busy_keys() {
                let terms = limit.terms().leased();
                let count = ChargedCount::under(terms, limit, key, cost, backend);
                call.limits = OneOrMany::from([limit.charged_under(&terms)]);
                call.charges = OneOrMany::from([count.address(backend)]);
            }
            let target = LeaseTarget::new(limit, Arc::clone(&call.charges[0]));
            let leases = Arc::clone(&self.leases);
            call.notifies = false;
            return call.pending(move || leases.decide(lease_id, target));
        }
        let (policy, op) = (call.policy, Op::Take { wait: 0, receipt: settles });
        let calls = Calls::one(op, call.charges.clone());
        let reply = match line {
            Some(Err(error)) if error != StoreError::ShuttingDown => {
                // No store has decided the call: its deadline has passed, or its line could not be driven.
                backend.fall_back(policy, &calls, error)
            }
            Some(reply) => reply,
            None if !backend.is_shared(policy.scope) => Ok(backend.execute_here(&calls)),
            None => {
                let backend = Arc::clone(backend);
                return call.pending(move || async move { backend.execute(policy, &calls).await });
            }
        };
        decided(call, reply)
    }
}

impl CountedCall {
    /// Returns a call with its counts, or why no store decides it.
    fn new<'a>(
        backend: &Arc<Backend>,
        parts: &[AnyPart<'a>],
        settles: bool,
        started: Option<Started>,
    ) -> Result<Self, Box<Refusal>> {
        let report = Report::since(started.unwrap_or_else(Started::now));
        let mistake =
            |report, limit, mistake| Err(Box::new(Refusal::mistake(report, limit, mistake)));
        let held = parts.iter().find(|part| !settles && part.limit.is_in_flight());
        if let Some(Part { limit, .. }) = held {
            return mistake(report, limit, Mistake::NeedsPermit);
        }
        let leased = parts.iter().find(|part| settles && part.limit.leases());
        if let Some(Part { limit, .. }) = leased {
            return mistake(report, limit, Mistake::Leased);
        }
        expect(parts);
        let count = |part: &AnyPart<'a>| backend.count(part.limit, part.key, part.cost);
        let MergedCounts { counts, count_of } = match MergedCounts::of(&mut parts.iter().map(count))
        {
            Ok(merged) => merged,
            Err(shared) => {
                let name = shared.terms().identity.name;
                return mistake(report, shared, Mistake::SharedCount { name });
            }
        };
        let keys = counts.iter().map(|it| (&it.charge.terms, it.charge.key_id, it.key));
        let report = report.with_keys(&backend.settings.reports, keys);
        let is_too_large = |it: &ChargedCount<'_>| it.charge.cost > it.charge.terms.capacity;
        if let Some(index) = counts.iter().position(is_too_large) {
            let ChargedCount { limit, charge, .. } = &counts[index];
            let (limit, report) = (limit.charged_under(&charge.terms), report.about(index));
            let rejection = Rejection::cost_exceeds_capacity(&limit, charge.cost);
            return Err(Box::new(Refusal { report, limit, rejection }));
        }
        let policy = parts[0].limit.policy();
        let limits = counts.iter().map(|it| it.limit.charged_under(&it.charge.terms)).collect();
        let charges: OneOrMany<_> = counts.into_iter().map(|it| it.address(backend)).collect();
        let costs = parts.iter().map(|part| part.cost);
        let parts = count_of.into_iter().zip(costs).collect();
        let backend = Arc::clone(backend);
        Ok(Self { backend, report, policy, limits, charges, parts, settles, notifies: true })
    }

    /// Decides the call by `decide`, which is called inside the box. Saves a copy of the future that it returns.
    fn pending<F: Future<Output = Result<Reply, StoreError>> + Send>(
        self,
        decide: impl FnOnce() -> F + Send + 'static,
    ) -> StartedCall {
        let backend = Arc::clone(&self.backend);
        StartedCall::boxed(&backend, || async move {
            let reply = decide().await;
            self.conclude(&reply, |_, charge| OwnedKey::in_count_name(&charge.count_name))
        })
    }

    /// Makes the permits, and reports the decision. If a count rejects the call, `key` returns its key: it receives the
    /// index of a part with this count, and the charge.
    fn conclude(
        self,
        reply: &Result<Reply, StoreError>,
        key: impl Fn(usize, &Charge) -> OwnedKey,
    ) -> CallResult {
        let outcomes = reply.as_ref().map(|reply| (&*reply.outcomes, reply.source));
        // First the permits: if a recorder of the report panics, they release what they hold.
        let permits = reply.as_ref().map(|reply| self.permits(reply));
        let Self { backend, report, limits, charges, parts, settles, notifies, .. } = self;
        let key = |index: usize| {
            let part = parts.iter().position(|(of, _)| *of == index).unwrap_or(index);
            key(part, &charges[index])
        };
        let is_repeated = outcomes.as_ref().is_ok_and(|(it, _)| is_repeated(&limits, it));
        let decision = conclude(report, &limits, outcomes, is_repeated, |index| {
            let (limit, charge) = (&limits[index], &charges[index]);
            let key_id = charge.key_id.under(&charge.terms.identity, &limit.terms().identity);
            backend.count_rejection(limit, key_id, backend.clock().local(), || key(index));
        })?;
        // A fallback does not know what the fleet has used.
        if let Ok((outcomes, source)) = outcomes
            && source != Source::Fallback
            && notifies
            && outcomes.iter().all(Outcome::is_allowed)
        {
            for (index, (limit, charge)) in limits.iter().zip(&*charges).enumerate() {
                backend.notify(limit.policy(), charge, &outcomes[index], || key(index));
            }
        }
        // Without a reply, nothing was charged.
        let uncharged =
            |_| AdmittedCall::uncharged(decision, settles, parts.len().max(charges.len()));
        let admitted = |permits| AdmittedCall { decision, permits, is_repeated };
        Ok(permits.map_or_else(uncharged, admitted))
    }

    /// Returns a permit for each part, if the charges can be settled.
    fn permits(&self, reply: &Reply) -> Vec<Permit> {
        let Self { backend, policy, charges, parts, settles, .. } = self;
        if !settles {
            return Vec::new();
        }
        let Reply { outcomes, receipts, source, .. } = reply;
        let source = *source;
        let permit = |(index, charge): (usize, &Arc<Charge>)| {
            let capacity = charge.terms.capacity;
            let decided = |outcome| Decision::new(capacity, outcome, source);
            let charge = receipts.get(index).map(|receipt| {
                let charged = backend.charged_by(source, charge);
                let owner = backend.owner.as_ref().filter(|_| charge.statement.is_some());
                let held = owner.map(|owner| match source {
                    Source::Fallback => owner.take_locally(charge, charged),
                    _ => owner.granted(charge, charged, *receipt),
                });
                PermitCharge {
                    backend: Arc::clone(backend),
                    charge: Arc::clone(charge),
                    scope: policy.scope,
                    source,
                    cost: charge.cost,
                    charged,
                    receipt: *receipt,
                    held: held.map(Box::new),
                    block: BlockChange::None,
                }
            });
            Permit::new(outcomes.get(index).map_or_else(Decision::unlimited, decided), charge)
        };
        let mut permits: Vec<_> = charges.iter().enumerate().map(permit).collect();
        if parts.is_empty() {
            return permits;
        }
        parts.iter().map(|(index, cost)| permits[*index].part(*cost)).collect()
    }
}

impl Refusal {
    /// Creates the refusal of a call with a mistake. A shadow does not hide it.
    pub(super) fn mistake(report: Report, limit: &Limit, mistake: Mistake) -> Self {
        Self { report, limit: limit.shadow(false), rejection: Rejection::mistake(limit, mistake) }
    }

    /// Creates the refusal of a part that an amount of 0 or a rule blocks. `retry_after` is `Duration::MAX` for a block
    /// without an end.
    pub(super) fn blocked(part: &AnyPart<'_>, retry_after: Duration, backend: &Backend) -> Self {
        let AnyPart { limit, key, .. } = *part;
        let (key_id, now) = (backend.key_id(limit.terms(), key), backend.clock().local());
        backend.count_rejection(limit, key_id, now, || OwnedKey::of(key));
        let keys = iter::once((limit.terms(), key_id, key));
        let report = Report::start().with_keys(&backend.settings.reports, keys);
        let rejection = Rejection::blocked_without_count(limit, retry_after);
        Self { report, limit: *limit, rejection }
    }

    /// Reports the rejection. Returns the result that the caller receives.
    pub(super) fn end(self) -> Result<Decision, Rejection> {
        let Self { report, limit, rejection } = self;
        let result = Err(rejection);
        report.end(&limit, &result);
        apply_shadow(&limit, result)
    }

    /// Reports the rejection of a call of `parts` parts.
    pub(super) fn into_call(self, settles: bool, parts: usize) -> StartedCall {
        let admitted = |decision| AdmittedCall::uncharged(decision, settles, parts);
        StartedCall::decided(self.end().map(admitted))
    }
}

/// Reports the reply to a call. `is_repeated` says whether a limit remembers the call. `on_rejected` receives the index
/// of the limit that rejects it. Returns the result that the caller receives.
pub(super) fn conclude(
    report: Report,
    limits: &[impl Borrow<Limit>],
    reply: Result<Outcomes<'_>, &StoreError>,
    is_repeated: bool,
    on_rejected: impl FnOnce(usize),
) -> Result<Decision, Rejection> {
    let limit = |index: usize| -> &Limit { limits[index].borrow() };
    // The limit whose result the caller receives. One that counts once speaks only of a block of its key.
    let spoken = reply.map_or(0, |(outcomes, _)| {
        hardest(outcomes, |index| limit(index).policy().once && !outcomes[index].is_blocked())
    });
    let result_of = |index: usize| match reply {
        Ok((outcomes, source)) if is_repeated => {
            let decision = Decision::new(limit(index).terms().capacity, &outcomes[index], source);
            Ok(Decision { allowed: true, retry_after: Duration::ZERO, ..decision })
        }
        Ok((outcomes, source)) => result_of(limit(index), &outcomes[index], source),
        Err(error) => Err(Rejection::unavailable(limit(index), error.clone())),
    };
    let result = result_of(spoken);
    // Metrics and the log of a web request have each limit.
    if limits.len() > 1 && report::is_recorded() {
        for index in (0..limits.len()).filter(|index| *index != spoken) {
            report.record(limit(index), &result_of(index), result.is_ok());
        }
    }
    if result.as_ref().is_err_and(|rejection| rejection.decided().is_some()) {
        on_rejected(spoken);
    }
    let limit = limit(spoken);
    report.about(spoken).end(limit, &result);
    apply_shadow(limit, result)
}

/// Returns whether a limit remembers the call (see [`Limit::once`]). A blocked key rejects it nevertheless.
fn is_repeated(limits: &[Limit], outcomes: &[Outcome]) -> bool {
    let mut both = limits.iter().zip(outcomes);
    both.any(|(limit, it)| limit.policy().once && it.verdict == Verdict::Rejected)
        && !outcomes.iter().any(Outcome::is_blocked)
}

/// Returns the decision of a call for which there is no limiter. A shadow admits it.
pub(crate) fn undecided(limit: &Limit, error: BuildError) -> Result<Decision, Rejection> {
    let rejection = Rejection::mistake(limit, Mistake::Configuration(error));
    Refusal { report: Report::start(), limit: *limit, rejection }.end()
}

/// The outcomes of a call, and where they were decided.
pub(super) type Outcomes<'a> = (&'a [Outcome], Source);

/// Returns the result of one limit before a shadow admits the call.
fn result_of(limit: &Limit, outcome: &Outcome, source: Source) -> Result<Decision, Rejection> {
    let decision = Decision::new(limit.terms().capacity, outcome, source);
    let (name, quota) = (limit.name(), limit.quota());
    match outcome.verdict {
        Verdict::Admitted => Ok(decision),
        Verdict::Rejected if quota.is_in_flight() => Err(Rejection::busy_by(limit, decision)),
        Verdict::Rejected => Err(Rejection::Limited { name, quota, decision }),
        Verdict::Blocked { .. } => Err(Rejection::Blocked { name, quota, decision }),
    }
}

/// Returns the index of the outcome that is hardest on the caller: the rejection with the longest wait; without a
/// rejection, the outcome with the fewest remaining units; of equal outcomes, the first. Silent outcomes come last.
pub(super) fn hardest(outcomes: &[Outcome], is_silent: impl Fn(usize) -> bool) -> usize {
    let order = |(index, outcome): &(usize, &Outcome)| {
        let allowed = outcome.is_allowed();
        let remaining = if allowed { outcome.remaining } else { 0 };
        (is_silent(*index), allowed, Reverse(outcome.retry_us), remaining)
    };
    outcomes.iter().enumerate().min_by_key(order).map_or(0, |(index, _)| index)
}

/// Returns the result that the caller receives: a shadow admits every call.
pub(super) fn apply_shadow(
    limit: &Limit,
    result: Result<Decision, Rejection>,
) -> Result<Decision, Rejection> {
    match result {
        Err(rejection) if !limit.policy().shadow => Err(rejection),
        Ok(decision)
        | Err(
            Rejection::Limited { decision, .. }
            | Rejection::Blocked { decision, .. }
            | Rejection::Busy { decision, .. },
        ) => Ok(decision),
        Err(Rejection::CostExceedsCapacity { capacity, .. }) => {
            // No wait helps.
            Ok(Decision::rejected_here(capacity, Duration::MAX, Duration::ZERO))
        }
        Err(Rejection::Unavailable { .. } | Rejection::Mistake { .. }) => {
            Ok(Decision::new(limit.terms().capacity, &Outcome::UNDECIDED, Source::Fallback))
        }
    }
}
