//! The futures of a check. They borrow nothing and are `Send`. If this process has decided, they are ready at once
//! and have no box.

use std::fmt;
use std::future::ready;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::call::{AdmittedCall, BoxedCall, CallResult, StartedCall, block_on, undecided};
use crate::algorithm::Outcome;
use crate::backend::Backend;
use crate::limit::{Limit, LimitLabel, Name, Quota, shown};
use crate::owner::ended;
use crate::reply::{BuildError, Decision, Rejection, Source};

/// The future of a check. Resolves to `Result<Decision, Rejection>`.
// No enum, and no number at a place where another check has one of another width: the parts then stay in registers, or
// are read as they were written (`benches/all -- embedded`).
#[must_use = "futures do nothing unless polled"]
pub struct Check {
    stage: CheckStage,
    /// Decides the call, if it is pending.
    pending: Option<BoxedCall>,
    decided: DecidedCall,
}

/// A [`Check`] of a call that is not admitted yet. Smaller: the future of an annotated function holds it.
pub(crate) struct OpenCheck(OpenStage);

enum OpenStage {
    Decided(DecidedCall),
    Pending(BoxedCall),
}

/// Like [`Check`], but resolves to whether the call is admitted: see
/// [`RateLimiter::admit`](crate::RateLimiter::admit).
#[must_use = "futures do nothing unless polled"]
pub struct Admit(Check);

#[derive(Clone, Copy, PartialEq, Eq)]
enum CheckStage {
    /// Admitted, and nothing is left to be reported.
    Admitted,
    Decided,
    /// Decided, and `pending` has the result.
    Boxed,
    Pending,
}

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
    /// Creates the check of a call that this process has admitted, and that nothing records.
    #[inline]
    pub(super) fn admitted(capacity: u32, remaining: u32, reset_us: u64) -> Self {
        let decided = DecidedCall {
            allowed: true,
            source: Source::Embedded,
            capacity,
            remaining,
            retry_us: 0,
            reset_us,
            rejected_by: None,
        };
        Self { stage: CheckStage::Admitted, pending: None, decided }
    }

    /// Creates the check of a call that this process has rejected, and that nothing records. The key is open.
    #[inline]
    pub(super) fn rejected_here(limit: &Limit, outcome: &Outcome) -> Self {
        let rejected_by = (!limit.is_shadow()).then(|| (*limit.terms().name(), limit.quota()));
        Self::decided(DecidedCall {
            allowed: false,
            source: Source::Embedded,
            capacity: shown(limit.terms().capacity()),
            remaining: shown(outcome.remaining),
            retry_us: outcome.retry_us,
            reset_us: outcome.reset_us,
            rejected_by,
        })
    }

    #[inline]
    fn decided(decided: DecidedCall) -> Self {
        Self { stage: CheckStage::Decided, pending: None, decided }
    }

    fn pending(call: BoxedCall) -> Self {
        Self { stage: CheckStage::Pending, pending: Some(call), decided: DecidedCall::NONE }
    }

    /// Creates the check of a call that `decide` decides and reports.
    pub(super) fn boxed(
        decide: impl Future<Output = Result<Decision, Rejection>> + Send + 'static,
    ) -> Self {
        Self::pending(Box::pin(async move {
            let decision = decide.await?;
            Ok(AdmittedCall { decision, permits: Vec::new() })
        }))
    }

    /// Creates the check of a call without a limit.
    pub(crate) fn unlimited() -> Self {
        Self::admitted(u32::MAX, u32::MAX, 0)
    }

    /// Creates the check of a call for which there is no limiter.
    pub(crate) fn undecided(limit: &Limit, error: BuildError) -> Self {
        Self::from(undecided(limit, error))
    }

    /// Creates the check of a call that was decided, from a result for which [`DecidedCall`] has no room.
    fn boxed_result(result: Result<Decision, Rejection>) -> Self {
        Self { stage: CheckStage::Boxed, ..Self::boxed(ready(result)) }
    }

    /// Returns the result. If the call is pending, blocks this thread until it is decided.
    #[inline]
    pub(crate) fn blocking(
        mut self,
        backend: &Backend,
        label: impl FnOnce() -> LimitLabel,
    ) -> Result<Decision, Rejection> {
        match self.pending.take_if(|_| self.stage == CheckStage::Pending) {
            Some(call) => block_on(call, backend, label).map(|admitted| admitted.decision),
            None => self.result(label),
        }
    }

    /// Returns the result of a check that is not pending.
    #[inline]
    pub(crate) fn result(
        mut self,
        label: impl FnOnce() -> LimitLabel,
    ) -> Result<Decision, Rejection> {
        match Pin::new(&mut self).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => result,
            Poll::Pending => Err(Rejection::unavailable_by(&label(), ended())),
        }
    }

    /// Returns this check; `None` if the call is admitted already, and its admission was reported.
    #[inline]
    pub(crate) fn unless_admitted(self) -> Option<OpenCheck> {
        if self.stage == CheckStage::Admitted {
            return None;
        }
        let Self { pending, decided, .. } = self;
        Some(OpenCheck(pending.map_or(OpenStage::Decided(decided), OpenStage::Pending)))
    }

    /// Returns this check, moved field by field.
    #[inline]
    pub(super) fn by_fields(self) -> Self {
        let Self { stage, pending, decided } = self;
        Self { stage, pending, decided }
    }
}

impl From<StartedCall> for Check {
    fn from(call: StartedCall) -> Self {
        match call {
            StartedCall::Decided(result) => Self::from(result.map(|it| it.decision)),
            StartedCall::Pending(call) => Self::pending(call),
        }
    }
}

/// Creates the check of a call that was decided and reported.
impl From<Result<Decision, Rejection>> for Check {
    fn from(result: Result<Decision, Rejection>) -> Self {
        let (decision, rejected_by) = match result {
            Ok(decision) => (decision, None),
            Err(Rejection::Limited { name, quota, decision }) => (decision, Some((name, quota))),
            rejected @ Err(_) => return Self::boxed_result(rejected),
        };
        let in_us = |time: Duration| u64::try_from(time.as_micros()).ok();
        let times = in_us(decision.retry_after).zip(in_us(decision.reset_after));
        let Some((retry_us, reset_us)) = times else { return Self::boxed_result(Ok(decision)) };
        let Decision { allowed, source, limit: capacity, remaining, .. } = decision;
        let stage = if allowed { CheckStage::Admitted } else { CheckStage::Decided };
        let decided =
            DecidedCall { allowed, source, capacity, remaining, retry_us, reset_us, rejected_by };
        Self { stage, pending: None, decided }
    }
}

impl Future for Check {
    type Output = Result<Decision, Rejection>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match (self.stage, &mut self.pending) {
            (CheckStage::Admitted, _) => Poll::Ready(Ok(self.decided.admitted())),
            (CheckStage::Boxed | CheckStage::Pending, Some(pending)) => {
                // Out of line, so that the results of the other arms stay in registers (`benches/all -- embedded`).
                let mut result = Poll::Pending;
                poll_into(pending.as_mut(), context, &mut result);
                result
            }
            _ => Poll::Ready(self.decided.result()),
        }
    }
}

impl Future for OpenCheck {
    type Output = Result<(), Rejection>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            OpenStage::Decided(decided) => Poll::Ready(decided.result().map(drop)),
            OpenStage::Pending(call) => call.as_mut().poll(context).map_ok(drop),
        }
    }
}

impl From<Check> for Admit {
    fn from(check: Check) -> Self {
        Self(check)
    }
}

impl Future for Admit {
    type Output = bool;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<bool> {
        let Self(check) = &mut *self;
        Pin::new(check).poll(context).map(|result| result.is_ok())
    }
}

#[inline(never)]
fn poll_into(
    call: Pin<&mut (dyn Future<Output = CallResult> + Send)>,
    context: &mut Context<'_>,
    result: &mut Poll<Result<Decision, Rejection>>,
) {
    *result = call.poll(context).map_ok(|admission| admission.decision);
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
            Some((name, quota)) => Err(Rejection::Limited { name: *name, quota: *quota, decision }),
        }
    }
}

impl fmt::Debug for Admit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admit").finish_non_exhaustive()
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check").finish_non_exhaustive()
    }
}
