//! The ledger of leases: the lease of each count. The number of counts is bounded.
//!
//! The ledger sends no requests. Under a lock, it decides which reply each waiter receives. The caller sends these
//! replies after the lock is released.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use tokio::sync::oneshot;

use super::LeaseReply;
use super::state::{Delivery, LeaseCaller, LeaseState, LeaseTarget, UnspentUnits};
use crate::algorithm::Outcome;
use crate::background::{OwnValue, PendingWork, lock_own};
use crate::key::KeyId;
use crate::limit::Terms;
use crate::threads::{AtomicBool, Mutex, MutexGuard};

/// The number of shards: so many that threads rarely wait for a lock; a power of two.
const SHARDS: usize = 64;

/// The most counts of a shard. Further counts are not leased.
const MAX_ENTRIES: usize = 1024;

type LeaseEntries = HashMap<KeyId, LeaseEntry>;

/// The lease of a count, and the calls that wait for it.
pub(super) type LeaseEntry = LeaseState<oneshot::Sender<LeaseReply>>;

pub(super) struct LeaseLedger {
    shards: Box<[Mutex<OwnValue<LeaseEntries>>]>,
    /// Whether no more units are leased.
    is_shut_down: AtomicBool,
}

/// A reply to a call that waits in the ledger.
pub(super) type LeaseDelivery = Delivery<oneshot::Sender<LeaseReply>>;

impl Default for LeaseLedger {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            is_shut_down: AtomicBool::new(false),
        }
    }
}

impl LeaseLedger {
    /// Spends `cost` units if the process holds them for calls with these terms and no call waits. Returns the outcome
    /// and the capacity.
    #[inline]
    pub(super) fn spend(
        &self,
        key_id: KeyId,
        terms: &Terms,
        cost: u64,
        now: u64,
    ) -> Option<(Outcome, u64)> {
        let mut shard = self.shard(key_id);
        let entry = shard.get_mut(&key_id).filter(|entry| entry.waiters.is_empty())?;
        if entry.target.terms != *terms {
            return None;
        }
        Some((entry.take(cost, now)?, entry.target.capacity()))
    }

    /// Returns whether a count is leased for calls with these terms; `None` if its lease has ended, or if it has none.
    pub(super) fn is_leased(&self, key_id: KeyId, terms: &Terms, now: u64) -> Option<bool> {
        let shard = self.shard(key_id);
        if self.cannot_lease(&shard, key_id) {
            return Some(false);
        }
        let entry = shard.get(&key_id)?;
        let is_in_use = entry.is_fetching || entry.next_end(now).is_some();
        is_in_use.then_some(!entry.is_paused(now) && entry.can_turn_to(terms))
    }

    /// The caller has locked a shard. A shutdown sets the flag before it locks each shard to take the units, so no
    /// units stay in the ledger after it.
    fn cannot_lease(&self, shard: &LeaseEntries, key_id: KeyId) -> bool {
        self.is_shut_down.load(SeqCst) || shard.len() >= MAX_ENTRIES && !shard.contains_key(&key_id)
    }

    /// Adds a call to the waiters. Returns its reply, and its number, which identifies it. If it is the first, also
    /// returns the work of the task that sends the replies, which the caller starts: the work began under the lock, so
    /// that a shutdown waits for it. Returns `None` if the count cannot be leased now.
    pub(super) fn enter(
        &self,
        key_id: KeyId,
        target: &Arc<LeaseTarget>,
        now: u64,
        begin: impl FnOnce() -> PendingWork,
    ) -> Option<(oneshot::Receiver<LeaseReply>, u64, Option<PendingWork>)> {
        let mut shard = self.shard(key_id);
        if self.cannot_lease(&shard, key_id) {
            return None;
        }
        let entry = shard.entry(key_id).or_insert_with(|| LeaseEntry::new(target));
        if entry.is_paused(now) || !entry.can_turn_to(&target.terms) {
            return None;
        }
        if entry.target.terms != target.terms {
            *entry = LeaseEntry::new(target);
        }
        let (reply_to, reply) = oneshot::channel();
        let arrival = entry.wait(target.charge.cost, reply_to);
        let fetch = (!mem::replace(&mut entry.is_fetching, true)).then(begin);
        Some((reply, arrival, fetch))
    }

    /// Changes the lease of a count under the lock, if the count has one. The result is dropped after that.
    pub(super) fn change<T: Default>(
        &self,
        key_id: KeyId,
        change: impl FnOnce(&mut LeaseEntry) -> T,
    ) -> T {
        self.shard(key_id).get_mut(&key_id).map(change).unwrap_or_default()
    }

    /// Takes back units that a waiter did not spend, if they are of the same charge as the units that the process holds
    /// now, and as many as it may hold. Returns the others, which the caller returns to the store.
    pub(super) fn put_back(&self, key_id: KeyId, unspent: UnspentUnits) -> Option<UnspentUnits> {
        let mut shard = self.shard(key_id);
        let entry = shard.get_mut(&key_id).filter(|_| !self.is_shut_down.load(SeqCst));
        let kept = entry.map_or(0, |entry| entry.put_back(&unspent));
        UnspentUnits { units: unspent.units - kept, ..unspent }.some()
    }

    /// From now on, no call starts a request for units.
    pub(super) fn shut_down(&self) {
        self.is_shut_down.store(true, SeqCst);
    }

    /// Takes all units that the process holds.
    pub(super) fn take_all(&self) -> Vec<UnspentUnits> {
        let take = |shard: &Mutex<OwnValue<LeaseEntries>>| {
            let mut shard = lock_own(shard);
            shard.values_mut().filter_map(LeaseState::take_unspent).collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(take).collect()
    }

    /// Takes the units whose lease has ended, and forgets the leases that no call has used since. Also returns when the
    /// next lease ends.
    pub(super) fn take_expired(&self, now: u64) -> (Vec<UnspentUnits>, Option<u64>) {
        let (mut expired, mut ends) = (Vec::new(), None);
        for shard in &self.shards {
            lock_own(shard).retain(|_, entry| {
                let (unspent, next) = entry.look(now);
                expired.extend(unspent);
                ends = ends.into_iter().chain(next).min();
                next.is_some()
            });
        }
        (expired, ends)
    }

    /// Returns whether [`take_expired`](Self::take_expired) has nothing to do, and has done it.
    pub(super) fn is_idle(&self, now: u64) -> bool {
        let is_idle = |entry: &LeaseEntry| entry.is_fetching || entry.is_kept(now);
        self.shards.iter().all(|shard| lock_own(shard).values().all(is_idle))
    }

    fn shard(&self, key_id: KeyId) -> MutexGuard<'_, OwnValue<LeaseEntries>> {
        lock_own(&self.shards[(key_id.bits() >> 122) as usize % SHARDS])
    }
}

impl LeaseCaller for oneshot::Sender<LeaseReply> {
    fn is_present(&self) -> bool {
        !self.is_closed()
    }
}

impl LeaseEntry {
    /// Returns whether calls under `terms` can use this entry: other amounts wait until no units are held of these.
    fn can_turn_to(&self, terms: &Terms) -> bool {
        self.target.terms == *terms || !self.is_fetching && self.held.units == 0
    }
}
