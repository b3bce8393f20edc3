//! The functions that the expansion of the attribute calls, and functions for the tests of the workspace. This module
//! is not part of the public API. It changes together with `ratelimit-macros`, so `ratelimit-runtime` requires an
//! exact version of that crate.

mod amounts;
mod call_parts;
mod checked_limit;
mod site;

use std::array;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

pub use ratelimit_macros::format_key;

pub use self::amounts::{Amount, AmountsSite, CallLimit, amount};
pub use self::call_parts::{
    CallPart, acquire_all_calls, acquire_all_calls_now, check_all_calls, check_all_calls_now,
};
pub use self::checked_limit::CheckedLimit;
pub use self::site::Site;
use crate::check::{Acquire, AcquireAll, Check, KeptTerms, Part, Pass, Permit, WrittenAmounts};
use crate::key::OwnedKey;
pub use crate::key::{Format, Key, Piece};
use crate::limit::{Algorithm, Limit, LimitLabel};
use crate::limiter::{self, RateLimiter};
pub use crate::reply::FromRejection;
use crate::reply::{Answer, Decision, Rejection, StoreError};
use crate::report::Report;
#[cfg(feature = "redis")]
pub use crate::store::redis::script_text;

/// All algorithms, for tests.
pub const ALGORITHMS: [Algorithm; Algorithm::ALL.len()] = Algorithm::ALL;

/// A [`Part`] whose key need not be `Sync`.
pub type UnsyncPart<'a> = Part<'a, dyn Key + 'a>;

/// Starts the check of a call. The future borrows nothing, so it does not hold the borrows of the key across the
/// `await`.
#[inline]
pub fn check(limit: impl CheckedLimit, key: impl Key, cost: u32) -> Pass {
    limit.with(
        &key,
        cost,
        |limit, amounts| {
            limiter::with_current(
                |limiter| limiter.checker().check_written(limit, &key, cost, amounts).pass(),
                |error| Check::undecided(limit, StoreError::Configuration(error)).pass(),
            )
        },
        Check::pass,
    )
}

/// Checks a call of a function that is not async.
///
/// # Errors
///
/// The rejection of the call.
pub fn check_now(limit: impl CheckedLimit, key: impl Key, cost: u32) -> Result<(), Rejection> {
    let check = |limit: &Limit, amounts| {
        let undecided = |error| Check::undecided(limit, StoreError::Configuration(error));
        let check = |limiter: &RateLimiter| match amounts {
            WrittenAmounts::OfLimit => limiter.check_now(limit, &key, cost),
            computed => {
                let limit = limit.clone().without_wait();
                let check = limiter.checker().check_written(&limit, &key, cost, computed);
                check.now(|| limit.label())
            }
        };
        limiter::with_current(check, |error| undecided(error).now(|| limit.label()))
    };
    limit.with(&key, cost, check, |decided| decided.now(LimitLabel::unnamed)).map(drop)
}

/// Checks a call of a function that is not async against several limits.
///
/// # Errors
///
/// The rejection of the call.
pub fn check_all_now(parts: &[UnsyncPart<'_>]) -> Result<(), Rejection> {
    let label = || parts.first().map_or_else(LimitLabel::unnamed, |part| part.limit.label());
    let limits: Vec<_> = parts.iter().map(|part| part.limit.clone().without_wait()).collect();
    let parts = parts.iter().zip(&limits);
    let parts: Vec<_> =
        parts.map(|(part, limit)| UnsyncPart::unsync(limit, part.key, part.cost)).collect();
    check_all(&parts).now(label)
}

/// Starts the check of a call against several limits.
pub fn check_all(parts: &[UnsyncPart<'_>]) -> Pass {
    limiter::with_current(
        |limiter| limiter.checker().check_all(parts).pass(),
        |error| match parts.first() {
            Some(part) => Check::undecided(part.limit, StoreError::Configuration(error)).pass(),
            None => {
                Check::failed(Report::start(), LimitLabel::unnamed(), StoreError::NoLimits).pass()
            }
        },
    )
}

/// Starts the check of a call whose charge is corrected.
pub fn acquire(limit: impl CheckedLimit, key: impl Key, cost: u32) -> OnePermit {
    let kept = limit.kept();
    OnePermit(limit.with(
        &key,
        cost,
        |limit, amounts| {
            let terms = || match kept {
                Some(limit) => KeptTerms::Static(limit.terms()),
                None => KeptTerms::Owned(Arc::new(limit.terms().clone())),
            };
            limiter::with_current(
                |limiter| limiter.checker().acquire_written(limit, &key, cost, amounts, terms),
                |error| {
                    Acquire::uncharged(Check::undecided(limit, StoreError::Configuration(error)))
                },
            )
        },
        Acquire::uncharged,
    ))
}

/// Checks a call of a function that is not async, whose charge is corrected.
///
/// # Errors
///
/// The rejection of the call.
pub fn acquire_now(
    limit: impl CheckedLimit,
    key: impl Key,
    cost: u32,
) -> Result<[Permit; 1], Rejection> {
    let acquire = |limit: &Limit, amounts| {
        let limit = limit.clone().without_wait();
        let undecided = |error| Check::undecided(&limit, StoreError::Configuration(error));
        let acquire = |limiter: &RateLimiter| {
            let terms = || KeptTerms::Owned(Arc::new(limit.terms().clone()));
            limiter.checker().acquire_written(&limit, &key, cost, amounts, terms)
        };
        limiter::with_current(acquire, |error| Acquire::uncharged(undecided(error)))
            .now(|| limit.label())
    };
    let decided = |check| Acquire::uncharged(check).now(LimitLabel::unnamed);
    limit.with(&key, cost, acquire, decided).map(|permit| [permit])
}

/// Starts the check of a call against several limits, whose charges are corrected.
pub fn acquire_all<const N: usize>(parts: &[UnsyncPart<'_>; N]) -> SeveralPermits<N> {
    SeveralPermits { acquired: acquire_parts(parts), limited: [true; N] }
}

fn acquire_parts(parts: &[UnsyncPart<'_>]) -> AcquireAll {
    limiter::with_current(
        |limiter| limiter.checker().acquire_all(parts),
        |error| {
            let error = StoreError::Configuration(error);
            AcquireAll::uncharged(Check::undecided(parts[0].limit, error), parts.len())
        },
    )
}

/// Checks a call of a function that is not async against several limits, whose charges are corrected.
///
/// # Errors
///
/// The rejection of the call.
pub fn acquire_all_now<const N: usize>(
    parts: &[UnsyncPart<'_>; N],
) -> Result<[Permit; N], Rejection> {
    let limits = parts.each_ref().map(|part| part.limit.clone().without_wait());
    let unwaited: [_; N] = array::from_fn(|index| {
        UnsyncPart::unsync(&limits[index], parts[index].key, parts[index].cost)
    });
    let acquired = acquire_all(&unwaited);
    let limited = acquired.limited;
    acquired.acquired.now(|| parts[0].limit.label()).map(|permits| several(permits, limited))
}

fn several<const N: usize>(permits: Vec<Permit>, limited: [bool; N]) -> [Permit; N] {
    let mut permits = permits.into_iter();
    limited.map(|is_limited| {
        let permit = if is_limited { permits.next() } else { None };
        permit.unwrap_or_else(Permit::unlimited)
    })
}

/// The future of [`acquire`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct OnePermit(Acquire);

/// The future of [`acquire_all`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct SeveralPermits<const N: usize> {
    acquired: AcquireAll,
    /// Which parts have a limit. The others have empty permits.
    limited: [bool; N],
}

impl Future for OnePermit {
    type Output = Result<[Permit; 1], Rejection>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map_ok(|permit| [permit])
    }
}

impl<const N: usize> Future for SeveralPermits<N> {
    type Output = Result<[Permit; N], Rejection>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let limited = self.limited;
        Pin::new(&mut self.acquired).poll(context).map_ok(|permits| several(permits, limited))
    }
}

/// Calls the body of a function. The bound makes a closure that may return what it owns.
pub fn call_once<T>(body: impl FnOnce() -> T) -> T {
    body()
}

/// Corrects a charge to the units that the call has used, which `used` reads from its return value.
pub fn settle<T: ?Sized>(permit: Permit, output: &T, used: impl FnOnce(&T) -> u32) {
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

/// Closes the key of a call for as long as `time` says, by its return value. The permit closes it once it is settled or
/// kept.
pub fn close<T: ?Sized>(
    permit: Permit,
    output: &T,
    time: impl FnOnce(&T) -> Option<Duration>,
) -> Permit {
    permit.closing(time(output))
}

/// Returns the permit with which the body settles a charge, and one that closes its key.
pub fn split_for_close(mut permit: Permit) -> (Permit, Permit) {
    let closing = permit.part(0);
    (permit, closing)
}

/// Returns a copy of a key, which borrows nothing.
#[must_use]
pub fn owned_key(key: &dyn Key) -> OwnedKey {
    OwnedKey::of(key)
}

/// Gives back `cost` units that were charged at `at`, in microseconds since the epoch, and never used.
pub fn return_units(
    limiter: &RateLimiter,
    limit: &Limit,
    key: impl Key,
    cost: u32,
    at: u64,
) -> Answer<Decision> {
    limiter.checker().return_units(limit, &key, cost, at)
}

/// Returns whether the lines of waiting calls would do nothing before the clock of the limiter moves.
#[must_use]
pub fn lines_are_settled(limiter: &RateLimiter) -> bool {
    limiter.checker().waiting.is_settled()
}

/// Returns the number of counts for which calls wait, or for which units of waiting calls are held.
#[must_use]
pub fn lines(limiter: &RateLimiter) -> usize {
    limiter.checker().waiting.lines()
}

/// Returns the limit under which leases of `limit` are charged, and their lifetime in microseconds.
#[must_use]
pub fn leased(limit: &Limit) -> (Limit, u64) {
    (limit.counted_as_lease(), limit.terms().lease_us())
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
#[must_use]
pub const fn limit(limit: Limit) -> Limit {
    limit
}

/// Returns a limit whose calls have permits. A limit that leases is an error at its path.
///
/// # Panics
///
/// If the limit leases.
#[must_use]
#[track_caller]
pub const fn unleased(limit: Limit) -> Limit {
    assert!(
        limit.lease_units() == 0,
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
