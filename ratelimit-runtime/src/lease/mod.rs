//! Leases: units that one request to Redis charges in advance, and that calls spend in this process.
//!
//! Why a lease never admits too much: a unit is spent at most one lifetime after it was charged, measured
//! from the request. So the units spent in any period were charged within a period and a lifetime. The store
//! counts leases under terms that are stricter by that (see [`Terms::leased`](crate::limit::Terms::leased)):
//! over a period longer by the lifetime, or into a bucket smaller by what refills in it. The units of a fixed
//! window never outlive it.
//!
//! Unspent units go back by [`Op::Return`]. In any order and however late, the store then counts no less than
//! what was spent and what is held.
//!
//! A call takes units that its process holds. If they do not suffice, a task requests more for all calls that
//! wait. If the store rejects the lease, there is nothing to lease: for one lifetime, each call sends its own
//! request.

mod entry;
mod fetch;
mod ledger;

use std::sync::{Arc, Weak};

use tokio::runtime::Handle;
use tokio::time::{Instant, timeout, timeout_at};

use self::entry::{LeaseTarget, UnspentUnits};
use self::fetch::{DeliveredUnits, LeaseFetch};
use self::ledger::{LeaseLedger, LedgerEntry};
use crate::algorithm::Op;
use crate::backend::Backend;
use crate::clock::before;
use crate::key::KeyId;
use crate::limit::Limit;
use crate::reply::{Decision, StoreError};
use crate::store::{Charge, Reply, Request};

/// A call waits for the request in flight for this fraction of its deadline, and then sends its own.
const PATIENCE: u32 = 16;

/// How many give-backs are in flight at a time.
const CONCURRENT_RETURNS: usize = 64;

/// The leases of a limiter.
pub(crate) struct Leases {
    backend: Arc<Backend>,
    ledger: LeaseLedger,
}

/// What a waiter receives.
enum LeaseReply {
    Units(DeliveredUnits),
    Rejected(Reply),
    Failed(StoreError),
    /// The count is not leased: the call sends its own request.
    NotLeased,
}

impl Leases {
    pub(crate) fn new(backend: Arc<Backend>) -> Arc<Self> {
        Arc::new(Self { backend, ledger: LeaseLedger::default() })
    }

    /// Spends units that this process holds. `key_id` is the count under the terms of the limit itself.
    #[inline]
    pub(crate) fn spend(&self, key_id: KeyId, cost: u32) -> Option<Decision> {
        if cost == 0 {
            return None;
        }
        let (reply, capacity) = self.ledger.spend(key_id, cost, self.backend.clock().steady())?;
        Some(Decision::new(capacity, &reply.first(), reply.source))
    }

    /// Returns how many units this process could spend.
    pub(crate) fn spendable(&self, key_id: KeyId) -> u32 {
        self.ledger.spendable(key_id, self.backend.clock().steady())
    }

    /// Prepares a call for which this process does not hold enough. `charge` is under the terms of the lease.
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
            charge,
        };
        LeasedCall { leases: Arc::clone(self), key_id, target: Arc::new(target) }
    }

    /// Discards the units of a count that is reset.
    pub(crate) fn discard(&self, key_id: KeyId) {
        self.ledger.discard(key_id);
    }

    /// Gives back all units that this process holds.
    pub(crate) async fn return_all(&self) -> Result<(), StoreError> {
        if Handle::try_current().is_err() {
            return Err(StoreError::NoRuntime);
        }
        return_all(&self.backend, self.ledger.take_all()).await
    }

    fn return_in_background(&self, unspent: UnspentUnits) {
        let backend = Arc::clone(&self.backend);
        self.backend.background().spawn(async move {
            // Units that are lost on the way leave the window by themselves.
            let _ = return_one(&backend, unspent).await;
        });
    }

    /// Gives back the units of each lease that ends, while any are held.
    fn watch(self: &Arc<Self>) {
        if !self.ledger.starts_watch() {
            return;
        }
        let watch = LeaseWatch(Arc::downgrade(self));
        let clock = self.backend.clock().clone();
        self.backend.background().spawn(async move {
            while let Some((leases, end)) = watch.next_end() {
                let changed = Arc::clone(&leases.ledger.changed);
                drop(leases);
                before(clock.sleep_until_steady(end), changed.notified()).await;
                let Some(leases) = watch.0.upgrade() else { return };
                let expired = leases.ledger.take_expired(clock.steady());
                // Units that are lost sit unused until they leave the window by themselves.
                let _ = return_all(&leases.backend, expired).await;
            }
        });
    }
}

/// Returns the units of all leases once the limiter is gone.
impl Drop for Leases {
    fn drop(&mut self) {
        let unspent = self.ledger.take_all();
        self.ledger.changed.notify_one();
        if !unspent.is_empty() {
            let backend = Arc::clone(&self.backend);
            self.backend.background().spawn(async move {
                let _ = return_all(&backend, unspent).await;
            });
        }
    }
}

async fn return_one(backend: &Backend, unspent: UnspentUnits) -> Result<(), StoreError> {
    let UnspentUnits { target, units, at } = unspent;
    let request = Request::give_back(Op::Return { at }, target.charge_of(units));
    backend.give_back(target.policy, backend.source(), request).await.map(drop)
}

/// Gives back units of several counts. Returns the first error.
async fn return_all(backend: &Arc<Backend>, unspent: Vec<UnspentUnits>) -> Result<(), StoreError> {
    let mut lanes: Vec<Vec<_>> = Vec::new();
    lanes.resize_with(CONCURRENT_RETURNS.min(unspent.len()), Vec::new);
    for (index, units) in unspent.into_iter().enumerate() {
        lanes[index % CONCURRENT_RETURNS].push(units);
    }
    let lane = |units: Vec<UnspentUnits>| {
        let backend = Arc::clone(backend);
        async move {
            let mut result = Ok(());
            for units in units {
                let returned = return_one(&backend, units).await;
                result = result.and(returned);
            }
            result
        }
    };
    let lanes: Vec<_> = lanes.into_iter().map(|units| tokio::spawn(lane(units))).collect();
    let mut result = Ok(());
    for lane in lanes {
        // A task fails only if its runtime shuts down.
        result = result.and(lane.await.unwrap_or(Err(StoreError::NoRuntime)));
    }
    result
}

/// The job that watches for ends. It may also end with the background thread.
struct LeaseWatch(Weak<Leases>);

impl LeaseWatch {
    fn next_end(&self) -> Option<(Arc<Leases>, u64)> {
        let leases = self.0.upgrade()?;
        let end = leases.ledger.next_end()?;
        Some((leases, end))
    }
}

impl Drop for LeaseWatch {
    fn drop(&mut self) {
        if let Some(leases) = self.0.upgrade() {
            leases.ledger.end_watch();
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
        let request = Request::decide(Arc::clone(&self.target.charge));
        if Handle::try_current().is_err() {
            return backend.execute(policy, request).await;
        }
        let deadline = backend.deadline();
        let result = self.decide_by(Instant::now() + deadline).await;
        result.or_else(|error| backend.fall_back(policy, &request, error))
    }

    /// Waits for the request of this call or of another call. Sends one for this call alone if that would
    /// take too long, or if the count is not leased.
    async fn decide_by(&self, by: Instant) -> Result<Reply, StoreError> {
        let Self { leases, key_id, target } = self;
        let (deadline, cost) = (leases.backend.deadline(), target.charge.cost);
        let late = || StoreError::Timeout { deadline };
        // If a fetch ends with its runtime, its waiters of other runtimes try once more.
        for _ in 0..2 {
            let now = leases.backend.clock().steady();
            let (mut reply, arrival) = match leases.ledger.enter(*key_id, target, cost, now) {
                LedgerEntry::Spent(reply) => return Ok(reply),
                LedgerEntry::NotLeased => break,
                LedgerEntry::Waiting { reply, arrival, is_first } => {
                    if is_first {
                        LeaseFetch::spawn(leases, *key_id);
                    }
                    (reply, arrival)
                }
            };
            // One timer at a time: most replies come within the first.
            let mut received = timeout(deadline / PATIENCE, &mut reply).await;
            if received.is_err() {
                if leases.ledger.is_not_included(*key_id, arrival) {
                    break;
                }
                received = timeout_at(by, reply).await;
            }
            match received {
                Ok(Ok(LeaseReply::Units(units))) => return Ok(units.spend()),
                Ok(Ok(LeaseReply::Rejected(rejection))) => return Ok(rejection),
                Ok(Ok(LeaseReply::Failed(error))) => return Err(error),
                Ok(Ok(LeaseReply::NotLeased)) => break,
                Ok(Err(_)) => {}
                Err(_) => return Err(late()),
            }
        }
        let request = Request::decide(Arc::clone(&target.charge));
        let result = timeout_at(by, leases.backend.try_execute(target.policy, request)).await;
        result.unwrap_or_else(|_| Err(late()))
    }
}
