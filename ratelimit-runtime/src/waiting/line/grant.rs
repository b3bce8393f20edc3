//! Grants: units that the store has charged for a waiting call, until the call takes them.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Now;
use crate::algorithm::{Charged, Outcome, Receipt, Reservation, Verdict};
use crate::one_or_many::OneOrMany;
use crate::reply::Source;
use crate::store::{Charge, Reply};

/// Units that are charged for a call which has not taken its turn yet.
#[derive(Clone, Debug)]
pub(super) struct Grant {
    pub(super) costs: OneOrMany<u64>,
    outcomes: OneOrMany<Outcome>,
    receipts: OneOrMany<Receipt>,
    pub(super) source: Source,
    /// The moment from which the call can take its turn, by the clock of the limiter.
    pub(super) at: u64,
    /// The real time of the moment; on a virtual clock, the time at which the line observed that the moment has come.
    pub(super) due: Option<Instant>,
    /// Whether a call before this one did not take the grant. This call has the rest of its time.
    pub(super) was_passed: bool,
}

/// Units that go back: the store that has charged them, and the charge.
pub(in crate::waiting) type ReturnedGrant = (Source, Arc<Charge>, Charged);

impl Grant {
    pub(super) fn new(
        costs: OneOrMany<u64>,
        (outcomes, receipts): (&[Outcome], &[Receipt]),
        source: Source,
        at: u64,
        due: Option<Instant>,
    ) -> Self {
        let (outcomes, receipts) = (outcomes.to_vec().into(), receipts.to_vec().into());
        Self { costs, outcomes, receipts, source, at, due, was_passed: false }
    }

    /// Returns the moment that a bucket has reserved; `None` if it has admitted the call at once.
    pub(super) fn reservation(&self) -> Option<Reservation> {
        let outcome = self.outcomes.first().filter(|outcome| outcome.retry_us > 0)?;
        let receipt = *self.receipts.first()?;
        Some(Reservation { receipt, moment: outcome.clock + outcome.retry_us })
    }

    /// Returns whether a grant that no call uses goes back now. `last` is the last moment ahead that a call has: before
    /// that, a bucket would not give all of a moment back.
    pub(super) fn returns(&self, last: Option<u64>, now: Now) -> bool {
        self.at <= now.local || last.is_none_or(|last| self.at > last)
    }

    /// Returns whether the call has not taken its turn in time.
    pub(super) fn is_overdue(&self, now: Now, validity: Duration) -> bool {
        self.due.is_some_and(|due| now.real >= due + validity)
    }

    /// Returns the reply to a call for which the grant comes too late.
    pub(super) fn rejection(&self, retry_us: u64) -> Reply {
        let outcomes = self.outcomes.iter().map(|outcome| Outcome {
            verdict: Verdict::Rejected,
            remaining: 0,
            retry_us,
            reset_us: outcome.reset_us.max(retry_us),
            ..*outcome
        });
        Reply::new(outcomes.collect(), self.source)
    }

    /// Returns the reply to the call that takes its turn.
    pub(super) fn into_reply(self) -> Reply {
        let outcomes = self.outcomes.iter().map(|outcome| Outcome {
            retry_us: 0,
            reset_us: outcome.reset_us.saturating_sub(outcome.retry_us),
            ..*outcome
        });
        Reply { receipts: self.receipts, ..Reply::new(outcomes.collect(), self.source) }
    }
}

/// Returns the charges of grants that go back.
pub(super) fn returned(counts: &[Arc<Charge>], mut grants: Vec<Grant>) -> Vec<ReturnedGrant> {
    // The last charge first: a bucket gives back a moment as a whole while no later one is reserved.
    grants.sort_by_key(|grant| Reverse(grant.receipts.first().map(|receipt| receipt.place)));
    let mut returned: Vec<(Source, usize, Charged, u64)> = Vec::new();
    for grant in grants {
        let reserved = grant.reservation().map(Charged::Reserved);
        for (index, (cost, receipt)) in grant.costs.iter().zip(&*grant.receipts).enumerate() {
            if *cost == 0 {
                continue;
            }
            let charged = reserved.unwrap_or(Charged::By(*receipt));
            // Grants of one request to a window have one receipt, so their units go back together.
            let mut known = returned.iter_mut().rev().take(counts.len());
            match known.find(|known| (known.0, known.1, known.2) == (grant.source, index, charged))
            {
                Some(known) => known.3 += *cost,
                None => returned.push((grant.source, index, charged, *cost)),
            }
        }
    }
    let charge = |(source, index, charged, cost): (_, usize, _, u64)| {
        (source, counts[index].with_cost(cost), charged)
    };
    returned.into_iter().map(charge).collect()
}
