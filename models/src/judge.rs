//! The rules for buckets and windows, as `tests/support/judge/` has them.

use std::ops::RangeInclusive;

use crate::limit::Terms;

/// A time, in microseconds, and the units that were admitted then.
pub(crate) type Admitted = (u64, u64);

/// Returns whether a bucket may have admitted these units: in any interval, at most the burst and what refills in it.
/// `extra` returns by how many microseconds an interval counts as longer than it is.
pub(crate) fn is_within(
    terms: &Terms,
    admitted: &[Admitted],
    extra: impl Fn(u64, u64) -> u64,
) -> bool {
    let (burst, rate, period) = (terms.capacity, terms.threshold, terms.period_us());
    admitted.iter().all(|&(from, _)| {
        admitted.iter().filter(|(to, _)| *to >= from).all(|&(to, _)| {
            let refills = rate * (to - from + extra(from, to));
            units(admitted, from..=to) * period <= burst * period + refills
        })
    })
}

/// Returns whether a sliding window may have admitted these units: in any period, at most the threshold.
pub(crate) fn is_within_window(terms: &Terms, admitted: &[Admitted]) -> bool {
    let period = |from| from..=from + terms.period_us() - 1;
    admitted.iter().all(|(from, _)| units(admitted, period(*from)) <= terms.threshold)
}

fn units(admitted: &[Admitted], times: RangeInclusive<u64>) -> u64 {
    admitted.iter().filter(|(at, _)| times.contains(at)).map(|(_, units)| units).sum()
}
