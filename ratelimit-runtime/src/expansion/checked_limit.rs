//! The limit of a call: a constant, or a limit whose amounts are computed for the call.

use std::sync::Arc;

use super::{CallLimit, Site, SiteLimit};
use crate::limit::{Access, Limit};
use crate::limiter::RateLimiter;

/// A limit that a call is checked against.
pub trait CheckedLimit {
    /// Returns the limit. If the code admits everything or nothing, it is a template, for rules.
    fn limit(&self) -> &Limit;

    /// Returns how much the code says that the call may take.
    fn access(&self) -> Access;

    /// Returns the limit if it is never dropped.
    fn kept(&self) -> Option<&'static Limit>;

    fn site(&self) -> &'static Site;

    /// Returns the limiter that the attribute names.
    #[inline]
    fn limiter(&self) -> Option<&RateLimiter> {
        None
    }
}

/// A value of the argument `limiter`.
#[diagnostic::on_unimplemented(
    message = "`limiter` is a `RateLimiter`, or a reference to one, not `{Self}`",
    label = "not a `RateLimiter`"
)]
pub trait LimiterValue {
    fn limiter(&self) -> &RateLimiter;
}

impl LimiterValue for RateLimiter {
    fn limiter(&self) -> &RateLimiter {
        self
    }
}

impl<T: LimiterValue + ?Sized> LimiterValue for &T {
    fn limiter(&self) -> &RateLimiter {
        (**self).limiter()
    }
}

impl<T: LimiterValue + ?Sized> LimiterValue for Arc<T> {
    fn limiter(&self) -> &RateLimiter {
        (**self).limiter()
    }
}

/// Returns the limiter that an attribute names.
pub fn limiter<T: LimiterValue + ?Sized>(value: &T) -> &RateLimiter {
    value.limiter()
}

/// The limit of a call that a limiter decides which the attribute names.
pub struct On<'a, L> {
    limiter: &'a RateLimiter,
    limit: L,
}

impl<'a, L: CheckedLimit> On<'a, L> {
    #[must_use]
    pub fn new(limiter: &'a RateLimiter, limit: L) -> Self {
        Self { limiter, limit }
    }
}

impl<L: CheckedLimit> CheckedLimit for On<'_, L> {
    fn limit(&self) -> &Limit {
        self.limit.limit()
    }

    fn access(&self) -> Access {
        self.limit.access()
    }

    fn kept(&self) -> Option<&'static Limit> {
        self.limit.kept()
    }

    fn site(&self) -> &'static Site {
        self.limit.site()
    }

    fn limiter(&self) -> Option<&RateLimiter> {
        Some(self.limiter)
    }
}

impl CheckedLimit for SiteLimit<'static> {
    #[inline]
    fn limit(&self) -> &Limit {
        self.limit
    }

    #[inline]
    fn access(&self) -> Access {
        Access::Limited
    }

    #[inline]
    fn kept(&self) -> Option<&'static Limit> {
        Some(self.limit)
    }

    #[inline]
    fn site(&self) -> &'static Site {
        self.site
    }
}

impl CheckedLimit for CallLimit {
    #[inline]
    fn limit(&self) -> &Limit {
        self.derived.as_ref().unwrap_or(self.kept)
    }

    #[inline]
    fn access(&self) -> Access {
        self.access
    }

    #[inline]
    fn kept(&self) -> Option<&'static Limit> {
        if self.derived.is_some() { None } else { Some(self.kept) }
    }

    #[inline]
    fn site(&self) -> &'static Site {
        self.site
    }
}
