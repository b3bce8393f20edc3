//! The limit of a call: a constant, or a limit whose amounts are computed for the call.

use super::CallLimit;
use crate::check::Check;
use crate::key::Key;
use crate::limit::Limit;
use crate::limiter;
use crate::reply::StoreError;

/// A limit that a call is checked against.
pub trait CheckedLimit: Sized {
    /// Passes the limit to `check`. If there is none to check, passes the check of the call to `decided`.
    fn with<T>(
        self,
        key: &impl Key,
        cost: u32,
        check: impl FnOnce(&Limit) -> T,
        decided: impl FnOnce(Check) -> T,
    ) -> T;

    /// Returns the limit if it is never dropped.
    fn kept(&self) -> Option<&'static Limit>;
}

impl CheckedLimit for &'static Limit {
    #[inline]
    fn with<T>(
        self,
        _: &impl Key,
        _: u32,
        check: impl FnOnce(&Limit) -> T,
        _: impl FnOnce(Check) -> T,
    ) -> T {
        check(self)
    }

    #[inline]
    fn kept(&self) -> Option<&'static Limit> {
        Some(self)
    }
}

impl CheckedLimit for CallLimit {
    #[inline]
    fn with<T>(
        self,
        key: &impl Key,
        cost: u32,
        check: impl FnOnce(&Limit) -> T,
        decided: impl FnOnce(Check) -> T,
    ) -> T {
        match self {
            Self::Kept(limit) => check(limit),
            Self::Derived(limit) => check(&limit),
            Self::Unlimited(limit) | Self::Closed(limit) if overrides_amounts(limit, key) => {
                check(limit)
            }
            Self::Unlimited(_) => decided(Check::unlimited()),
            Self::Closed(limit) => decided(reject_by_amounts(limit, key, cost)),
        }
    }

    #[inline]
    fn kept(&self) -> Option<&'static Limit> {
        match self {
            Self::Kept(limit) => Some(limit),
            Self::Derived(_) | Self::Unlimited(_) | Self::Closed(_) => None,
        }
    }
}

/// Rejects a call whose threshold or burst is 0.
pub(super) fn reject_by_amounts(limit: &Limit, key: &dyn Key, cost: u32) -> Check {
    limiter::with_current(
        |limiter| limiter.checker().reject_by_amounts(limit, key, cost),
        |error| Check::undecided(limit, StoreError::Configuration(error)),
    )
}

/// Returns whether rules say what a limit admits, whatever the code says.
pub(super) fn overrides_amounts(limit: &Limit, key: &(impl Key + ?Sized)) -> bool {
    limiter::with_current(|limiter| limiter.checker().overrides_amounts(limit, key), |_| false)
}
