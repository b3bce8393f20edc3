//! The check of a request, by a middleware or a client. It has permits if the response decides whether the request
//! counts.

use std::pin::Pin;
use std::task::{Context, Poll};

use crate::check::{AcquiredCall, AdmittedCall, AnyPart, CallOptions, Check, Part};
use crate::key::{Key, OwnedKey};
use crate::limit::Limit;
use crate::limiter::RateLimiter;
use crate::reply::Rejection;

/// The future of the check of a request.
pub(crate) enum RequestCheck {
    Check(Check),
    /// The charges can be settled.
    Acquire(AcquiredCall<AdmittedCall>),
}

impl RequestCheck {
    /// Starts the check of a request with one limit. If `settles`, its charge can be settled.
    pub(super) fn one(
        limiter: &RateLimiter,
        limit: &Limit,
        key: &dyn Key,
        cost: u32,
        settles: bool,
    ) -> Self {
        if settles {
            Self::acquire(limiter, &[Part::of(limit, key, cost)])
        } else {
            Self::Check(limiter.check(limit, key, cost))
        }
    }

    /// Starts the check of a request with several limits. If `settles`, its charges can be settled.
    pub(super) fn several(
        limiter: &RateLimiter,
        charges: &[(Limit, OwnedKey, u32)],
        settles: bool,
    ) -> Self {
        let parts = charges.iter().map(|(limit, key, cost)| Part::of(limit, key as _, *cost));
        let parts: Vec<AnyPart<'_>> = parts.collect();
        if settles {
            Self::acquire(limiter, &parts)
        } else {
            // Recorded, so the fast path would not decide it.
            Self::Check(limiter.checker().start_all(&parts, CallOptions::CHECK).into())
        }
    }

    fn acquire(limiter: &RateLimiter, parts: &[AnyPart<'_>]) -> Self {
        Self::Acquire(limiter.checker().start_all(parts, CallOptions::ACQUIRE).into())
    }
}

impl Future for RequestCheck {
    type Output = Result<AdmittedCall, Rejection>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Self::Check(check) => Pin::new(check)
                .poll(context)
                .map_ok(|decision| AdmittedCall { decision, permits: Vec::new() }),
            Self::Acquire(call) => Pin::new(call).poll(context),
        }
    }
}
