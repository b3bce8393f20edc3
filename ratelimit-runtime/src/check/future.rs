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
// No enum, and no number at a place where another check has one of another width: the parts then stay in registers, or
// are read as they were written (`benches/all -- embedded`).
#[must_use = "futures do nothing unless polled"]
pub struct Check {
    stage: CheckStage,
    /// Decides the call, if it is pending.
    pending: Option<PendingCheck>,
    decided: DecidedCall,
}

/// Like [`Check`], but resolves to whether the call is admitted: see
/// [`RateLimiter::try_check`](crate::RateLimiter::try_check).
#[must_use = "futures do nothing unless polled"]
pub struct TryCheck(Check);

#[derive(Clone, Copy, PartialEq, Eq)]
enum CheckStage {
    /// Admitted, and nothing observes the call.
    Admitted,
    Decided,
    Pending,
}

/// Decides a call.
type PendingCheck = Pin<Box<dyn Future<Output = Result<Decision, Rejection>> + Send>>;

/// The decision about a call in the numbers of the store. Saves the conversion to durations for callers that do not
/// read them.
struct DecidedCall {
    allowed: bool,
    source: Source,
    capacity: u32,
    remaining: u32,
    retry_us: u64,
    reset_us: u64,
    /// The limit of a rejection.
    rejected_by: Option<(Name, Quota)>,
}

impl Check {
    /// Creates the check of a call that this process has admitted, and that nothing observes.
    #[inline]
    pub(super) fn admitted(capacity: u32, remaining: u32, reset_us: u64) -> Self {
        Self::final_by(Source::Embedded, capacity, remaining, reset_us)
    }

    #[inline]
    fn final_by(source: Source, capacity: u32, remaining: u32, reset_us: u64) -> Self {
        let decided = DecidedCall {
            allowed: true,
            source,
            capacity,
            remaining,
            retry_us: 0,
            reset_us,
            rejected_by: None,
        };
        Self { stage: CheckStage::Admitted, pending: None, decided }
    }

    #[inline]
    fn of(decided: DecidedCall) -> Self {
        Self { stage: CheckStage::Decided, pending: None, decided }
    }

    /// Creates the check of a call that spent leased units.
    pub(super) fn spent(
        report: Report,
        label: impl FnOnce() -> LimitLabel,
        decision: &Decision,
    ) -> Self {
        report.end_if_observed(label, || Ok(*decision));
        let Decision { source, limit, remaining, reset_after, .. } = *decision;
        Self::final_by(source, limit, remaining, reset_after.as_micros() as u64)
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
        let mut call = DecidedCall::new(label.capacity, outcome, source);
        if !call.allowed && !label.shadow {
            call.rejected_by = Some((label.name.clone(), label.quota));
        }
        Self::of(call)
    }

    /// Creates the check of a call that this process has rejected, and that nothing observes. The key is open.
    #[inline]
    pub(super) fn rejected_here(limit: &Limit, outcome: &Outcome) -> Self {
        let mut call = DecidedCall::new(limit.capacity(), outcome, Source::Embedded);
        if !limit.is_shadow() {
            call.rejected_by = Some((limit.terms().name().clone(), limit.quota()));
        }
        Self::of(call)
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

    fn waiting(pending: PendingCheck) -> Self {
        Self { stage: CheckStage::Pending, pending: Some(pending), decided: DecidedCall::NONE }
    }

    /// Creates the check of a call that `decide` decides and reports.
    pub(super) fn boxed(
        decide: impl Future<Output = Result<Decision, Rejection>> + Send + 'static,
    ) -> Self {
        Self::waiting(Box::pin(decide))
    }

    /// Creates the future of a peek that has its reply.
    pub(super) fn peeked(label: &LimitLabel, outcome: &Outcome, source: Source) -> Self {
        Self::of(DecidedCall::new(label.capacity, outcome, source))
    }

    /// Creates the check of a call that `decide` decides. Calls `decide` inside the box. Saves a copy of the future
    /// that `decide` returns.
    pub(super) fn pending<F: Future<Output = Result<Reply, StoreError>> + Send>(
        report: Report,
        labels: OneOrMany<LimitLabel>,
        decide: impl FnOnce() -> F + Send + 'static,
    ) -> Self {
        Self::waiting(Box::pin(async move {
            let reply = decide().await;
            conclude(report, &labels, reply)
        }))
    }

    /// Creates the future of a peek that `peek` executes.
    pub(super) fn pending_peek<F: Future<Output = Result<Reply, StoreError>> + Send>(
        label: LimitLabel,
        peek: impl FnOnce() -> F + Send + 'static,
    ) -> Self {
        Self::waiting(Box::pin(async move {
            let reply = peek().await.map_err(|error| Rejection::unavailable_by(&label, error))?;
            Ok(Decision::new(label.capacity, &reply.first(), reply.source))
        }))
    }

    /// Creates the check of a call that is rejected without a decision. Without a report, it is a peek.
    pub(super) fn rejected(
        report: Option<Report>,
        label: LimitLabel,
        rejection: Rejection,
    ) -> Self {
        Self::waiting(Box::pin(async move {
            let (result, is_peek) = (Err(rejection), report.is_none());
            if let Some(report) = report {
                report.end(&label, &result);
            }
            apply_shadow(&label, result, is_peek)
        }))
    }

    /// Creates the check of a call without a limit.
    pub(crate) fn unlimited() -> Self {
        Self::admitted(u32::MAX, u32::MAX, 0)
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
        self.stage == CheckStage::Admitted
    }

    /// Returns this check, moved part by part.
    #[inline]
    pub(super) fn moved(self) -> Self {
        let Self { stage, pending, decided } = self;
        Self { stage, pending, decided }
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
        match (self.stage, &mut self.pending) {
            (CheckStage::Admitted, _) => Poll::Ready(Ok(self.decided.admitted())),
            (CheckStage::Pending, Some(pending)) => {
                // Out of line, so that the results of the other arms stay in registers (`benches/all -- embedded`).
                let mut result = Poll::Pending;
                poll_into(pending.as_mut(), context, &mut result);
                result
            }
            _ => Poll::Ready(self.decided.result()),
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

impl DecidedCall {
    /// Stands for the decision of a call that is not decided.
    const NONE: Self = Self {
        allowed: false,
        source: Source::Embedded,
        capacity: 0,
        remaining: 0,
        retry_us: 0,
        reset_us: 0,
        rejected_by: None,
    };

    #[inline]
    fn new(capacity: u32, outcome: &Outcome, source: Source) -> Self {
        Self {
            allowed: outcome.is_allowed(),
            source,
            capacity,
            remaining: outcome.remaining,
            retry_us: outcome.retry_us,
            reset_us: outcome.reset_us,
            rejected_by: None,
        }
    }

    #[inline]
    fn admitted(&self) -> Decision {
        Decision {
            allowed: true,
            limit: self.capacity,
            remaining: self.remaining,
            retry_after: Duration::ZERO,
            reset_after: Duration::from_micros(self.reset_us),
            source: self.source,
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
        match &self.rejected_by {
            None => Ok(decision),
            Some((name, quota)) => {
                Err(Rejection::Limited { name: name.clone(), quota: *quota, decision })
            }
        }
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
