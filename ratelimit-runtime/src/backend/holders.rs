//! The counts of calls in flight in the shared store that this process uses. `statements.rs` states them.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::sync::Arc;

use super::Backend;
use super::call_deadline::CallDeadline;
use super::statements::StatementJob;
use crate::algorithm::{Charged, Op, Outcome, Receipt};
use crate::background::{JobCounter, OwnValue, lock_own, seen_process};
use crate::key::KeyId;
use crate::limit::Policy;
use crate::reply::StoreError;
use crate::report;
use crate::store::{
    Calls, ChangedCounts, Charge, Holder, Reply, SharedStore, Store, TakingRequest,
};
use crate::threads::Mutex;

/// The holders of a limiter. A process that was forked has none of its parent.
#[derive(Default)]
pub(super) struct Holders {
    pub(super) counts: Mutex<OwnValue<HolderMap>>,
    pub(super) changes: Arc<ChangedCounts>,
    job: JobCounter,
}

pub(super) struct HolderMap {
    /// A random number of this process.
    process: u64,
    pub(super) by_count: HashMap<KeyId, Arc<Charge>>,
}

impl Default for HolderMap {
    fn default() -> Self {
        // 52 bits, which the numbers of scripts hold exactly.
        let process = (RandomState::new().hash_one(seen_process()) >> 12).max(1);
        Self { process, by_count: HashMap::new() }
    }
}

/// What the reply to a request says about units in flight.
#[derive(Default)]
pub(super) struct TakingCalls(Vec<(usize, TakingRequest)>);

impl Backend {
    /// Returns the charge of calls in flight of the shared store with what this process holds of its count.
    pub(super) fn with_holder(self: &Arc<Self>, policy: Policy, charge: Charge) -> Arc<Charge> {
        let Some(holders) = &self.holders else { return Arc::new(charge) };
        let mut counts = lock_own(&holders.counts);
        let process = counts.process;
        let known = counts.by_count.get(&charge.key_id).and_then(|known| known.holder.clone());
        let is_new = known.is_none();
        let holder = known
            .unwrap_or_else(|| Holder::new(process, charge.key_id, Arc::clone(&holders.changes)));
        holder.set_hold(policy.hold().as_micros() as u64);
        let charge = Arc::new(Charge { holder: Some(holder), ..charge });
        if is_new {
            counts.by_count.insert(charge.key_id, Arc::clone(&charge));
            holders.changes.add(charge.key_id);
        }
        drop(counts);
        if is_new {
            let make = || StatementJob::new(Arc::clone(self), Arc::clone(holders));
            let job = holders.job.start(1, make);
            if let Some(job) = job {
                self.background.spawn(StatementJob::run(job));
            }
        }
        charge
    }

    /// Executes a request of the shared store. Records which units in flight it takes.
    pub(super) async fn execute_taking(
        &self,
        shared: &SharedStore,
        calls: &Calls,
        mut end: CallDeadline,
    ) -> Result<Reply, StoreError> {
        if calls.counts.charges().iter().all(|charge| charge.holder.is_none()) {
            return shared.execute(calls.clone()).await;
        }
        let mut result = if calls.op == Op::ACQUIRE {
            let taking = self.prepare(&mut end, self.begin_taking(calls)).await?;
            let sent_at = self.clock().steady();
            let mut result = self.complete(&end, pin!(shared.execute(calls.clone()))).await;
            taking.end(calls, &mut result, [sent_at, self.clock().steady()]);
            self.in_flight_changed.notify_waiters();
            result
        } else {
            shared.execute(calls.clone()).await
        };
        if let Ok(reply) = &mut result {
            without_times(calls, reply);
        }
        result
    }

    /// Begins a request that may take units in flight.
    async fn begin_taking(&self, calls: &Calls) -> Result<TakingCalls, StoreError> {
        let mut taking = TakingCalls::default();
        for (index, charge) in calls.counts.charges().iter().enumerate() {
            let Some(holder) = &charge.holder else { continue };
            match holder.begin().await {
                Ok(request) => taking.0.push((index, request)),
                Err(error) => {
                    taking.not_sent();
                    return Err(error);
                }
            }
        }
        Ok(taking)
    }

    /// Releases the units in flight of a grant that no call has taken, if such units go back.
    pub(super) fn release_grant(&self, charge: &Charge, charged: Charged) -> Option<Outcome> {
        let Charged::At(place) = charged else { return None };
        drop(charge.holder.as_ref()?.granted(charge.cost, Receipt { birth: 1, place }));
        self.notices.released(charge.key_id);
        Some(Outcome::UNDECIDED)
    }

    /// Completes once something may have changed about units in flight.
    pub(crate) fn in_flight_changes(&self) -> impl Future<Output = ()> + Send + '_ {
        self.in_flight_changed.notified()
    }

    /// Returns the units that this process holds in the shared store, and whether the store knows what was released.
    pub(crate) fn in_flight(&self) -> (u64, bool) {
        let Some(holders) = self.holders.as_deref() else { return (0, true) };
        let counts = lock_own(&holders.counts);
        let holders = counts.by_count.values().filter_map(|charge| charge.holder.as_ref());
        holders.fold((0, true), |(units, is_known), holder| {
            (units + holder.units(), is_known && !holder.is_dirty())
        })
    }
}

impl TakingCalls {
    fn not_sent(self) {
        self.0.into_iter().for_each(|(_, request)| request.not_sent());
    }

    /// Records the result of the request, which was sent and received at `times`. Replaces the receipts of units in
    /// flight.
    pub(super) fn end(
        self,
        calls: &Calls,
        result: &mut Result<Reply, StoreError>,
        times: [u64; 2],
    ) {
        let width = calls.counts.charges().len();
        let Reply { outcomes, receipts, .. } = match result {
            Ok(reply) => reply,
            // Nothing was sent.
            Err(
                StoreError::CircuitOpen { .. }
                | StoreError::Overloaded { .. }
                | StoreError::NoRuntime,
            ) => return self.not_sent(),
            // Each request leaves open what the store has executed.
            Err(_) => return,
        };
        let admitted =
            outcomes.chunks(width).take_while(|call| call.iter().all(Outcome::is_allowed));
        let admitted = admitted.count();
        for (index, request) in self.0 {
            let costs = (0..admitted).filter_map(|call| calls.costs_of(call)?.get(index).copied());
            let units = costs.sum();
            // Of the last call that has taken units.
            let mut of_count = receipts.chunks(width).filter_map(|call| call.get(index).copied());
            let newest = of_count.rfind(|receipt| receipt.place > 0);
            let clock = outcomes.first().map_or(0, |outcome| outcome.clock);
            let (granted, lost) = request.granted(units, newest, clock, times);
            report::units_lost(calls.counts.charges()[index].terms.name(), lost);
            for receipt in receipts.iter_mut().skip(index).step_by(width) {
                *receipt = if receipt.place > 0 { granted } else { Receipt::default() };
            }
        }
    }
}

/// Clears the times of units in flight in a reply: the ends of calls are unknown.
fn without_times(calls: &Calls, reply: &mut Reply) {
    let charges = calls.counts.charges();
    if charges.iter().any(|charge| charge.terms.is_in_flight()) {
        for (outcome, charge) in reply.outcomes.iter_mut().zip(charges.iter().cycle()) {
            if charge.terms.is_in_flight() && outcome.retry_us == 0 {
                outcome.reset_us = 0;
            }
        }
    }
}
