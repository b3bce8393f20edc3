//! The limits that an application chooses for one request.

use std::fmt;

use crate::check::{Acquire, AdmittedCall, AnyPart, CallFuture, CallOptions, Part};
use crate::key::{Key, OwnedKey};
use crate::limit::Limit;
use crate::limiter::RateLimiter;
use crate::report;

/// The limits of one request: see [`limits`](super::RateLimitLayer::limits). They are decided together, all or nothing.
#[derive(Default)]
pub struct RequestLimits {
    charges: Vec<(Limit, OwnedKey, u64)>,
}

impl RequestLimits {
    /// Limits the request by `limit`: it takes `cost` units for `key`. The key can borrow from the request.
    pub fn add(&mut self, limit: &Limit, key: impl Key, cost: u64) {
        self.charges.push((*limit, OwnedKey::of(&key), cost));
    }

    /// Starts the check of the request; `None` if it has no limits.
    pub(super) fn check(
        &self,
        limiter: &RateLimiter,
        settles: bool,
    ) -> Option<CallFuture<AdmittedCall>> {
        if let [(limit, ..)] = &*self.charges {
            report::expect(limit);
        }
        let parts = self.charges.iter().map(|(limit, key, cost)| Part::of(limit, key as _, *cost));
        let parts: Vec<AnyPart<'_>> = parts.collect();
        start(limiter, &parts, settles)
    }

    /// Returns whether one of them limits calls in flight.
    pub(super) fn are_in_flight(&self) -> bool {
        self.charges.iter().any(|(limit, ..)| limit.is_in_flight())
    }

    pub(super) fn first(&self) -> Option<&Limit> {
        self.charges.first().map(|(limit, ..)| limit)
    }
}

/// Starts the check of a request with these limits; `None` if there are none. It has permits if the response decides
/// whether the request counts, or if the request holds slots.
pub(super) fn start(
    limiter: &RateLimiter,
    parts: &[AnyPart<'_>],
    settles: bool,
) -> Option<CallFuture<AdmittedCall>> {
    let (checker, options) = (limiter.checker(), CallOptions::ACQUIRE);
    Some(match (parts, settles) {
        ([], _) => return None,
        (parts, false) => checker.check_all(parts).into_admitted(),
        ([part], true) => {
            let part = Part::of(part.limit, &part.key, part.cost);
            checker.start::<Acquire>(part, options, None).into_admitted()
        }
        (parts, true) => checker.start_all(parts, options).into(),
    })
}

impl fmt::Debug for RequestLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits = self.charges.iter().map(|(limit, ..)| limit);
        f.debug_list().entries(limits).finish()
    }
}
