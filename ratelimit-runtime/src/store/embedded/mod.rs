//! The embedded store: counts in this process, bounded in number. It reclaims expired counts as new keys
//! arrive.
//!
//! The store keeps fingerprints of keys under a secret of its own. So a key of any length takes the same space, and
//! a client cannot find two keys that share a count.

#![allow(
    clippy::inline_always,
    reason = "an inlined result stays in registers (`benches/all -- embedded`)"
)]

mod closed;
mod functions;
#[cfg(all(test, loom))]
mod interleavings;
mod several;
mod shard;
mod table;

use std::iter;
use std::sync::{OnceLock, PoisonError, TryLockError};
#[cfg(not(all(test, loom)))]
use std::thread;

#[cfg(all(test, loom))]
use loom::thread;

pub(crate) use self::functions::CountFunctions;
pub(crate) use self::several::FEW;
use self::shard::{CountOp, Shard};
pub(crate) use self::shard::{LocalCharge, StoredState};
use super::{Reply, Request};
use crate::algorithm::{Op, OpeningChange, Outcome, Receipt, Settlement};
use crate::clock::Clock;
use crate::key::{Key, KeyId, Secret};
use crate::limit::{Algorithm, Terms};
use crate::reply::Source;
use crate::report;
use crate::threads::{Mutex, MutexGuard};

/// The number of shards: so many that threads rarely wait for a lock.
const SHARDS: usize = 64;

/// How often a thread tries to lock a shard before it sleeps.
const YIELDS: usize = 4;

/// A shard in cache lines of its own: threads that use its neighbours do not slow it down.
#[repr(align(64))]
struct LockedShard(Mutex<Shard>);

pub(crate) struct Embedded {
    shards: Box<[LockedShard; SHARDS]>,
    secret: Secret,
    /// The fingerprint of `()`, the key of a limit without a key.
    no_key: u128,
    /// What counts the calls of each algorithm, once a limit with it was used.
    functions: [OnceLock<&'static CountFunctions>; Algorithm::ALL.len()],
    clock: Clock,
}

impl Embedded {
    /// Creates a store of at most `max_keys` counts, rounded up to a multiple of the number of shards.
    pub(crate) fn new(max_keys: usize, clock: Clock) -> Self {
        let secret = Secret::random();
        let shard = || LockedShard(Mutex::new(Shard::new(max_keys.div_ceil(SHARDS))));
        // In a vector first, because all shards together do not fit on a small stack.
        let shards: Vec<_> = iter::repeat_with(shard).take(SHARDS).collect();
        let shards = shards.into_boxed_slice().try_into();
        Self {
            shards: shards.unwrap_or_else(|_| unreachable!("as many as the array has")),
            no_key: secret.fingerprint(&()),
            secret,
            functions: Default::default(),
            clock,
        }
    }

    /// Returns what counts the calls of a limit.
    #[inline(always)]
    pub(crate) fn functions(&self, terms: &Terms) -> &'static CountFunctions {
        match self.functions[terms.algorithm() as usize].get() {
            Some(functions) => functions,
            None => self.first_functions(terms),
        }
    }

    /// Returns what counts the calls of limits by an algorithm; `None` if this store has counted none.
    pub(crate) fn functions_of(&self, algorithm: Algorithm) -> Option<&'static CountFunctions> {
        self.functions[algorithm as usize].get().copied()
    }

    #[cold]
    fn first_functions(&self, terms: &Terms) -> &'static CountFunctions {
        let named = || {
            let functions = terms.counted_by().functions();
            functions.unwrap_or_else(|| unreachable!("a limit names the functions that count it"))
        };
        self.functions[terms.algorithm() as usize].get_or_init(named)
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    #[inline]
    pub(crate) fn key_id(&self, terms: &Terms, key: &(impl Key + ?Sized)) -> KeyId {
        KeyId::new(terms.identity(), self.fingerprint(key))
    }

    /// Returns the fingerprint of a key, the same for all limits.
    #[inline]
    pub(crate) fn fingerprint(&self, key: &(impl Key + ?Sized)) -> u128 {
        if key.is_nothing() { self.no_key } else { self.secret.fingerprint(key) }
    }

    /// Executes a request. The reply names `source`: this store, or a fallback to it.
    pub(crate) fn apply(&self, request: &Request, source: Source) -> Reply {
        match request {
            Request::GiveBack(op, charge) => {
                let op = CountOp::Apply(*op);
                Reply::one(self.apply_one(op, (&**charge).into()).0, source)
            }
            Request::Decide(calls) => match calls.only_charge() {
                None => self.decide_calls(calls, source),
                Some(charge) => {
                    let decided = self.apply_one(calls.op.into(), (&*charge).into());
                    Reply::to_call(calls.op, decided, source)
                }
            },
        }
    }

    /// Applies an operation to one count.
    fn apply_one(&self, op: CountOp, charge: LocalCharge<'_>) -> (Outcome, Receipt) {
        let apply = self.functions(charge.terms).apply;
        self.in_shard(charge.key_id, |shard, clock| apply(shard, op, charge, clock))
    }

    /// Decides a call of one count, whose state is an `S`.
    #[inline(always)]
    fn decide_as<S: StoredState>(&self, charge: LocalCharge<'_>) -> Outcome {
        let LocalCharge { key_id, terms, cost } = charge;
        let clock = self.clock.local();
        let mut shard = self.shard(shard_of(key_id));
        let Some(place) = shard.place_of::<S>(key_id) else {
            return decide_missing::<S>(shard, charge, clock).moved();
        };
        let decided = shard.state_at::<S>(place).decide(terms, clock, cost);
        if !S::is_allowed(&decided) {
            shard.mark_rejecting::<S>(place);
        }
        drop(shard);
        S::outcome(decided, terms, clock, cost)
    }

    /// Decides a call of one count, whose state is an `S`. Its charge can be settled.
    fn acquire_as<S: StoredState>(&self, charge: LocalCharge<'_>) -> (Outcome, Receipt) {
        let LocalCharge { key_id, terms, cost } = charge;
        let clock = self.clock.local();
        let mut shard = self.shard(shard_of(key_id));
        let Some(place) = shard.place_of::<S>(key_id) else {
            return acquire_missing::<S>(shard, charge, clock);
        };
        let birth = shard.birth();
        let acquired = shard.state_at::<S>(place).acquire(birth, terms, clock, cost);
        if !acquired.0.is_allowed() {
            shard.mark_rejecting::<S>(place);
        }
        acquired
    }

    /// Corrects a charge.
    pub(crate) fn settle_one(&self, charge: LocalCharge<'_>, settlement: Settlement) -> Outcome {
        let settle = self.functions(charge.terms).settle;
        self.in_shard(charge.key_id, |shard, clock| settle(shard, charge, settlement, clock))
    }

    /// Gives units in flight back to their count. Needs no time and changes no number of counts, so a call pays for
    /// neither at its end (`benches/all -- in-flight`).
    pub(crate) fn release(&self, key_id: KeyId, receipt: Receipt, units: u32) {
        if let Some(slots) = self.shard(shard_of(key_id)).slots(key_id) {
            slots.release(receipt, units);
        }
    }

    /// Returns whether a count of calls in flight still has the units of a receipt.
    pub(crate) fn holds(&self, key_id: KeyId, receipt: Receipt) -> bool {
        self.shard(shard_of(key_id)).slots(key_id).is_some_and(|slots| slots.has(receipt))
    }

    /// Closes or opens a key. Returns whether it was closed.
    pub(crate) fn change_opening(
        &self,
        functions: &CountFunctions,
        key_id: KeyId,
        opening: OpeningChange,
    ) -> bool {
        let change = functions.change_opening;
        self.in_shard(key_id, |shard, clock| change(shard, key_id, opening, clock))
    }

    /// Removes a count, and returns whether it was there.
    pub(crate) fn remove(&self, terms: &Terms, key_id: KeyId) -> bool {
        let remove = self.functions(terms).remove;
        // A long log takes milliseconds to free, so it is dropped after the shard is unlocked.
        self.in_shard(key_id, |shard, _| remove(shard, key_id)).is_some()
    }

    /// Passes the shard of a count and the time to `work`.
    #[inline(always)]
    fn in_shard<T>(&self, key_id: KeyId, work: impl FnOnce(&mut Shard, u64) -> T) -> T {
        let clock = self.clock.local();
        let mut shard = self.shard(shard_of(key_id));
        let result = work(&mut shard, clock);
        unlock([shard]);
        result
    }

    /// Locks a shard. The caller holds the lock for the arithmetic only.
    #[inline(always)]
    fn shard(&self, index: usize) -> MutexGuard<'_, Shard> {
        let shard = &self.shards[index].0;
        match shard.try_lock() {
            Ok(shard) => shard,
            // Not `unwrap_or_else`: the error of a poisoned lock holds the lock until it is dropped.
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => locked(shard),
        }
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        let shards = self.shards.iter_mut().map(|shard| shard.0.get_mut());
        let shards = shards.map(|shard| shard.unwrap_or_else(PoisonError::into_inner));
        let len: usize = shards.map(|shard| shard.len()).sum();
        report::keys_changed(-(len as isize));
    }
}

/// Locks a shard that another thread has locked. The other thread is done long before this one could sleep and be
/// woken, unless the system has stopped it: then this thread lets others run (`benches/all -- embedded`).
#[cold]
fn locked(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    for _ in 0..YIELDS {
        match shard.try_lock() {
            Ok(shard) => return shard,
            // A panic leaves no shard half changed, because no foreign code runs under the lock.
            Err(TryLockError::Poisoned(error)) => return error.into_inner(),
            Err(TryLockError::WouldBlock) => thread::yield_now(),
        }
    }
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Decides a call of a count that has no state, or whose key is closed. Not inlined, so that calls of other counts do
/// not pay for it (`benches/all -- instructions`).
#[inline(never)]
fn decide_missing<S: StoredState>(
    mut shard: MutexGuard<'_, Shard>,
    charge: LocalCharge<'_>,
    clock: u64,
) -> Outcome {
    let outcome = shard.apply::<S>(Op::Decide, charge, clock);
    unlock([shard]);
    outcome
}

/// Like [`decide_missing`], of a call whose charge can be settled.
#[inline(never)]
fn acquire_missing<S: StoredState>(
    mut shard: MutexGuard<'_, Shard>,
    charge: LocalCharge<'_>,
    clock: u64,
) -> (Outcome, Receipt) {
    let acquired = shard.acquire::<S>(charge, clock);
    unlock([shard]);
    acquired
}

/// Unlocks shards, and then reports the change in the number of counts.
fn unlock<'a>(shards: impl IntoIterator<Item = MutexGuard<'a, Shard>>) {
    let changed = shards.into_iter().map(|mut shard| shard.take_unreported()).sum();
    report::keys_changed(changed);
}

/// Returns the shard of a count, from bits that are spread evenly. These are not the highest bits, by which the
/// tables in a shard are sorted.
fn shard_of(key_id: KeyId) -> usize {
    (key_id.bits() >> 64) as usize % SHARDS
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::Duration;

    use super::*;
    use crate::algorithm::fixed::Window;
    use crate::algorithm::slots::Slots;
    use crate::clock::VirtualClock;
    use crate::limit::Limit;

    const IN_FLIGHT: Limit = Limit::in_flight("short", 1);

    /// Makes calls that end at once, each of another key. Returns the count of the first.
    fn make_short_calls(store: &Embedded, mut keys: impl Iterator<Item = u64>) -> Option<KeyId> {
        let mut call = |key: u64| {
            let (terms, key_id) = (IN_FLIGHT.terms(), store.key_id(IN_FLIGHT.terms(), &key));
            let (_, receipt) = store.acquire_as::<Slots>(LocalCharge { key_id, terms, cost: 1 });
            store.release(key_id, receipt, 1);
            key_id
        };
        let first = keys.next().map(&mut call);
        keys.map(call).for_each(drop);
        first
    }

    #[test]
    fn a_count_without_units_waits_a_second_for_the_next_call() {
        let clock = VirtualClock::new();
        let store = Embedded::new(1_000_000, Clock::Virtual(clock.clone()));
        let first = make_short_calls(&store, 0..5_000).expect("a call");
        assert!(store.remove(IN_FLIGHT.terms(), first));

        make_short_calls(&store, 0..1);
        clock.advance(Duration::from_secs(1));
        make_short_calls(&store, 5_000..10_000);
        assert!(!store.remove(IN_FLIGHT.terms(), first));
    }

    #[test]
    fn counts_without_units_evict_no_other() {
        let store = Embedded::new(20 * SHARDS, Clock::Virtual(VirtualClock::new()));
        let limit = Limit::fixed("windows", 5, Duration::from_secs(60));
        let key_ids = (0..100_u64).map(|key| store.key_id(limit.terms(), &key));
        let key_ids: Vec<_> = key_ids.collect();
        for key_id in &key_ids {
            let (key_id, terms) = (*key_id, limit.terms());
            store.acquire_as::<Window>(LocalCharge { key_id, terms, cost: 1 });
        }
        make_short_calls(&store, 0..50_000);
        assert!((0..SHARDS).all(|index| store.shard(index).len() <= 20));
        assert!(key_ids.iter().all(|key_id| store.remove(limit.terms(), *key_id)));
    }

    #[test]
    fn a_panic_under_a_lock_blocks_no_later_call() {
        let store = Embedded::new(100, Clock::Store);
        let limit = Limit::fixed("panic", 5, Duration::from_secs(60));
        let key_id = store.key_id(limit.terms(), "key");
        let panics = AssertUnwindSafe(|| store.in_shard(key_id, |_, _| panic!("under the lock")));
        catch_unwind(panics).expect_err("a panic");
        let charge = LocalCharge { key_id, terms: limit.terms(), cost: 1 };
        let (outcome, _) = store.acquire_as::<Window>(charge);
        assert_eq!((outcome.is_allowed(), outcome.remaining), (true, 4));
    }

    #[test]
    fn units_go_back_to_the_count_of_a_closed_key() {
        let store = Embedded::new(100, Clock::Store);
        let limit = Limit::in_flight("closed", 3);
        let (terms, key_id) = (limit.terms(), store.key_id(limit.terms(), "key"));
        let charge = |cost| LocalCharge { key_id, terms, cost };
        let (_, receipt) = store.acquire_as::<Slots>(charge(2));
        let set_opening = |to| store.change_opening(store.functions(terms), key_id, to);
        set_opening(OpeningChange::close_for(Duration::from_secs(60)));
        assert!(store.holds(key_id, receipt));
        store.release(key_id, receipt, 1);
        set_opening(OpeningChange::Open);
        let remaining = store.apply_one(CountOp::Apply(Op::Peek), charge(1)).0.remaining;
        assert_eq!(remaining, 2);
    }

    #[test]
    fn a_receipt_of_a_count_that_was_removed_gives_nothing_back() {
        let store = Embedded::new(100, Clock::Store);
        let limit = Limit::in_flight("removed", 3);
        let (terms, key_id) = (limit.terms(), store.key_id(limit.terms(), "key"));
        let acquire = || {
            let charge = LocalCharge { key_id, terms, cost: 1 };
            store.acquire_as::<Slots>(charge)
        };
        let (_, receipt) = acquire();
        store.remove(terms, key_id);
        assert!(!store.holds(key_id, receipt));
        let (_, other) = acquire();
        store.release(key_id, receipt, 1);
        assert!(!store.holds(key_id, receipt) && store.holds(key_id, other));
        assert_eq!(acquire().0.remaining, 1);
    }
}
