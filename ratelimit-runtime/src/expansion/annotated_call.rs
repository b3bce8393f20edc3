//! A call of an annotated function: its limits, its keys and its costs, and the future that the function awaits before
//! its body. That counts the call once it is decided.

use std::pin::Pin;
use std::task::{Context, Poll};

use super::Site;
use super::site::count_call;
use crate::check::{AnyPart, CallFuture, Check, Checker, Part};
use crate::key::Key;
use crate::limit::{Access, Align, Lease, Limit};
use crate::limiter::RateLimiter;
use crate::reply::Rejection;

/// A call that is checked against `N` limits.
pub trait AnnotatedCall<const N: usize> {
    fn sites(&self) -> [&'static Site; N];

    /// Returns the limiter that the attribute names.
    fn limiter(&self) -> Option<&RateLimiter>;

    /// Returns its parts, one for each limit.
    fn parts(&self) -> [AnyPart<'_>; N];

    fn check(&self, checker: &Checker) -> Check;
}

/// The limit of a call, at its site.
pub struct CallLimit {
    pub(super) site: &'static Site,
    /// A limit that is never dropped: the limit of the call, or a template for rules, if its amounts are computed.
    pub(super) kept: &'static Limit,
    /// The limit of the call, if its amounts are computed.
    pub(super) computed: Option<Box<Limit>>,
    /// How much the code says that the call may take.
    pub(super) access: Access,
}

/// A value of `threshold`, `burst` or `in_flight` that is computed for each call: `u64`, or `Option<u64>`, whose `None`
/// is no limit. No other integers: then the type of a literal would be unknown.
#[diagnostic::on_unimplemented(
    message = "`threshold`, `burst` and `in_flight` are of type `u64` or `Option<u64>`, not `{Self}`",
    label = "not a `u64`",
    note = "convert it: `u64::from(value)`, or `u64::try_from(value).unwrap_or(u64::MAX)`"
)]
pub trait Amount {
    /// Returns the amount, or `None` without one.
    fn amount(self) -> Option<u64>;
}

impl Amount for u64 {
    fn amount(self) -> Option<u64> {
        Some(self)
    }
}

impl Amount for Option<u64> {
    fn amount(self) -> Option<u64> {
        self
    }
}

/// Returns an amount.
pub fn amount(amount: impl Amount) -> Option<u64> {
    amount.amount()
}

/// A call of a function with one limit.
struct OneLimit<'a, K> {
    limiter: Option<&'a RateLimiter>,
    limit: CallLimit,
    key: K,
    cost: u64,
}

/// A call of a function with one limit, which takes nothing if a call with its id was admitted before.
struct OnceCall<'a, K, I> {
    call: OneLimit<'a, K>,
    remembered: &'a Limit,
    id: I,
}

/// The limits of a call of a function with several. Decided together.
pub struct LimitGroup<'a, const N: usize> {
    limiter: Option<&'a RateLimiter>,
    parts: [CallPart<'a>; N],
}

/// A limit of a call with several.
pub struct CallPart<'a> {
    site: &'static Site,
    part: AnyPart<'a>,
}

impl CallLimit {
    /// Returns this limit with computed amounts. Without a threshold, the call has no limit, and 0 admits none.
    #[must_use]
    pub fn with_amounts(
        mut self,
        threshold: Option<u64>,
        burst: Option<u64>,
        lease: Lease,
    ) -> Self {
        match threshold {
            None => self.access = Access::Unlimited,
            Some(threshold) if threshold == 0 || burst == Some(0) => self.access = Access::Blocked,
            Some(threshold) => {
                let limit = self.site.compute(self.kept, threshold, burst, lease);
                self.computed = Some(Box::new(limit));
            }
        }
        self
    }

    /// Returns this limit with windows that begin where `align` says, and months on `day`.
    #[must_use]
    pub fn with_align(mut self, align: Align, day: Option<u8>) -> Self {
        if let Some(limit) = self.site.align(self.limit(), align, day) {
            self.computed = Some(Box::new(limit));
        }
        self
    }

    fn limit(&self) -> &Limit {
        self.computed.as_deref().unwrap_or(self.kept)
    }

    /// Returns the part of a call with this limit.
    #[inline]
    fn part<'a, K: ?Sized>(&'a self, key: &'a K, cost: u64) -> Part<'a, K> {
        Part { access: self.access, ..Part::of(self.limit(), key, cost) }
    }
}

/// Returns a call of one limit. Its type is hidden, so a value that is no key is one error, at the key.
#[inline]
pub fn one_limit<'a>(
    limiter: Option<&'a RateLimiter>,
    limit: CallLimit,
    key: impl Key + 'a,
    cost: u64,
) -> impl AnnotatedCall<1> + 'a {
    OneLimit { limiter, limit, key, cost }
}

impl<K: Key> AnnotatedCall<1> for OneLimit<'_, K> {
    fn sites(&self) -> [&'static Site; 1] {
        [self.limit.site]
    }

    fn limiter(&self) -> Option<&RateLimiter> {
        self.limiter
    }

    fn parts(&self) -> [AnyPart<'_>; 1] {
        [self.limit.part(&self.key, self.cost)]
    }

    #[inline]
    fn check(&self, checker: &Checker) -> Check {
        checker.check(self.limit.part(&self.key, self.cost))
    }
}

/// Returns a call of one limit that takes nothing if a call with its `id` was admitted before, as `remembered` says.
pub fn one_limit_once<'a>(
    limiter: Option<&'a RateLimiter>,
    limit: CallLimit,
    key: impl Key + 'a,
    cost: u64,
    (remembered, id): (&'a Limit, impl Key + 'a),
) -> impl AnnotatedCall<1> + 'a {
    OnceCall { call: OneLimit { limiter, limit, key, cost }, remembered, id }
}

impl<K: Key, I: Key> AnnotatedCall<1> for OnceCall<'_, K, I> {
    fn sites(&self) -> [&'static Site; 1] {
        self.call.sites()
    }

    fn limiter(&self) -> Option<&RateLimiter> {
        self.call.limiter
    }

    fn parts(&self) -> [AnyPart<'_>; 1] {
        self.call.parts()
    }

    fn check(&self, checker: &Checker) -> Check {
        let request = (&self.call.key, &self.id);
        let [part] = self.parts();
        // Last: in a cluster, the id is then remembered once the limit is charged.
        checker.check_all(&[part, Part::of(self.remembered, &request as &dyn Key, 1)])
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
}

impl<const N: usize> AnnotatedCall<N> for LimitGroup<'_, N> {
    fn sites(&self) -> [&'static Site; N] {
        self.parts.each_ref().map(|it| it.site)
    }

    fn limiter(&self) -> Option<&RateLimiter> {
        self.limiter
    }

    fn parts(&self) -> [AnyPart<'_>; N] {
        self.parts.each_ref().map(|it| it.part)
    }

    fn check(&self, checker: &Checker) -> Check {
        checker.check_all(&self.parts())
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
