//! The rules for buckets and windows, as `tests/support/judge/` has them.

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
    let (burst, rate) = (u128::from(terms.capacity()), u128::from(terms.threshold()));
    let period = u128::from(terms.period_us());
    let of_interval = |from: u64, to: u64| {
        let within = admitted.iter().filter(|(at, _)| (from..=to).contains(at));
        within.map(|(_, units)| u128::from(*units)).sum::<u128>()
    };
    admitted.iter().all(|(from, _)| {
        admitted.iter().filter(|(to, _)| to >= from).all(|(to, _)| {
            let time = u128::from(to - from + extra(*from, *to));
            of_interval(*from, *to) * period <= burst * period + rate * time
        })
    })
}

/// Returns whether a sliding window may have admitted these units: in any period, at most the threshold.
pub(crate) fn is_within_window(terms: &Terms, admitted: &[Admitted]) -> bool {
    let is_within = |from: u64| {
        let within =
            admitted.iter().filter(|(at, _)| (from..from + terms.period_us()).contains(at));
        within.map(|(_, units)| units).sum::<u64>() <= terms.threshold()
    };
    admitted.iter().all(|(from, _)| is_within(*from))
}
