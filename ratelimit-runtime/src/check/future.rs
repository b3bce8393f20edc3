//! The futures of a check. They borrow nothing and are `Send`. If this process has decided, they are ready at once
//! and have no box.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::judge::{apply_shadow, count_others, hardest, judge, result_of};
use crate::algorithm::{Outcome, Verdict};
use crate::limit::{Limit, LimitLabel, Name, Quota};
use crate::reply::{Decision, Rejection, Source, StoreError};
use crate::report::Report;
use crate::store::{OneOrMany, Reply};

/// The future of a check. Resolves to `Result<Decision, Rejection>`.
#[must_use = "futures do nothing unless polled"]
pub struct Check(CheckStage);

/// Like [`Check`], but resolves to whether the call is admitted: see
/// [`RateLimiter::try_check`](crate::RateLimiter::try_check).
#[must_use = "futures do nothing unless polled"]
pub struct TryCheck(Check);

enum CheckStage {
    Admitted(AdmittedCall),
    Decided(DecidedCall),
    Pending(Pin<Box<dyn Future<Output = Result<Decision, Rejection>> + Send>>),
}

/// A call that was admitted at once, in the numbers of the store. Saves the conversion to durations for callers that
/// do not read them (`benches/all -- embedded`).
#[derive(Clone, Copy)]
struct AdmittedCall {
    source: Source,
    capacity: u32,
    remaining: u32,
    reset_us: u64,
}

/// A call that was decided at once.
struct DecidedCall {
    is_rejected: bool,
    allowed: bool,
    source: Source,
    capacity: u32,
    remaining: u32,
    retry_us: u64,
    reset_us: u64,
    name: Name,
    quota: Quota,
}

impl Check {
    /// Creates the check of a call that was admitted, and that nothing observes.
    #[inline]
    pub(super) fn admitted(capacity: u32, remaining: u32, reset_us: u64, source: Source) -> Self {
        Self(CheckStage::Admitted(AdmittedCall { source, capacity, remaining, reset_us }))
    }

    /// Creates the check of a call that spent leased units.
    pub(super) fn spent(
        report: Report,
        label: impl FnOnce() -> LimitLabel,
        decision: &Decision,
    ) -> Self {
        report.end_if_observed(label, || Ok(*decision));
        let Decision { source, limit, remaining, reset_after, .. } = *decision;
        Self::admitted(limit, remaining, reset_after.as_micros() as u64, source)
    }

    /// Creates the check of a call that was decided.
    pub(super) fn decided(
        report: Report,
        label: &LimitLabel,
        outcome: &Outcome,
        source: Source,
    ) -> Self {
        report.end_if_observed(|| label.clone(), || result_of(label, outcome, source));
        Self::unobserved(label, outcome, source)
    }

    /// Creates the check of a call that several limits decided.
    pub(super) fn judged(report: Report, labels: &[LimitLabel], reply: &Reply) -> Self {
        count_others(&report, labels, Ok(reply));
        let index = hardest(&reply.outcomes);
        Self::decided(report.about(index), &labels[index], &reply.outcomes[index], reply.source)
    }

    /// Creates the check of a call that was decided, and that nothing observes.
    #[inline]
    fn unobserved(label: &LimitLabel, outcome: &Outcome, source: Source) -> Self {
        if let Verdict::Closed { .. } = outcome.verdict {
            return Self::closed(label, outcome, source);
        }
        let mut call = DecidedCall::new(label, outcome, source);
        call.is_rejected &= !label.shadow;
        Self(CheckStage::Decided(call))
    }

    /// Creates the check of a call that this process has rejected, and that nothing observes. Saves the label
    /// (`benches/all -- instructions`).
    #[inline]
    pub(super) fn rejected_here(limit: &Limit, outcome: &Outcome) -> Self {
        if let Verdict::Closed { .. } = outcome.verdict {
            return Self::closed(&limit.label(), outcome, Source::Embedded);
        }
        Self(CheckStage::Decided(DecidedCall {
            is_rejected: !limit.is_shadow(),
            allowed: false,
            source: Source::Embedded,
            capacity: limit.capacity(),
            remaining: outcome.remaining,
            retry_us: outcome.retry_us,
            reset_us: outcome.reset_us,
            name: limit.terms().name().clone(),
            quota: limit.quota(),
        }))
    }

    /// Creates the check of a call whose key is closed. Not a [`DecidedCall`], so that the calls of open keys do not
    /// pay for it (`benches/all -- instructions`).
    #[cold]
    fn closed(label: &LimitLabel, outcome: &Outcome, source: Source) -> Self {
        let decision = Decision::new(label.capacity, outcome, source);
        let rejection =
            Rejection::Closed { name: label.name.clone(), quota: label.quota, decision };
        Self::rejected(None, label.clone(), rejection)
    }

    /// Creates the check of a call that `decide` decides and reports.
    pub(super) fn boxed(
        decide: impl Future<Output = Result<Decision, Rejection>> + Send + 'static,
    ) -> Self {
        Self(CheckStage::Pending(Box::pin(decide)))
    }

    /// Creates the future of a peek that has its reply.
    pub(super) fn peeked(label: &LimitLabel, outcome: &Outcome, source: Source) -> Self {
        let call = DecidedCall { is_rejected: false, ..DecidedCall::new(label, outcome, source) };
        Self(CheckStage::Decided(call))
    }

    /// Creates the check of a call that `decide` decides. Calls `decide` inside the box. Saves a copy of the future
    /// that `decide` returns.
    pub(super) fn pending<F: Future<Output = Result<Reply, StoreError>> + Send>(
        report: Report,
        labels: OneOrMany<LimitLabel>,
        decide: impl FnOnce() -> F + Send + 'static,
    ) -> Self {
        Self(CheckStage::Pending(Box::pin(async move {
            let reply = decide().await;
            conclude(report, &labels, reply)
        })))
    }

    /// Creates the future of a peek that `peek` executes.
    pub(super) fn pending_peek<F: Future<Output = Result<Reply, StoreError>> + Send>(
        label: LimitLabel,
        peek: impl FnOnce() -> F + Send + 'static,
    ) -> Self {
        Self(CheckStage::Pending(Box::pin(async move {
            let reply = peek().await.map_err(|error| Rejection::unavailable_by(&label, error))?;
            Ok(Decision::new(label.capacity, &reply.first(), reply.source))
        })))
    }

    /// Creates the check of a call that is rejected without a decision. Without a report, it is a peek.
    pub(super) fn rejected(
        report: Option<Report>,
        label: LimitLabel,
        rejection: Rejection,
    ) -> Self {
        Self(CheckStage::Pending(Box::pin(async move {
            let (result, is_peek) = (Err(rejection), report.is_none());
            if let Some(report) = report {
                report.end(&label, &result);
            }
            apply_shadow(&label, result, is_peek)
        })))
    }

    /// Creates the check of a call without a limit.
    pub(crate) fn unlimited() -> Self {
        Self::admitted(u32::MAX, u32::MAX, 0, Source::Embedded)
    }

    /// Creates the check of a call with invalid limits.
    pub(crate) fn failed(report: Report, label: LimitLabel, error: StoreError) -> Self {
        let rejection = Rejection::unavailable_by(&label, error);
        // This is a mistake of the program, which a shadow must not hide.
        Self::rejected(Some(report), LimitLabel { shadow: false, ..label }, rejection)
    }

    /// Creates the check of a call for which there is no limiter.
    pub(crate) fn undecided(limit: &Limit, error: StoreError) -> Self {
        let label = limit.label();
        let rejection = Rejection::unavailable_by(&label, error);
        Self::rejected(Some(Report::start()), label, rejection)
    }

    /// Returns the result of a check that this process decides.
    #[inline]
    pub(crate) fn now(mut self, label: impl FnOnce() -> LimitLabel) -> Result<Decision, Rejection> {
        match Pin::new(&mut self).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => result,
            Poll::Pending => Err(Rejection::unavailable_by(&label(), StoreError::NotLocal)),
        }
    }

    /// Returns whether the call is admitted already, and nothing observes it.
    #[inline]
    pub(crate) fn is_admitted(&self) -> bool {
        matches!(self.0, CheckStage::Admitted(_))
    }
}

/// Reports the reply to a call. Returns the result that the caller receives.
pub(super) fn conclude(
    report: Report,
    labels: &[LimitLabel],
    reply: Result<Reply, StoreError>,
) -> Result<Decision, Rejection> {
    count_others(&report, labels, reply.as_ref());
    let (index, result) = judge(labels, reply);
    let label = &labels[index];
    report.about(index).end(label, &result);
    apply_shadow(label, result, false)
}

impl Future for Check {
    type Output = Result<Decision, Rejection>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            CheckStage::Admitted(admitted) => Poll::Ready(Ok(admitted.decision())),
            CheckStage::Decided(call) => Poll::Ready(call.result()),
            CheckStage::Pending(pending) => {
                // Out of line, so that the results of the other arms stay in registers (`benches/all -- embedded`).
                let mut result = Poll::Pending;
                poll_into(pending.as_mut(), context, &mut result);
                result
            }
        }
    }
}

impl From<Check> for TryCheck {
    fn from(check: Check) -> Self {
        Self(check)
    }
}

impl Future for TryCheck {
    type Output = bool;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<bool> {
        let Self(check) = &mut *self;
        Pin::new(check).poll(context).map(|result| result.is_ok())
    }
}

#[inline(never)]
fn poll_into<F: Future + ?Sized>(
    future: Pin<&mut F>,
    context: &mut Context<'_>,
    result: &mut Poll<F::Output>,
) {
    *result = future.poll(context);
}

impl AdmittedCall {
    #[inline]
    fn decision(&self) -> Decision {
        Decision {
            allowed: true,
            limit: self.capacity,
            remaining: self.remaining,
            retry_after: Duration::ZERO,
            reset_after: Duration::from_micros(self.reset_us),
            source: self.source,
        }
    }
}

impl DecidedCall {
    #[inline]
    fn new(label: &LimitLabel, outcome: &Outcome, source: Source) -> Self {
        Self {
            is_rejected: !outcome.is_allowed(),
            allowed: outcome.is_allowed(),
            source,
            capacity: label.capacity,
            remaining: outcome.remaining,
            retry_us: outcome.retry_us,
            reset_us: outcome.reset_us,
            name: label.name.clone(),
            quota: label.quota,
        }
    }

    #[inline]
    fn result(&self) -> Result<Decision, Rejection> {
        let decision = Decision {
            allowed: self.allowed,
            limit: self.capacity,
            remaining: self.remaining,
            retry_after: Duration::from_micros(self.retry_us),
            reset_after: Duration::from_micros(self.reset_us),
            source: self.source,
        };
        if !self.is_rejected {
            return Ok(decision);
        }
        Err(Rejection::Limited { name: self.name.clone(), quota: self.quota, decision })
    }
}

impl fmt::Debug for TryCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TryCheck").finish_non_exhaustive()
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check").finish_non_exhaustive()
    }
}
