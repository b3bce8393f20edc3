//! Several counts in one decision, and their locks.

use std::sync::Arc;

use super::shard::Shard;
use super::{Embedded, LocalCharge, MutexGuard, shard_of, unlock};
use crate::algorithm::{Op, Outcome, Receipt, State, match_algorithm, with_state};
use crate::store::Charge;

/// The most counts that [`Embedded::decide_few`] decides.
pub(crate) const FEW: usize = 8;

/// An operation on one of several counts.
#[derive(Clone, Copy)]
pub(super) enum CountOp {
    Apply(Op),
    /// Decides a call whose charge can be settled.
    Acquire,
}

impl Embedded {
    /// Decides a call of at most [`FEW`] counts without an allocation. If one of them has no state or is closed,
    /// returns `false` and changes nothing.
    pub(crate) fn decide_few(&self, charges: &[LocalCharge<'_>], outcomes: &mut [Outcome]) -> bool {
        let clock = self.clock.local();
        let mut indices = [usize::MAX; FEW];
        for (index, charge) in indices.iter_mut().zip(charges) {
            *index = shard_of(charge.key_id);
        }
        let indices = &mut indices[..charges.len()];
        // As in `with_counts`.
        indices.sort_unstable();
        let mut shards: [Option<MutexGuard<'_, Shard>>; FEW] = Default::default();
        for (at, index) in indices.iter().enumerate() {
            if at == 0 || *index != indices[at - 1] {
                shards[at] = Some(self.shard(*index));
            }
        }
        let (mut places, mut fit) = ([(0, 0); FEW], true);
        for (place, charge) in places.iter_mut().zip(charges) {
            let LocalCharge { key_id, terms, cost } = *charge;
            let at = indices.partition_point(|index| *index < shard_of(key_id));
            let Some(shard) = &mut shards[at] else { return false };
            with_state!(terms.algorithm(), S => {
                let Some(cell) = shard.place_of::<S>(key_id) else { return false };
                *place = (at, cell);
                fit &= shard.state_at::<S>(cell).admits(terms, clock, cost);
            });
        }
        for ((charge, outcome), (at, cell)) in charges.iter().zip(outcomes).zip(places) {
            let LocalCharge { terms, cost, .. } = *charge;
            let Some(shard) = &mut shards[at] else { return false };
            *outcome = with_state!(terms.algorithm(), S => {
                let state = shard.state_at::<S>(cell);
                if fit {
                    S::outcome(state.decide(terms, clock, cost), terms, clock, cost)
                } else {
                    let outcome = state.apply(Op::Peek, terms, clock, cost);
                    if !outcome.is_allowed() {
                        shard.mark_rejecting::<S>(cell);
                    }
                    outcome
                }
            });
        }
        true
    }

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
        let mut shards: Vec<_> = indices.iter().map(|index| self.shard(*index)).collect();
        let result = work(&mut |index, op, cost| {
            let charge = LocalCharge { cost, ..(&*charges[index]).into() };
            let at = indices.binary_search(&shard_of(charge.key_id)).unwrap_or(0);
            with_state!(charge.terms.algorithm(), S => match op {
                CountOp::Apply(op) => {
                    (shards[at].apply::<S>(op, charge, clock), Receipt::default())
                }
                CountOp::Acquire => shards[at].acquire::<S>(charge, clock),
            })
        });
        unlock(shards);
        result
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::clock::{Clock, VirtualClock};
    use crate::limit::{Algorithm, Limit};

    /// A call: microseconds since the one before, and the cost of each part with the indexes of its limit and its key.
    type Step = (u64, Vec<(usize, u8, u32)>);

    fn step() -> impl Strategy<Value = Step> {
        let part = (0..Algorithm::ALL.len(), 0..3_u8, 0..4_u32);
        (0..400_000_u64, prop::collection::vec(part, 1..=FEW))
    }

    proptest! {
        #[test]
        fn few_counts_are_decided_as_many_are(steps in prop::collection::vec(step(), 1..60)) {
            let limits = Algorithm::ALL.map(|algorithm| {
                Limit::new("few", algorithm, 5, Duration::from_secs(1)).expect("valid")
            });
            let clock = VirtualClock::new();
            let [one, other] = [(); 2].map(|()| Embedded::new(10_000, Clock::Virtual(clock.clone())));
            for (later, mut parts) in steps {
                clock.advance(Duration::from_micros(later));
                parts.sort_unstable();
                parts.dedup_by_key(|(limit, key, _)| (*limit, *key));
                let charges = |store: &Embedded| -> Vec<Arc<Charge>> {
                    let charge = |(limit, key, cost): &(usize, u8, u32)| {
                        let terms = *limits[*limit].terms();
                        let key_id = store.key_id(&terms, key);
                        let cost = (*cost).min(terms.capacity());
                        Arc::new(Charge { terms, key_id, count_name: Vec::new(), cost })
                    };
                    parts.iter().map(charge).collect()
                };
                let many = other.apply_many(Op::Decide, &charges(&other));
                let charged = charges(&one);
                let borrowed: Vec<LocalCharge<'_>> =
                    charged.iter().map(|charge| (&**charge).into()).collect();
                let mut few = vec![Outcome::UNDECIDED; charged.len()];
                if !one.decide_few(&borrowed, &mut few) {
                    // A count has no state yet, and none was charged.
                    few = one.apply_many(Op::Decide, &charged);
                }
                prop_assert_eq!(few, many);
            }
        }
    }
}
