//! Checks: one call against one limit or several.
//!
//! A call that this process decides at once takes the fast path: no request, no allocation. Any other call becomes
//! [`Calls`] to the backend, in one boxed future.

mod call;
mod counts;
mod decide;
mod future;
mod local;
mod permit;

use std::sync::Arc;

pub(crate) use self::decide::{AdmittedCall, CallFuture, undecided};
pub use self::future::{Acquire, AcquireAll, Check};
pub use self::permit::{Meter, Permit};
use crate::backend::Backend;
use crate::key::Key;
use crate::lease::Leases;
use crate::limit::{Access, Limit};
use crate::printing::debug_by_name;
use crate::report;
use crate::rules::{Asker, RuleTable, Ruled, RulesInForce};
use crate::waiting::Waiting;

/// The parts of a limiter that a check needs.
#[derive(Clone)]
pub(crate) struct Checker {
    pub(crate) backend: Arc<Backend>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) waiting: Arc<Waiting>,
    pub(crate) rules: Arc<RulesInForce>,
}

/// A limit with the key and the cost of a call, for
/// [`RateLimiter::check_all`](crate::RateLimiter::check_all).
///
/// The key is `Sync`, so that a future that holds parts across an `await` is `Send`.
pub struct Part<'a, K: ?Sized = dyn Key + Sync + 'a> {
    /// A template if the code admits everything or nothing: rules can set other amounts.
    pub(crate) limit: &'a Limit,
    pub(crate) key: &'a K,
    pub(crate) cost: u64,
    /// How much the code says that the call may take.
    pub(crate) access: Access,
}

/// A part with a key of any type. Everything after the fast path takes parts of this type, so it is compiled once.
pub(crate) type AnyPart<'a> = Part<'a, dyn Key + 'a>;

impl<'a> Part<'a> {
    /// Creates the part of a call that takes `cost` units of `limit` for `key`.
    #[must_use]
    pub fn new(limit: &'a Limit, key: &'a (dyn Key + Sync), cost: u64) -> Self {
        Self::of(limit, key, cost)
    }
}

impl<'a, K: ?Sized> Part<'a, K> {
    #[inline]
    pub(crate) fn of(limit: &'a Limit, key: &'a K, cost: u64) -> Self {
        Self { limit, key, cost, access: limit.access() }
    }

    /// Returns this part with a key of any type.
    pub(crate) fn any(&self) -> AnyPart<'_>
    where
        &'a K: Key,
    {
        Part { limit: self.limit, key: &self.key, cost: self.cost, access: self.access }
    }
}

impl AnyPart<'_> {
    /// Returns the limit under `rules`.
    #[inline]
    fn under(&self, rules: Option<&RuleTable>, backend: &Backend, asker: Asker) -> Ruled {
        let Part { limit, key, access, .. } = *self;
        let key_id = || backend.key_id(limit.terms(), key);
        Ruled::under(rules, limit, access, &key_id, &|| backend.clock().local(), asker)
    }
}

/// Adds the limits of a call, if it has several, to the log of the current web request.
fn expect(parts: &[AnyPart<'_>]) {
    if parts.len() > 1 {
        for part in parts {
            report::expect(part.limit);
        }
    }
}

/// Returns whether rules can exist for a call, or whether it has no limit unless a rule sets one.
fn may_be_ruled<K: ?Sized>(parts: &[Part<'_, K>], rules: &RulesInForce) -> bool {
    parts.iter().any(|part| part.access != Access::Limited)
        || rules.may_apply_to_any(parts.iter().map(|part| part.limit))
}

impl<K: ?Sized> Clone for Part<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K: ?Sized> Copy for Part<'_, K> {}

debug_by_name!("Part" [K: ?Sized] Part<'_, K>);
