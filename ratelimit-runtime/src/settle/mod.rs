//! Settlements: charges that are corrected once the real cost of their calls is known.
//!
//! A charge is settled where it was charged. In this process, that happens at once. For Redis, the background thread
//! sends settlements in batches, so no caller waits for them. Each is sent once at most: a settlement that fails, or
//! finds the queue full, leaves the charge as it is.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use tokio::sync::oneshot;

use crate::algorithm::{OpeningChange, Settlement};
use crate::backend::{Backend, PendingClosing};
use crate::key::KeyId;
use crate::limit::{Policy, Terms};
use crate::reply::Source;
use crate::report;
use crate::store::{Charge, SettledCharge};

/// The most settlements that wait to be sent.
const MAX_PENDING: usize = 65_536;

/// The most settlements that the background thread takes from the queue at a time.
const MAX_TAKEN: usize = 1_024;

/// The settlements of a limiter.
pub(crate) struct Settlements {
    backend: Arc<Backend>,
    queue: Mutex<SettlementQueue>,
}

#[derive(Default)]
struct SettlementQueue {
    pending: VecDeque<QueuedSettlement>,
    /// Completed once the settlements before them are sent: each with the number of these settlements.
    flushes: Vec<(u64, oneshot::Sender<()>)>,
    /// How many settlements were added so far, and how many of them were sent or lost.
    added: u64,
    done: u64,
    is_sending: bool,
}

/// A settlement that waits to be sent.
struct QueuedSettlement {
    settled: SettledCharge,
    /// If it closes a key, the calls of the key wait for it.
    _closing: Option<PendingClosing>,
}

impl Settlements {
    pub(crate) fn new(backend: Arc<Backend>) -> Arc<Self> {
        Arc::new(Self { backend, queue: Mutex::default() })
    }

    /// Returns the units of a charge that `source` has charged.
    pub(crate) fn charged_by(&self, source: Source, charge: &Charge) -> u32 {
        self.backend.charged_by(source, charge)
    }

    /// Settles a charge of the embedded store.
    pub(crate) fn settle_here(
        &self,
        key_id: KeyId,
        terms: &Terms,
        settlement: Settlement,
        opening: OpeningChange,
    ) {
        self.backend.settle_local(key_id, terms, settlement, opening);
        report::settled(terms.name(), settlement.more());
    }

    /// Settles a charge that `source` has made.
    pub(crate) fn settle(
        self: &Arc<Self>,
        policy: Policy,
        source: Source,
        charge: &Arc<Charge>,
        settlement: Settlement,
        opening: OpeningChange,
    ) {
        let closes = opening != OpeningChange::None;
        let mut settlement = settlement;
        if self.backend.settle_here(policy, source, charge, settlement, opening) {
            report::settled(charge.terms.name(), settlement.more());
            if !closes || !self.backend.is_shared(policy) {
                return;
            }
            // The key of a fallback is also closed on Redis, which may be back.
            settlement = Settlement::default();
        } else if closes {
            self.backend.close_here(charge.key_id, &charge.terms, opening);
        }
        let closing = closes.then(|| self.backend.hold_calls(charge.key_id));
        let settled = SettledCharge { charge: Arc::clone(charge), settlement, opening };
        let mut queue = self.lock();
        if queue.pending.len() == MAX_PENDING {
            drop(queue);
            report::settlement_queue_full();
            return report::settlement_lost(charge.terms.name());
        }
        queue.pending.push_back(QueuedSettlement { settled, _closing: closing });
        queue.added += 1;
        if !mem::replace(&mut queue.is_sending, true) {
            drop(queue);
            let sender = SettlementSender {
                settlements: Arc::clone(self),
                taken: Vec::new(),
                has_ended: false,
            };
            self.backend.background().spawn(async move { sender.run().await });
        }
    }

    /// Returns whether no settlement is pending.
    pub(crate) fn is_idle(&self) -> bool {
        let queue = self.lock();
        queue.done == queue.added
    }

    /// Completes once all settlements up to now are sent, or have failed.
    pub(crate) fn flushed(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut queue = self.lock();
        let (sender, flushed) = oneshot::channel();
        if queue.done == queue.added {
            let _ = sender.send(());
        } else {
            let added = queue.added;
            queue.flushes.push((added, sender));
        }
        async move {
            let _ = flushed.await;
        }
    }

    /// Takes the next settlements; `None` if there are none. Then this process sends nothing until another is added.
    fn take(&self) -> Option<Vec<QueuedSettlement>> {
        let mut queue = self.lock();
        let count = queue.pending.len().min(MAX_TAKEN);
        queue.is_sending = count > 0;
        (count > 0).then(|| queue.pending.drain(..count).collect())
    }

    fn complete(&self, count: u64) {
        let mut queue = self.lock();
        queue.done += count;
        let done = queue.done;
        let completed = queue.flushes.extract_if(.., |(added, _)| *added <= done);
        for (_, sender) in completed.collect::<Vec<_>>() {
            let _ = sender.send(());
        }
    }

    fn lock(&self) -> MutexGuard<'_, SettlementQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The job of the background thread that sends settlements.
struct SettlementSender {
    settlements: Arc<Settlements>,
    /// The settlements in flight.
    taken: Vec<QueuedSettlement>,
    has_ended: bool,
}

impl SettlementSender {
    /// Sends settlements until none is pending.
    async fn run(mut self) {
        let settlements = Arc::clone(&self.settlements);
        while let Some(taken) = settlements.take() {
            self.taken = taken;
            let settled = self.taken.iter().map(|queued| queued.settled.clone()).collect();
            let results = settlements.backend.settle_shared(settled).await;
            let taken = mem::take(&mut self.taken);
            for (QueuedSettlement { settled, .. }, result) in taken.iter().zip(results) {
                let SettledCharge { charge, settlement, .. } = settled;
                match result {
                    Ok(_) => report::settled(charge.terms.name(), settlement.more()),
                    Err(_) => report::settlement_lost(charge.terms.name()),
                }
            }
            settlements.complete(taken.len() as u64);
        }
        self.has_ended = true;
    }
}

impl Drop for SettlementSender {
    /// The recorder of metrics has panicked, or the thread has ended. The pending settlements are lost, and calls of
    /// `flush` complete. The next settlement starts another job.
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let lost = {
            let mut queue = self.settlements.lock();
            queue.is_sending = false;
            queue.done = queue.added;
            queue.flushes.clear();
            mem::take(&mut queue.pending)
        };
        if !thread::panicking() {
            for QueuedSettlement { settled, .. } in self.taken.iter().chain(&lost) {
                report::settlement_lost(settled.charge.terms.name());
            }
        }
    }
}
