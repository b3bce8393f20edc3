//! The task that requests leases for all calls that wait for a count. It is a separate task, so that no units are
//! lost when a call is dropped.

use std::sync::Arc;

use super::entry::{Delivery, DeliveryContent, LeaseRequest, UnspentUnits};
use super::{LeaseReply, Leases};
use crate::key::KeyId;
use crate::reply::StoreError;
use crate::store::{Reply, Request};

pub(super) struct LeaseFetch {
    leases: Arc<Leases>,
    key_id: KeyId,
    ended: bool,
}

/// The task also ends when its runtime shuts down.
impl Drop for LeaseFetch {
    fn drop(&mut self) {
        if !self.ended {
            self.leases.ledger.abandon(self.key_id);
        }
    }
}

impl LeaseFetch {
    /// Requests leases for the calls that wait for `key_id`, until none waits.
    pub(super) fn spawn(leases: &Arc<Leases>, key_id: KeyId) {
        tokio::spawn(Self { leases: Arc::clone(leases), key_id, ended: false }.run());
    }

    async fn run(mut self) {
        loop {
            let (deliveries, request) = self.leases.ledger.next_request(self.key_id, self.now());
            self.ended = request.is_none();
            self.deliver(deliveries);
            let Some(LeaseRequest { target, units, unspent }) = request else { return };
            if let Some(unspent) = unspent {
                self.leases.return_in_background(unspent);
            }
            let requested = self.now();
            let request = Request::decide(target.charge_of(units));
            let result = self.leases.backend.try_execute(target.policy, &request).await;
            self.ended = result.as_ref().is_ok_and(|reply| !reply.is_allowed());
            self.apply_reply(units, requested, result);
            if self.ended {
                return;
            }
        }
    }

    /// Applies the reply of the store to the ledger.
    fn apply_reply(&self, units: u32, requested: u64, result: Result<Reply, StoreError>) {
        let (ledger, now) = (&self.leases.ledger, self.now());
        match result {
            Ok(reply) if reply.is_allowed() => {
                let outcome = reply.first();
                let (deliveries, excess) =
                    ledger.charged(self.key_id, units, requested, now, outcome);
                self.deliver(deliveries);
                if let Some(excess) = excess {
                    self.leases.return_in_background(excess);
                }
            }
            Ok(rejection) => self.deliver(ledger.rejected(self.key_id, units, now, &rejection)),
            Err(error) => self.deliver(ledger.failed(self.key_id, &error)),
        }
        self.leases.watch();
    }

    /// Sends the deliveries to their waiters. Units for a call that was dropped come back.
    fn deliver(&self, deliveries: Vec<Delivery>) {
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
            self.leases.return_in_background(rest);
        }
    }
}
