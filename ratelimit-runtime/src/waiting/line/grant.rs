//! Grants: units that the store has charged for a waiting call, until the call takes them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Now;
use crate::algorithm::{Op, Outcome, Receipt};
use crate::limit::Rate;
use crate::reply::Source;
use crate::store::{Charge, OneOrMany, Reply, Request};

/// Units that are charged for a call which has not taken its turn yet.
#[derive(Clone)]
pub(super) struct Grant {
    pub(super) costs: OneOrMany<u32>,
    outcomes: OneOrMany<Outcome>,
    /// The receipts of the charges; empty if they cannot be settled.
    receipts: OneOrMany<Receipt>,
    pub(super) source: Source,
    /// The moment from which the call can take its turn, by the clock of the limiter.
    pub(super) at: u64,
    /// The time of the full bucket after the charge, by the clock of the store.
    pub(super) end: u64,
    /// The real time of the moment; on a virtual clock, the time at which the line observed that the moment has come.
    pub(super) due: Option<Instant>,
    /// Whether another call did not take the grant. The next call has the rest of its time.
    pub(super) was_passed: bool,
    /// Whether the grant was not taken in time, so that no call may use it.
    pub(super) is_void: bool,
    /// The indices of the counts that were reset since the charge.
    pub(super) reset: Vec<usize>,
}

impl Grant {
    pub(super) fn new(
        costs: OneOrMany<u32>,
        (outcomes, receipts): (&[Outcome], &[Receipt]),
        source: Source,
        at: u64,
        due: Option<Instant>,
    ) -> Self {
        let end = outcomes.first().map_or(0, |outcome| outcome.clock + outcome.reset_us);
        Self {
            costs,
            outcomes: outcomes.to_vec().into(),
            receipts: receipts.to_vec().into(),
            source,
            at,
            end,
            due,
            was_passed: false,
            is_void: false,
            reset: Vec::new(),
        }
    }

    /// Returns whether these reserved tokens follow those of `earlier`, without a token of another process in between.
    /// Another token ends more than a microsecond short of its own time later, because ends are rounded up. So at more
    /// than 500,000 tokens a second, the answer can be `false` although there is none.
    pub(super) fn follows(&self, earlier: &Self, rate: Rate) -> bool {
        let with_another = u128::from(self.costs.first().copied().unwrap_or(0)) + 1;
        let apart = u128::from(self.end.saturating_sub(earlier.end));
        (apart + 1) * u128::from(rate.drain) <= with_another * u128::from(rate.token)
    }

    /// Returns whether the call has not taken its turn in time.
    pub(super) fn is_overdue(&self, now: Now, validity: Duration) -> bool {
        self.due.is_some_and(|due| now.real >= due + validity)
    }

    /// Returns the reply to the call that takes its turn.
    pub(super) fn into_reply(self) -> Reply {
        let outcomes = self.outcomes.map(|outcome| Outcome {
            retry_us: 0,
            reset_us: outcome.reset_us.saturating_sub(outcome.retry_us),
            ..*outcome
        });
        Reply { outcomes, receipts: self.receipts, source: self.source }
    }
}

/// Units of grants that no call has used.
pub(in crate::waiting) struct Returned {
    /// The requests that give them back, each to the store that charged it.
    pub(in crate::waiting) requests: Vec<(Source, Request)>,
}

impl Returned {
    /// Gives back the units of grants whose moments have come. Returns `None` if there are none.
    pub(super) fn new(counts: &[Arc<Charge>], grants: Vec<Grant>) -> Option<Self> {
        // Grants of one request have one time, so their units go back together.
        let mut sums: Vec<(Source, usize, u64, u32)> = Vec::new();
        for Grant { costs, outcomes, source, reset, .. } in grants {
            for (index, (cost, outcome)) in costs.iter().zip(&*outcomes).enumerate() {
                // Reserved tokens have refilled since, so there is nothing to give back.
                if *cost == 0 || outcome.retry_us > 0 || reset.contains(&index) {
                    continue;
                }
                let at = outcome.clock;
                let known =
                    sums.iter_mut().rev().find(|sum| (sum.0, sum.1, sum.2) == (source, index, at));
                match known {
                    Some(known) => known.3 = known.3.saturating_add(*cost),
                    None => sums.push((source, index, at, *cost)),
                }
            }
        }
        let requests = sums.into_iter().map(|(source, index, at, cost)| {
            let charge = Arc::new(Charge { cost, ..(*counts[index]).clone() });
            (source, Request::give_back(Op::Return { at }, charge))
        });
        let requests: Vec<_> = requests.collect();
        (!requests.is_empty()).then_some(Self { requests })
    }
}
