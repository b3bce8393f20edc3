//! Units in flight of the shared store, from the request that takes them to the end of their call.

use std::sync::Arc;

use tokio::sync::{Notify, oneshot};

use super::held::TakenUnits;
use super::slots::TakenReply;
use super::{Core, HeldReply, LOOK_AGAIN, Owner, ended};
use crate::algorithm::Receipt;
use crate::background::seen_process;
use crate::clock::before;
use crate::key::KeyId;
use crate::reply::StoreError;
use crate::store::{Calls, Charge, Reply};

/// Units of a call that runs. They are released when this is dropped.
pub(crate) struct HeldSlot {
    core: Arc<Core>,
    key_id: KeyId,
    taken: TakenUnits,
    os_process: u32,
}

impl Owner {
    /// Decides calls that take units in flight. The units of the reply are held: see [`granted`](Self::granted).
    pub(crate) async fn take(self: &Arc<Self>, calls: Calls) -> Result<Reply, StoreError> {
        let (reply_to, reply) = oneshot::channel();
        self.core.lock().slots.want(calls, reply_to, self.core.real());
        self.wake();
        reply.await.unwrap_or_else(|_| Err(ended())).and_then(|mut held| {
            let taken = held.taken.take();
            taken.map(|taken| taken.reply).ok_or_else(ended)
        })
    }

    /// Returns calls that take nothing, with what this process holds of their counts.
    pub(crate) fn peek(&self, calls: &Calls) -> Calls {
        let queue = self.core.lock();
        let stated = |charge: &Arc<Charge>| match charge.statement {
            Some(_) => queue.slots.peeked(charge),
            None => Arc::clone(charge),
        };
        Calls { charges: calls.charges.iter().map(stated).collect(), ..calls.clone() }
    }

    /// Returns the units of a call that a reply has admitted.
    pub(crate) fn granted(&self, charge: &Charge, units: u64, receipt: Receipt) -> HeldSlot {
        self.core.granted(charge, units, receipt)
    }

    /// Takes units without the store, which learns of them when it replies again.
    pub(crate) fn take_locally(self: &Arc<Self>, charge: &Arc<Charge>, units: u64) -> HeldSlot {
        let taken = self.core.lock().slots.take_locally(charge, units, self.core.real());
        self.wake();
        self.core.slot(charge.key_id, taken)
    }

    /// Returns the units in flight that this process holds, and whether the store knows all of it.
    pub(crate) fn in_flight(&self) -> (u64, bool) {
        self.core.lock().slots.in_flight()
    }

    /// Returns what is notified when something has changed about units in flight.
    pub(crate) fn in_flight_changes(&self) -> Arc<Notify> {
        Arc::clone(&self.core.lock().slots.changed)
    }
}

impl Core {
    fn slot(self: &Arc<Self>, key_id: KeyId, taken: TakenUnits) -> HeldSlot {
        HeldSlot { core: Arc::clone(self), key_id, taken, os_process: seen_process() }
    }

    pub(super) fn granted(
        self: &Arc<Self>,
        charge: &Charge,
        units: u64,
        receipt: Receipt,
    ) -> HeldSlot {
        let taken = TakenUnits { units, stamp: receipt.place, is_local: false };
        self.slot(charge.key_id, taken)
    }
}

impl HeldSlot {
    /// Returns whether the units were lost.
    pub(crate) fn is_lost(&self) -> bool {
        let now = self.core.clock.boottime();
        self.core.lock().slots.is_lost(self.key_id, self.taken, now)
    }

    /// Takes some of the units out of these.
    pub(crate) fn split(&mut self, units: u64) -> Self {
        let units = units.min(self.taken.units);
        self.taken.units -= units;
        self.core.slot(self.key_id, TakenUnits { units, ..self.taken })
    }

    /// Completes once the units are lost.
    pub(crate) async fn lost(&self) {
        let clock = &self.core.clock;
        loop {
            let changed = Arc::clone(&self.core.lock().slots.changed);
            // Receives notifications from now on.
            let changed = changed.notified();
            if self.is_lost() {
                return;
            }
            let until = self.core.lock().slots.alive_until(self.key_id);
            match until.filter(|_| !self.taken.is_local) {
                Some(until) => {
                    // No timer tells that the machine was suspended.
                    let rest = until.saturating_sub(clock.boottime()).min(LOOK_AGAIN);
                    let look = clock.sleep_until_steady(clock.steady().saturating_add(rest));
                    let _ = before(look, changed).await;
                }
                None => changed.await,
            }
        }
    }

    /// Releases the units. The future completes once the store knows of it, and fails if the store does not reply.
    pub(crate) fn release(
        mut self,
    ) -> impl Future<Output = Result<(), StoreError>> + Send + 'static {
        let (core, key_id) = (Arc::clone(&self.core), self.key_id);
        self.free(true);
        self.taken.units = 0;
        async move {
            loop {
                let changed = Arc::clone(&core.lock().slots.changed);
                let changed = changed.notified();
                if core.lock().slots.is_stated(key_id)? {
                    return Ok(());
                }
                changed.await;
            }
        }
    }

    fn free(&self, hurries: bool) {
        // A process that was forked does not release what its parent holds.
        if self.taken.units == 0 || self.os_process != seen_process() {
            return;
        }
        let mut queue = self.core.lock();
        queue.slots.release(self.key_id, self.taken, hurries, self.core.real());
        queue.changed.notify_one();
        drop(queue);
        self.core.notices.released(self.key_id);
    }
}

impl Drop for HeldSlot {
    fn drop(&mut self) {
        self.free(false);
    }
}

impl Drop for HeldReply {
    fn drop(&mut self) {
        let Some(TakenReply { reply, calls }) = self.taken.take() else { return };
        let charges = &calls.charges;
        for (call, receipts) in reply.receipts.chunks(charges.len()).enumerate() {
            let costs = calls.costs_of(call).into_iter().flat_map(|costs| costs.iter());
            for ((charge, receipt), cost) in charges.iter().zip(receipts).zip(costs) {
                if charge.statement.is_some() {
                    drop(self.core.granted(charge, *cost, *receipt));
                }
            }
        }
    }
}
