//! The store of this process: counts that are bounded in number. It reclaims expired counts as new keys arrive.
//!
//! The store keeps fingerprints of keys under a secret of its own. So a key of any length takes the same space, and
//! a client cannot find two keys that share a count.

#![allow(
    clippy::inline_always,
    reason = "an operation that is a constant is not passed in memory (`benches/all -- embedded`)"
)]

mod calls;
mod entry;
#[cfg(all(test, loom))]
mod interleavings;
mod shard;

use std::iter;
use std::sync::PoisonError;

pub(crate) use self::calls::Few;
use self::shard::Shard;
use crate::algorithm::{
    Applied, BlockChange, Charged, Correction, Op, Outcome, Receipt, Reservation, Verdict,
};
use crate::clock::Clock;
use crate::key::{Key, KeyId, Secret};
use crate::limit::{Algorithm, Terms};
use crate::reply::Source;
use crate::report;
use crate::store::{Calls, Charge, Reply};
use crate::threads::{Mutex, MutexGuard};

/// The number of shards: so many that threads rarely wait for a lock.
const SHARDS: usize = 64;

/// A shard in cache lines of its own: threads that use its neighbours do not slow it down.
#[repr(align(64))]
struct LockedShard(Mutex<Shard>);

/// A borrowed [`Charge`]. Saves a clone of the terms for a call that is decided at once
/// (`benches/all -- embedded`).
#[derive(Clone, Copy)]
pub(crate) struct LocalCharge<'a> {
    pub(crate) key_id: KeyId,
    pub(crate) terms: &'a Terms,
    pub(crate) cost: u64,
}

impl<'a> From<&'a Charge> for LocalCharge<'a> {
    fn from(charge: &'a Charge) -> Self {
        Self { key_id: charge.key_id, terms: &charge.terms, cost: charge.cost }
    }
}

pub(crate) struct Local {
    shards: Box<[LockedShard; SHARDS]>,
    secret: Secret,
    clock: Clock,
}

impl Local {
    /// Creates a store of at most `max_keys` counts, rounded up to a multiple of the number of shards.
    pub(crate) fn new(max_keys: usize, clock: Clock) -> Self {
        let shard = || LockedShard(Mutex::new(Shard::new(max_keys.div_ceil(SHARDS))));
        // In a vector first, because all shards together do not fit on a small stack.
        let shards: Vec<_> = iter::repeat_with(shard).take(SHARDS).collect();
        let shards = shards.into_boxed_slice().try_into();
        Self {
            shards: shards.unwrap_or_else(|_| unreachable!("as many as the array has")),
            secret: Secret::random(),
            clock,
        }
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    #[inline]
    pub(crate) fn key_id(&self, terms: &Terms, key: &(impl Key + ?Sized)) -> KeyId {
        KeyId::new(&terms.identity, self.fingerprint(key))
    }

    /// Returns the fingerprint of a key, the same for all limits.
    #[inline]
    pub(crate) fn fingerprint(&self, key: &(impl Key + ?Sized)) -> u128 {
        self.secret.fingerprint(key)
    }

    /// Decides calls. The reply names `source`: this store, or a fallback to it.
    pub(crate) fn apply(&self, calls: &Calls, source: Source) -> Reply {
        match calls.only_charge() {
            None => self.decide_calls(calls, source),
            Some(charge) => {
                let decided = self.apply_one(calls.op, (&*charge).into());
                Reply::to_call(calls.op, decided, source)
            }
        }
    }

    /// Corrects what was charged. The cost does not count. A reserved moment that is not the last charge goes back as
    /// far as the charges after it allow.
    pub(crate) fn correct(&self, charge: LocalCharge<'_>, correction: Correction) -> Outcome {
        let charge = LocalCharge { cost: 0, ..charge };
        let outcome = self.apply_one(Op::Correct(correction), charge).0;
        match correction.charged {
            Charged::Reserved(Reservation { receipt, .. }) if !outcome.is_allowed() => {
                let correction = Correction { charged: Charged::By(receipt), ..correction };
                self.apply_one(Op::Correct(correction), charge).0
            }
            _ => outcome,
        }
    }

    /// Applies an operation to one count.
    #[inline]
    fn apply_one(&self, op: Op, charge: LocalCharge<'_>) -> Applied {
        self.apply_one_then(op, charge, |applied| applied)
    }

    /// Applies an operation to one count. `conclude` is called under the lock, and does arithmetic only. Its result is
    /// then in memory before the lock is free, so that the caller does not wait for it (`benches/all -- embedded`).
    #[inline(always)]
    pub(crate) fn apply_one_then<T>(
        &self,
        op: Op,
        charge: LocalCharge<'_>,
        conclude: impl FnOnce(Applied) -> T,
    ) -> T {
        let (concluded, has_place) = self.in_shard(charge.key_id, |shard, clock| {
            let has_place = !op.is_take() || shard.has_place(charge, op != Op::Peek, clock);
            let applied = if has_place { shard.apply(op, charge, clock) } else { no_place(clock) };
            (conclude(applied), has_place)
        });
        if !has_place && op != Op::Peek {
            report::store_overfull();
        }
        concluded
    }

    /// Returns whether a count of calls in flight still has the units of a receipt.
    pub(crate) fn holds(&self, key_id: KeyId, receipt: Receipt) -> bool {
        self.shard(shard_of(key_id)).slots(key_id).is_some_and(|slots| slots.has(receipt))
    }

    /// Blocks or unblocks a key, and returns whether it was blocked; or removes its count, and returns whether it was
    /// there.
    pub(crate) fn change_block(
        &self,
        key_id: KeyId,
        algorithm: Algorithm,
        change: BlockChange,
    ) -> bool {
        match change {
            BlockChange::Reset => self.remove(key_id),
            _ => self.in_shard(key_id, |shard, clock| {
                shard.change_block(key_id, algorithm, change, clock)
            }),
        }
    }

    /// Removes a count, and unblocks its key. Returns whether the count was there.
    pub(crate) fn remove(&self, key_id: KeyId) -> bool {
        // A long log takes milliseconds to free, so it is dropped after the shard is unlocked.
        self.in_shard(key_id, |shard, _| shard.remove(key_id)).is_some()
    }

    /// Passes the shard of a count and the time to `work`. Reports after the lock is free, because the recorder of
    /// metrics is foreign code and may be slow.
    #[inline(always)]
    fn in_shard<T>(&self, key_id: KeyId, work: impl FnOnce(&mut Shard, u64) -> T) -> T {
        let clock = self.clock.local();
        let mut shard = self.shard(shard_of(key_id));
        let before = shard.len();
        let result = work(&mut shard, clock);
        let after = shard.len();
        drop(shard);
        report::keys_changed(after as isize - before as isize);
        result
    }

    /// Locks a shard. The caller holds the lock for the arithmetic only. A panic leaves no shard half changed, because
    /// no foreign code runs under the lock.
    #[inline]
    fn shard(&self, index: usize) -> MutexGuard<'_, Shard> {
        self.shards[index].0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let shards = self.shards.iter_mut().map(|shard| shard.0.get_mut());
        let shards = shards.map(|shard| shard.unwrap_or_else(PoisonError::into_inner));
        let len: usize = shards.map(|shard| shard.len()).sum();
        report::keys_changed(-(len as isize));
    }
}

/// Returns the rejection of a call whose units have no [place](Shard::has_place).
fn no_place(clock: u64) -> Applied {
    let verdict = Verdict::Rejected;
    (Outcome { clock, verdict, remaining: 0, retry_us: 0, reset_us: 0 }, Receipt::default())
}

/// Returns the shard of a count. The map of the shard uses other bits.
fn shard_of(key_id: KeyId) -> usize {
    (key_id.bits() >> 64) as usize % SHARDS
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::Duration;

    use super::*;
    use crate::clock::VirtualClock;
    use crate::limit::Limit;

    const IN_FLIGHT: Limit = Limit::in_flight("short", 1);

    /// Gives a unit in flight back.
    fn release(store: &Local, charge: LocalCharge<'_>, receipt: Receipt) {
        store.correct(charge, Correction::settled(receipt, 1, 0));
    }

    /// Makes calls that end at once, each of another key.
    fn make_short_calls(store: &Local, keys: impl Iterator<Item = u64>) {
        for key in keys {
            let (terms, key_id) = (IN_FLIGHT.terms(), store.key_id(IN_FLIGHT.terms(), &key));
            let (_, receipt) = store.apply_one(Op::ACQUIRE, LocalCharge { key_id, terms, cost: 1 });
            release(store, LocalCharge { key_id, terms, cost: 1 }, receipt);
        }
    }

    #[test]
    fn counts_without_units_evict_no_other() {
        let store = Local::new(20 * SHARDS, Clock::Virtual(VirtualClock::new()));
        let limit = Limit::fixed("windows", 5, Duration::from_secs(60));
        let key_ids = (0..100_u64).map(|key| store.key_id(limit.terms(), &key));
        let key_ids: Vec<_> = key_ids.collect();
        for key_id in &key_ids {
            let (key_id, terms) = (*key_id, limit.terms());
            store.apply_one(Op::ACQUIRE, LocalCharge { key_id, terms, cost: 1 });
        }
        make_short_calls(&store, 0..50_000);
        assert!((0..SHARDS).all(|index| store.shard(index).len() <= 20));
        assert!(key_ids.iter().all(|key_id| store.remove(*key_id)));
    }

    #[test]
    fn a_panic_under_a_lock_blocks_no_later_call() {
        let store = Local::new(100, Clock::Store);
        let limit = Limit::fixed("panic", 5, Duration::from_secs(60));
        let key_id = store.key_id(limit.terms(), "key");
        let panics = AssertUnwindSafe(|| store.in_shard(key_id, |_, _| panic!("under the lock")));
        catch_unwind(panics).expect_err("a panic");
        let charge = LocalCharge { key_id, terms: limit.terms(), cost: 1 };
        let (outcome, _) = store.apply_one(Op::ACQUIRE, charge);
        assert_eq!((outcome.is_allowed(), outcome.remaining), (true, 4));
    }

    #[test]
    fn units_go_back_to_the_count_of_a_blocked_key() {
        let store = Local::new(100, Clock::Store);
        let limit = Limit::in_flight("blocked", 3);
        let (terms, key_id) = (limit.terms(), store.key_id(limit.terms(), "key"));
        let charge = |cost| LocalCharge { key_id, terms, cost };
        let (_, receipt) = store.apply_one(Op::ACQUIRE, charge(2));
        let set_block = |to| store.change_block(key_id, terms.identity.algorithm, to);
        set_block(BlockChange::block_for(Duration::from_secs(60)));
        assert!(store.holds(key_id, receipt));
        release(&store, charge(1), receipt);
        set_block(BlockChange::Unblock);
        let remaining = store.apply_one(Op::Peek, charge(1)).0.remaining;
        assert_eq!(remaining, 2);
    }

    #[test]
    fn a_receipt_of_a_count_that_was_removed_gives_nothing_back() {
        let store = Local::new(100, Clock::Store);
        let limit = Limit::in_flight("removed", 3);
        let (terms, key_id) = (limit.terms(), store.key_id(limit.terms(), "key"));
        let acquire = || {
            let charge = LocalCharge { key_id, terms, cost: 1 };
            store.apply_one(Op::ACQUIRE, charge)
        };
        let (_, receipt) = acquire();
        store.remove(key_id);
        assert!(!store.holds(key_id, receipt));
        let (_, other) = acquire();
        release(&store, LocalCharge { key_id, terms, cost: 1 }, receipt);
        assert!(!store.holds(key_id, receipt) && store.holds(key_id, other));
        assert_eq!(acquire().0.remaining, 1);
    }
}
