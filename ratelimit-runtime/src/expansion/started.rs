//! The future that an annotated function awaits before its body. It counts the call once it is decided.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::Site;
use super::site::count_call;
use crate::check::CallFuture;
use crate::reply::Rejection;

/// A call that was started. Resolves to a `T` if it is admitted.
#[must_use = "futures do nothing unless polled"]
pub struct Awaited<T, const N: usize> {
    pub(super) call: CallFuture<T>,
    pub(super) sites: [&'static Site; N],
}

impl<T: Unpin, const N: usize> Future for Awaited<T, N>
where
    CallFuture<T>: Future<Output = Result<T, Rejection>>,
{
    type Output = Result<T, Rejection>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let result = Pin::new(&mut self.call).poll(context);
        if let Poll::Ready(result) = &result {
            count_call(&self.sites, result.as_ref().err());
        }
        result
    }
}

impl<T, const N: usize> fmt::Debug for Awaited<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Awaited").finish_non_exhaustive()
    }
}
