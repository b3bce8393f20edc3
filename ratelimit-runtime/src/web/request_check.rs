//! The check of a request, by a middleware or a client. It has permits if the response decides whether the request
//! counts.

use std::pin::Pin;
use std::task::{Context, Poll};

use crate::check::{Acquire, AdmittedCall, AnyPart, CallFuture, CallOptions, Check, Part};
use crate::limit::shown;
use crate::limiter::RateLimiter;
use crate::reply::Rejection;

/// The future of the check of a request.
pub(crate) enum RequestCheck {
    Check(Check),
    /// The charges can be settled.
    Acquire(CallFuture<AdmittedCall>),
}

/// Starts the check of a request with these limits; `None` if there are none.
pub(super) type StartCheck = fn(&RateLimiter, &[AnyPart<'_>]) -> Option<RequestCheck>;

impl RequestCheck {
    /// Starts a check whose charges stay.
    pub(super) fn check(limiter: &RateLimiter, parts: &[AnyPart<'_>]) -> Option<Self> {
        Some(Self::Check(match parts {
            [] => return None,
            [part] => limiter.check(part.limit, part.key, shown(part.cost)),
            parts => limiter.checker().check_all(parts),
        }))
    }

    /// Starts a check whose charges can be settled.
    pub(super) fn acquire(limiter: &RateLimiter, parts: &[AnyPart<'_>]) -> Option<Self> {
        let (checker, options) = (limiter.checker(), CallOptions::ACQUIRE);
        Some(Self::Acquire(match parts {
            [] => return None,
            [part] => {
                let part = Part::of(part.limit, &part.key, part.cost);
                checker.start::<Acquire>(part, options, None).into_admitted()
            }
            parts => checker.start_all(parts, options).into(),
        }))
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
