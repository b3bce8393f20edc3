//! The settlements that wait for the shared store. `sender.rs` sends them.
//!
//! A lane has the settlements of one hash slot, and one request of a lane is in flight at a time: a second one would
//! only wait behind the first in the server, and might fail. Closings have lanes of their own, so they wait for no
//! settlement. A lane exists while a job of the background thread sends it.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::{Semaphore, oneshot};

use super::ReportedLosses;
use crate::algorithm::{OpeningChange, Settlement};
use crate::backend::PendingClosing;
use crate::background::{OwnValue, lock_own};
use crate::limit::{Algorithm, Name};
use crate::reply::StoreError;
use crate::store::{Charge, MAX_SETTLED, SettledCharge};

/// The most settlements that are pending. As many closings again are pending at most.
const MAX_PENDING: usize = 65_536;

/// The most lanes of settlements that send at the same time.
const CONCURRENT_LANES: usize = 16;

/// The settlements of a limiter, and the turns of their lanes.
pub(super) struct SharedQueue {
    queue: Mutex<OwnValue<SettlementQueue>>,
    pub(super) turns: Semaphore,
}

#[derive(Default)]
pub(super) struct SettlementQueue {
    lanes: HashMap<LaneId, Lane>,
    flushes: Vec<Flush>,
    /// How many settlements were added so far, and how many are still pending.
    added: u64,
    pending: usize,
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
    /// Why the store does not execute them now.
    refusal: Option<StoreError>,
}

/// A settlement that is not done.
pub(super) struct QueuedSettlement {
    /// The number of settlements before it.
    number: u64,
    settled: SettledCharge,
    /// The time of the settlement, by the steady clock of this process.
    at: u64,
    /// If it closes a key, the calls of the key wait for it.
    closing: Option<PendingClosing>,
}

/// Where a settlement was added.
pub(super) enum Added {
    ToLane,
    /// The caller starts the sender of the lane.
    ToNewLane(LaneId),
    /// Too many are pending, so the settlement is lost.
    Refused,
}

/// How a settlement was done.
pub(super) enum Done {
    Replied,
    /// There was nothing left to correct.
    Outlived,
    Lost(Option<StoreError>),
}

/// A call that waits until the settlements before it are done.
struct Flush {
    /// The number of settlements before it, and how many of them are not done.
    before: u64,
    left: usize,
    /// How many were lost that this flush does not report.
    reported: u64,
    sender: oneshot::Sender<Result<(), StoreError>>,
}

impl Default for SharedQueue {
    fn default() -> Self {
        Self { queue: Mutex::default(), turns: Semaphore::new(CONCURRENT_LANES) }
    }
}

impl SharedQueue {
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
    pub(super) fn new(settled: SettledCharge, closing: Option<PendingClosing>, at: u64) -> Self {
        Self { number: 0, settled, at, closing }
    }

    pub(super) fn name(&self) -> &Name {
        self.settled.charge.terms.name()
    }

    /// Returns what is to be sent at `now`.
    pub(super) fn due(&self, now: u64) -> SettledCharge {
        let (settlement, opening) = self.rest(now);
        SettledCharge { charge: Arc::clone(&self.settled.charge), settlement, opening }
    }

    /// Returns whether something is left to correct at `now`.
    fn is_due(&self, now: u64) -> bool {
        let (settlement, opening) = self.rest(now);
        settlement.less() > 0 || settlement.more() > 0 || opening != OpeningChange::None
    }

    fn rest(&self, now: u64) -> (Settlement, OpeningChange) {
        let (terms, delay) = (&self.settled.charge.terms, now.saturating_sub(self.at));
        // In a window, neither the charge nor a debt counts any more. A bucket that never empties remembers both.
        let has_left = match terms.algorithm() {
            Algorithm::Fixed | Algorithm::Sliding => delay >= terms.period_us(),
            Algorithm::SlidingCounter => delay / 2 >= terms.period_us(),
            Algorithm::TokenBucket | Algorithm::LeakyBucket => false,
        };
        let settlement = if has_left { Settlement::default() } else { self.settled.settlement };
        (settlement, self.settled.opening.after(delay))
    }
}

impl SettlementQueue {
    pub(super) fn add(&mut self, group: u16, mut queued: QueuedSettlement) -> Added {
        let closes = queued.closing.is_some();
        if self.pending >= if closes { 2 * MAX_PENDING } else { MAX_PENDING } {
            self.lost += 1;
            self.cause = None;
            return Added::Refused;
        }
        queued.number = self.added;
        self.added += 1;
        self.pending += 1;
        let id = LaneId { group, closes };
        let (lane, is_new) = match self.lanes.entry(id) {
            Entry::Occupied(lane) => (lane.into_mut(), false),
            Entry::Vacant(place) => (place.insert(Lane::default()), true),
        };
        if let (Some(closing), Some(error)) = (&queued.closing, &lane.refusal) {
            closing.delay(error);
        }
        lane.queued.push_back(queued);
        if is_new { Added::ToNewLane(id) } else { Added::ToLane }
    }

    /// Takes the next settlements of a lane to send now. If there are none, removes the lane.
    pub(super) fn take(&mut self, id: LaneId, now: u64) -> Vec<QueuedSettlement> {
        let (mut taken, mut outlived) = (Vec::new(), VecDeque::new());
        if let Some(lane) = self.lanes.get_mut(&id) {
            lane.refusal = None;
            while taken.len() < MAX_SETTLED
                && let Some(next) = lane.queued.pop_front()
            {
                if next.is_due(now) { taken.push(next) } else { outlived.push_back(next) }
            }
        }
        self.complete_all(&outlived);
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

    /// Records that the store does not execute the settlements of a lane now. Removes settlements that have nothing
    /// left to correct. Returns the charge of the first one.
    pub(super) fn delay(
        &mut self,
        id: LaneId,
        error: &StoreError,
        now: u64,
    ) -> Option<Arc<Charge>> {
        let lane = self.lanes.entry(id).or_default();
        lane.refusal = Some(error.clone());
        let mut outlived = VecDeque::new();
        if lane.queued.iter().any(|queued| !queued.is_due(now)) {
            let queued = mem::take(&mut lane.queued).into_iter();
            (lane.queued, outlived) = queued.partition(|queued| queued.is_due(now));
        }
        for closing in lane.queued.iter().filter_map(|queued| queued.closing.as_ref()) {
            closing.delay(error);
        }
        let first = lane.queued.front().map(|queued| Arc::clone(&queued.settled.charge));
        self.complete_all(&outlived);
        first
    }

    /// Removes a lane that will not be sent. Returns its settlements, which are not done.
    pub(super) fn remove(&mut self, id: LaneId) -> VecDeque<QueuedSettlement> {
        self.lanes.remove(&id).unwrap_or_default().queued
    }

    fn complete_all(&mut self, outlived: &VecDeque<QueuedSettlement>) {
        for queued in outlived {
            self.complete(queued, Done::Outlived);
        }
    }

    /// Records that a settlement is done. The caller drops it.
    pub(super) fn complete(&mut self, queued: &QueuedSettlement, done: Done) {
        self.pending -= 1;
        match done {
            Done::Replied => self.replies += 1,
            Done::Outlived => {}
            Done::Lost(cause) => {
                self.lost += 1;
                self.cause = cause;
            }
        }
        for flush in &mut self.flushes {
            flush.left -= usize::from(queued.number < flush.before);
        }
        for flush in self.flushes.extract_if(.., |flush| flush.left == 0).collect::<Vec<_>>() {
            self.end(flush);
        }
    }

    pub(super) fn is_flushed(&self) -> bool {
        self.pending == 0 && self.lost == self.reported
    }

    pub(super) fn replies(&self) -> u64 {
        self.replies
    }

    /// Sends the result to `sender` once all settlements up to now are done.
    pub(super) fn add_flush(
        &mut self,
        losses: ReportedLosses,
        sender: oneshot::Sender<Result<(), StoreError>>,
    ) {
        let reported = match losses {
            ReportedLosses::SinceLastFlush => self.reported,
            ReportedLosses::SinceNow => self.lost,
        };
        let flush = Flush { before: self.added, left: self.pending, reported, sender };
        if flush.left == 0 {
            return self.end(flush);
        }
        // Callers that have stopped waiting.
        self.flushes.retain(|flush| !flush.sender.is_closed());
        self.flushes.push(flush);
    }

    fn end(&mut self, flush: Flush) {
        let lost = self.lost - flush.reported;
        let cause = || self.cause.clone().map(Arc::new);
        let result = match lost {
            0 => Ok(()),
            lost => Err(StoreError::SettlementsLost { lost, cause: cause() }),
        };
        if flush.sender.send(result).is_ok() {
            self.reported = self.lost;
        }
    }
}
