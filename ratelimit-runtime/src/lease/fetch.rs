//! The task that requests leases for all calls that wait for a count. It is a separate task, so that no units are
//! lost when a call is dropped.

use std::sync::Arc;

use super::ledger::LeaseDelivery;
use super::target::{Delivery, DeliveryContent, LeaseRequest, UnspentUnits};
use super::{LeaseReply, Leases};
use crate::background::PendingWork;
use crate::key::KeyId;
use crate::reply::StoreError;
use crate::store::{Calls, Reply};

pub(super) struct LeaseFetch {
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
    pub(super) fn new(leases: &Arc<Leases>, key_id: KeyId, pending: PendingWork) -> Self {
        Self { leases: Arc::clone(leases), key_id, has_ended: false, _pending: pending }
    }

    /// Requests leases for the calls that wait for the count, until none waits.
    pub(super) async fn run(mut self) {
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
pub(super) struct DeliveredUnits {
    leases: Arc<Leases>,
    key_id: KeyId,
    reply: Reply,
    units: Option<UnspentUnits>,
}

impl DeliveredUnits {
    pub(super) fn spend(mut self) -> Reply {
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
