//! How many units of a count a process requests in advance, so that processes do not take the last units from each
//! other.
//!
//! The share of a process is the part that it charged of all units that were charged between the last two replies of
//! the store. It requests at most that part of half of what is left. So it requests fewer units if few are left or if
//! other processes charge most of them, and little stands idle when calls are rejected. The share is an estimate: it
//! affects the number of requests, and never a decision.

use crate::algorithm::Outcome;
use crate::limit::{Algorithm, Terms};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Share {
    /// The time of the last reply, by the clock of the store, and the units that were left.
    last: Option<(u64, u64)>,
    /// The most units to request in advance.
    pub(super) most: u64,
}

impl Share {
    /// Follows the reply to a request for `units` units, which the store has charged.
    pub(super) fn update(&mut self, terms: &Terms, units: u64, outcome: &Outcome) {
        let (own, rest) = (units, outcome.remaining);
        let last = self.last.replace((outcome.clock, outcome.remaining));
        let others = last.map_or(0, |(at, left)| {
            let returned = returned(terms, left, outcome.clock.saturating_sub(at));
            (left + returned).saturating_sub(own + rest)
        });
        self.most =
            (u128::from(rest) * u128::from(own) / u128::from((own + others).max(1)) / 2) as u64;
    }
}

/// Returns how many units return to a count within some microseconds, as if they had been charged evenly.
fn returned(terms: &Terms, left: u64, elapsed: u64) -> u64 {
    let used = terms.capacity().saturating_sub(left);
    let a_period = match terms.algorithm() {
        Algorithm::TokenBucket | Algorithm::LeakyBucket => terms.threshold(),
        Algorithm::Sliding | Algorithm::SlidingCounter => used,
        Algorithm::Fixed | Algorithm::InFlight => 0,
    };
    let returned = u128::from(a_period) * u128::from(elapsed) / u128::from(terms.period_us());
    returned.min(used.into()) as u64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::algorithm::Verdict;
    use crate::limit::Limit;

    /// Returns the most units to request after replies: each with its second, the units that were charged, and the
    /// units that were left.
    fn most(limit: &Limit, replies: &[(u64, u64, u64)]) -> u64 {
        let mut share = Share::default();
        for &(second, units, remaining) in replies {
            let outcome = Outcome {
                clock: second * 1_000_000,
                verdict: Verdict::Admitted,
                remaining,
                retry_us: 0,
                reset_us: 0,
            };
            share.update(limit.terms(), units, &outcome);
        }
        share.most
    }

    #[test]
    fn a_process_requests_half_of_its_share_of_what_is_left() {
        let minute = Duration::from_secs(60);
        let fixed = Limit::fixed("share", 1_000, minute);
        assert_eq!(most(&fixed, &[]), 0);
        assert_eq!(most(&fixed, &[(0, 1, 999)]), 499);
        assert_eq!(most(&fixed, &[(0, 1, 999), (1, 2, 997)]), 498, "no other process charges");
        assert_eq!(most(&fixed, &[(0, 1, 999), (1, 10, 899)]), 44, "a tenth is its own");
        assert_eq!(most(&fixed, &[(0, 1, 999), (1, 10, 0)]), 0);
        assert_eq!(most(&fixed, &[(0, 1, 100), (61, 10, 990)]), 495, "another window");
        assert_eq!(most(&fixed, &[(9, 1, 999), (0, 10, 899)]), 44, "a clock that steps back");
    }

    #[test]
    fn units_that_return_were_charged_by_others() {
        let minute = Duration::from_secs(60);
        let bucket = Limit::token_bucket("share", 600, minute).burst(1_000);
        // 10 tokens refill each second, and other processes take 5 of them.
        assert_eq!(most(&bucket, &[(0, 5, 500), (1, 5, 500)]), 125);
        // No more refill than fit.
        assert_eq!(most(&bucket, &[(0, 5, 990), (60, 5, 995)]), 497);
        // A tenth of the 600 used units leaves the window in a tenth of the period.
        for window in
            [Limit::sliding("share", 1_000, minute), Limit::sliding_counter("share", 1_000, minute)]
        {
            assert_eq!(most(&window, &[(0, 6, 400), (6, 6, 400)]), 20);
        }
    }
}
