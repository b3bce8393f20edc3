//! Several counts or several calls in one decision, and their locks.

use std::iter;
use std::sync::Arc;

use super::functions::MISSING;
use super::shard::{CountOp, Shard};
use super::{Embedded, LocalCharge, MutexGuard, shard_of, unlock};
use crate::algorithm::{BucketOp, Op, Outcome, Receipt};
use crate::one_or_many::OneOrMany;
use crate::reply::Source;
use crate::store::{
    Calls, CancelledUnits, Charge, DecideOp, EqualCalls, MAX_RESERVED, Reply, Reservations,
};

/// The most counts of a call that is decided without an allocation: see [`Embedded::decide_few`].
pub(crate) const FEW: usize = 8;

impl Embedded {
    /// Decides a call of at most `N` counts without an allocation. If one of them is closed or holds units, returns
    /// `false` and changes nothing.
    pub(crate) fn decide_few<const N: usize>(
        &self,
        charges: &[LocalCharge<'_>],
        outcomes: &mut [Outcome],
    ) -> bool {
        let clock = self.clock.local();
        let mut indices = [usize::MAX; N];
        for (index, charge) in indices.iter_mut().zip(charges) {
            *index = shard_of(charge.key_id);
        }
        let indices = &mut indices[..charges.len()];
        // As in `with_counts`.
        indices.sort_unstable();
        let mut shards: [Option<MutexGuard<'_, Shard>>; N] = [const { None }; N];
        for (at, index) in indices.iter().enumerate() {
            if at == 0 || *index != indices[at - 1] {
                shards[at] = Some(self.shard(*index));
            }
        }
        let (mut places, mut fit) = ([(0, 0); N], true);
        for (place, charge) in places.iter_mut().zip(charges) {
            let at = indices.partition_point(|index| *index < shard_of(charge.key_id));
            let Some(shard) = &mut shards[at] else { return false };
            let (LocalCharge { key_id, terms, cost }, functions) =
                (*charge, self.functions(charge.terms));
            // Adds no count. Only `add_missing` does, and reports the number of keys.
            let found = (functions.find)(shard, key_id, terms, cost, clock);
            let Some(found) = found else { return false };
            *place = (at, found.place);
            fit &= found.admits;
        }
        let mut is_missing = false;
        for ((charge, outcome), (at, place)) in charges.iter().zip(&mut *outcomes).zip(places) {
            let (Some(shard), LocalCharge { terms, cost, .. }) = (&mut shards[at], charge) else {
                return false;
            };
            if place == MISSING {
                is_missing = true;
                continue;
            }
            let functions = self.functions(terms);
            let decide = if fit { functions.decide_at } else { functions.reject_at };
            decide(shard, place, terms, *cost, clock, outcome);
        }
        if is_missing {
            let op = if fit { Op::Decide } else { Op::Peek };
            self.add_missing(charges, outcomes, &places, &mut shards, op, clock);
        }
        true
    }

    /// Decides a call of those of its counts that have no state, and adds them. Comes after the others, because places
    /// change when a count is added.
    #[inline(never)]
    fn add_missing(
        &self,
        charges: &[LocalCharge<'_>],
        outcomes: &mut [Outcome],
        places: &[(usize, usize)],
        shards: &mut [Option<MutexGuard<'_, Shard>>],
        op: Op,
        clock: u64,
    ) {
        for ((charge, outcome), (at, place)) in charges.iter().zip(outcomes).zip(places) {
            if let (MISSING, Some(shard)) = (*place, &mut shards[*at]) {
                let apply = self.functions(charge.terms).apply;
                (*outcome, _) = apply(shard, CountOp::Apply(op), *charge, clock);
            }
        }
        unlock(shards.iter_mut().filter_map(Option::take));
    }

    /// Decides calls in their order, until one is rejected. Twin of `lua/all.lua`.
    pub(super) fn decide_calls(&self, Calls { op, counts, runs }: &Calls, source: Source) -> Reply {
        let Reservations { cancelled, mut held, most } = counts.reservations();
        let settles = *op == DecideOp::Acquire;
        let (mut outcomes, mut receipts, mut reserved) = (Vec::new(), Vec::new(), 0);
        self.with_counts(counts.charges(), |apply| {
            if let Some(CancelledUnits { units, last }) = cancelled {
                let (outcome, _) = apply(0, CountOp::Ahead(BucketOp::Cancel(last), false), units);
                outcomes.push(outcome);
                if !outcome.is_allowed() {
                    return;
                }
            }
            let calls = runs.iter().flat_map(|run| iter::repeat_n(run, run.count as usize));
            for EqualCalls { costs, wait, .. } in calls {
                let mut apply_all = |op| -> (Vec<Outcome>, Vec<Receipt>) {
                    let apply = |(index, cost): (usize, &u32)| apply(index, op, *cost);
                    costs.iter().enumerate().map(apply).unzip()
                };
                let first_cost = costs.first().copied().unwrap_or(0);
                let (mut decided, mut marks) = apply_all(CountOp::Apply(Op::Peek));
                let fits = decided.iter().all(Outcome::is_allowed);
                if fits {
                    (decided, marks) = apply_all((*op).into());
                } else if *wait > 0 && (held == 0 || held.saturating_add(first_cost) <= most) {
                    let reserve = BucketOp::Reserve { wait: *wait };
                    (decided, marks) = apply_all(CountOp::Ahead(reserve, settles));
                }
                let is_admitted = decided.iter().all(Outcome::is_allowed);
                outcomes.append(&mut decided);
                if !is_admitted || *op == DecideOp::Peek {
                    return;
                }
                if settles || counts.may_reserve() {
                    receipts.append(&mut marks);
                }
                if !fits {
                    held = held.saturating_add(first_cost);
                    reserved += 1;
                    if reserved == MAX_RESERVED {
                        return;
                    }
                }
            }
        });
        Reply { outcomes: OneOrMany::Many(outcomes), receipts: OneOrMany::Many(receipts), source }
    }

    /// Locks the shards of several counts. Passes a function to `work` that applies an operation to the count with an
    /// index.
    fn with_counts(
        &self,
        charges: &[Arc<Charge>],
        work: impl FnOnce(&mut dyn FnMut(usize, CountOp, u32) -> (Outcome, Receipt)),
    ) {
        let clock = self.clock.local();
        // Every call locks shards in ascending order, so no two calls wait for each other.
        let mut indices: Vec<usize> = Vec::with_capacity(charges.len());
        for charge in charges {
            let index = shard_of(charge.key_id);
            if let Err(at) = indices.binary_search(&index) {
                indices.insert(at, index);
            }
        }
        let mut shards: Vec<_> = indices.iter().map(|index| self.shard(*index)).collect();
        work(&mut |index, op, cost| {
            let charge = LocalCharge { cost, ..(&*charges[index]).into() };
            let at = indices.binary_search(&shard_of(charge.key_id)).unwrap_or(0);
            (self.functions(charge.terms).apply)(&mut shards[at], op, charge, clock)
        });
        unlock(shards);
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
        let part = (0..Algorithm::RATES.len(), 0..3_u8, 0..4_u32);
        (0..400_000_u64, prop::collection::vec(part, 1..=FEW))
    }

    proptest! {
        #[test]
        fn few_counts_are_decided_as_many_are(steps in prop::collection::vec(step(), 1..60)) {
            let limits = Algorithm::RATES.map(|algorithm| {
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
                        Arc::new(Charge { terms, key_id, count_name: Vec::new(), cost, holder: None })
                    };
                    parts.iter().map(charge).collect()
                };
                let calls = Calls::one(DecideOp::Decide, OneOrMany::Many(charges(&other)));
                let expected = other.decide_calls(&calls, Source::Embedded).outcomes.to_vec();
                let charged = charges(&one);
                let borrowed: Vec<LocalCharge<'_>> =
                    charged.iter().map(|charge| (&**charge).into()).collect();
                let mut few = vec![Outcome::UNDECIDED; charged.len()];
                prop_assert!(one.decide_few::<FEW>(&borrowed, &mut few));
                prop_assert_eq!(few, expected);
            }
        }
    }
}
