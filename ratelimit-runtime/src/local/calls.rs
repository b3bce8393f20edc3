//! Several counts or several calls in one decision, and their locks.

use std::iter;

use smallvec::SmallVec;

use super::shard::Shard;
use super::{Local, LocalCharge, MutexGuard, no_place, shard_of};
use crate::algorithm::{Applied, Op, Outcome, Receipt};
use crate::reply::Source;
use crate::report;
use crate::store::{Calls, EqualCalls, MAX_RESERVED, Reply};

/// A list about the counts of a call, without an allocation for up to 8 counts.
pub(crate) type Few<T> = SmallVec<[T; 8]>;

/// The locked shards of several counts.
struct LockedShards<'a, 'b> {
    guards: &'b mut Guards<'a>,
    /// Whether calls are charged that all counts admit.
    takes: bool,
    clock: u64,
    /// The number of keys before the call.
    keys: usize,
    /// Whether a unit of a call in flight has found no place.
    is_overfull: bool,
}

/// Locked shards with their indexes.
type Guards<'a> = Few<(usize, MutexGuard<'a, Shard>)>;

impl Local {
    /// Decides a call of several counts of rates: charges all of them, or none. Appends their outcomes.
    pub(crate) fn decide_few(&self, charges: &[LocalCharge<'_>], outcomes: &mut Few<Outcome>) {
        let Some((first, others)) = charges.split_first() else { return };
        let mut guards = Guards::new();
        let mut shards = self.lock(charges, true, &mut guards);
        let mut admits = |charge: &_| shards.apply(Op::Peek, *charge).0.is_allowed();
        // Nothing comes between, so the first count is charged at once if the others admit the call.
        if others.iter().all(&mut admits) {
            let (outcome, _) = shards.apply(Op::TAKE, *first);
            outcomes.push(outcome);
            if outcome.is_allowed() {
                for charge in others {
                    outcomes.push(shards.apply(Op::TAKE, *charge).0);
                }
            }
        }
        // One of them rejects the call.
        for charge in &charges[outcomes.len()..] {
            outcomes.push(shards.apply(Op::Peek, *charge).0);
        }
        shards.unlock();
    }

    /// Decides calls in their order, until one is rejected. Twin of `lua/all.lua`.
    pub(super) fn decide_calls(&self, calls: &Calls, source: Source) -> Reply {
        let Calls { op, charges, runs, .. } = calls;
        let (mut outcomes, mut receipts, mut reserved) = (Vec::new(), Vec::new(), 0);
        let charges: Vec<LocalCharge<'_>> =
            charges.iter().map(|charge| (&**charge).into()).collect();
        let mut guards = Guards::new();
        let mut shards = self.lock(&charges, *op != Op::Peek, &mut guards);
        let mut apply =
            |index: usize, op, cost| shards.apply(op, LocalCharge { cost, ..charges[index] });
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
        let reply = Reply::new(outcomes.into(), source);
        Reply { receipts: receipts.into(), ..reply }
    }

    /// Locks the shards of several counts, each once, in ascending order: so no two calls wait for each other.
    fn lock<'a, 'b>(
        &'a self,
        charges: &[LocalCharge<'_>],
        takes: bool,
        guards: &'b mut Guards<'a>,
    ) -> LockedShards<'a, 'b> {
        let clock = self.clock.local();
        let shard_of = |charge: &LocalCharge<'_>| shard_of(charge.key_id);
        let mut shards = charges.iter().fold(0_u64, |bits, charge| bits | 1 << shard_of(charge));
        while shards != 0 {
            let index = shards.trailing_zeros() as usize;
            guards.push((index, self.shard(index)));
            shards &= shards - 1;
        }
        let keys = keys_of(guards);
        LockedShards { guards, takes, clock, keys, is_overfull: false }
    }
}

impl LockedShards<'_, '_> {
    /// Applies an operation to a count.
    fn apply(&mut self, op: Op, charge: LocalCharge<'_>) -> Applied {
        let mut guards = self.guards.iter_mut();
        let guard = guards.find(|(index, _)| *index == shard_of(charge.key_id));
        let (_, shard) = guard.unwrap_or_else(|| unreachable!("it is locked"));
        // Each call is peeked at before it is charged.
        if op == Op::Peek && !shard.has_place(charge, self.takes, self.clock) {
            self.is_overfull |= self.takes;
            return no_place(self.clock);
        }
        shard.apply(op, charge, self.clock)
    }

    /// Unlocks the shards, and then reports what has happened in them.
    fn unlock(self) {
        let keys = keys_of(self.guards);
        self.guards.clear();
        report::keys_changed(keys as isize - self.keys as isize);
        if self.is_overfull {
            report::store_overfull();
        }
    }
}

fn keys_of(guards: &Guards<'_>) -> usize {
    guards.iter().map(|(_, shard)| shard.len()).sum()
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
    use crate::one_or_many::OneOrMany;
    use crate::store::Charge;

    #[test]
    fn a_blocked_key_gives_up_no_moment() {
        let store = Local::new(100, Clock::Virtual(VirtualClock::new()));
        let terms = *Limit::leaky_bucket("far", 1, Duration::from_secs(1)).terms();
        let key_id = store.key_id(&terms, "key");
        let charge =
            Arc::new(Charge { terms, key_id, count_name: Vec::new(), cost: 1, statement: None });
        let decide = |replaces| {
            let one = Calls::one(Op::ACQUIRE, OneOrMany::from([Arc::clone(&charge)]));
            let wait = Duration::from_secs(9).as_micros() as u64;
            let runs = OneOrMany::from([EqualCalls { wait, ..one.runs[0].clone() }]);
            store.decide_calls(&Calls { runs, replaces, ..one }, Source::Embedded)
        };
        let unit = LocalCharge { cost: 0, ..(&*charge).into() };
        let used = || store.apply_one(Op::ACQUIRE, unit).0.reset_us;
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
        (0..400_000_u64, prop::collection::vec(part, 1..=9))
    }

    proptest! {
        #[test]
        fn several_counts_are_decided_as_by_a_request(steps in prop::collection::vec(step(), 1..60)) {
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
                        let cost = (*cost).min(terms.capacity);
                        Arc::new(Charge { terms, key_id, count_name: Vec::new(), cost, statement: None })
                    };
                    parts.iter().map(charge).collect()
                };
                let calls = Calls::one(Op::TAKE, charges(&other).into());
                let expected = other.decide_calls(&calls, Source::Embedded).outcomes;
                let charged = charges(&one);
                let borrowed: Vec<LocalCharge<'_>> =
                    charged.iter().map(|charge| (&**charge).into()).collect();
                let mut few = Few::new();
                one.decide_few(&borrowed, &mut few);
                prop_assert_eq!(&*few, &*expected);
            }
        }
    }
}
