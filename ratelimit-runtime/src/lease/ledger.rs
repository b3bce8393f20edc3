//! The ledger of leases: the lease of each count. The number of counts is bounded.
//!
//! The ledger sends no requests. Under a lock, it decides which reply each waiter receives. The caller sends these
//! replies after the lock is released.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::LeaseReply;
use super::ends::LeaseEnds;
use super::entry::{
    Delivery, DeliveryContent, HeldUnits, LeaseAmounts, LeaseEntry, LeaseRequest, LeaseTarget,
    LeaseWaiter, UnspentUnits,
};
use super::fetch::LeaseFetch;
use crate::algorithm::Outcome;
use crate::background::{OwnValue, RunningJob, lock_own};
use crate::key::KeyId;
use crate::limit::Algorithm;
use crate::reply::{Source, StoreError};
use crate::store::Reply;

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

/// The result of [`LeaseLedger::enter`].
pub(super) enum EnterResult {
    Spent(Reply),
    /// The call waits for a reply. If it is the first, the caller starts the task that sends the reply.
    Waiting {
        reply: oneshot::Receiver<LeaseReply>,
        /// The number of the call, which identifies it.
        arrival: u64,
        fetch: Option<RunningJob<LeaseFetch>>,
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
        cost: u32,
        now: u64,
    ) -> Option<(Reply, u32)> {
        let mut shard = self.shard(key_id);
        let entry = shard.get_mut(&key_id).filter(|entry| entry.waiters.is_empty())?;
        if entry.target.amounts != amounts {
            return None;
        }
        Some((entry.take(cost, now)?, entry.target.charge.terms.capacity()))
    }

    /// Returns the number of units that calls with these amounts can spend.
    pub(super) fn spendable(&self, key_id: KeyId, amounts: LeaseAmounts, now: u64) -> u32 {
        let shard = self.shard(key_id);
        let entry = shard.get(&key_id).filter(|entry| entry.target.amounts == amounts);
        entry.map_or(0, |entry| entry.held.spendable(now))
    }

    /// Returns whether a count is leased for calls with these amounts; `None` if its lease has ended, or if it has
    /// none.
    pub(super) fn is_leased(&self, key_id: KeyId, amounts: LeaseAmounts, now: u64) -> Option<bool> {
        let shard = self.shard(key_id);
        if self.cannot_lease(&shard, key_id) {
            return Some(false);
        }
        let entry = shard.get(&key_id)?;
        let is_in_use = entry.is_fetching() || entry.next_end(now).is_some();
        is_in_use.then_some(now >= entry.paused && entry.can_turn_to(amounts))
    }

    fn cannot_lease(&self, shard: &LeaseEntries, key_id: KeyId) -> bool {
        self.is_shut_down.load(SeqCst) || shard.len() >= MAX_ENTRIES && !shard.contains_key(&key_id)
    }

    /// Spends units that the process holds, or adds the call to the waiters.
    pub(super) fn enter(
        &self,
        key_id: KeyId,
        target: &Arc<LeaseTarget>,
        cost: u32,
        now: u64,
        fetch: impl FnOnce() -> LeaseFetch,
    ) -> EnterResult {
        let mut shard = self.shard(key_id);
        if self.cannot_lease(&shard, key_id) {
            return EnterResult::NotLeased;
        }
        let entry = shard.entry(key_id).or_insert_with(|| LeaseEntry::new(Arc::clone(target)));
        let runtime = Handle::current().id();
        if now < entry.paused || entry.is_fetching() && entry.runtime != Some(runtime) {
            return EnterResult::NotLeased;
        }
        if !entry.turn_to(target) {
            return EnterResult::NotLeased;
        }
        if entry.waiters.is_empty()
            && let Some(reply) = entry.take(cost, now)
        {
            return EnterResult::Spent(reply);
        }
        let (reply_to, reply) = oneshot::channel();
        entry.arrivals += 1;
        let arrival = entry.arrivals;
        entry.waiters.push_back(LeaseWaiter { arrival, cost, reply_to });
        entry.runtime = Some(runtime);
        let fetch = entry.fetch.start(1, fetch);
        EnterResult::Waiting { reply, arrival, fetch }
    }

    /// Returns whether a call still waits, and the pending request does not include it.
    pub(super) fn is_not_included(&self, key_id: KeyId, arrival: u64) -> bool {
        let shard = self.shard(key_id);
        let Some(entry) = shard.get(&key_id) else { return false };
        entry.waiters.iter().skip(entry.included).any(|waiter| waiter.arrival == arrival)
    }

    /// Serves waiters from the units that the process holds. Returns the next lease to request; `None` if no call
    /// waits, which ends `fetch`.
    pub(super) fn next_request(
        &self,
        key_id: KeyId,
        fetch: &mut RunningJob<LeaseFetch>,
        now: u64,
    ) -> (Vec<Delivery>, Option<LeaseRequest>) {
        let mut deliveries = Vec::new();
        let mut shard = self.shard(key_id);
        let Some(entry) = shard.get_mut(&key_id) else {
            fetch.end();
            return (deliveries, None);
        };
        while let Some(first) = entry.waiters.front() {
            let is_gone = !first.is_present();
            let cost = first.cost;
            let reply = if is_gone { None } else { entry.take(cost, now) };
            if reply.is_none() && !is_gone {
                break;
            }
            let first = entry.waiters.pop_front();
            if let (Some(first), Some(reply)) = (first, reply) {
                deliveries.push(entry.deliver(first, reply));
            }
        }
        let request = entry.request(now);
        if request.is_none() {
            fetch.end();
            // If the end of the lease is scheduled, the watch removes the entry.
            if entry.scheduled.is_none() {
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
        units: u32,
        requested: u64,
        now: u64,
        outcome: Outcome,
    ) -> (Vec<Delivery>, Option<UnspentUnits>) {
        let mut deliveries = Vec::new();
        let mut shard = self.shard(key_id);
        let Some(entry) = shard.get_mut(&key_id) else { return (deliveries, None) };
        let target = Arc::clone(&entry.target);
        let lasts = match target.charge.terms.algorithm() {
            Algorithm::Fixed => target.lifetime.min(outcome.reset_us),
            Algorithm::Sliding
            | Algorithm::SlidingCounter
            | Algorithm::TokenBucket
            | Algorithm::LeakyBucket
            | Algorithm::InFlight => target.lifetime,
        };
        entry.share.update(&target.charge.terms, units, &outcome);
        entry.held = HeldUnits {
            units,
            charged: units,
            at: outcome.clock,
            place: outcome.charged_at(&target.charge.terms),
            requested,
            // The clock of the store may run a little faster.
            until: requested + lasts - lasts.div_ceil(1_000),
            remaining: outcome.remaining,
            reset_us: outcome.reset_us,
        };
        // The store has admitted these calls, so they spend units also after the lifetime of the lease.
        let mut source = Source::Redis;
        for _ in 0..std::mem::take(&mut entry.included) {
            let Some(cost) = entry.waiters.front().map(|first| first.cost) else { break };
            if cost > entry.held.units {
                break;
            }
            let Some(first) = entry.waiters.pop_front().filter(LeaseWaiter::is_present) else {
                continue;
            };
            entry.held.units -= cost;
            deliveries.push(entry.deliver(first, entry.reply(now, source)));
            source = Source::Lease;
        }
        let place = entry.held.place;
        let kept = if now < entry.held.until { target.max_units } else { 0 };
        let mut excess = entry.held.units.saturating_sub(kept);
        entry.held.units -= excess;
        entry.held.charged -= excess;
        let end = entry.held.until;
        if std::mem::take(&mut entry.reset) {
            // The reset has removed the count to which these units could return.
            (excess, entry.held) = (0, HeldUnits { until: end, ..HeldUnits::default() });
        }
        let is_sooner = entry.schedule(end);
        drop(shard);
        if is_sooner {
            self.ends.schedule(key_id, end);
        }
        (deliveries, UnspentUnits { target, units: excess, at: outcome.clock, place }.some())
    }

    /// Records that the store has rejected a lease of `units` units. The rejection is also the reply to a waiter of
    /// that cost. For the lifetime of a lease, the count is not leased.
    pub(super) fn rejected(
        &self,
        key_id: KeyId,
        units: u32,
        now: u64,
        rejection: &Reply,
    ) -> Vec<Delivery> {
        let mut shard = self.shard(key_id);
        let Some(entry) = shard.get_mut(&key_id) else { return Vec::new() };
        entry.reset = false;
        entry.paused = now + entry.target.lifetime;
        let included = std::mem::take(&mut entry.included);
        let waiting: Vec<_> = entry.waiters.drain(..).enumerate().collect();
        let end = entry.paused;
        let is_sooner = entry.schedule(end);
        drop(shard);
        if is_sooner {
            self.ends.schedule(key_id, end);
        }
        let delivery = |(index, waiter): (usize, LeaseWaiter)| {
            let is_reply = index < included && waiter.cost == units;
            let content = if is_reply {
                DeliveryContent::Rejection(rejection.clone())
            } else {
                DeliveryContent::NotLeased
            };
            Delivery { to: waiter.reply_to, content }
        };
        waiting.into_iter().map(delivery).collect()
    }

    /// Records that the store has failed.
    pub(super) fn failed(&self, key_id: KeyId, error: &StoreError) -> Vec<Delivery> {
        let mut shard = self.shard(key_id);
        let Some(entry) = shard.get_mut(&key_id) else { return Vec::new() };
        let failed = |waiter: LeaseWaiter| Delivery {
            to: waiter.reply_to,
            content: DeliveryContent::Failure(error.clone()),
        };
        entry.waiters.drain(..).map(failed).collect()
    }

    /// Records that a task has ended with its runtime. The waiters observe the closed channel, unless another task has
    /// taken its place.
    pub(super) fn abandon(&self, key_id: KeyId) {
        let mut shard = self.shard(key_id);
        let entry = shard.get_mut(&key_id).filter(|entry| !entry.is_fetching());
        let Some(entry) = entry else { return };
        let waiting = std::mem::take(&mut entry.waiters);
        if entry.scheduled.is_none() {
            shard.remove(&key_id);
        }
        drop(shard);
        drop(waiting);
    }

    /// Takes back units that a waiter did not spend, if they are of the same charge as the units that the process holds
    /// now, and as many as it may hold. Returns the others, which the caller returns to the store.
    pub(super) fn put_back(&self, key_id: KeyId, unspent: UnspentUnits) -> Option<UnspentUnits> {
        let UnspentUnits { target, units, at, place } = unspent;
        let mut shard = self.shard(key_id);
        let is_of = |entry: &&mut LeaseEntry| {
            entry.held.at == at && at > 0 && entry.target.amounts == target.amounts
        };
        let entry = shard.get_mut(&key_id).filter(is_of);
        let kept = entry.filter(|_| !self.is_shut_down.load(SeqCst)).map_or(0, |entry| {
            let kept = units.min(entry.target.max_units.saturating_sub(entry.held.units));
            entry.held.units += kept;
            entry.held.charged = entry.held.charged.saturating_sub(units - kept);
            kept
        });
        UnspentUnits { target, units: units - kept, at, place }.some()
    }

    /// Discards the units of a count that was reset.
    pub(super) fn discard(&self, key_id: KeyId) {
        if let Some(entry) = self.shard(key_id).get_mut(&key_id) {
            let until = entry.held.until;
            entry.held = HeldUnits { until, ..HeldUnits::default() };
            (entry.reset, entry.paused) = (entry.is_fetching(), 0);
        }
    }

    /// From now on, no call starts a request for units.
    pub(super) fn shut_down(&self) {
        self.is_shut_down.store(true, SeqCst);
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
        while let Some((due, key_id)) = self.ends.take_due(now) {
            let mut shard = self.shard(key_id);
            let entry = shard.get_mut(&key_id);
            // Otherwise, a sooner look was scheduled after this one.
            let Some(entry) = entry.filter(|entry| entry.scheduled == Some(due)) else { continue };
            let again = if entry.is_fetching() {
                Some(now + entry.target.lifetime)
            } else {
                if entry.held.until <= now {
                    expired.extend(entry.take_unspent());
                }
                entry.next_end(now)
            };
            entry.scheduled = again;
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
        let is_idle = |entry: &LeaseEntry| {
            let has_ended = entry.held.until <= now && entry.held.units > 0;
            entry.is_fetching() || entry.next_end(now).is_some() && !has_ended
        };
        self.shards.iter().all(|shard| lock_own(shard).values().all(is_idle))
    }

    fn shard(&self, key_id: KeyId) -> MutexGuard<'_, OwnValue<LeaseEntries>> {
        lock_own(&self.shards[(key_id.bits() >> 122) as usize % SHARDS])
    }
}
