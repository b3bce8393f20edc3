//! The settlements that wait for the shared store. `sender.rs` sends them.
//!
//! A lane has the settlements of one hash slot, and one request of a lane is pending at a time: a second one would
//! only wait behind the first in the server, and might fail. Closings have lanes of their own, so they wait for no
//! settlement. A lane exists while a job of the background thread sends it.

#[cfg(model)]
#[path = "../../../models/src/settlements/mod.rs"]
pub mod model;

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::Arc;

use tokio::sync::Semaphore;

use super::ReportedLosses;
use crate::algorithm::{Correction, OpeningChange};
use crate::backend::PendingClosing;
use crate::background::{Job, JobCounter, OwnValue, PendingWork, RunningJob, WorkCount, lock_own};
use crate::limit::{Algorithm, Name};
use crate::reply::StoreError;
use crate::store::{Charge, MAX_SETTLED, SettledCharge};
use crate::threads::{Mutex, MutexGuard};

/// The most settlements that are pending. As many closings again are pending at most.
const MAX_PENDING: usize = 65_536;

/// The most lanes of settlements that send at the same time.
const CONCURRENT_LANES: usize = 16;

/// The settlements of a limiter, and the turns of their lanes.
pub(super) struct SharedQueue {
    queue: Mutex<OwnValue<SettlementQueue>>,
    /// The settlements that are not done.
    pending: WorkCount,
    pub(super) turns: Semaphore,
}

#[derive(Default)]
pub(super) struct SettlementQueue {
    lanes: HashMap<LaneId, Lane>,
    replies: u64,
    lost: u64,
    /// Why the last one was lost; `None` if it was never sent.
    cause: Option<StoreError>,
    /// How many of the lost ones a flush has reported.
    reported: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LaneId {
    /// The group of the charges, by [`Store::settle_group`](crate::store::Store::settle_group).
    group: u16,
    closes: bool,
}

/// Settlements that are sent one batch after the other.
#[derive(Default)]
struct Lane {
    queued: VecDeque<QueuedSettlement>,
    sender: JobCounter,
    /// Why the store does not execute them now.
    refusal: Option<StoreError>,
}

/// A settlement that is not done. Dropped once it is: this wakes calls, so the queue is not locked then.
pub(super) struct QueuedSettlement {
    settled: SettledCharge,
    /// The time of the settlement, by the steady clock of this process.
    at: u64,
    /// If it closes a key, the calls of the key wait for it.
    closing: Option<PendingClosing>,
    _pending: PendingWork,
}

/// Too many settlements are pending, so the settlement is lost.
pub(super) struct QueueFull;

impl Default for SharedQueue {
    fn default() -> Self {
        let turns = Semaphore::new(CONCURRENT_LANES);
        Self { queue: Mutex::default(), pending: WorkCount::default(), turns }
    }
}

impl SharedQueue {
    /// Adds a settlement to its lane. If no job sends the lane, returns a new job from `sender`, which the caller
    /// starts.
    pub(super) fn add<S: Job>(
        &self,
        group: u16,
        settled: SettledCharge,
        closing: Option<PendingClosing>,
        at: u64,
        sender: impl FnOnce(LaneId) -> S,
    ) -> Result<Option<RunningJob<S>>, QueueFull> {
        let id = LaneId { group, closes: closing.is_some() };
        let added = QueuedSettlement { settled, at, closing, _pending: self.pending.begin() };
        if id.closes {
            let refusal = self.lock().refusal(id);
            if let Some(error) = refusal {
                added.delay(&error);
            }
        }
        let mut queue = self.lock();
        if self.pending.pending() > if id.closes { 2 * MAX_PENDING } else { MAX_PENDING } {
            queue.record_loss(None);
            return Err(QueueFull);
        }
        let lane = queue.lanes.entry(id).or_default();
        lane.queued.push_back(added);
        Ok(lane.sender.start(1, || sender(id)))
    }

    pub(super) fn is_flushed(&self) -> bool {
        let queue = self.lock();
        self.pending.pending() == 0 && queue.lost == queue.reported
    }

    /// Completes once all settlements up to now are done. Fails if some were lost.
    pub(super) fn flushed(
        self: &Arc<Self>,
        losses: ReportedLosses,
    ) -> impl Future<Output = Result<(), StoreError>> + Send + use<> {
        let (shared, queue) = (Arc::clone(self), self.lock());
        let reported = match losses {
            ReportedLosses::SinceLastFlush => queue.reported,
            ReportedLosses::SinceNow => queue.lost,
        };
        let ended = self.pending.ended();
        drop(queue);
        async move {
            ended.await;
            shared.lock().report_losses(reported)
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, OwnValue<SettlementQueue>> {
        lock_own(&self.queue)
    }
}

impl LaneId {
    pub(super) fn closes(self) -> bool {
        self.closes
    }
}

impl QueuedSettlement {
    pub(super) fn name(&self) -> &Name {
        self.settled.charge.terms.name()
    }

    /// Returns what is to be sent at `now`.
    pub(super) fn due(&self, now: u64) -> SettledCharge {
        let (correction, opening) = self.rest(now);
        SettledCharge { charge: Arc::clone(&self.settled.charge), correction, opening }
    }

    pub(super) fn charge(&self) -> &Arc<Charge> {
        &self.settled.charge
    }

    /// Makes the calls that wait for it fail, if it closes a key that the store does not close now.
    pub(super) fn delay(&self, error: &StoreError) {
        if let Some(closing) = &self.closing {
            closing.delay(error);
        }
    }

    /// Returns whether something is left to correct at `now`.
    pub(super) fn is_due(&self, now: u64) -> bool {
        let (correction, opening) = self.rest(now);
        correction.less() > 0 || correction.more() > 0 || opening != OpeningChange::None
    }

    fn rest(&self, now: u64) -> (Correction, OpeningChange) {
        let (terms, delay) = (&self.settled.charge.terms, now.saturating_sub(self.at));
        // In a window, neither the charge nor a debt counts any more. A bucket that never empties remembers both.
        let has_left = match terms.algorithm() {
            Algorithm::Fixed | Algorithm::Sliding => delay >= terms.period_us(),
            Algorithm::SlidingCounter => delay / 2 >= terms.period_us(),
            Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::InFlight => false,
        };
        let correction = if has_left { Correction::default() } else { self.settled.correction };
        (correction, self.settled.opening.after(delay))
    }
}

impl SettlementQueue {
    /// Returns why the store does not execute the settlements of a lane now.
    fn refusal(&self, id: LaneId) -> Option<StoreError> {
        self.lanes.get(&id)?.refusal.clone()
    }

    /// Takes the next settlements of a lane, as many as one request can have. If there are none, removes the lane.
    pub(super) fn take(&mut self, id: LaneId) -> Vec<QueuedSettlement> {
        let Some(lane) = self.lanes.get_mut(&id) else { return Vec::new() };
        lane.refusal = None;
        let taken: Vec<_> = lane.queued.drain(..MAX_SETTLED.min(lane.queued.len())).collect();
        if taken.is_empty() {
            self.lanes.remove(&id);
        }
        taken
    }

    /// Puts settlements that were taken and not executed back to the front of their lane.
    pub(super) fn put_back(&mut self, id: LaneId, taken: Vec<QueuedSettlement>) {
        let lane = self.lanes.entry(id).or_default();
        taken.into_iter().rev().for_each(|queued| lane.queued.push_front(queued));
    }

    /// Records that the store does not execute the settlements of a lane now, and takes all of them.
    pub(super) fn take_refused(&mut self, id: LaneId, error: &StoreError) -> Vec<QueuedSettlement> {
        let lane = self.lanes.entry(id).or_default();
        lane.refusal = Some(error.clone());
        mem::take(&mut lane.queued).into()
    }

    /// Removes a lane that no job sends. Returns its settlements, which are not done.
    pub(super) fn remove(&mut self, id: LaneId) -> VecDeque<QueuedSettlement> {
        if self.lanes.get(&id).is_some_and(|lane| lane.sender.is_running()) {
            return VecDeque::new();
        }
        self.lanes.remove(&id).unwrap_or_default().queued
    }

    /// Records that the store has replied to a settlement.
    pub(super) fn record_reply(&mut self) {
        self.replies += 1;
    }

    /// Records that a settlement is lost.
    pub(super) fn record_loss(&mut self, cause: Option<StoreError>) {
        self.lost += 1;
        self.cause = cause;
    }

    pub(super) fn replies(&self) -> u64 {
        self.replies
    }

    /// Fails if more than `reported` settlements are lost.
    fn report_losses(&mut self, reported: u64) -> Result<(), StoreError> {
        self.reported = self.lost;
        match self.lost - reported {
            0 => Ok(()),
            lost => {
                Err(StoreError::SettlementsLost { lost, cause: self.cause.clone().map(Arc::new) })
            }
        }
    }
}
