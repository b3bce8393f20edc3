//! Functions for the tests of the workspace: what a program need not know of a limiter.

use std::sync::Arc;

use crate::algorithm::Charged;
use crate::check::Checker;
use crate::key::Key;
use crate::limit::{Algorithm, Limit};
use crate::limiter::RateLimiter;
use crate::reply::{Answer, Decision};
#[cfg(feature = "redis")]
pub use crate::store::redis::script_text;

/// All algorithms, for tests.
pub const ALGORITHMS: [Algorithm; Algorithm::RATES.len()] = Algorithm::RATES;

/// Gives back `cost` units that were charged at `at`, in microseconds since the epoch, and never used.
pub fn return_units(
    limiter: &RateLimiter,
    limit: &Limit,
    key: impl Key,
    cost: u64,
    at: u64,
) -> Answer<Decision> {
    let backend = Arc::clone(&limiter.checker().backend);
    let charge = backend.count(limit, &key, cost).address(&backend);
    let (capacity, source) = (charge.terms.capacity, backend.source());
    let returned = backend.give_back(source, charge, Charged::At(at));
    Box::pin(async move { Ok(Decision::new(capacity, &returned.await?, source)) })
}

/// Returns whether the lines of waiting calls would do nothing before the clock of the limiter moves.
#[must_use]
pub fn lines_are_idle(limiter: &RateLimiter) -> bool {
    limiter.checker().waiting.is_idle()
}

/// Returns whether no decision of the shared store is under way.
#[must_use]
pub fn store_is_idle(limiter: &RateLimiter) -> bool {
    match &limiter.checker().backend.shared {
        Some(store) => store.pending() == 0,
        None => true,
    }
}

/// Returns the number of counts for which calls wait, or for which units of waiting calls are held.
#[must_use]
pub fn lines(limiter: &RateLimiter) -> usize {
    limiter.checker().waiting.lines()
}

/// Returns whether no lease has ended whose units the limiter still keeps, or is giving back.
#[must_use]
pub fn leases_are_idle(limiter: &RateLimiter) -> bool {
    let Checker { leases, backend, .. } = limiter.checker();
    leases.is_idle() && backend.owner.as_ref().is_none_or(|owner| owner.is_flushed())
}

/// Returns the limit under which leases of `limit` are charged, and their lifetime in microseconds.
pub fn leased(limit: &Limit) -> (Limit, u64) {
    (limit.counted_as_lease(), limit.terms().lease_us())
}
