//! The calls of a line in one decision. Twin of `lua/line.lua`.

use super::several::CountOp;
use super::{Embedded, shard_of, unlock};
use crate::algorithm::bucket::Bucket;
use crate::algorithm::{BucketOp, Op, Outcome, Receipt};
use crate::store::{
    CancelledUnits, Charge, EqualCalls, LineCounts, LineRequest, MAX_RESERVED, Reservations,
};

impl Embedded {
    /// Decides the calls of a line. Returns the receipts of the admitted calls if their charges can be settled.
    pub(super) fn apply_line(
        &self,
        LineRequest { counts, calls, settles }: &LineRequest,
    ) -> (Vec<Outcome>, Vec<Receipt>) {
        let mut receipts = Vec::new();
        match counts {
            LineCounts::Each(charges) => self.with_counts(charges, |apply| {
                let decide = if *settles { CountOp::Acquire } else { CountOp::Apply(Op::Decide) };
                let mut outcomes = Vec::new();
                for EqualCalls { costs, count, .. } in calls {
                    for _ in 0..*count {
                        let mut apply_all = |op| -> (Vec<Outcome>, Vec<Receipt>) {
                            let apply = |(index, cost): (usize, &u32)| apply(index, op, *cost);
                            costs.iter().enumerate().map(apply).unzip()
                        };
                        let (peeked, _) = apply_all(CountOp::Apply(Op::Peek));
                        if !peeked.iter().all(Outcome::is_allowed) {
                            outcomes.extend(peeked);
                            return (outcomes, receipts);
                        }
                        let (decided, of_charges) = apply_all(decide);
                        outcomes.extend(decided);
                        if *settles {
                            receipts.extend(of_charges);
                        }
                    }
                }
                (outcomes, receipts)
            }),
            LineCounts::Bucket(bucket, reservations) => {
                let Charge { terms, key_id, .. } = &**bucket.charge();
                let clock = self.clock.local();
                let mut shard = self.shard(shard_of(*key_id));
                let birth = shard.birth();
                let mut apply = |state: &mut Bucket, op, cost| {
                    let outcome = state.apply_ahead(op, terms, clock, cost);
                    if *settles && outcome.is_allowed() && matches!(op, BucketOp::Reserve { .. }) {
                        receipts.push(if cost > 0 {
                            state.mark(birth)
                        } else {
                            Receipt::default()
                        });
                    }
                    outcome
                };
                let outcomes = shard.visit::<Bucket, _>(
                    *key_id,
                    clock,
                    |state| reserve(*reservations, calls, |op, cost| apply(state, op, cost)),
                    |closed| {
                        reserve(*reservations, calls, |op, cost| {
                            closed.apply_ahead(op, terms, clock, cost)
                        })
                    },
                );
                unlock([shard]);
                (outcomes, receipts)
            }
        }
    }
}

/// Cancels and reserves moments of a bucket. `apply` applies an operation to it.
fn reserve(
    Reservations { cancelled, mut held, most }: Reservations,
    calls: &[EqualCalls],
    mut apply: impl FnMut(BucketOp, u32) -> Outcome,
) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    if let Some(CancelledUnits { units, end }) = cancelled {
        let outcome = apply(BucketOp::Cancel { end }, units);
        outcomes.push(outcome);
        if !outcome.is_allowed() {
            return outcomes;
        }
    }
    let mut reserved = 0;
    for EqualCalls { costs, count, wait } in calls {
        let cost = costs.first().copied().unwrap_or(0);
        for _ in 0..*count {
            let may_reserve = held == 0 || held.saturating_add(cost) <= most;
            let wait = if may_reserve { *wait } else { 0 };
            let outcome = apply(BucketOp::Reserve { wait }, cost);
            outcomes.push(outcome);
            if !outcome.is_allowed() {
                return outcomes;
            }
            if outcome.retry_us > 0 {
                held = held.saturating_add(cost);
                reserved += 1;
                if reserved == MAX_RESERVED {
                    return outcomes;
                }
            }
        }
    }
    outcomes
}
