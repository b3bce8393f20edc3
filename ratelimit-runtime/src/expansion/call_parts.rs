//! Groups of limits, which are decided together. A part of a group can compute its amounts for each call.

use super::amounts::CallAmounts;
use super::checked_limit::{may_have_rules, reject_by_amounts};
use super::{CallLimit, Site, SiteLimit};
use crate::check::{AcquireAll, Check, Part, WrittenAmounts};
use crate::key::Key;
use crate::limit::{Limit, LimitLabel};
use crate::limiter;
use crate::reply::StoreError;

/// A [`Part`] whose key need not be `Sync`.
type UnsyncPart<'a> = Part<'a, dyn Key + 'a>;

/// A part of a call.
#[derive(Debug)]
pub struct CallPart<'a> {
    pub(super) site: &'static Site,
    limit: PartLimit<'a>,
}

#[derive(Debug)]
enum PartLimit<'a> {
    Limited(UnsyncPart<'a>),
    Unlimited,
    /// The threshold or the burst is 0.
    Closed(UnsyncPart<'a>),
}

impl<'a> CallPart<'a> {
    /// Creates the part of a limit with constant amounts.
    #[must_use]
    pub fn constant(
        SiteLimit { limit, site }: SiteLimit<'a>,
        key: &'a (dyn Key + 'a),
        cost: u32,
    ) -> Self {
        Self { site, limit: PartLimit::Limited(Part::of(limit, key, cost)) }
    }

    /// Creates the part of a limit whose amounts are computed for the call.
    #[must_use]
    pub fn of(limit: &'a CallLimit, key: &'a (dyn Key + 'a), cost: u32) -> Self {
        let CallLimit { site, amounts } = limit;
        let part = |limit: &'a Limit| UnsyncPart::of(limit, key, cost);
        let under_rules = |limit, amounts| PartLimit::Limited(Part { amounts, ..part(limit) });
        let limit = match amounts {
            CallAmounts::Unlimited(limit) if may_have_rules(limit) => {
                under_rules(limit, WrittenAmounts::Unlimited)
            }
            CallAmounts::Closed(limit) if may_have_rules(limit) => {
                under_rules(limit, WrittenAmounts::Zero)
            }
            CallAmounts::Kept(limit) => PartLimit::Limited(part(limit)),
            CallAmounts::Derived(limit) => PartLimit::Limited(part(limit)),
            CallAmounts::Unlimited(_) => PartLimit::Unlimited,
            CallAmounts::Closed(limit) => PartLimit::Closed(part(limit)),
        };
        Self { site, limit }
    }

    pub(super) fn is_limited(&self) -> bool {
        matches!(self.limit, PartLimit::Limited(_))
    }

    pub(super) fn label(&self) -> LimitLabel {
        match self.limit {
            PartLimit::Limited(part) | PartLimit::Closed(part) => part.limit.label(),
            PartLimit::Unlimited => LimitLabel::unnamed(),
        }
    }
}

/// Passes the parts with limits to `check`, or the check of a call that needs no decision to `decided`. With
/// `waits: false`, the limits do not wait.
fn with_limited<T, const N: usize>(
    parts: &[CallPart<'_>; N],
    waits: bool,
    check: impl FnOnce(&[UnsyncPart<'_>]) -> T,
    decided: impl FnOnce(Check) -> T,
) -> T {
    let closed = parts.iter().find_map(|part| match &part.limit {
        PartLimit::Closed(part) => Some(part),
        PartLimit::Limited(_) | PartLimit::Unlimited => None,
    });
    if let Some(UnsyncPart { limit, key, .. }) = closed {
        return decided(reject_by_amounts(limit, key));
    }
    let mut limited = parts.iter().filter_map(|part| match part.limit {
        PartLimit::Limited(part) => Some(part),
        PartLimit::Unlimited | PartLimit::Closed(_) => None,
    });
    let Some(first) = limited.next() else { return decided(Check::unlimited()) };
    let (mut parts, mut count) = ([first; N], 1);
    for part in limited {
        parts[count] = part;
        count += 1;
    }
    let limited = &parts[..count];
    if waits {
        return check(limited);
    }
    let limits: Vec<_> = limited.iter().map(|part| part.limit.clone().without_wait()).collect();
    let limited: Vec<_> =
        limited.iter().zip(&limits).map(|(part, limit)| Part { limit, ..*part }).collect();
    check(&limited)
}

/// Starts the check of a call.
pub(super) fn check_parts<const N: usize>(parts: &[CallPart<'_>; N], waits: bool) -> Check {
    let check = |parts: &[UnsyncPart<'_>]| {
        limiter::with_current(
            |limiter| limiter.checker().check_all(parts),
            |error| Check::undecided(parts[0].limit, StoreError::Configuration(error)),
        )
    };
    with_limited(parts, waits, check, |decided| decided)
}

/// Starts the check of a call whose charges are corrected. It has a permit for each part, or for each part with a
/// limit.
pub(super) fn acquire_parts<const N: usize>(parts: &[CallPart<'_>; N], waits: bool) -> AcquireAll {
    let acquire = |parts: &[UnsyncPart<'_>]| {
        limiter::with_current(
            |limiter| limiter.checker().acquire_all(parts),
            |error| {
                let error = StoreError::Configuration(error);
                AcquireAll::uncharged(Check::undecided(parts[0].limit, error), parts.len())
            },
        )
    };
    with_limited(parts, waits, acquire, |decided| AcquireAll::uncharged(decided, parts.len()))
}
