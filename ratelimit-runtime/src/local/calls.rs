//! Several counts or several calls in one decision, and their locks.

use std::iter;

use super::shard::{Shard, Unreported};
use super::{Local, LocalCharge, MutexGuard, no_place, shard_of};
use crate::algorithm::{Applied, Op, Outcome, Receipt};
use crate::one_or_many::OneOrMany;
use crate::reply::Source;
use crate::store::{Calls, EqualCalls, MAX_RESERVED, Reply};

/// The most counts of a call that is decided without an allocation: see [`Local::decide_few`].
pub(crate) const FEW: usize = 8;

/// The locked shards of several counts.
struct LockedShards<'a, 'b> {
    /// A bit for each shard that is locked.
    locked: u64,
    /// In ascending order.
    guards: &'b mut [Option<MutexGuard<'a, Shard>>],
    /// Whether calls are charged that all counts admit.
    takes: bool,
    clock: u64,
}

impl Local {
    /// Decides a call of at most [`FEW`] counts: charges all of them, or none. Allocates nothing.
    pub(crate) fn decide_few(&self, charges: &[LocalCharge<'_>], outcomes: &mut [Outcome]) {
        let mut guards = [const { None }; FEW];
        let mut shards = self.lock(charges.iter().copied(), true, &mut guards);
        let mut fits = true;
        for (charge, outcome) in charges.iter().zip(&mut *outcomes) {
            (*outcome, _) = shards.apply(Op::Peek, *charge);
            fits &= outcome.is_allowed();
        }
        if fits {
            for (charge, outcome) in charges.iter().zip(outcomes) {
                (*outcome, _) = shards.apply(Op::TAKE, *charge);
            }
        }
        shards.unlock();
    }

    /// Decides calls in their order, until one is rejected. Twin of `lua/all.lua`.
    pub(super) fn decide_calls(&self, calls: &Calls, source: Source) -> Reply {
        let Calls { op, charges, runs, .. } = calls;
        let (mut outcomes, mut receipts, mut reserved) = (Vec::new(), Vec::new(), 0);
        let mut guards: Vec<_> = iter::repeat_with(|| None).take(charges.len()).collect();
        let locals = charges.iter().map(|charge| (&**charge).into());
        let mut shards = self.lock(locals, *op != Op::Peek, &mut guards);
        let mut apply = |index: usize, op, cost| {
            shards.apply(op, LocalCharge { cost, ..(&*charges[index]).into() })
        };
        let mut decide = || {
            if let Some(replacement) = calls.replacement()
                && !apply(0, Op::Peek, 0).0.is_blocked()
                && !apply(0, Op::Correct(replacement), 0).0.is_allowed()
            {
                return;
            }
            let calls = runs.iter().flat_map(|run| iter::repeat_n(run, run.count as usize));
            for EqualCalls { costs, wait, .. } in calls {
                let mut apply_all = |op| -> (Vec<Outcome>, Vec<Receipt>) {
                    let apply = |(index, cost): (usize, &u64)| apply(index, op, *cost);
                    costs.iter().enumerate().map(apply).unzip()
                };
                let (mut decided, mut marks) = apply_all(Op::Peek);
                let fits = decided.iter().all(Outcome::is_allowed);
                if fits {
                    (decided, marks) = apply_all(*op);
                } else if *wait > 0 {
                    (decided, marks) = apply_all(Op::Take { wait: *wait, receipt: true });
                }
                let is_admitted = decided.iter().all(Outcome::is_allowed);
                outcomes.append(&mut decided);
                if !is_admitted || *op == Op::Peek {
                    return;
                }
                if *op == Op::ACQUIRE {
                    receipts.append(&mut marks);
                }
                if !fits {
                    reserved += 1;
                    if reserved == MAX_RESERVED {
                        return;
                    }
                }
            }
        };
        decide();
        shards.unlock();
        let reply = Reply::new(OneOrMany::Many(outcomes), source);
        Reply { receipts: OneOrMany::Many(receipts), ..reply }
    }

    /// Locks the shards of several counts, each once, in ascending order: so no two calls wait for each other. `guards`
    /// has a place for each count.
    fn lock<'a, 'b, 'c>(
        &'a self,
        charges: impl Iterator<Item = LocalCharge<'c>>,
        takes: bool,
        guards: &'b mut [Option<MutexGuard<'a, Shard>>],
    ) -> LockedShards<'a, 'b> {
        let clock = self.clock.local();
        let locked = charges.fold(0_u64, |bits, charge| bits | 1 << shard_of(charge.key_id));
        let mut rest = locked;
        for guard in guards.iter_mut().take(locked.count_ones() as usize) {
            *guard = Some(self.shard(rest.trailing_zeros() as usize));
            rest &= rest - 1;
        }
        LockedShards { locked, guards, takes, clock }
    }
}

impl LockedShards<'_, '_> {
    /// Applies an operation to a count.
    fn apply(&mut self, op: Op, charge: LocalCharge<'_>) -> Applied {
        let before = self.locked & ((1 << shard_of(charge.key_id)) - 1);
        let shard = self.guards[before.count_ones() as usize].as_mut();
        let shard = shard.unwrap_or_else(|| unreachable!("it is locked"));
        // Each call is peeked at before it is charged.
        let is_peek = op == Op::Peek;
        if is_peek && !shard.has_place(charge, self.takes, self.clock) {
            return no_place(self.clock);
        }
        shard.apply(op, charge, self.clock)
    }

    /// Unlocks the shards, and then reports what has happened in them.
    fn unlock(self) {
        let guards = self.guards.iter_mut().filter_map(Option::take);
        let unreported = guards.map(|mut shard| shard.take_unreported());
        unreported.fold(Unreported::default(), Unreported::and).report();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::algorithm::{BlockChange, Reservation};
    use crate::clock::{Clock, VirtualClock};
    use crate::limit::{Algorithm, Limit};
    use crate::store::Charge;

    #[test]
    fn a_blocked_key_gives_up_no_moment() {
        let store = Local::new(100, Clock::Virtual(VirtualClock::new()));
        let terms = *Limit::leaky_bucket("far", 1, Duration::from_secs(1)).terms();
        let key_id = store.key_id(&terms, "key");
        let charge =
            Arc::new(Charge { terms, key_id, count_name: Vec::new(), cost: 1, statement: None });
        let decide = |replaces| {
            let one = Calls::one(Op::ACQUIRE, OneOrMany::One(Arc::clone(&charge)));
            let wait = Duration::from_secs(9).as_micros() as u64;
            let runs = OneOrMany::One(EqualCalls { wait, ..one.runs[0].clone() });
            store.decide_calls(&Calls { runs, replaces, ..one }, Source::Embedded)
        };
        let used = || store.acquire(LocalCharge { cost: 0, ..(&*charge).into() }).0.reset_us;
        let [_, far, _] = [(); 3].map(|()| decide(None));
        let outcome = far.outcomes[0];
        let moment = outcome.clock + outcome.retry_us;
        let replaced = Some(Reservation { receipt: far.receipts[0], moment });
        assert!(decide(replaced).outcomes.is_empty(), "a later charge exists");

        let block = BlockChange::block_for(Duration::from_secs(1));
        store.change_block(key_id, Algorithm::LeakyBucket, block);
        let before = used();
        assert!(decide(replaced).outcomes[0].is_blocked());
        assert_eq!(used(), before);
    }

    /// A call: microseconds since the one before, and the cost of each part with the indexes of its limit and its key.
    type Step = (u64, Vec<(usize, u8, u64)>);

    fn step() -> impl Strategy<Value = Step> {
        let part = (0..Algorithm::RATES.len(), 0..3_u8, 0..4_u64);
        (0..400_000_u64, prop::collection::vec(part, 1..=FEW))
    }

    proptest! {
        #[test]
        fn few_counts_are_decided_as_many_are(steps in prop::collection::vec(step(), 1..60)) {
            let limits = Algorithm::RATES.map(|algorithm| {
                Limit::new("few", algorithm, 5, Duration::from_secs(1)).expect("valid")
            });
            let clock = VirtualClock::new();
            let [one, other] = [(); 2].map(|()| Local::new(10_000, Clock::Virtual(clock.clone())));
            for (later, mut parts) in steps {
                clock.advance(Duration::from_micros(later));
                parts.sort_unstable();
                parts.dedup_by_key(|(limit, key, _)| (*limit, *key));
                let charges = |store: &Local| -> Vec<Arc<Charge>> {
                    let charge = |(limit, key, cost): &(usize, u8, u64)| {
                        let terms = *limits[*limit].terms();
                        let key_id = store.key_id(&terms, key);
                        let cost = (*cost).min(terms.capacity());
                        Arc::new(Charge { terms, key_id, count_name: Vec::new(), cost, statement: None })
                    };
                    parts.iter().map(charge).collect()
                };
                let calls = Calls::one(Op::TAKE, OneOrMany::Many(charges(&other)));
                let expected = other.decide_calls(&calls, Source::Embedded).outcomes.to_vec();
                let charged = charges(&one);
                let borrowed: Vec<LocalCharge<'_>> =
                    charged.iter().map(|charge| (&**charge).into()).collect();
                let mut few = vec![Outcome::UNDECIDED; charged.len()];
                one.decide_few(&borrowed, &mut few);
                prop_assert_eq!(few, expected);
            }
        }
    }
}
