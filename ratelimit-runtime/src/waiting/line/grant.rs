//! Grants: units that the store has charged for a waiting call, until the call takes them.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Now;
use crate::algorithm::{Charged, LastReservations, Outcome, Receipt, Verdict};
use crate::limit::Rate;
use crate::one_or_many::OneOrMany;
use crate::reply::Source;
use crate::store::{BucketCharge, Calls, CancelledUnits, Charge, Reply};

/// Units that are charged for a call which has not taken its turn yet.
#[derive(Clone, Debug)]
pub(super) struct Grant {
    pub(super) costs: OneOrMany<u64>,
    outcomes: OneOrMany<Outcome>,
    /// The receipts of the charges; empty if they cannot be settled.
    receipts: OneOrMany<Receipt>,
    pub(super) source: Source,
    /// The moment from which the call can take its turn, by the clock of the limiter.
    pub(super) at: u64,
    /// The time of the full bucket after the charge, by the clock of the store.
    pub(super) end: u64,
    /// The real time of the request that charged the units.
    pub(super) asked: Instant,
    /// The real time of the moment; on a virtual clock, the time at which the line observed that the moment has come.
    pub(super) due: Option<Instant>,
    /// Whether a call before this one did not take the grant. This call has the rest of its time.
    pub(super) was_passed: bool,
    /// Whether the grant was not taken in time, so that no call may use it.
    pub(super) is_void: bool,
    /// The indices of the counts that were reset since the charge.
    pub(super) reset: Vec<usize>,
}

impl Grant {
    pub(super) fn new(
        costs: OneOrMany<u64>,
        (outcomes, receipts): (&[Outcome], &[Receipt]),
        source: Source,
        at: u64,
        due: Option<Instant>,
        asked: Instant,
    ) -> Self {
        let end = outcomes.first().map_or(0, |outcome| outcome.clock + outcome.reset_us);
        Self {
            costs,
            outcomes: outcomes.to_vec().into(),
            receipts: receipts.to_vec().into(),
            source,
            at,
            end,
            asked,
            due,
            was_passed: false,
            is_void: false,
            reset: Vec::new(),
        }
    }

    /// Returns the receipt of the charge in the first count; the default if there is none.
    pub(super) fn receipt(&self) -> Receipt {
        self.receipts.first().copied().unwrap_or_default()
    }

    /// Returns the reserved moment, by the clock of the store.
    pub(super) fn moment(&self) -> u64 {
        self.outcomes.first().map_or(0, |outcome| outcome.clock + outcome.retry_us)
    }

    /// Returns whether these reserved tokens follow those of `earlier`, without a token of another process in between.
    ///
    /// Receipts tell it exactly. Otherwise, another token ends more than a microsecond short of its own time later,
    /// because ends are rounded up. So at more than 500,000 tokens a second, the answer can be `false` although there
    /// is none.
    pub(super) fn follows(&self, earlier: &Self, rate: Rate) -> bool {
        let (receipt, before) = (self.receipt(), earlier.receipt());
        if receipt.birth != before.birth || receipt.birth != 0 {
            return receipt == Receipt { place: before.place + 1, ..before };
        }
        let with_another = u128::from(self.costs.first().copied().unwrap_or(0)) + 1;
        let apart = self.end.checked_sub(earlier.end).map(u128::from);
        apart.is_some_and(|apart| {
            (apart + 1) * u128::from(rate.drain) <= with_another * u128::from(rate.token)
        })
    }

    /// Returns whether the store has reserved a moment, so that the units are in the bucket until after that moment.
    pub(super) fn is_reserved(&self) -> bool {
        self.outcomes.iter().any(|outcome| outcome.retry_us > 0)
    }

    /// Returns the units of reservations that follow each other; `None` if there are none.
    pub(super) fn cancelled<'a>(
        grants: impl IntoIterator<Item = &'a Self>,
    ) -> Option<CancelledUnits> {
        let mut cancelled: Option<CancelledUnits> = None;
        for grant in grants {
            let cost = grant.costs.first().copied().unwrap_or(0);
            let CancelledUnits { units, last } = cancelled.get_or_insert_with(|| CancelledUnits {
                units: 0,
                last: LastReservations { moment: grant.moment(), ..LastReservations::default() },
            });
            *units = units.saturating_add(cost);
            let (end, receipt) = (grant.end, grant.receipt());
            *last = LastReservations { end, receipt, count: last.count + 1, ..*last };
        }
        cancelled
    }

    /// Returns whether the call has not taken its turn in time.
    pub(super) fn is_overdue(&self, now: Now, validity: Duration) -> bool {
        self.due.is_some_and(|due| now.real >= due + validity)
    }

    /// Returns the reply to a call for which the grant comes too late.
    pub(super) fn rejection(&self, retry_us: u64) -> Reply {
        let outcomes = self.outcomes.map(|outcome| Outcome {
            verdict: Verdict::Rejected,
            remaining: 0,
            retry_us,
            reset_us: outcome.reset_us.max(retry_us),
            ..*outcome
        });
        Reply::new(outcomes, self.source)
    }

    /// Returns the reply to the call that takes its turn. Without receipts, the units cannot be given back, but units
    /// that are used beyond them can be charged.
    pub(super) fn into_reply(mut self) -> Reply {
        if self.receipts.is_empty() {
            self.receipts = self.outcomes.map(|_| Receipt::default());
        }
        let outcomes = self.outcomes.map(|outcome| Outcome {
            retry_us: 0,
            reset_us: outcome.reset_us.saturating_sub(outcome.retry_us),
            ..*outcome
        });
        Reply { receipts: self.receipts, ..Reply::new(outcomes, self.source) }
    }
}

/// Units of grants that no call has used.
#[derive(Debug)]
pub(in crate::waiting) struct Returned {
    /// The reservations to cancel, the last first, each with the store that has made it.
    pub(in crate::waiting) cancels: Vec<(Source, Calls)>,
    /// The charges to give back, each with the store that has made it.
    pub(in crate::waiting) returns: Vec<(Source, Arc<Charge>, Charged)>,
}

impl Returned {
    /// Gives back the units of grants: returns what was charged at once, and cancels what was reserved. Returns `None`
    /// if there are none.
    pub(super) fn new(
        counts: &[Arc<Charge>],
        bucket: Option<&BucketCharge>,
        grants: Vec<Grant>,
    ) -> Option<Self> {
        let (mut reserved, charged): (Vec<_>, Vec<_>) =
            grants.into_iter().partition(Grant::is_reserved);
        // The last first: a bucket cancels its last reservation only.
        reserved.sort_by_key(|grant| Reverse((grant.receipt().place, grant.end)));
        let reserved = reserved.into_iter().filter(|grant| grant.reset.is_empty());
        let cancels = reserved.filter_map(|grant| {
            let cancelled = Grant::cancelled([&grant])?;
            Some((grant.source, Calls::cancel(bucket?.clone(), cancelled)))
        });
        // Grants of one request have one time, so their units go back together.
        let mut sums: Vec<(Source, usize, u64, u64)> = Vec::new();
        for Grant { costs, outcomes, receipts, source, reset, .. } in charged {
            for (index, (cost, outcome)) in costs.iter().zip(&*outcomes).enumerate() {
                if *cost == 0 || reset.contains(&index) {
                    continue;
                }
                let terms = &counts[index].terms;
                let place = receipts.get(index).map_or(0, |receipt| receipt.place);
                let at = if terms.is_in_flight() { place } else { outcome.charged_at(terms) };
                let known =
                    sums.iter_mut().rev().find(|sum| (sum.0, sum.1, sum.2) == (source, index, at));
                match known {
                    Some(known) => known.3 = known.3.saturating_add(*cost),
                    None => sums.push((source, index, at, *cost)),
                }
            }
        }
        let returns = sums.into_iter().map(|(source, index, at, cost)| {
            (source, counts[index].with_cost(cost), Charged::At(at))
        });
        let (cancels, returns) = (cancels.collect::<Vec<_>>(), returns.collect::<Vec<_>>());
        (!cancels.is_empty() || !returns.is_empty()).then_some(Self { cancels, returns })
    }
}
