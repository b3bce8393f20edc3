//! The limit of a call: a constant, or a limit whose amounts are computed for the call.

use std::time::Duration;

use super::amounts::CallAmounts;
use super::{CallLimit, Site, SiteLimit};
use crate::check::{Check, WrittenAmounts};
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
        check: impl FnOnce(&Limit, WrittenAmounts) -> T,
        decided: impl FnOnce(Check) -> T,
    ) -> T;

    /// Returns the limit if it is never dropped.
    fn kept(&self) -> Option<&'static Limit>;

    fn site(&self) -> &'static Site;
}

impl CheckedLimit for SiteLimit<'static> {
    #[inline]
    fn with<T>(
        self,
        _: &impl Key,
        check: impl FnOnce(&Limit, WrittenAmounts) -> T,
        _: impl FnOnce(Check) -> T,
    ) -> T {
        check(self.limit, WrittenAmounts::OfLimit)
    }

    #[inline]
    fn kept(&self) -> Option<&'static Limit> {
        Some(self.limit)
    }

    #[inline]
    fn site(&self) -> &'static Site {
        self.site
    }
}

impl CheckedLimit for CallLimit {
    #[inline]
    fn with<T>(
        self,
        key: &impl Key,
        check: impl FnOnce(&Limit, WrittenAmounts) -> T,
        decided: impl FnOnce(Check) -> T,
    ) -> T {
        match self.amounts {
            CallAmounts::Kept(limit) => check(limit, WrittenAmounts::OfLimit),
            CallAmounts::Derived(limit) => check(&limit, WrittenAmounts::OfLimit),
            CallAmounts::Unlimited(limit) if may_have_rules(limit) => {
                check(limit, WrittenAmounts::Unlimited)
            }
            CallAmounts::Closed(limit) if may_have_rules(limit) => {
                check(limit, WrittenAmounts::Zero)
            }
            CallAmounts::Unlimited(_) => decided(Check::unlimited()),
            CallAmounts::Closed(limit) => decided(reject_by_amounts(limit, key)),
        }
    }

    #[inline]
    fn kept(&self) -> Option<&'static Limit> {
        match self.amounts {
            CallAmounts::Kept(limit) => Some(limit),
            CallAmounts::Derived(_) | CallAmounts::Unlimited(_) | CallAmounts::Closed(_) => None,
        }
    }

    #[inline]
    fn site(&self) -> &'static Site {
        self.site
    }
}

/// Rejects a call whose threshold or burst is 0.
pub(super) fn reject_by_amounts(limit: &Limit, key: &dyn Key) -> Check {
    limiter::with_current(
        |limiter| limiter.checker().reject_closed(limit, &key, Duration::MAX),
        |error| Check::undecided(limit, StoreError::Configuration(error)),
    )
}

/// Returns whether rules can exist for a limit.
pub(super) fn may_have_rules(limit: &Limit) -> bool {
    limiter::with_current(|limiter| limiter.checker().rules.may_apply(limit), |_| false)
}
