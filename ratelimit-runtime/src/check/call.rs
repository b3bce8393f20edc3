//! A call that was started. [`Check`](super::Check) and [`Acquire`](super::Acquire) are its two conclusions.

use std::sync::Arc;
use std::time::Duration;

use super::judge::{Outcomes, apply_shadow, judge, record_others};
use super::{AnyPart, Part, Permit};
use crate::backend::Backend;
use crate::background::BoxedWork;
use crate::limit::{Access, Limit, LimitLabel};
use crate::owner::ended;
use crate::reply::{BuildError, Decision, Mistake, Rejection, StoreError};
use crate::report::{Report, Started};
use crate::rules::Ruled;
use crate::store::Reply;

/// What the caller of a call wants.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct CallOptions {
    /// Whether the charges can be settled.
    pub(crate) settles: bool,
}

/// The result of a call that was admitted.
pub struct AdmittedCall {
    pub(crate) decision: Decision,
    /// A permit for each part of the call, if its charges can be settled.
    pub(crate) permits: Vec<Permit>,
}

/// The reply to a call that has waited, and when the call has started.
pub(super) type LineReply = (Started, Result<Reply, StoreError>);

pub(super) type CallResult = Result<AdmittedCall, Rejection>;

/// Decides a call.
pub(super) type BoxedCall = BoxedWork<CallResult>;

/// A call that was started.
pub(crate) enum StartedCall {
    Decided(CallResult),
    Pending(BoxedCall),
}

/// The rejection of a call that no store decides, before it is reported.
pub(super) struct Refusal {
    pub(super) report: Report,
    pub(super) label: LimitLabel,
    pub(super) rejection: Rejection,
}

impl CallOptions {
    pub(crate) const CHECK: Self = Self { settles: false };
    pub(crate) const ACQUIRE: Self = Self { settles: true };
}

impl AdmittedCall {
    /// Creates the result of a call of `parts` parts that charged nothing.
    pub(super) fn uncharged(decision: Decision, options: CallOptions, parts: usize) -> Self {
        let permits = if options.settles { parts } else { 0 };
        Self { decision, permits: (0..permits).map(|_| Permit::new(decision, None)).collect() }
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

    /// Creates a call of `parts` parts, none of which is limited.
    pub(super) fn unlimited(options: CallOptions, parts: usize) -> Self {
        Self::Decided(Ok(AdmittedCall::uncharged(Decision::unlimited(), options, parts)))
    }

    /// Decides a call of one limit, if the code or a rule says that the limit admits it, or rejects it, whatever it has
    /// counted.
    pub(super) fn by_access(
        part: &AnyPart<'_>,
        ruled: &Ruled,
        options: CallOptions,
        backend: &Backend,
    ) -> Option<Self> {
        match ruled.access {
            Access::Limited => None,
            Access::Unlimited => Some(Self::unlimited(options, 1)),
            Access::Blocked => {
                let part = Part::of(&ruled.limit, part.key, part.cost);
                let blocked_for = ruled.blocked_for(backend.clock().local());
                Some(Refusal::blocked(&part, blocked_for, backend).into_call(options, 1))
            }
        }
    }

    /// Decides the call.
    pub(super) async fn result(self) -> CallResult {
        match self {
            Self::Decided(result) => result,
            Self::Pending(call) => call.await,
        }
    }
}

impl Refusal {
    /// Creates the refusal of a call with a mistake. A shadow does not hide it.
    pub(super) fn mistake(report: Report, label: LimitLabel, mistake: Mistake) -> Self {
        let rejection = Rejection::mistake_by(&label, mistake);
        Self { report, label: LimitLabel { shadow: false, ..label }, rejection }
    }

    /// Returns why this process, which counts the limit of a part, does not decide its call; `None` if it does.
    pub(super) fn of_local(
        part: &AnyPart<'_>,
        options: CallOptions,
        backend: &Backend,
    ) -> Option<Self> {
        let Part { limit, cost, .. } = *part;
        let mistake = |mistake| Some(Self::mistake(Report::start(), limit.label(), mistake));
        if options.settles && limit.leases() {
            return mistake(Mistake::Leased);
        }
        if !options.settles && limit.is_in_flight() {
            return mistake(Mistake::NeedsPermit);
        }
        let refuse = || {
            let rejection = Rejection::exceeds_capacity_of(&limit.label(), cost);
            Self::of_part(part, rejection, backend)
        };
        (cost > limit.terms().capacity()).then(refuse)
    }

    /// Creates the refusal of a part that an amount of 0 or a rule blocks. `retry_after` is `Duration::MAX` for a block
    /// without an end.
    pub(super) fn blocked(part: &AnyPart<'_>, retry_after: Duration, backend: &Backend) -> Self {
        let AnyPart { limit, key, .. } = *part;
        let (key_id, now) = (backend.key_id(limit.terms(), key), backend.clock().local());
        backend.count_rejection(limit, key_id, &key, now);
        Self::of_part(part, Rejection::blocked_without_count(limit, retry_after), backend)
    }

    /// Creates the refusal of a part with its key.
    fn of_part(part: &AnyPart<'_>, rejection: Rejection, backend: &Backend) -> Self {
        let (limit, key_id) = (part.limit, || backend.key_id(part.limit.terms(), part.key));
        let report = Report::start().with_key(backend.reports(), limit.terms(), part.key, key_id);
        Self { report, label: limit.label(), rejection }
    }

    /// Reports the rejection. Returns the result that the caller receives.
    pub(super) fn end(self) -> Result<Decision, Rejection> {
        let Self { report, label, rejection } = self;
        let result = Err(rejection);
        report.end(&label, &result);
        apply_shadow(&label, result)
    }

    /// Reports the rejection of a call of `parts` parts.
    pub(super) fn into_call(self, options: CallOptions, parts: usize) -> StartedCall {
        let admitted = |decision| AdmittedCall::uncharged(decision, options, parts);
        StartedCall::Decided(self.end().map(admitted))
    }
}

/// Reports the reply to a call. `on_rejected` receives the index of the limit that rejects it. Returns the result that
/// the caller receives.
pub(super) fn conclude(
    report: Report,
    labels: &[LimitLabel],
    reply: Result<Outcomes<'_>, StoreError>,
    on_rejected: impl FnOnce(usize),
) -> Result<Decision, Rejection> {
    record_others(&report, labels, reply.as_ref().ok().copied());
    let (index, result) = judge(labels, reply);
    if let Err(Rejection::Limited { .. } | Rejection::Blocked { .. } | Rejection::Busy { .. }) =
        result
    {
        on_rejected(index);
    }
    let label = &labels[index];
    report.about(index).end(label, &result);
    apply_shadow(label, result)
}

/// Returns the decision of a call for which there is no limiter. A shadow admits it.
pub(crate) fn undecided(limit: &Limit, error: BuildError) -> Result<Decision, Rejection> {
    let label = limit.label();
    let rejection = Rejection::mistake_by(&label, Mistake::Configuration(error));
    Refusal { report: Report::start(), label, rejection }.end()
}

/// Blocks this thread until a call is decided.
pub(super) fn block_on(
    call: BoxedCall,
    backend: &Backend,
    label: impl FnOnce() -> LimitLabel,
) -> CallResult {
    let result = backend.background().block_on(call);
    result.unwrap_or_else(|| Err(Rejection::unavailable_by(&label(), ended())))
}
