//! The futures of calls, and of calls whose charges can be settled. They borrow nothing and are `Send`. If this process
//! has decided, they are ready at once and have no box.

use std::array;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::Permit;
use super::decide::{AdmittedCall, CallFuture, StartedCall};
use crate::printing::debug_by_name;
use crate::reply::{Decision, Rejection};

/// The future of a call whose charge can be settled. Resolves to `Result<T, Rejection>`.
#[must_use = "futures do nothing unless polled"]
pub struct Acquire<T = Permit>(pub(crate) CallFuture<T>);

/// The future of a check. Resolves to `Result<Decision, Rejection>`.
pub type Check = Acquire<Decision>;

/// The future of [`acquire_all`](crate::RateLimiter::acquire_all).
pub type AcquireAll = Acquire<Vec<Permit>>;

impl Check {
    /// Returns this check; `None` if the call is admitted already, and its admission was reported.
    #[inline]
    pub(crate) fn unless_admitted(self) -> Option<CallFuture<()>> {
        match self.0 {
            CallFuture::Decided(Some(Ok(_))) => None,
            call => Some(call.map(drop)),
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

/// Creates the check of a call that was decided and reported.
impl From<Result<Decision, Rejection>> for Check {
    #[inline]
    fn from(result: Result<Decision, Rejection>) -> Self {
        Self(CallFuture::decided(result))
    }
}

impl<T: From<AdmittedCall>> From<StartedCall> for Acquire<T> {
    fn from(call: StartedCall) -> Self {
        Self(call.map(T::from))
    }
}

impl From<AdmittedCall> for Permit {
    fn from(admission: AdmittedCall) -> Self {
        let [permit] = admission.into();
        permit
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

debug_by_name!("Acquire" [T] Acquire<T>);
