//! Leases: units that one request to Redis charges in advance, and that calls spend in this process.
//!
//! Why a lease never admits too much: a unit is spent at most one lifetime after it was charged, measured
//! from the request. So the units spent in any period were charged within a period and a lifetime. The store
//! counts leases under stricter terms (see [`Terms::leased`](crate::limit::Terms::leased)): the period is longer
//! by the lifetime, or the bucket is smaller by the tokens that refill in the lifetime. In a fixed window, units
//! are never spent after the end of the window.
//!
//! Unspent units are given back by [`Charged::At`]. After any number of returns, in any order and at any time, the
//! store counts at least the units that were spent or are held.
//!
//! A call spends units that its process holds. If they do not suffice, a task requests more for all calls that
//! wait. If the store rejects the lease, the count is not leased for one lifetime: each call sends its own
//! request. So does a call with other amounts than those under which the units were charged, until these units are
//! spent or back. Of some limits, only the counts of busy keys are leased; see [`heat`].

mod heat;
#[cfg(all(test, loom))]
mod interleavings;
mod ledger;
#[cfg(model)]
#[path = "../../../models/src/leases/mod.rs"]
pub mod model;
mod state;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use once_cell::sync::OnceCell;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use self::heat::Heat;
use self::ledger::{LeaseDelivery, LeaseEntry, LeaseLedger};
pub(crate) use self::state::LeaseTarget;
use self::state::{Delivery, LeaseRequest, LeaseState, UnspentUnits};
use crate::algorithm::{Charged, Outcome};
use crate::backend::Backend;
use crate::background::{OwnValue, WorkCount, lock_own};
use crate::clock::{before, complete_by};
use crate::key::{Key, KeyId, OwnedKey};
use crate::limit::{Limit, Terms};
use crate::owner::foreign;
use crate::reply::{Answer, Decision, Source, StoreError};
use crate::report::{self, Report};
use crate::store::{Calls, Reply};
use crate::threads::Mutex;

/// A call waits for the pending request for its deadline divided by this number. If that request does not include
/// the call, the call then sends its own request.
const WAITS_PER_DEADLINE: u32 = 16;

/// The shortest time between two looks at all leases.
const LOOK_PAUSE: Duration = Duration::from_millis(5);

/// The leases of a limiter.
pub(crate) struct Leases {
    backend: Arc<Backend>,
    ledger: LeaseLedger,
    /// Of the keys that are leased only while they are busy.
    heat: OnceCell<Heat>,
    /// The tasks that request leases, and the units that leave the ledger.
    pending: WorkCount,
    /// Whether the job that watches the ends of leases was started.
    is_watched: AtomicBool,
    /// Notified when leases have changed, and when the job must end.
    changed: Mutex<OwnValue<Arc<Notify>>>,
}

/// A reply on its way to a waiter. If the waiter does not spend its units, they return to the ledger or to the store.
struct LeaseReply {
    leases: Arc<Leases>,
    key_id: KeyId,
    /// `None` if the count is not leased: the call sends its own request.
    reply: Option<Result<Reply, StoreError>>,
    units: Option<UnspentUnits>,
}

impl Leases {
    pub(crate) fn new(backend: &Arc<Backend>) -> Arc<Self> {
        Arc::new(Self {
            backend: Arc::clone(backend),
            ledger: LeaseLedger::default(),
            heat: OnceCell::new(),
            pending: WorkCount::default(),
            is_watched: AtomicBool::new(false),
            changed: Mutex::default(),
        })
    }

    /// Returns the leases if units of this limit are leased.
    pub(crate) fn of(self: &Arc<Self>, limit: &Limit) -> Option<&Arc<Self>> {
        self.backend.leases(limit).then_some(self)
    }

    /// Decides and reports a call by units that this process holds.
    pub(crate) fn spend(
        self: &Arc<Self>,
        limit: &Limit,
        key: &dyn Key,
        cost: u64,
    ) -> Option<Decision> {
        self.of(limit).filter(|_| cost > 0)?;
        let (terms, report) = (limit.terms(), Report::start());
        let (key_id, now) = (self.backend.key_id(terms, key), self.now());
        let (outcome, capacity) = self.ledger.spend(key_id, terms, cost, now)?;
        let decision = Decision::new(capacity, &outcome, Source::Lease);
        if report::is_recorded() {
            report.end(limit, &Ok(decision));
        }
        Some(decision)
    }

    /// Returns the number of units that calls with these terms can spend in this process. They and `key_id` are those
    /// of the limit, not of the lease.
    pub(crate) fn spendable(&self, key_id: KeyId, terms: &Terms) -> u64 {
        let now = self.now();
        self.ledger.change(key_id, |lease| {
            if lease.target.terms == *terms { lease.held.spendable(now) } else { 0 }
        })
    }

    /// Returns the key id of the lease that decides a call for which this process does not hold enough units; `None` if
    /// the call leases none. If the limit leases busy keys only, a key whose lease the store has rejected is not busy.
    pub(crate) fn serving(
        self: &Arc<Self>,
        limit: &Limit,
        key: &dyn Key,
        cost: u64,
    ) -> Option<KeyId> {
        self.of(limit).filter(|_| cost > 0)?;
        let (terms, now) = (limit.terms(), self.now());
        // The lease of a count has the key id under the terms of the limit, not under the terms of the lease.
        let key_id = self.backend.key_id(terms, key);
        let is_busy = || {
            let heat = self.heat.get_or_init(Heat::default);
            heat.is_busy(key_id, now / terms.lease_us())
        };
        let serves = !limit.leases_busy_keys()
            || cost <= limit.lease_units()
                && self.ledger.is_leased(key_id, terms, now).unwrap_or_else(is_busy);
        serves.then_some(key_id)
    }

    /// Decides a call for which this process does not hold enough units, within one deadline.
    pub(crate) async fn decide(
        self: Arc<Self>,
        key_id: KeyId,
        target: Arc<LeaseTarget>,
    ) -> Result<Reply, StoreError> {
        let calls = Calls::take(Arc::clone(&target.charge));
        let result = self.decide_by_lease(key_id, &target, &calls).await;
        result.or_else(|error| self.backend.fall_back(target.policy, &calls, error))
    }

    /// Waits for the reply to a lease request. If that takes too long, or if the count is not leased, sends a request
    /// for this call alone.
    async fn decide_by_lease(
        self: &Arc<Self>,
        key_id: KeyId,
        target: &Arc<LeaseTarget>,
        calls: &Calls,
    ) -> Result<Reply, StoreError> {
        let (start, deadline) = (Instant::now(), self.backend.settings.deadline);
        let (by, late) = (start + deadline, || self.backend.too_late());
        let wait = self.ledger.enter(key_id, target, self.now(), || self.pending.begin());
        if let Some((mut reply, arrival, fetch)) = wait {
            if let Some(pending) = fetch {
                let leases = Arc::clone(self);
                // The waiters observe the closed channel.
                let abandon = move || {
                    drop(leases.ledger.change(key_id, LeaseState::abandon));
                    drop(pending);
                };
                self.backend.background.spawn_or(Arc::clone(self).fetch(key_id), abandon);
            }
            // Saves the second timer for most calls: their replies come within the first timeout.
            let mut received = complete_by(start + deadline / WAITS_PER_DEADLINE, &mut reply).await;
            let is_not_included = |lease: &mut LeaseEntry| lease.is_not_included(arrival);
            if received.is_none() && !self.ledger.change(key_id, is_not_included) {
                received = Some(complete_by(by, reply).await.ok_or_else(late)?);
            }
            // Without a reply, the thread could not start, or the pending request does not include the call.
            let received = received.and_then(Result::ok);
            if let Some(result) = received.and_then(LeaseReply::receive) {
                return result;
            }
        }
        let result = complete_by(by, self.execute(target, calls)).await;
        result.unwrap_or_else(|| Err(late()))
    }

    /// Executes a charge, and reports it as [`Limit::notify_at`] says.
    async fn execute(&self, target: &LeaseTarget, calls: &Calls) -> Result<Reply, StoreError> {
        let reply = self.backend.try_execute(target.policy, calls).await?;
        if let Some(charge) = calls.only_charge().filter(|_| reply.is_allowed()) {
            let key = || OwnedKey::in_count_name(&charge.count_name);
            self.backend.notify(target.policy, &charge, &reply.first(), key);
        }
        Ok(reply)
    }

    /// Gives back the units that this process holds of a count.
    pub(crate) fn give_back(&self, key_id: KeyId) {
        // A shutdown waits until the units that leave the ledger are queued.
        let _pending = self.pending.begin();
        self.return_each(self.ledger.change(key_id, LeaseState::take_unspent));
    }

    /// Discards the units of a count that is reset.
    pub(crate) fn discard(&self, key_id: KeyId) {
        self.ledger.change(key_id, LeaseState::discard);
    }

    /// Gives back all units that this process holds. Calls lease no more.
    pub(crate) async fn shut_down(&self) {
        self.ledger.shut_down();
        self.return_each(self.ledger.take_all());
        // The reply to a pending request can lease units, also after the ledger was shut down.
        self.pending.all_ended().await;
        self.return_each(self.ledger.take_all());
    }

    /// Returns whether all leases that have ended are removed, and their units are queued to go back; for tests.
    pub(crate) fn is_idle(&self) -> bool {
        // In this order: what leaves the ledger is pending before.
        self.ledger.is_idle(self.now()) && self.pending.pending() == 0
    }

    /// Gives units back, whether the caller waits for the result or not. After a failure, they leave the window by
    /// themselves.
    fn return_units(&self, unspent: UnspentUnits) -> Answer<Outcome> {
        let UnspentUnits { target, units, place, .. } = unspent;
        let (charge, charged) = (target.charge.with_cost(units), Charged::At(place));
        self.backend.give_back(self.backend.source(), charge, charged)
    }

    fn return_each(&self, units: impl IntoIterator<Item = UnspentUnits>) {
        for unspent in units {
            drop(self.return_units(unspent));
        }
    }

    /// Wakes the job that gives back the units of leases that have ended, and starts it if it does not run.
    fn look(self: &Arc<Self>) {
        if !self.is_watched.swap(true, Ordering::Relaxed) {
            let background = &self.backend.background;
            background.spawn_resident(self, |leases| watch(Arc::downgrade(&leases)));
        }
        self.changed().notify_one();
    }

    fn changed(&self) -> Arc<Notify> {
        Arc::clone(&lock_own(&self.changed))
    }

    fn now(&self) -> u64 {
        self.backend.clock().steady()
    }
}

/// Gives back all units when the last clone of the limiter is dropped.
impl Drop for Leases {
    fn drop(&mut self) {
        self.return_each(self.ledger.take_all());
        self.changed().notify_one();
    }
}

/// Gives back the units of each lease that ends, until the limiter is dropped.
async fn watch(leases: Weak<Leases>) {
    while let Some(those) = leases.upgrade() {
        let (clock, changed) = (those.backend.clock().clone(), those.changed());
        let pending = those.pending.begin();
        let (expired, end) = those.ledger.take_expired(clock.steady());
        those.return_each(expired);
        drop((pending, those));
        let end = clock.sleep_until_steady(end.unwrap_or(u64::MAX));
        let _ = before(end, changed.notified()).await;
        // Many changes and ends cause one look. A virtual clock moves from look to look.
        if !clock.is_virtual() {
            sleep(LOOK_PAUSE).await;
        }
    }
}

impl Leases {
    /// Requests leases of a count until no call waits. This is a task of its own, so that no units are lost when a call
    /// is dropped.
    async fn fetch(self: Arc<Self>, key_id: KeyId) {
        loop {
            let now = self.now();
            let step = |lease: &mut LeaseEntry| (lease.serve(now), lease.request(now));
            let (deliveries, request) = self.ledger.change(key_id, step);
            self.deliver(key_id, deliveries);
            let Some(LeaseRequest { target, units, unspent }) = request else { break };
            if let Some(unspent) = unspent {
                // First these units come back: without them, the store can reject the request.
                let returned = self.return_units(unspent);
                let _ = timeout(self.backend.settings.deadline / 2, returned).await;
            }
            let requested = self.now();
            let calls = Calls::take(target.charge.with_cost(units));
            let result = self.execute(&target, &calls).await;
            let now = self.now();
            let replied = |lease: &mut LeaseEntry| lease.replied(units, requested, now, result);
            let (deliveries, excess) = self.ledger.change(key_id, replied);
            self.deliver(key_id, deliveries);
            self.return_each(excess);
        }
        self.look();
    }

    fn deliver(self: &Arc<Self>, key_id: KeyId, deliveries: Vec<LeaseDelivery>) {
        for Delivery { to, reply, units } in deliveries {
            // The units of a call that was dropped come back.
            let leases = Arc::clone(self);
            foreign(|| drop(to.send(LeaseReply { leases, key_id, reply, units })));
        }
    }
}

impl LeaseReply {
    fn receive(mut self) -> Option<Result<Reply, StoreError>> {
        self.units = None;
        self.reply.take()
    }
}

impl Drop for LeaseReply {
    fn drop(&mut self) {
        let Some(unspent) = self.units.take() else { return };
        self.leases.return_each(self.leases.ledger.put_back(self.key_id, unspent));
    }
}
