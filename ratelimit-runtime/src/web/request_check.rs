//! The check of a request, by a middleware or a client. It has permits if the response decides whether the request
//! counts, or if the request holds slots.

use std::pin::Pin;
use std::task::{Context, Poll};

use crate::check::{Acquire, AdmittedCall, AnyPart, CallFuture, CallOptions, Check, Part};
use crate::limiter::RateLimiter;
use crate::reply::Rejection;

/// The future of the check of a request.
pub(crate) enum RequestCheck {
    Check(Check),
    /// The charges can be settled.
    Acquire(CallFuture<AdmittedCall>),
}

impl RequestCheck {
    /// Starts the check of a request with these limits; `None` if there are none.
    pub(super) fn start(
        limiter: &RateLimiter,
        parts: &[AnyPart<'_>],
        settles: bool,
    ) -> Option<Self> {
        let (checker, options) = (limiter.checker(), CallOptions::ACQUIRE);
        Some(match (parts, settles) {
            ([], _) => return None,
            ([part], false) => Self::Check(limiter.check(part.limit, part.key, part.cost)),
            (parts, false) => Self::Check(checker.check_all(parts)),
            ([part], true) => {
                let part = Part::of(part.limit, &part.key, part.cost);
                Self::Acquire(checker.start::<Acquire>(part, options, None).into_admitted())
            }
            (parts, true) => Self::Acquire(checker.start_all(parts, options).into()),
        })
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
