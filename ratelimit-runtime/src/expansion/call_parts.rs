//! Groups of limits. A part of a group can compute its amounts for each call.

use super::checked_limit::{may_have_rules, reject_by_amounts};
use super::{CallLimit, SeveralPermits, UnsyncPart, acquire_parts, check_all, several};
use crate::check::{AcquireAll, Check, Part, Pass, Permit, WrittenAmounts};
use crate::key::Key;
use crate::limit::{Limit, LimitLabel};
use crate::reply::Rejection;

/// A part of a call.
#[derive(Debug)]
pub struct CallPart<'a>(PartLimit<'a>);

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
    pub fn constant(limit: &'a Limit, key: &'a (dyn Key + 'a), cost: u32) -> Self {
        Self(PartLimit::Limited(UnsyncPart::unsync(limit, key, cost)))
    }

    /// Creates the part of a limit whose amounts are computed for the call.
    #[must_use]
    pub fn of(limit: &'a CallLimit, key: &'a (dyn Key + 'a), cost: u32) -> Self {
        Self(match limit {
            CallLimit::Unlimited(limit) if may_have_rules(limit) => {
                let amounts = WrittenAmounts::Unlimited;
                PartLimit::Limited(Part { amounts, ..UnsyncPart::unsync(limit, key, cost) })
            }
            CallLimit::Closed(limit) if may_have_rules(limit) => {
                let amounts = WrittenAmounts::Zero;
                PartLimit::Limited(Part { amounts, ..UnsyncPart::unsync(limit, key, cost) })
            }
            CallLimit::Kept(limit) => PartLimit::Limited(UnsyncPart::unsync(limit, key, cost)),
            CallLimit::Derived(limit) => PartLimit::Limited(UnsyncPart::unsync(limit, key, cost)),
            CallLimit::Unlimited(_) => PartLimit::Unlimited,
            CallLimit::Closed(limit) => PartLimit::Closed(UnsyncPart::unsync(limit, key, cost)),
        })
    }
}

/// Returns the parts with limits, or the check of a call that needs no decision.
fn limited<'a>(
    parts: &[CallPart<'a>],
    without_wait: &'a [Limit],
) -> Result<Vec<UnsyncPart<'a>>, Check> {
    let closed = parts.iter().find_map(|CallPart(part)| match part {
        PartLimit::Closed(part) => Some(*part),
        PartLimit::Limited(_) | PartLimit::Unlimited => None,
    });
    if let Some(UnsyncPart { limit, key, cost, .. }) = closed {
        return Err(reject_by_amounts(limit, key, cost));
    }
    let limited = limited_parts(parts);
    let limited: Vec<_> = match without_wait {
        [] => limited.collect(),
        limits => {
            let parts = limited.zip(limits);
            parts.map(|(part, limit)| Part { limit, ..part }).collect()
        }
    };
    if limited.is_empty() { Err(Check::unlimited()) } else { Ok(limited) }
}

fn limited_parts<'a, 'b>(parts: &'b [CallPart<'a>]) -> impl Iterator<Item = UnsyncPart<'a>> + 'b {
    parts.iter().filter_map(|CallPart(part)| match part {
        PartLimit::Limited(part) => Some(*part),
        PartLimit::Unlimited | PartLimit::Closed(_) => None,
    })
}

/// Returns the limits of parts, for calls that do not wait.
fn without_wait(parts: &[CallPart<'_>]) -> Vec<Limit> {
    limited_parts(parts).map(|part| part.limit.clone().without_wait()).collect()
}

/// Starts the check of a call.
pub fn check_all_calls(parts: &[CallPart<'_>]) -> Pass {
    match limited(parts, &[]) {
        Ok(parts) => check_all(&parts),
        Err(decided) => decided.pass(),
    }
}

/// Checks a call of a function that is not async.
///
/// # Errors
///
/// The rejection of the call.
pub fn check_all_calls_now(parts: &[CallPart<'_>]) -> Result<(), Rejection> {
    let limits = without_wait(parts);
    match limited(parts, &limits) {
        Ok(parts) => check_all(&parts).now(|| parts[0].limit.label()),
        Err(decided) => decided.pass().now(LimitLabel::unnamed),
    }
}

/// Starts the check of a call whose charges are corrected.
pub fn acquire_all_calls<const N: usize>(parts: &[CallPart<'_>; N]) -> SeveralPermits<N> {
    acquire(parts, limited(parts, &[])).0
}

/// Checks a call of a function that is not async, whose charges are corrected.
///
/// # Errors
///
/// The rejection of the call.
pub fn acquire_all_calls_now<const N: usize>(
    parts: &[CallPart<'_>; N],
) -> Result<[Permit; N], Rejection> {
    let limits = without_wait(parts);
    let (SeveralPermits { acquired, limited }, label) = acquire(parts, limited(parts, &limits));
    acquired.now(|| label).map(|permits| several(permits, limited))
}

fn acquire<const N: usize>(
    parts: &[CallPart<'_>; N],
    limited: Result<Vec<UnsyncPart<'_>>, Check>,
) -> (SeveralPermits<N>, LimitLabel) {
    let is_limited = parts.each_ref().map(|CallPart(part)| matches!(part, PartLimit::Limited(_)));
    match limited {
        Ok(parts) => {
            let label = parts[0].limit.label();
            (SeveralPermits { acquired: acquire_parts(&parts), limited: is_limited }, label)
        }
        Err(decided) => {
            let acquired = AcquireAll::uncharged(decided, N);
            (SeveralPermits { acquired, limited: [true; N] }, LimitLabel::unnamed())
        }
    }
}
