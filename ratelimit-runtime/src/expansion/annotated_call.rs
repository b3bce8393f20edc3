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

/// A call of an annotated function.
pub struct AnnotatedCall<'a, const N: usize> {
    /// The limiter that the attribute names.
    pub(super) limiter: Option<&'a RateLimiter>,
    pub(super) sites: [&'static Site; N],
    pub(super) parts: [AnyPart<'a>; N],
    /// The limit that remembers the id of the call, and the id.
    remembered: Option<AnyPart<'a>>,
}

/// A limit of a call, its key and its cost.
pub type CallPart<'a> = (&'a CallLimit, &'a (dyn Key + 'a), u64);

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
}

impl<'a, const N: usize> AnnotatedCall<'a, N> {
    /// Creates the call that `limiter` decides, or without one the limiter of the process.
    #[must_use]
    pub fn new(limiter: Option<&'a RateLimiter>, parts: [CallPart<'a>; N]) -> Self {
        let sites = parts.map(|(limit, ..)| limit.site);
        let parts = parts.map(|(limit, key, cost)| Part {
            limit: limit.limit(),
            key,
            cost,
            access: limit.access,
        });
        Self { limiter, sites, parts, remembered: None }
    }

    /// Returns this call, which takes nothing if a call with its `id` was admitted before, as `remembered` says.
    #[must_use]
    pub fn once(self, remembered: &'a Limit, id: &'a (dyn Key + 'a)) -> Self {
        Self { remembered: Some(Part::of(remembered, id, 1)), ..self }
    }

    pub(super) fn check(&self, checker: &Checker) -> Check {
        match self.remembered {
            None => checker.check_all(&self.parts),
            // Last: in a cluster, the id is then remembered once the limit is charged.
            Some(remembered) => checker.check_all(&[self.parts[0], remembered]),
        }
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
