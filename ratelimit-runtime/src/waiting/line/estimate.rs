//! Estimates when the calls of a line can be admitted, from the rejection of the first queued call.

use std::sync::Arc;

use crate::algorithm::{Outcome, Verdict};
use crate::limit::{Algorithm, Terms};
use crate::one_or_many::OneOrMany;
use crate::reply::Source;
use crate::store::{Charge, Reply};

/// The rejection of the first queued call.
#[derive(Debug)]
pub(super) struct Estimate {
    /// The time at which the call can be admitted, by the clock of the limiter; the earliest possible one if it is
    /// [busy](Self::is_busy).
    at: u64,
    costs: OneOrMany<u64>,
    outcomes: OneOrMany<Outcome>,
    source: Source,
    received: u64,
    /// Whether the call needs units that calls in flight hold. Their ends are unknown.
    pub(super) is_busy: bool,
}

impl Estimate {
    pub(super) fn new(
        at: u64,
        costs: OneOrMany<u64>,
        outcomes: &[Outcome],
        source: Source,
        received: u64,
        is_busy: bool,
    ) -> Self {
        Self { at, costs, outcomes: outcomes.to_vec().into(), source, received, is_busy }
    }

    /// Returns the earliest time at which the last of several queued calls can be admitted. `units` has the sums of the
    /// costs of all of them, the first included.
    pub(super) fn earliest(&self, counts: &[Arc<Charge>], units: &[u128]) -> u64 {
        // The time at which a block ends does not tell how many units the limit has left then.
        let is_only_blocked =
            |outcome: &Outcome| outcome.verdict == Verdict::Blocked { also_limited: false };
        let is_exact = counts.len() == 1 && !self.outcomes.iter().any(is_only_blocked);
        let of = |((charge, units), first): ((&Arc<Charge>, &u128), &u64)| {
            least_time(&charge.terms, *first, *units, is_exact)
        };
        let counts = counts.iter().zip(units).zip(&*self.costs);
        self.at.saturating_add(counts.map(of).max().unwrap_or(0))
    }

    /// Returns whether a count, by index, has rejected the call.
    pub(super) fn is_because_of(&self, count: usize) -> bool {
        self.outcomes.get(count).is_some_and(|outcome| !outcome.is_allowed())
    }

    /// Returns whether a call with these costs cannot be admitted before the first call either.
    pub(super) fn holds_for(&self, costs: &[u64]) -> bool {
        self.costs.iter().zip(costs).all(|(first, cost)| cost >= first)
    }

    /// Returns the rejection of a queued call that can be admitted after `retry` microseconds at the earliest.
    pub(super) fn rejection(&self, retry: u64, now: u64) -> Reply {
        let passed = now.saturating_sub(self.received);
        let mut outcomes: Vec<_> = self.outcomes.iter().copied().collect();
        for outcome in &mut outcomes {
            outcome.retry_us = outcome.retry_us.saturating_sub(passed);
            outcome.reset_us = outcome.reset_us.saturating_sub(passed);
        }
        // The limit that rejects the first call for longest also holds up the calls behind it.
        let rejecting = outcomes.iter_mut().filter(|outcome| !outcome.is_allowed());
        if let Some(outcome) = rejecting.max_by_key(|outcome| outcome.retry_us) {
            // For calls in flight alone, no time is known.
            if outcome.retry_us > 0 || !self.is_busy {
                outcome.retry_us = outcome.retry_us.max(retry);
                outcome.reset_us = outcome.reset_us.max(outcome.retry_us);
            }
        }
        Reply::new(outcomes.into(), self.source)
    }
}

/// Returns the shortest time between the first and the last admission of calls that take `units` units in total, of
/// which the first takes `first`. `is_exact` says whether the first call is admitted as soon as this limit admits it.
fn least_time(terms: &Terms, first: u64, units: u128, is_exact: bool) -> u64 {
    // When the first call is admitted, it takes the last free unit: otherwise it would not have waited.
    let windows = |whole: u128| {
        let windows = units.div_ceil(terms.threshold().into()).saturating_sub(whole);
        u64::try_from(windows).unwrap_or(u64::MAX).saturating_mul(terms.period_us())
    };
    match terms.algorithm() {
        Algorithm::TokenBucket | Algorithm::LeakyBucket => {
            // Otherwise, the bucket may refill while the first call waits for something else.
            let free = if is_exact { first } else { terms.capacity() };
            let missing = units.saturating_sub(free.into());
            let rate = terms.rate();
            let units = missing.saturating_mul(rate.token.into());
            let refill = units.div_ceil(rate.drain.into());
            u64::try_from(refill).unwrap_or(u64::MAX)
        }
        Algorithm::Sliding => windows(1),
        // The first call opens a window. If it waits for something else, it may be late in a window.
        Algorithm::Fixed if is_exact => windows(1),
        Algorithm::Fixed | Algorithm::SlidingCounter => windows(2),
        // All calls in flight can end at the same time.
        Algorithm::InFlight => 0,
    }
}
