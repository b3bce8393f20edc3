//! The futures of calls, and of calls whose charges can be settled. They borrow nothing and are `Send`. If this process
//! has decided, they are ready at once and have no box.

use std::array;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::Permit;
use super::decide::{AdmittedCall, CallFuture, StartedCall};
use crate::printing::debug_by_name;
use crate::reply::{Decision, Rejection};

/// The future of a check. Resolves to `Result<Decision, Rejection>`.
#[must_use = "futures do nothing unless polled"]
pub struct Check(CheckStage);

enum CheckStage {
    /// This process has admitted the call. In the numbers of the store: copied often, and read only if the caller reads
    /// them (`benches/all -- embedded`).
    Admitted {
        capacity: u64,
        remaining: u64,
        reset_us: u64,
    },
    Call(CallFuture<Decision>),
}

/// Like [`Check`], but resolves to whether the call is admitted: see
/// [`RateLimiter::admit`](crate::RateLimiter::admit).
#[must_use = "futures do nothing unless polled"]
pub struct Admit(pub(crate) Check);

impl Check {
    /// Creates the check of a call that this process has admitted, and that nothing records.
    #[inline]
    pub(super) fn admitted(capacity: u64, remaining: u64, reset_us: u64) -> Self {
        Self(CheckStage::Admitted { capacity, remaining, reset_us })
    }

    /// Creates the check of a call that `decide` decides and reports.
    pub(super) fn boxed(
        decide: impl Future<Output = Result<Decision, Rejection>> + Send + 'static,
    ) -> Self {
        Self(CheckStage::Call(CallFuture::Pending(Box::pin(async move {
            decide.await.map(AdmittedCall::from)
        }))))
    }

    /// Returns this check as a call.
    pub(crate) fn into_call(self) -> CallFuture<Decision> {
        match self.0 {
            CheckStage::Admitted { capacity, remaining, reset_us } => {
                CallFuture::decided(Ok(Decision::admitted_here(capacity, remaining, reset_us)))
            }
            CheckStage::Call(call) => call,
        }
    }

    /// Returns this check; `None` if the call is admitted already, and its admission was reported.
    #[inline]
    pub(crate) fn unless_admitted(self) -> Option<CallFuture<()>> {
        match self.0 {
            CheckStage::Admitted { .. } | CheckStage::Call(CallFuture::Decided(Some(Ok(_)))) => {
                None
            }
            CheckStage::Call(call) => Some(call.map(drop)),
        }
    }
}

/// Creates the result of a call without permits.
impl From<Decision> for AdmittedCall {
    fn from(decision: Decision) -> Self {
        Self { decision, permits: Vec::new(), is_repeated: false }
    }
}

impl From<AdmittedCall> for Decision {
    fn from(call: AdmittedCall) -> Self {
        call.decision
    }
}

impl From<AdmittedCall> for () {
    fn from(_: AdmittedCall) {}
}

impl From<StartedCall> for Check {
    fn from(call: StartedCall) -> Self {
        Self(CheckStage::Call(call.map(Decision::from)))
    }
}

/// Creates the check of a call that was decided and reported.
impl From<Result<Decision, Rejection>> for Check {
    #[inline]
    fn from(result: Result<Decision, Rejection>) -> Self {
        Self(CheckStage::Call(CallFuture::decided(result)))
    }
}

impl Future for Check {
    type Output = Result<Decision, Rejection>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            CheckStage::Admitted { capacity, remaining, reset_us } => {
                Poll::Ready(Ok(Decision::admitted_here(*capacity, *remaining, *reset_us)))
            }
            CheckStage::Call(call) => Pin::new(call).poll(context),
        }
    }
}

impl Future for Admit {
    type Output = bool;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<bool> {
        Pin::new(&mut self.0).poll(context).map(|result| result.is_ok())
    }
}

/// The future of [`RateLimiter::acquire`](crate::RateLimiter::acquire). Resolves to `Result<Permit, Rejection>`.
#[must_use = "futures do nothing unless polled"]
pub struct Acquire<T = Permit>(CallFuture<T>);

/// The future of [`RateLimiter::acquire_all`](crate::RateLimiter::acquire_all). Resolves to
/// `Result<Vec<Permit>, Rejection>`.
pub type AcquireAll = Acquire<Vec<Permit>>;

impl<T: From<AdmittedCall>> From<StartedCall> for Acquire<T> {
    fn from(call: StartedCall) -> Self {
        Self(call.map(T::from))
    }
}

impl From<AdmittedCall> for Permit {
    fn from(admission: AdmittedCall) -> Self {
        let AdmittedCall { decision, permits, .. } = admission;
        permits.into_iter().next().unwrap_or_else(|| Self::new(decision, None))
    }
}

impl From<AdmittedCall> for Vec<Permit> {
    fn from(admission: AdmittedCall) -> Self {
        admission.permits
    }
}

impl<const N: usize> From<AdmittedCall> for [Permit; N] {
    fn from(admission: AdmittedCall) -> Self {
        let AdmittedCall { decision, permits, .. } = admission;
        let mut permits = permits.into_iter();
        array::from_fn(|_| permits.next().unwrap_or_else(|| Permit::new(decision, None)))
    }
}

impl<T: From<AdmittedCall> + Unpin> Future for Acquire<T> {
    type Output = Result<T, Rejection>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

debug_by_name!("Check" [] Check, "Admit" [] Admit, "Acquire" [T] Acquire<T>);
