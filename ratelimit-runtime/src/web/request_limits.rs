//! The limits that an application chooses for one request.

use std::fmt;

use crate::check::{AnyPart, Check, Part};
use crate::key::{Key, OwnedKey};
use crate::limit::Limit;
use crate::limiter::RateLimiter;
use crate::report;

/// The limits of one request: see [`limits`](super::RateLimitLayer::limits). They are decided together, all or nothing.
#[derive(Default)]
pub struct RequestLimits {
    charges: Vec<(Limit, OwnedKey, u32)>,
}

impl RequestLimits {
    /// Limits the request by `limit`: it takes `cost` units for `key`. The key can borrow from the request.
    pub fn add(&mut self, limit: &Limit, key: impl Key, cost: u32) {
        self.charges.push((*limit, OwnedKey::of(&key), cost));
    }

    /// Returns the check of the request; `None` if it has no limits.
    pub(super) fn check(&self, limiter: &RateLimiter) -> Option<Check> {
        match &*self.charges {
            [] => None,
            [(limit, key, cost)] => {
                report::expect(limit);
                Some(limiter.check(limit, key, *cost))
            }
            charges => {
                let charges = charges.iter();
                let parts: Vec<AnyPart<'_>> =
                    charges.map(|(limit, key, cost)| Part::of(limit, key as _, *cost)).collect();
                Some(limiter.checker().check_recorded(&parts))
            }
        }
    }

    pub(super) fn first(&self) -> Option<&Limit> {
        self.charges.first().map(|(limit, ..)| limit)
    }
}

impl fmt::Debug for RequestLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits = self.charges.iter().map(|(limit, ..)| limit);
        f.debug_list().entries(limits).finish()
    }
}
