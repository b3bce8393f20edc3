//! The check of a request, by a middleware or a client. It has permits if the response decides whether the request
//! counts.

use std::pin::Pin;
use std::task::{Context, Poll};

use crate::check::{Acquire, AcquiredCall, AdmittedCall, AnyPart, CallOptions, Check, Part};
use crate::limiter::RateLimiter;
use crate::reply::Rejection;

/// The future of the check of a request.
pub(crate) enum RequestCheck {
    Check(Check),
    /// The charges can be settled.
    Acquire(AcquiredCall<AdmittedCall>),
}

impl RequestCheck {
    /// Starts the check of a request with these limits; `None` if there are none. If `settles`, its charges can be
    /// settled.
    pub(super) fn start(
        limiter: &RateLimiter,
        parts: &[AnyPart<'_>],
        settles: bool,
    ) -> Option<Self> {
        let checker = limiter.checker();
        match parts {
            [] => None,
            [part] if settles => {
                let part = Part::of(part.limit, &part.key, part.cost);
                let call: Acquire = checker.start(part, CallOptions::ACQUIRE, None);
                Some(Self::Acquire(call.into_admitted()))
            }
            parts if settles => {
                Some(Self::Acquire(checker.start_all(parts, CallOptions::ACQUIRE).into()))
            }
            [part] => Some(Self::Check(limiter.check(part.limit, part.key, part.cost))),
            parts => Some(Self::Check(checker.check_all(parts, CallOptions::CHECK))),
        }
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
