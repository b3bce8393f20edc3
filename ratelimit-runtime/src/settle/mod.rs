//! Settlements: charges that are corrected once the real cost of their calls is known.
//!
//! A charge is settled where it was charged. In this process, that happens at once. For Redis, the background thread
//! sends settlements in batches, so no caller waits for them. A settlement that Redis has certainly not executed stays
//! queued (`queue.rs`), and is sent once Redis replies again (`sender.rs`). Any other settlement that fails is lost: it
//! leaves the charge as it is, and is not sent again.

#[cfg(all(test, loom))]
mod interleavings;
mod queue;
mod sender;

use std::sync::Arc;
use std::time::Duration;

#[cfg(model)]
pub use self::queue::model;
use self::queue::{QueueFull, SharedQueue};
use self::sender::LaneSender;
use crate::algorithm::{Correction, OpeningChange, Receipt};
use crate::backend::Backend;
use crate::clock::Clock;
use crate::key::KeyId;
use crate::limit::{Scope, Terms};
use crate::reply::{Source, StoreError};
use crate::report;
use crate::store::{Charge, SettledCharge};

/// The settlements of a limiter.
pub(crate) struct Settlements {
    backend: Arc<Backend>,
    /// The settlements that wait for the shared store.
    queue: Option<Arc<SharedQueue>>,
}

/// Which lost settlements a flush reports.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReportedLosses {
    /// Those since the last flush.
    SinceLastFlush,
    /// Those since the call.
    SinceNow,
}

impl Settlements {
    pub(crate) fn new(backend: Arc<Backend>) -> Arc<Self> {
        let queue = backend.of_shared(Arc::default);
        Arc::new(Self { backend, queue })
    }

    /// Returns the units of a charge that `source` has charged.
    pub(crate) fn charged_by(&self, source: Source, charge: &Charge) -> u64 {
        self.backend.charged_by(source, charge)
    }

    /// Returns the longest time that a decision may take.
    pub(crate) fn deadline(&self) -> Duration {
        self.backend.deadline()
    }

    /// Returns the clock of the limiter.
    pub(crate) fn clock(&self) -> &Clock {
        self.backend.clock()
    }

    /// Completes once the embedded store no longer counts units in flight.
    pub(crate) async fn lost_here(&self, key_id: KeyId, receipt: Receipt) {
        loop {
            // Receives notifications from now on.
            let changed = self.backend.in_flight_changes();
            if !self.holds_here(key_id, receipt) {
                return;
            }
            changed.await;
        }
    }

    /// Notifies of units in flight that were released: calls wait for them.
    pub(crate) fn notify_release(&self, key_id: KeyId) {
        self.backend.notify_release(key_id);
    }

    /// Returns whether the embedded store still counts units in flight.
    pub(crate) fn holds_here(&self, key_id: KeyId, receipt: Receipt) -> bool {
        receipt.birth == 0 || self.backend.local().holds(key_id, receipt)
    }

    /// Settles a charge of the embedded store.
    pub(crate) fn settle_here(
        &self,
        key_id: KeyId,
        terms: &Terms,
        correction: Correction,
        opening: OpeningChange,
    ) {
        self.backend.settle_local(key_id, terms, correction, opening);
        report::settled(terms.name(), correction.more());
    }

    /// Gives units in flight back to the embedded store.
    #[inline]
    pub(crate) fn release_here(
        &self,
        key_id: KeyId,
        receipt: Receipt,
        units: u64,
        opening: OpeningChange,
    ) {
        self.backend.release_local(key_id, receipt, units, opening);
    }

    /// Settles a charge that `source` has made.
    pub(crate) fn settle(
        self: &Arc<Self>,
        scope: Scope,
        source: Source,
        charge: &Arc<Charge>,
        correction: Correction,
        opening: OpeningChange,
    ) {
        let Some(queue) = self.queue.as_ref() else {
            return self.settle_here(charge.key_id, &charge.terms, correction, opening);
        };
        let closes = opening != OpeningChange::None && self.backend.is_shared(scope);
        let closing = closes.then(|| self.backend.hold_calls(charge.key_id)).flatten();
        let mut correction = correction;
        if self.backend.settle_here(scope, source, charge, correction, opening) {
            report::settled(charge.terms.name(), correction.more());
            if !closes {
                return;
            }
            // The key of a fallback is also closed on Redis, which may be back.
            correction = Correction::default();
        } else {
            self.backend.close_here(charge.key_id, &charge.terms, opening);
        }
        let settled = SettledCharge { charge: Arc::clone(charge), correction, opening };
        let (group, at) = (self.backend.settle_group(charge), self.backend.clock().steady());
        let sender = |lane| {
            let (backend, queue) = (Arc::clone(&self.backend), Arc::clone(queue));
            LaneSender::new(backend, queue, Arc::downgrade(self), lane)
        };
        match queue.add(group, settled, closing, at, sender) {
            Ok(None) => {}
            Ok(Some(sender)) => self.backend.background().spawn(LaneSender::run(sender)),
            Err(QueueFull) => {
                report::settlement_queue_full();
                report::settlement_lost(charge.terms.name());
            }
        }
    }

    /// Returns whether a flush would succeed now.
    pub(crate) fn is_flushed(&self) -> bool {
        self.queue.as_ref().is_none_or(|queue| queue.is_flushed())
    }

    /// Returns the number of settlements to which the shared store has replied.
    pub(crate) fn replies(&self) -> u64 {
        self.queue.as_ref().map_or(0, |queue| queue.lock().replies())
    }

    /// Completes once all settlements up to now are done. Fails if some were lost.
    pub(crate) fn flushed(
        &self,
        losses: ReportedLosses,
    ) -> impl Future<Output = Result<(), StoreError>> + Send + use<> {
        let flushed = self.queue.as_ref().map(|queue| queue.flushed(losses));
        async move {
            match flushed {
                Some(flushed) => flushed.await,
                None => Ok(()),
            }
        }
    }
}
