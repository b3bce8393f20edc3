//! The argument `limiter` of the attribute.

use std::sync::Arc;

use crate::limiter::RateLimiter;

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
