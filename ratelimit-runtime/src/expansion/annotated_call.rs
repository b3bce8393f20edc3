//! A call of an annotated function: its limits, its keys and its costs.
//!
//! The future that an annotated function awaits before its body. It counts the call once it is decided.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::Site;
use super::site::count_call;
use crate::check::{Acquire, AnyPart, CallFuture, CallOptions, Check, Checker, Part, Permit};
use crate::key::Key;
use crate::limit::{Access, Limit};
use crate::limiter::RateLimiter;
use crate::reply::Rejection;

/// A call that is checked against `N` limits.
pub trait AnnotatedCall<const N: usize> {
    fn sites(&self) -> [&'static Site; N];

    /// Returns the limiter that the attribute names.
    fn limiter(&self) -> Option<&RateLimiter>;

    /// Returns the first limit that does not admit every call, or else the first limit; and its access.
    fn first(&self) -> (&Limit, Access);

    fn check(&self, checker: &Checker) -> Check;

    fn acquire(&self, checker: &Checker) -> CallFuture<[Permit; N]>;
}

/// The limit of a call, at its site.
#[derive(Debug)]
pub struct CallLimit {
    pub(super) site: &'static Site,
    /// A limit that is never dropped: the limit of the call, or a template for rules, if its amounts are computed.
    pub(super) kept: &'static Limit,
    /// The limit of the call, if it is not kept.
    pub(super) derived: Option<Box<Limit>>,
    /// How much the code says that the call may take.
    pub(super) access: Access,
}

/// A call of a function with one limit.
pub(super) struct OneLimit<'a, K> {
    pub(super) limiter: Option<&'a RateLimiter>,
    pub(super) limit: CallLimit,
    pub(super) key: K,
    pub(super) cost: u64,
}

/// The limits of a call of a function with several. Decided together.
#[derive(Debug)]
pub struct LimitGroup<'a, const N: usize> {
    limiter: Option<&'a RateLimiter>,
    parts: [CallPart<'a>; N],
}

/// A limit of a call with several.
#[derive(Debug)]
pub struct CallPart<'a> {
    site: &'static Site,
    part: AnyPart<'a>,
}

impl CallLimit {
    #[inline]
    fn limit(&self) -> &Limit {
        self.derived.as_deref().unwrap_or(self.kept)
    }

    /// Returns the part of a call with this limit.
    #[inline]
    fn part<'a, K: ?Sized>(&'a self, key: &'a K, cost: u64) -> Part<'a, K> {
        Part { access: self.access, ..Part::of(self.limit(), key, cost) }
    }
}

impl<K: Key> AnnotatedCall<1> for OneLimit<'_, K> {
    #[inline]
    fn sites(&self) -> [&'static Site; 1] {
        [self.limit.site]
    }

    #[inline]
    fn limiter(&self) -> Option<&RateLimiter> {
        self.limiter
    }

    #[inline]
    fn first(&self) -> (&Limit, Access) {
        (self.limit.limit(), self.limit.access)
    }

    #[inline]
    fn check(&self, checker: &Checker) -> Check {
        checker.start(self.limit.part(&self.key, self.cost), CallOptions::CHECK, None)
    }

    #[inline]
    fn acquire(&self, checker: &Checker) -> CallFuture<[Permit; 1]> {
        let Self { limit, key, cost, .. } = self;
        let kept = limit.derived.is_none().then_some(limit.kept);
        checker.start::<Acquire>(limit.part(key, *cost), CallOptions::ACQUIRE, kept).into_array()
    }
}

impl<'a> CallPart<'a> {
    /// Creates the part of a limit.
    #[must_use]
    pub fn of(limit: &'a CallLimit, key: &'a (dyn Key + 'a), cost: u64) -> Self {
        Self { site: limit.site, part: limit.part(key, cost) }
    }
}

impl<'a, const N: usize> LimitGroup<'a, N> {
    /// Creates the group that `limiter` decides, or without one the limiter of the process.
    #[must_use]
    pub fn new(limiter: Option<&'a RateLimiter>, parts: [CallPart<'a>; N]) -> Self {
        Self { limiter, parts }
    }

    fn parts(&self) -> [AnyPart<'a>; N] {
        self.parts.each_ref().map(|it| it.part)
    }
}

impl<const N: usize> AnnotatedCall<N> for LimitGroup<'_, N> {
    fn sites(&self) -> [&'static Site; N] {
        self.parts.each_ref().map(|it| it.site)
    }

    fn limiter(&self) -> Option<&RateLimiter> {
        self.limiter
    }

    fn first(&self) -> (&Limit, Access) {
        let limited = self.parts.iter().find(|it| it.part.access != Access::Unlimited);
        let part = limited.unwrap_or(&self.parts[0]).part;
        (part.limit, part.access)
    }

    fn check(&self, checker: &Checker) -> Check {
        checker.check_all(&self.parts())
    }

    fn acquire(&self, checker: &Checker) -> CallFuture<[Permit; N]> {
        checker.start_all(&self.parts(), CallOptions::ACQUIRE).into()
    }
}

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
