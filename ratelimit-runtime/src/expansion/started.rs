//! The futures that an annotated function awaits before its body. They count the call once it is decided.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::Site;
use super::site::count_call;
use crate::check::{CallFuture, Check, Permit};
use crate::reply::Rejection;

/// The check of a call that is not admitted yet.
#[must_use = "futures do nothing unless polled"]
pub struct StartedCheck<const N: usize> {
    check: CallFuture<()>,
    sites: [&'static Site; N],
}

/// A call whose charges are corrected.
#[must_use = "futures do nothing unless polled"]
pub struct StartedAcquire<const N: usize> {
    pub(super) call: CallFuture<[Permit; N]>,
    pub(super) sites: [&'static Site; N],
}

impl<const N: usize> StartedCheck<N> {
    /// Returns the future of a check; `None` if the call is admitted, so that its function polls nothing
    /// (`benches/all -- attribute`).
    #[inline]
    pub(super) fn unless_admitted(check: Check, sites: [&'static Site; N]) -> Option<Self> {
        let open = check.unless_admitted();
        if open.is_none() {
            count_call(&sites, None);
        }
        open.map(|check| Self { check, sites })
    }
}

impl<const N: usize> Future for StartedCheck<N> {
    type Output = Result<(), Rejection>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let result = Pin::new(&mut self.check).poll(context);
        counted(&self.sites, result)
    }
}

impl<const N: usize> Future for StartedAcquire<N> {
    type Output = Result<[Permit; N], Rejection>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let result = Pin::new(&mut self.call).poll(context);
        counted(&self.sites, result)
    }
}

/// Counts a call if it is decided.
fn counted<T>(sites: &[&Site], result: Poll<Result<T, Rejection>>) -> Poll<Result<T, Rejection>> {
    if let Poll::Ready(result) = &result {
        count_call(sites, result.as_ref().err());
    }
    result
}

impl<const N: usize> fmt::Debug for StartedCheck<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StartedCheck").finish_non_exhaustive()
    }
}

impl<const N: usize> fmt::Debug for StartedAcquire<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StartedAcquire").finish_non_exhaustive()
    }
}
