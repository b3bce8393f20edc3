//! One limit among several that are decided together.

use std::fmt;

use crate::key::Key;
use crate::limit::Limit;

/// One limit of [`RateLimiter::check_all`](crate::RateLimiter::check_all), with the key and the
/// cost that the call has there.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    limit: &'a Limit,
    // `Sync`, so that a future that holds parts while it awaits their check is `Send`.
    key: &'a (dyn Key + Sync),
    cost: u32,
}

impl<'a> Part<'a> {
    /// The call takes `cost` of `limit` for `key`.
    #[must_use]
    pub fn new(limit: &'a Limit, key: &'a (dyn Key + Sync), cost: u32) -> Self {
        Self { limit, key, cost }
    }

    pub(crate) fn charge(&self) -> Charge<'a> {
        Charge { limit: self.limit, key: self.key, cost: self.cost }
    }
}

impl fmt::Debug for Part<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Part")
            .field("limit", self.limit)
            .field("cost", &self.cost)
            .finish_non_exhaustive()
    }
}

/// A [`Part`] whose key may be of any type: it is not held while its check is awaited.
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations, reason = "not a part of the public interface")]
pub struct Charge<'a> {
    pub(crate) limit: &'a Limit,
    pub(crate) key: &'a dyn Key,
    pub(crate) cost: u32,
}

impl<'a> Charge<'a> {
    /// The call takes `cost` of `limit` for `key`.
    #[must_use]
    pub fn new(limit: &'a Limit, key: &'a dyn Key, cost: u32) -> Self {
        Self { limit, key, cost }
    }
}
