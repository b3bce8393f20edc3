//! What the expansion of the attribute calls, and what tests cannot do without. No part of the public
//! interface: it changes together with `ratelimit-macros`, which is why the two are pinned to each
//! other.

use std::time::Duration;

use crate::algorithm::Op;
use crate::check::{Answer, Check, Pass};
use crate::decision::Decision;
use crate::error::StoreError;
use crate::global;
use crate::limit::Limit;
use crate::limiter::RateLimiter;
use crate::rejection::Rejection;

pub use crate::key::{Format, Key, Piece};
pub use crate::part::Charge;
pub use crate::rejection::FromRejection;
pub use crate::site::Site;
#[cfg(feature = "redis")]
pub use crate::store::redis::script_text;

/// Begins the check of one call. The future owns what it needs, so that nothing borrowed by the
/// key lives across the `await`.
pub fn check(limit: &'static Limit, key: impl Key, cost: u32) -> Pass {
    global::with_current(
        |limiter| limiter.check(limit, key, cost).pass(),
        |error| Check::undecided(limit, StoreError::Configuration(error)).pass(),
    )
}

/// Begins the check of one call against several limits.
pub fn check_all(parts: &[Charge<'_>]) -> Pass {
    global::with_current(
        |limiter| limiter.check_charges(parts).pass(),
        |error| {
            let error = StoreError::Configuration(error);
            let check = parts.first().map_or_else(
                || Check::failed("", StoreError::NoLimits),
                |part| Check::undecided(part.limit, error),
            );
            check.pass()
        },
    )
}

/// Gives back `cost` units that were charged at `at`, in microseconds since the epoch, and never used.
pub fn return_units(
    limiter: &RateLimiter,
    limit: &Limit,
    key: impl Key,
    cost: u32,
    at: u64,
) -> Answer<Decision> {
    let (op, capacity) = (Op::Return { at }, limit.capacity());
    let answer = limiter.give_back(limiter.source(), op, limit, &key, cost);
    answer.map(move |answered| Decision::new(capacity, answered))
}

/// The limit under which leases of `limit` are charged, and for how many microseconds they last.
#[must_use]
pub fn leased(limit: &Limit) -> (Limit, u64) {
    (limit.leased(), limit.term_us())
}

/// The return value of a refused call.
#[must_use]
pub fn refuse<R: FromRejection>(rejection: Rejection) -> R {
    R::from_rejection(rejection)
}

/// The return value of a refused call, as `on_limited` makes it.
pub fn refuse_with<R>(rejection: Rejection, on_limited: impl FnOnce(Rejection) -> R) -> R {
    on_limited(rejection)
}

/// A period that was written as a literal.
#[must_use]
pub const fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}
