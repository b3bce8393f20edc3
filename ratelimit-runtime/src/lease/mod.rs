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
//!
//! The task that requests leases for all calls that wait for a count is a separate one, so that no units are lost when
//! a call is dropped.

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

use once_cell::sync::OnceCell;
use tokio::time::{Instant, timeout};

use self::heat::Heat;
use self::ledger::{EnterResult, LeaseDelivery, LeaseLedger};
use self::state::{
    Delivery, DeliveryContent, LeaseAmounts, LeaseRequest, LeaseTarget, UnspentUnits,
};
use crate::algorithm::{Charged, Outcome};
use crate::backend::Backend;
use crate::background::{PendingWork, WorkCount};
use crate::clock::{before, complete_by};
use crate::key::{Key, KeyId};
use crate::limit::{Limit, Terms};
use crate::reply::{Answer, Decision, StoreError};
use crate::report::Report;
use crate::store::{Calls, Charge, Reply};

/// A call waits for the pending request for its deadline divided by this number. If that request does not include
/// the call, the call then sends its own request.
const WAITS_PER_DEADLINE: u32 = 16;

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
}

/// The reply that a waiter receives.
enum LeaseReply {
    Units(DeliveredUnits),
    Rejected(Reply),
    Failed(StoreError),
    /// The count is not leased: the call sends its own request.
    NotLeased,
}

impl Leases {
    pub(crate) fn new(backend: Arc<Backend>) -> Arc<Self> {
        Arc::new(Self {
            backend,
            ledger: LeaseLedger::default(),
            heat: OnceCell::new(),
            pending: WorkCount::default(),
            is_watched: AtomicBool::new(false),
        })
    }

    /// Spends units that this process holds for calls with these terms. They and `key_id` are those of the limit, not
    /// of the lease.
    #[inline]
    pub(crate) fn spend(&self, key_id: KeyId, terms: &Terms, cost: u64) -> Option<Decision> {
        if cost == 0 {
            return None;
        }
        let (amounts, now) = (LeaseAmounts::of(terms), self.backend.clock().steady());
        let (reply, capacity) = self.ledger.spend(key_id, amounts, cost, now)?;
        Some(Decision::new(capacity, &reply.first(), reply.source))
    }

    /// Returns the number of units that calls with these terms can spend in this process.
    pub(crate) fn spendable(&self, key_id: KeyId, terms: &Terms) -> u64 {
        let now = self.backend.clock().steady();
        self.ledger.spendable(key_id, LeaseAmounts::of(terms), now)
    }

    /// Returns whether a call for which this process does not hold enough units leases some. If the limit leases busy
    /// keys only, a key whose lease the store has rejected is not busy.
    pub(crate) fn serves(&self, limit: &Limit, key_id: KeyId, cost: u64) -> bool {
        if !limit.leases_busy_keys() {
            return cost > 0;
        }
        if !(1..=limit.lease_units()).contains(&cost) {
            return false;
        }
        let (now, term) = (self.backend.clock().steady(), limit.terms().lease_us());
        self.ledger
            .is_leased(key_id, LeaseAmounts::of(limit.terms()), now)
            .unwrap_or_else(|| self.heat.get_or_init(Heat::default).is_busy(key_id, now / term))
    }

    /// Prepares a call for which this process does not hold enough units. `charge` is under the terms of the lease.
    pub(crate) fn call(
        self: &Arc<Self>,
        limit: &Limit,
        key_id: KeyId,
        charge: Arc<Charge>,
    ) -> LeasedCall {
        let target = LeaseTarget {
            policy: limit.policy(),
            max_units: limit.lease_units(),
            lifetime: limit.terms().lease_us(),
            amounts: LeaseAmounts::of(limit.terms()),
            charge,
        };
        LeasedCall { leases: Arc::clone(self), key_id, target: Arc::new(target) }
    }

    /// Gives back the units that this process holds of a count.
    pub(crate) fn give_back(self: &Arc<Self>, key_id: KeyId) {
        // A shutdown waits until the units that leave the ledger are queued.
        let _pending = self.pending.begin();
        if let Some(unspent) = self.ledger.take(key_id) {
            drop(self.return_units(unspent));
        }
    }

    /// Discards the units of a count that is reset.
    pub(crate) fn discard(&self, key_id: KeyId) {
        self.ledger.discard(key_id);
    }

    /// Gives back all units that this process holds. Calls lease no more.
    pub(crate) async fn shut_down(&self) -> Result<(), StoreError> {
        self.ledger.shut_down();
        let held = self.return_all().await;
        // The reply to a pending request can lease units, also after the ledger was shut down.
        self.pending.all_ended().await;
        held.and(self.return_all().await)
    }

    /// Returns the cell that counts the calls of a key to find out whether it is busy, for tests. Keys of one cell are
    /// found busy later.
    pub(crate) fn cell_of(key_id: KeyId) -> usize {
        heat::cell_of(key_id)
    }

    /// Returns whether all leases that have ended are removed, and their units are queued to go back; for tests.
    pub(crate) fn is_idle(&self) -> bool {
        // In this order: what leaves the ledger is pending before.
        self.ledger.is_idle(self.backend.clock().steady()) && self.pending.pending() == 0
    }

    /// Gives units back, and waits until they are back, for half a deadline at most.
    async fn return_before(&self, unspent: UnspentUnits) {
        let _ = timeout(self.backend.deadline() / 2, self.return_units(unspent)).await;
    }

    /// Gives units back, whether the caller waits for the result or not. After a failure, they leave the window by
    /// themselves.
    fn return_units(&self, unspent: UnspentUnits) -> Answer<Outcome> {
        let UnspentUnits { target, units, place, .. } = unspent;
        let (charge, charged) = (target.charge_of(units), Charged::At(place));
        self.backend.give_back(target.policy.scope(), self.backend.source(), charge, charged)
    }

    /// Gives back all units that this process holds. Returns the first error.
    fn return_all(&self) -> impl Future<Output = Result<(), StoreError>> + Send + use<> {
        let all = self.ledger.take_all().into_iter();
        let returned: Vec<_> = all.map(|unspent| self.return_units(unspent)).collect();
        async {
            let mut result = Ok(());
            for returned in returned {
                result = result.and(returned.await.map(drop));
            }
            result
        }
    }

    /// Starts the job that gives back the units of each lease that ends.
    fn watch(self: &Arc<Self>) {
        if !self.is_watched.swap(true, Ordering::Relaxed) {
            let background = self.backend.background();
            background.spawn_resident(self, |leases| watch(Arc::downgrade(&leases)));
        }
    }
}

/// Gives back all units when the last clone of the limiter is dropped.
impl Drop for Leases {
    fn drop(&mut self) {
        drop(self.return_all());
        self.ledger.ends.changed().notify_one();
    }
}

/// Gives back the units of each lease that ends, until the limiter is dropped.
async fn watch(leases: Weak<Leases>) {
    while let Some(those) = leases.upgrade() {
        let (clock, end) = (those.backend.clock().clone(), those.ledger.ends.next_end());
        let changed = those.ledger.ends.changed();
        drop(those);
        match end {
            Some(end) => drop(before(clock.sleep_until_steady(end), changed.notified()).await),
            None => changed.notified().await,
        }
        let Some(those) = leases.upgrade() else { return };
        let _pending = those.pending.begin();
        for expired in those.ledger.take_expired(clock.steady()) {
            drop(those.return_units(expired));
        }
    }
}

/// A call for which this process does not hold enough units.
pub(crate) struct LeasedCall {
    leases: Arc<Leases>,
    key_id: KeyId,
    target: Arc<LeaseTarget>,
}

impl LeasedCall {
    /// Decides the call within one deadline.
    pub(crate) async fn decide(self) -> Result<Reply, StoreError> {
        let (backend, policy) = (&self.leases.backend, self.target.policy);
        let calls = Calls::take(Arc::clone(&self.target.charge));
        let deadline = backend.deadline();
        let result = self.decide_by(Instant::now() + deadline).await;
        result.or_else(|error| backend.fall_back(policy, &calls, error))
    }

    /// Waits for the reply to a lease request. If that takes too long, or if the count is not leased, sends a request
    /// for this call alone.
    async fn decide_by(&self, by: Instant) -> Result<Reply, StoreError> {
        let Self { leases, key_id, target } = self;
        let (deadline, cost) = (leases.backend.deadline(), target.charge.cost);
        let late = || leases.backend.too_late();
        let now = leases.backend.clock().steady();
        match leases.ledger.enter(*key_id, target, cost, now, || leases.pending.begin()) {
            EnterResult::Spent(reply) => return Ok(reply),
            EnterResult::NotLeased => {}
            EnterResult::Waiting { mut reply, arrival, fetch } => {
                if let Some(pending) = fetch {
                    let fetch = LeaseFetch::new(leases, *key_id, pending);
                    leases.backend.background().spawn(fetch.run());
                }
                // Saves the second timer for most calls: their replies come within the first timeout.
                let soon = Instant::now() + deadline / WAITS_PER_DEADLINE;
                let mut received = complete_by(soon, &mut reply).await;
                if received.is_none() && !leases.ledger.is_not_included(*key_id, arrival) {
                    received = Some(complete_by(by, reply).await.ok_or_else(late)?);
                }
                match received {
                    Some(Ok(LeaseReply::Units(units))) => return Ok(units.spend()),
                    Some(Ok(LeaseReply::Rejected(rejection))) => return Ok(rejection),
                    Some(Ok(LeaseReply::Failed(error))) => return Err(error),
                    // Without a reply, the thread could not start, or the pending request does not include the call.
                    Some(Ok(LeaseReply::NotLeased) | Err(_)) | None => {}
                }
            }
        }
        let calls = Calls::take(Arc::clone(&target.charge));
        let result = complete_by(by, leases.backend.try_execute(target.policy, &calls)).await;
        result.unwrap_or_else(|| Err(late()))
    }
}

/// The leases of a limiter. Only one with a shared store has some.
#[derive(Clone)]
pub(crate) struct OptionalLeases(pub(crate) Option<Arc<Leases>>);

impl OptionalLeases {
    pub(crate) fn new(backend: &Arc<Backend>) -> Self {
        Self(backend.of_shared(|| Leases::new(Arc::clone(backend))))
    }

    /// Returns the leases if units of this limit are leased.
    pub(crate) fn of(&self, limit: &Limit) -> Option<&Arc<Leases>> {
        self.0.as_ref().filter(|_| limit.leases_units())
    }

    /// Decides and reports a call by leased units that this process holds.
    pub(crate) fn spend(&self, limit: &Limit, key: &dyn Key, cost: u64) -> Option<Decision> {
        let leases = self.of(limit)?;
        let (lease_id, report) = (leases.backend.key_id(limit.terms(), key), Report::start());
        let decision = leases.spend(lease_id, limit.terms(), cost)?;
        report.end_if_recorded(|| limit.label(), || Ok(decision));
        Some(decision)
    }

    /// Returns the leases that decide a call for which this process does not hold enough units, and the key id of the
    /// lease.
    pub(crate) fn serving(
        &self,
        limit: &Limit,
        key: &dyn Key,
        cost: u64,
    ) -> Option<(&Arc<Leases>, KeyId)> {
        let leases = self.of(limit)?;
        // The lease of a count has the key id under the terms of the limit, not under the terms of the lease.
        let lease_id = leases.backend.key_id(limit.terms(), key);
        leases.serves(limit, lease_id, cost).then_some((leases, lease_id))
    }
}

struct LeaseFetch {
    leases: Arc<Leases>,
    key_id: KeyId,
    has_ended: bool,
    _pending: PendingWork,
}

impl Drop for LeaseFetch {
    fn drop(&mut self) {
        if !self.has_ended {
            self.leases.ledger.abandon(self.key_id, self.now());
        }
    }
}

impl LeaseFetch {
    fn new(leases: &Arc<Leases>, key_id: KeyId, pending: PendingWork) -> Self {
        Self { leases: Arc::clone(leases), key_id, has_ended: false, _pending: pending }
    }

    /// Requests leases for the calls that wait for the count, until none waits.
    async fn run(mut self) {
        let leases = Arc::clone(&self.leases);
        loop {
            let (deliveries, request) = leases.ledger.next_request(self.key_id, self.now());
            self.has_ended = request.is_none();
            self.deliver(deliveries);
            let Some(LeaseRequest { target, units, unspent }) = request else { return };
            // First the units that come back: without them, the store can reject the request.
            if let Some(unspent) = unspent {
                leases.return_before(unspent).await;
            }
            let requested = self.now();
            let calls = Calls::take(target.charge_of(units));
            let result = leases.backend.try_execute(target.policy, &calls).await;
            self.apply_reply(units, requested, result);
        }
    }

    /// Applies the reply of the store to the ledger.
    fn apply_reply(&self, units: u64, requested: u64, result: Result<Reply, StoreError>) {
        let (ledger, now) = (&self.leases.ledger, self.now());
        match result {
            Ok(reply) if reply.is_allowed() => {
                let outcome = reply.first();
                let (deliveries, excess) =
                    ledger.charged(self.key_id, units, requested, now, outcome);
                self.deliver(deliveries);
                if let Some(excess) = excess {
                    drop(self.leases.return_units(excess));
                }
            }
            Ok(rejection) => self.deliver(ledger.rejected(self.key_id, units, now, &rejection)),
            Err(error) => self.deliver(ledger.failed(self.key_id, &error)),
        }
        self.leases.watch();
    }

    /// Sends the deliveries to their waiters. Units for a call that was dropped come back.
    fn deliver(&self, deliveries: Vec<LeaseDelivery>) {
        for Delivery { to, content } in deliveries {
            let _ = to.send(match content {
                DeliveryContent::Units { reply, units } => LeaseReply::Units(DeliveredUnits {
                    leases: Arc::clone(&self.leases),
                    key_id: self.key_id,
                    reply,
                    units: Some(units),
                }),
                DeliveryContent::Rejection(reply) => LeaseReply::Rejected(reply),
                DeliveryContent::NotLeased => LeaseReply::NotLeased,
                DeliveryContent::Failure(error) => LeaseReply::Failed(error),
            });
        }
    }

    fn now(&self) -> u64 {
        self.leases.backend.clock().steady()
    }
}

/// Units on their way to a waiter. If the waiter does not spend them, they return to the ledger or to the store.
struct DeliveredUnits {
    leases: Arc<Leases>,
    key_id: KeyId,
    reply: Reply,
    units: Option<UnspentUnits>,
}

impl DeliveredUnits {
    fn spend(mut self) -> Reply {
        self.units = None;
        self.reply.clone()
    }
}

impl Drop for DeliveredUnits {
    fn drop(&mut self) {
        let Some(unspent) = self.units.take() else { return };
        if let Some(rest) = self.leases.ledger.put_back(self.key_id, unspent) {
            drop(self.leases.return_units(rest));
        }
    }
}
