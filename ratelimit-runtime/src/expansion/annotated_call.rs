//! A call of an annotated function: its limits, its keys and its costs.

use super::{CallLimit, CheckedLimit, Site, SiteLimit};
use crate::check::{Acquire, AnyPart, CallFuture, CallOptions, Check, Checker, Part, Permit};
use crate::key::Key;
use crate::limit::{Access, Limit};
use crate::limiter::RateLimiter;

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

/// A call of a function with one limit: the limit, the key and the cost.
pub(super) struct OneLimit<L, K>(pub(super) L, pub(super) K, pub(super) u64);

/// The limits of a call of a function with several. Decided together.
#[derive(Debug)]
pub struct LimitGroup<'a, const N: usize> {
    parts: [CallPart<'a>; N],
    limiter: Option<&'a RateLimiter>,
}

/// A limit of a call with several.
#[derive(Debug)]
pub struct CallPart<'a> {
    site: &'static Site,
    part: AnyPart<'a>,
}

impl<L: CheckedLimit, K: Key> OneLimit<L, K> {
    #[inline]
    fn part(&self) -> Part<'_, K> {
        let Self(limit, key, cost) = self;
        Part { access: limit.access(), ..Part::of(limit.limit(), key, *cost) }
    }
}

impl<L: CheckedLimit, K: Key> AnnotatedCall<1> for OneLimit<L, K> {
    #[inline]
    fn sites(&self) -> [&'static Site; 1] {
        [self.0.site()]
    }

    #[inline]
    fn limiter(&self) -> Option<&RateLimiter> {
        self.0.limiter()
    }

    #[inline]
    fn first(&self) -> (&Limit, Access) {
        (self.0.limit(), self.0.access())
    }

    #[inline]
    fn check(&self, checker: &Checker) -> Check {
        checker.start(self.part(), CallOptions::CHECK, None)
    }

    #[inline]
    fn acquire(&self, checker: &Checker) -> CallFuture<[Permit; 1]> {
        checker.start::<Acquire>(self.part(), CallOptions::ACQUIRE, self.0.kept()).into_array()
    }
}

impl<'a> CallPart<'a> {
    /// Creates the part of a limit with constant amounts.
    #[must_use]
    pub fn constant(
        SiteLimit { limit, site }: SiteLimit<'a>,
        key: &'a (dyn Key + 'a),
        cost: u64,
    ) -> Self {
        Self { site, part: Part::of(limit, key, cost) }
    }

    /// Creates the part of a limit whose amounts are computed for the call.
    #[must_use]
    pub fn of(limit: &'a CallLimit, key: &'a (dyn Key + 'a), cost: u64) -> Self {
        let part = Part { access: limit.access(), ..Part::of(limit.limit(), key, cost) };
        Self { site: limit.site(), part }
    }
}

impl<'a, const N: usize> LimitGroup<'a, N> {
    /// Creates the group that the limiter of the process decides.
    #[must_use]
    pub fn new(parts: [CallPart<'a>; N]) -> Self {
        Self { parts, limiter: None }
    }

    /// Lets another limiter decide.
    #[must_use]
    pub fn on(self, limiter: &'a RateLimiter) -> Self {
        Self { limiter: Some(limiter), ..self }
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
