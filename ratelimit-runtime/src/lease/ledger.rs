//! The ledger of leases: the lease of each count. The number of counts is bounded.
//!
//! The ledger sends no requests. Under a lock, it decides which reply each waiter receives. The caller sends these
//! replies after the lock is released.
//!
//! A job of the background thread watches the times at which leases end.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use tokio::sync::{Notify, oneshot};

use super::LeaseReply;
use super::state::{
    ChargedLease, Delivery, LeaseAmounts, LeaseCaller, LeaseRequest, LeaseState, LeaseTarget,
    Share, UnspentUnits,
};
use crate::algorithm::Outcome;
use crate::background::{OwnValue, PendingWork, lock_own};
use crate::key::KeyId;
use crate::owner::Agenda;
use crate::reply::StoreError;
use crate::store::Reply;
use crate::threads::{AtomicBool, Mutex, MutexGuard};

/// The number of shards: so many that threads rarely wait for a lock; a power of two.
const SHARDS: usize = 64;

/// The most counts of a shard. Further counts are not leased.
const MAX_ENTRIES: usize = 1024;

type LeaseEntries = HashMap<KeyId, LeaseEntry>;

pub(super) struct LeaseLedger {
    shards: Box<[Mutex<OwnValue<LeaseEntries>>]>,
    /// When to look at each lease again.
    pub(super) ends: LeaseEnds,
    /// Whether no more units are leased.
    is_shut_down: AtomicBool,
}

/// A reply to a call that waits in the ledger.
pub(super) type LeaseDelivery = Delivery<oneshot::Sender<LeaseReply>>;

/// The result of [`LeaseLedger::enter`].
pub(super) enum EnterResult {
    Spent(Reply),
    /// The call waits for a reply. If it is the first, the caller starts the task that sends the reply.
    Waiting {
        reply: oneshot::Receiver<LeaseReply>,
        /// The number of the call, which identifies it.
        arrival: u64,
        /// The work of that task, which began under the lock: a shutdown waits for it.
        fetch: Option<PendingWork>,
    },
    /// The count cannot be leased now.
    NotLeased,
}

impl Default for LeaseLedger {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            ends: LeaseEnds::default(),
            is_shut_down: AtomicBool::new(false),
        }
    }
}

impl LeaseLedger {
    /// Spends `cost` units if the process holds them for calls with these amounts and no call waits. Returns the reply
    /// and the capacity.
    #[inline]
    pub(super) fn spend(
        &self,
        key_id: KeyId,
        amounts: LeaseAmounts,
        cost: u64,
        now: u64,
    ) -> Option<(Reply, u64)> {
        let mut shard = self.shard(key_id);
        let entry = shard.get_mut(&key_id).filter(|entry| entry.state.waiters.is_empty())?;
        if entry.target.amounts != amounts {
            return None;
        }
        Some((entry.state.take(&entry.target, cost, now)?, entry.target.capacity()))
    }

    /// Returns the number of units that calls with these amounts can spend.
    pub(super) fn spendable(&self, key_id: KeyId, amounts: LeaseAmounts, now: u64) -> u64 {
        let shard = self.shard(key_id);
        let entry = shard.get(&key_id).filter(|entry| entry.target.amounts == amounts);
        entry.map_or(0, |entry| entry.state.held.spendable(now))
    }

    /// Returns whether a count is leased for calls with these amounts; `None` if its lease has ended, or if it has
    /// none.
    pub(super) fn is_leased(&self, key_id: KeyId, amounts: LeaseAmounts, now: u64) -> Option<bool> {
        let shard = self.shard(key_id);
        if self.cannot_lease(&shard, key_id) {
            return Some(false);
        }
        let entry = shard.get(&key_id)?;
        let is_in_use = entry.is_fetching || entry.state.next_end(&entry.target, now).is_some();
        is_in_use.then_some(!entry.state.is_paused(now) && entry.can_turn_to(amounts))
    }

    /// The caller has locked a shard. A shutdown sets the flag before it locks each shard to take the units, so no
    /// units stay in the ledger after it.
    fn cannot_lease(&self, shard: &LeaseEntries, key_id: KeyId) -> bool {
        self.is_shut_down.load(SeqCst) || shard.len() >= MAX_ENTRIES && !shard.contains_key(&key_id)
    }

    /// Spends units that the process holds, or adds the call to the waiters.
    pub(super) fn enter(
        &self,
        key_id: KeyId,
        target: &Arc<LeaseTarget>,
        cost: u64,
        now: u64,
        begin: impl FnOnce() -> PendingWork,
    ) -> EnterResult {
        let mut shard = self.shard(key_id);
        if self.cannot_lease(&shard, key_id) {
            return EnterResult::NotLeased;
        }
        let entry = shard.entry(key_id).or_insert_with(|| LeaseEntry::new(Arc::clone(target)));
        if entry.state.is_paused(now) || !entry.turn_to(target) {
            return EnterResult::NotLeased;
        }
        if entry.state.waiters.is_empty()
            && let Some(reply) = entry.state.take(&entry.target, cost, now)
        {
            return EnterResult::Spent(reply);
        }
        let (reply_to, reply) = oneshot::channel();
        let arrival = entry.state.wait(cost, reply_to);
        let fetch = (!mem::replace(&mut entry.is_fetching, true)).then(begin);
        EnterResult::Waiting { reply, arrival, fetch }
    }

    /// Returns whether a call still waits, and the pending request does not include it.
    pub(super) fn is_not_included(&self, key_id: KeyId, arrival: u64) -> bool {
        let shard = self.shard(key_id);
        shard.get(&key_id).is_some_and(|entry| entry.state.is_not_included(arrival))
    }

    /// Serves waiters from the units that the process holds. Returns the next lease to request; `None` if no call
    /// waits. The task has ended then.
    pub(super) fn next_request(
        &self,
        key_id: KeyId,
        now: u64,
    ) -> (Vec<LeaseDelivery>, Option<LeaseRequest>) {
        let mut shard = self.shard(key_id);
        let Some(entry) = shard.get_mut(&key_id) else { return (Vec::new(), None) };
        let deliveries = entry.state.serve(&entry.target, now);
        let request = entry.state.request(&entry.target, now);
        if request.is_none() {
            entry.is_fetching = false;
            // Otherwise, the watch removes the entry.
            if entry.state.is_empty(&entry.target, now) {
                shard.remove(&key_id);
            }
        }
        (deliveries, request)
    }

    /// Records that the store has charged `units` units: serves the waiters that the request included, and keeps the
    /// rest. Also returns the units that the process must not keep.
    pub(super) fn charged(
        &self,
        key_id: KeyId,
        units: u64,
        requested: u64,
        now: u64,
        outcome: Outcome,
    ) -> (Vec<LeaseDelivery>, Option<UnspentUnits>) {
        let mut shard = self.shard(key_id);
        let Some(entry) = shard.get_mut(&key_id) else { return (Vec::new(), None) };
        let charged = entry.state.charged(&entry.target, units, requested, now, outcome);
        drop(shard);
        let ChargedLease { deliveries, excess, look_at } = charged;
        self.ends.schedule(key_id, look_at);
        (deliveries, excess)
    }

    /// Records that the store has rejected a lease of `units` units. The rejection is also the reply to each waiter
    /// of that cost which the request included. For the lifetime of a lease, the count is not leased.
    pub(super) fn rejected(
        &self,
        key_id: KeyId,
        units: u64,
        now: u64,
        rejection: &Reply,
    ) -> Vec<LeaseDelivery> {
        let mut shard = self.shard(key_id);
        let Some(entry) = shard.get_mut(&key_id) else { return Vec::new() };
        let (deliveries, look_at) = entry.state.rejected(&entry.target, units, now, rejection);
        drop(shard);
        self.ends.schedule(key_id, look_at);
        deliveries
    }

    /// Records that the store has failed.
    pub(super) fn failed(&self, key_id: KeyId, error: &StoreError) -> Vec<LeaseDelivery> {
        let mut shard = self.shard(key_id);
        shard.get_mut(&key_id).map_or_else(Vec::new, |entry| entry.state.failed(error))
    }

    /// Records that a task has ended before its work. The waiters observe the closed channel.
    pub(super) fn abandon(&self, key_id: KeyId, now: u64) {
        let mut shard = self.shard(key_id);
        let Some(entry) = shard.get_mut(&key_id) else { return };
        entry.is_fetching = false;
        let waiting = entry.state.abandon();
        if entry.state.is_empty(&entry.target, now) {
            shard.remove(&key_id);
        }
        drop(shard);
        drop(waiting);
    }

    /// Takes back units that a waiter did not spend, if they are of the same charge as the units that the process holds
    /// now, and as many as it may hold. Returns the others, which the caller returns to the store.
    pub(super) fn put_back(&self, key_id: KeyId, unspent: UnspentUnits) -> Option<UnspentUnits> {
        let mut shard = self.shard(key_id);
        let entry = shard.get_mut(&key_id).filter(|_| !self.is_shut_down.load(SeqCst));
        let kept = entry.map_or(0, |entry| entry.state.put_back(&entry.target, &unspent));
        UnspentUnits { units: unspent.units - kept, ..unspent }.some()
    }

    /// Discards the units of a count that was reset.
    pub(super) fn discard(&self, key_id: KeyId) {
        if let Some(entry) = self.shard(key_id).get_mut(&key_id) {
            entry.state.discard(entry.is_fetching);
        }
    }

    /// From now on, no call starts a request for units.
    pub(super) fn shut_down(&self) {
        self.is_shut_down.store(true, SeqCst);
    }

    /// Adds a lease without units.
    #[cfg(all(test, loom))]
    pub(super) fn insert(&self, key_id: KeyId, target: &Arc<LeaseTarget>) {
        self.shard(key_id).insert(key_id, LeaseEntry::new(Arc::clone(target)));
    }

    /// Takes the units that the process holds of a count.
    pub(super) fn take(&self, key_id: KeyId) -> Option<UnspentUnits> {
        self.shard(key_id).get_mut(&key_id).and_then(LeaseEntry::take_unspent)
    }

    /// Takes all units that the process holds.
    pub(super) fn take_all(&self) -> Vec<UnspentUnits> {
        let take = |shard: &Mutex<OwnValue<LeaseEntries>>| {
            let mut shard = lock_own(shard);
            shard.values_mut().filter_map(LeaseEntry::take_unspent).collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(take).collect()
    }

    /// Takes the units whose lease has ended, and forgets the leases that no call has used since.
    pub(super) fn take_expired(&self, now: u64) -> Vec<UnspentUnits> {
        let mut expired = Vec::new();
        while let Some(key_id) = self.ends.take_due(now) {
            let mut shard = self.shard(key_id);
            let Some(entry) = shard.get_mut(&key_id) else { continue };
            let (unspent, again) = entry.state.look(&entry.target, entry.is_fetching, now);
            expired.extend(unspent);
            if let Some(again) = again {
                drop(shard);
                self.ends.schedule(key_id, again);
            } else {
                shard.remove(&key_id);
            }
        }
        expired
    }

    /// Returns whether [`take_expired`](Self::take_expired) has nothing to do, and has done it.
    pub(super) fn is_idle(&self, now: u64) -> bool {
        let is_idle =
            |entry: &LeaseEntry| entry.is_fetching || entry.state.is_kept(&entry.target, now);
        self.shards.iter().all(|shard| lock_own(shard).values().all(is_idle))
    }

    fn shard(&self, key_id: KeyId) -> MutexGuard<'_, OwnValue<LeaseEntries>> {
        lock_own(&self.shards[(key_id.bits() >> 122) as usize % SHARDS])
    }
}

/// When to look at the lease of each count.
#[derive(Default)]
pub(super) struct LeaseEnds(Mutex<OwnValue<Schedule>>);

#[derive(Default)]
struct Schedule {
    looks: Agenda<u64, KeyId>,
    changed: Arc<Notify>,
}

impl LeaseEnds {
    /// Schedules a look at a count, unless one comes before.
    fn schedule(&self, key_id: KeyId, at: u64) {
        let mut schedule = self.lock();
        schedule.looks.plan_by(key_id, at);
        schedule.changed.notify_one();
    }

    /// Takes a count at which to look by now.
    fn take_due(&self, now: u64) -> Option<KeyId> {
        self.lock().looks.take_due(now)
    }

    /// Returns the next end; `None` if no lease is scheduled.
    pub(super) fn next_end(&self) -> Option<u64> {
        self.lock().looks.first()
    }

    /// Returns what is notified when another lease is scheduled, or when the job must end.
    pub(super) fn changed(&self) -> Arc<Notify> {
        Arc::clone(&self.lock().changed)
    }

    fn lock(&self) -> MutexGuard<'_, OwnValue<Schedule>> {
        lock_own(&self.0)
    }
}

struct LeaseEntry {
    /// The count and the settings of the units that are held, and of the pending request.
    pub(super) target: Arc<LeaseTarget>,
    pub(super) state: LeaseState<oneshot::Sender<LeaseReply>>,
    /// Whether a task requests leases for the waiters.
    pub(super) is_fetching: bool,
}

impl LeaseCaller for oneshot::Sender<LeaseReply> {
    fn is_present(&self) -> bool {
        !self.is_closed()
    }
}

impl LeaseEntry {
    pub(super) fn new(target: Arc<LeaseTarget>) -> Self {
        Self { target, state: LeaseState::default(), is_fetching: false }
    }

    /// Returns whether calls with these amounts can use this lease or the next one: no units are held or requested for
    /// calls with other amounts.
    fn can_turn_to(&self, amounts: LeaseAmounts) -> bool {
        self.target.amounts == amounts || !self.is_fetching && self.state.held.units == 0
    }

    /// Makes the next lease one of `target`. Returns whether it will be.
    fn turn_to(&mut self, target: &Arc<LeaseTarget>) -> bool {
        let amounts_agree = self.target.amounts == target.amounts;
        if amounts_agree && self.target.max_units == target.max_units {
            return true;
        }
        if self.is_fetching || !self.can_turn_to(target.amounts) {
            return false;
        }
        if !amounts_agree {
            self.state.held.forget();
        }
        (self.target, self.state.share) = (Arc::clone(target), Share::default());
        true
    }

    /// Takes all units that are held.
    pub(super) fn take_unspent(&mut self) -> Option<UnspentUnits> {
        self.state.take_unspent(&self.target)
    }
}
