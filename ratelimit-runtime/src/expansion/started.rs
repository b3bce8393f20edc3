//! The futures that an annotated function awaits before its body. They count the call once it is decided.

use std::pin::Pin;
use std::task::{Context, Poll};

use super::Site;
use super::site::count_call;
use crate::check::{Acquire, AcquireAll, Check, Permit};
use crate::reply::Rejection;

/// The check of a call that is not admitted yet.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct StartedCheck<const N: usize> {
    check: Check,
    sites: [&'static Site; N],
}

/// The check of a call whose charge is corrected.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct StartedAcquire {
    pub(super) acquire: Acquire,
    pub(super) site: &'static Site,
}

/// The check of a call against several limits, whose charges are corrected.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct StartedAcquireAll<const N: usize> {
    pub(super) acquire: AcquireAll,
    /// Which parts have a limit. The others have empty permits.
    pub(super) limited: [bool; N],
    pub(super) sites: [&'static Site; N],
}

impl<const N: usize> StartedCheck<N> {
    /// Returns the future of a check; `None` if the call is admitted, so that its function polls nothing
    /// (`benches/all -- attribute`).
    #[inline]
    pub(super) fn unless_admitted(check: Check, sites: [&'static Site; N]) -> Option<Self> {
        if check.is_admitted() {
            count_call(&sites, None);
            return None;
        }
        Some(Self { check, sites })
    }
}

impl<const N: usize> Future for StartedCheck<N> {
    type Output = Result<(), Rejection>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let result = Pin::new(&mut self.check).poll(context).map_ok(drop);
        counted(&self.sites, result)
    }
}

impl Future for StartedAcquire {
    type Output = Result<[Permit; 1], Rejection>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let result = Pin::new(&mut self.acquire).poll(context);
        counted(&[self.site], result.map_ok(|permit| [permit]))
    }
}

impl<const N: usize> Future for StartedAcquireAll<N> {
    type Output = Result<[Permit; N], Rejection>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let result = Pin::new(&mut self.acquire).poll(context);
        counted(&self.sites, result.map_ok(|permits| several(permits, self.limited)))
    }
}

/// Counts a call if it is decided.
fn counted<T>(sites: &[&Site], result: Poll<Result<T, Rejection>>) -> Poll<Result<T, Rejection>> {
    if let Poll::Ready(result) = &result {
        count_call(sites, result.as_ref().err());
    }
    result
}

/// Returns a permit for each part, from those of all parts, or of the parts with a limit.
pub(super) fn several<const N: usize>(permits: Vec<Permit>, limited: [bool; N]) -> [Permit; N] {
    let has_all = permits.len() == N;
    let mut permits = permits.into_iter();
    limited.map(|is_limited| {
        let permit = if has_all || is_limited { permits.next() } else { None };
        permit.unwrap_or_else(Permit::unlimited)
    })
}
