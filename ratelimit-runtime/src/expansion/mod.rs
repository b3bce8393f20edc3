//! The functions that the expansion of the attribute calls, and those for the tests of the workspace. This module is
//! not part of the public API. It changes together with `ratelimit-macros`, so `ratelimit-runtime` requires an exact
//! version of that crate.

mod annotated_call;
mod site;
mod tests;

use std::time::Duration;

#[cfg(feature = "attribute")]
pub use ratelimit_macros::format_key;

pub use self::annotated_call::{Amount, AnnotatedCall, Awaited, CallLimit, CallPart, amount};
use self::site::count_call;
pub use self::site::{Site, SiteName};
pub use self::tests::*;
use crate::check::{AdmittedCall, AnyPart, CallFuture, Check, Checker, Part, Permit, undecided};
pub use crate::key::{Format, FormatArgument, Formatted, Key, ShownKey};
use crate::key::{HashedKey, KeySecret, OwnedKey};
pub use crate::limit::Lease;
use crate::limit::{Access, Limit, Scope};
use crate::limiter::{RateLimiter, with_current};
pub use crate::reply::FromRejection;
use crate::reply::{Decision, Rejection};

/// Starts the check of a call; `None` if it is admitted already, so that its function polls nothing
/// (`benches/all -- attribute`).
#[inline]
#[must_use]
pub fn check<const N: usize>(call: &AnnotatedCall<'_, N>) -> Option<Awaited<(), N>> {
    let open = call.decide(|checker| call.check(checker), Check::from).unless_admitted();
    if open.is_none() {
        count_call(&call.sites, None);
    }
    open.map(|open| Awaited { call: open, sites: call.sites })
}

/// Checks a call of a function that is not async.
///
/// # Errors
///
/// The rejection of the call.
pub fn check_blocking<const N: usize>(call: &AnnotatedCall<'_, N>) -> Result<(), Rejection> {
    call.blocking(|checker| call.check(checker).0).map(drop::<Decision>)
}

/// Starts a call whose charges are corrected.
pub fn acquire<const N: usize>(call: &AnnotatedCall<'_, N>) -> Awaited<[Permit; N], N> {
    let started = call.decide(|checker| call.acquire(checker), CallFuture::decided);
    Awaited { call: started, sites: call.sites }
}

/// Checks a call of a function that is not async, whose charges are corrected.
///
/// # Errors
///
/// The rejection of the call.
pub fn acquire_blocking<const N: usize>(
    call: &AnnotatedCall<'_, N>,
) -> Result<[Permit; N], Rejection> {
    call.blocking(|checker| call.acquire(checker))
}

impl<const N: usize> AnnotatedCall<'_, N> {
    /// Calls `act` with the limiter that decides this call, or `failed` with the result if none can be built.
    #[inline]
    fn decide<T: From<AdmittedCall>, R>(
        &self,
        act: impl FnOnce(&Checker) -> R,
        failed: impl FnOnce(Result<T, Rejection>) -> R,
    ) -> R {
        let scope = || self.first().limit.policy().scope;
        let undecided = |error| match self.first() {
            Part { access: Access::Unlimited, .. } => Ok(Decision::unlimited()),
            Part { limit, .. } => undecided(limit, error),
        };
        let failed = |error| failed(undecided(error).map(|it| AdmittedCall::from(it).into()));
        with_current(self.limiter, scope, |limiter| act(limiter.checker()), failed)
    }

    fn acquire(&self, checker: &Checker) -> CallFuture<[Permit; N]> {
        checker.start_all(&self.parts, true).map(<[Permit; N]>::from)
    }

    /// Blocks this thread until the call that `start` starts is decided.
    fn blocking<T: From<AdmittedCall>>(
        &self,
        start: impl FnOnce(&Checker) -> CallFuture<T>,
    ) -> Result<T, Rejection> {
        let limit = || *self.first().limit;
        let act = |checker: &Checker| start(checker).blocking(&checker.backend, limit);
        let result = self.decide(act, |failed| failed);
        count_call(&self.sites, result.as_ref().err());
        result
    }

    /// Returns the first part whose limit does not admit every call, or else the first part.
    fn first(&self) -> &AnyPart<'_> {
        let is_limited = |part: &&AnyPart<'_>| part.access != Access::Unlimited;
        self.parts.iter().find(is_limited).unwrap_or(&self.parts[0])
    }
}

/// Returns the hash of a key under the secret of the limiter that decides the call.
pub fn hashed(limiter: Option<&RateLimiter>, key: &(impl Key + ?Sized)) -> HashedKey {
    let hash = |limiter: &RateLimiter| limiter.checker().backend.settings.key_secret.hash(key);
    // The call itself says why no limiter can be built.
    with_current(limiter, || Scope::Process, hash, |_| KeySecret::random().hash(key))
}

/// Calls the body of a function. The bound makes a closure that may return what it owns.
pub fn call_once<T>(body: impl FnOnce() -> T) -> T {
    body()
}

/// Corrects a charge to the units that the call has used, which `used` reads from its return value.
pub fn settle<T: ?Sized>(permit: Permit, output: &T, used: impl FnOnce(&T) -> u64) {
    permit.settle(used(output));
}

/// Gives a charge back unless `counts` says that the call counts, by its return value.
pub fn count_if<T: ?Sized>(permit: Permit, output: &T, counts: impl FnOnce(&T) -> bool) {
    if counts(output) {
        permit.keep();
    } else {
        permit.refund();
    }
}

/// The longest time for which a return value blocks a key, without `block_at_most`.
pub const BLOCK_AT_MOST: Duration = Duration::from_secs(3600);

/// Blocks the key of a call for as long as `time` says, by its return value, and for `at_most` if that is shorter. The
/// permit blocks it once it is settled or kept.
pub fn block<T: ?Sized>(
    permit: Permit,
    at_most: Duration,
    output: &T,
    time: impl FnOnce(&T) -> Option<Duration>,
) -> Permit {
    permit.block(time(output), at_most)
}

/// Returns the ceiling of a constant. Zero is an error at its path.
///
/// # Panics
///
/// If the ceiling is zero.
#[must_use]
#[track_caller]
pub const fn block_at_most(at_most: Duration) -> Duration {
    assert!(
        !at_most.is_zero(),
        "`block_at_most` is zero, so `block` would never block the key: write a longer time, or remove `block`"
    );
    at_most
}

/// Returns the permit with which the body settles a charge, and one that blocks its key.
pub fn split_for_block(mut permit: Permit) -> (Permit, Permit) {
    let blocking = permit.part(0);
    (permit, blocking)
}

/// Returns a copy of a key, which borrows nothing.
#[must_use]
pub fn owned_key(key: &dyn Key) -> OwnedKey {
    OwnedKey::of(key)
}

/// Returns a key of a group. Its type is hidden, so a value that is no key is one error, at the key.
pub fn key(key: impl Key) -> impl Key {
    key
}

/// Returns a cost.
#[must_use]
pub const fn cost(cost: u64) -> u64 {
    cost
}

/// Returns the return value of a rejected call.
#[must_use]
pub fn reject<R: FromRejection>(rejection: Rejection) -> R {
    R::from_rejection(rejection)
}

/// Returns the return value of a rejected call, from `on_limited`.
pub fn reject_with<R>(rejection: Rejection, on_limited: impl FnOnce(Rejection) -> R) -> R {
    on_limited(rejection)
}

/// Returns the limit of a constant. A constant of another type is an error at its path.
pub const fn limit(limit: Limit) -> Limit {
    limit
}

/// Returns the limit of a constant, for calls without a permit. A limit of calls in flight is an error at its path.
///
/// # Panics
///
/// If the limit is one of calls in flight.
#[track_caller]
pub const fn without_permit(limit: Limit) -> Limit {
    assert!(
        !limit.is_in_flight(),
        "this is a limit of calls in flight, and only a permit holds their units: add `permit = slot`, which lives \
         until the body ends, or write `in_flight` and `hold` in place of `limit`"
    );
    limit
}

/// Returns a limit whose calls have permits. A limit that leases is an error at its path.
///
/// # Panics
///
/// If the limit leases.
#[track_caller]
pub const fn unleased(limit: Limit) -> Limit {
    assert!(
        !limit.leases(),
        "this limit has a `lease`: units that are leased in advance belong to no call, so their charges cannot \
         be corrected"
    );
    limit
}

/// Fails to compile if the limits of a group cannot be decided together.
///
/// # Panics
///
/// If the limits differ in scope, `on_error`, shadow or wait.
#[track_caller]
pub const fn decided_together(limits: &[&Limit]) {
    let mut index = 1;
    while index < limits.len() {
        assert!(
            limits[index].policy().agrees_with(limits[0].policy()),
            "limits that are decided together have the same `scope`, `on_error`, `shadow` and `wait`: \
             write them beside the groups, or change the constant"
        );
        index += 1;
    }
}

/// Returns the period of a literal.
#[must_use]
pub const fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// Returns the limiter that an attribute names. Coercion takes what dereferences to one, such as an `Arc`.
#[must_use]
pub fn limiter(limiter: &RateLimiter) -> &RateLimiter {
    limiter
}
