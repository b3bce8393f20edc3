//! Several counts in one decision, and their locks.

use std::sync::Arc;

use super::{Embedded, LocalCharge, change, shard_of};
use crate::algorithm::{Op, Outcome, Receipt, match_algorithm, with_state};
use crate::store::Charge;

/// An operation on one of several counts.
#[derive(Clone, Copy)]
pub(super) enum CountOp {
    Apply(Op),
    /// Decides a call whose charge can be settled.
    Acquire,
}

impl Embedded {
    /// Decides a call whose charges can be settled. Without receipts if it is rejected. Twin of `lua/all.lua`.
    pub(super) fn acquire_many(&self, charges: &[Arc<Charge>]) -> (Vec<Outcome>, Vec<Receipt>) {
        self.with_counts(charges, |apply| {
            let mut apply_all = |op| -> (Vec<Outcome>, Vec<Receipt>) {
                let apply = |(index, charge): (usize, &Arc<Charge>)| apply(index, op, charge.cost);
                charges.iter().enumerate().map(apply).unzip()
            };
            let (peeked, _) = apply_all(CountOp::Apply(Op::Peek));
            let fits = peeked.iter().all(Outcome::is_allowed);
            if fits { apply_all(CountOp::Acquire) } else { (peeked, Vec::new()) }
        })
    }

    /// Applies an operation to several counts. Twin of `lua/all.lua`.
    pub(super) fn apply_many(&self, op: Op, charges: &[Arc<Charge>]) -> Vec<Outcome> {
        self.with_counts(charges, |apply| {
            let mut apply_all = |op| {
                let op = CountOp::Apply(op);
                let apply =
                    |(index, charge): (usize, &Arc<Charge>)| apply(index, op, charge.cost).0;
                charges.iter().enumerate().map(apply).collect()
            };
            match op {
                Op::Decide => {
                    let peeked: Vec<Outcome> = apply_all(Op::Peek);
                    let fits = peeked.iter().all(Outcome::is_allowed);
                    if fits { apply_all(Op::Decide) } else { peeked }
                }
                Op::Peek | Op::Refund | Op::Return { .. } => apply_all(op),
            }
        })
    }

    /// Locks the shards of several counts. Passes a function to `work` that applies an operation to the count with an
    /// index.
    pub(super) fn with_counts<T>(
        &self,
        charges: &[Arc<Charge>],
        work: impl FnOnce(&mut dyn FnMut(usize, CountOp, u32) -> (Outcome, Receipt)) -> T,
    ) -> T {
        let clock = self.clock.local();
        // Every call locks shards in ascending order, so no two calls wait for each other.
        let mut indices: Vec<_> = charges.iter().map(|charge| shard_of(charge.key_id)).collect();
        indices.sort_unstable();
        indices.dedup();
        let shards: Vec<_> = indices.iter().map(|index| self.shard(*index)).collect();
        change(shards, |shards| {
            work(&mut |index, op, cost| {
                let charge = &charges[index];
                let at = indices.binary_search(&shard_of(charge.key_id)).unwrap_or(0);
                with_state!(charge.terms.algorithm(), S => {
                    let mut new = None::<S>;
                    let charge = LocalCharge { cost, ..(&**charge).into() };
                    let applied = match op {
                        CountOp::Apply(op) => {
                            let outcome = shards[at].apply(op, charge, clock, &mut new);
                            (outcome, Receipt::default())
                        }
                        CountOp::Acquire => shards[at].acquire(charge, clock, &mut new),
                    };
                    if let Some(state) = new {
                        shards[at].add(charge.key_id, state, clock);
                    }
                    applied
                })
            })
        })
    }
}
