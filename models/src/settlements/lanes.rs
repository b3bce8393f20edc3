//! The queue of the process: each step makes the queue of the runtime from a state, and the state from the queue.

use std::collections::VecDeque;

use super::super::{Lane, LaneId, QueuedSettlement, SettlementQueue};
use super::execution::{CHARGED, charge};
use super::state::{Queued, Sent, State, TICK};
use crate::algorithm::{Correction, OpeningChange, Receipt};
use crate::background::WorkCount;
use crate::store::SettledCharge;

/// A call ends: its settlement is queued, unless it has nothing to correct.
pub(super) fn end(state: &mut State, is_bucket: bool, call: usize, used: u64, closes: bool) {
    let admission = state.running.remove(call);
    let ended = &mut state.admissions[admission];
    (ended.used, ended.ended) = (used, true);
    if used == CHARGED && !closes {
        ended.is_settled = true;
        return;
    }
    let close_us = if closes { TICK + TICK / 2 } else { 0 };
    let (receipt, at) = (ended.receipt, state.local_clock());
    let receipt = Receipt { birth: receipt.0, place: receipt.1 };
    let correction = Correction::settled(receipt, CHARGED, used);
    let queued = Queued { admission, correction, close_us, at };
    with_queue(state, is_bucket, |queue| {
        let lane = queue.lanes.entry(lane_id(closes)).or_default();
        lane.queued.push_back(queued.settlement(is_bucket));
    });
}

/// The job of a lane takes what is to be sent now.
pub(super) fn send(state: &mut State, is_bucket: bool, closes: bool) {
    let now = state.local_clock();
    let queued = state.queued[usize::from(closes)].clone();
    let mut sent = with_queue(state, is_bucket, |queue| queue.take(lane_id(closes)));
    sent.retain(|queued| queued.is_due(now));
    let taken: Vec<Queued> = sent.iter().map(|queued| plain(queued, &queued.settled)).collect();
    let due = sent.iter().map(|queued| plain(queued, &queued.due(now))).collect();
    // What has left the window needs no correction.
    for left in queued.iter().filter(|queued| !taken.contains(queued)) {
        state.admissions[left.admission].is_lost = true;
    }
    if !taken.is_empty() {
        state.sent[usize::from(closes)] = Some(Sent { taken, due, is_executed: false });
    }
}

/// The settlements of a request that was not executed go back to their lane.
pub(super) fn put_back(state: &mut State, is_bucket: bool, closes: bool, sent: Vec<Queued>) {
    with_queue(state, is_bucket, |queue| {
        let taken: Vec<_> = sent.iter().map(|queued| queued.settlement(is_bucket)).collect();
        queue.put_back(lane_id(closes), taken);
    });
}

fn lane_id(closes: bool) -> LaneId {
    LaneId { group: 0, closes }
}

fn with_queue<T>(
    state: &mut State,
    is_bucket: bool,
    step: impl FnOnce(&mut SettlementQueue) -> T,
) -> T {
    let mut queue = SettlementQueue::default();
    for closes in super::LANES {
        let queued: VecDeque<_> =
            state.queued[usize::from(closes)].iter().map(|it| it.settlement(is_bucket)).collect();
        if !queued.is_empty() {
            queue.lanes.insert(lane_id(closes), Lane { queued, ..Lane::default() });
        }
    }
    let result = step(&mut queue);
    for closes in super::LANES {
        let lane = queue.lanes.remove(&lane_id(closes)).unwrap_or_default();
        let queued = lane.queued.iter().map(|queued| plain(queued, &queued.settled));
        state.queued[usize::from(closes)] = queued.collect();
    }
    result
}

/// Returns a settlement as a plain value.
fn plain(queued: &QueuedSettlement, settled: &SettledCharge) -> Queued {
    let SettledCharge { correction, opening, .. } = settled;
    Queued {
        // The cost of the charge carries the index.
        admission: queued.settled.charge.cost as usize,
        correction: *correction,
        close_us: match opening {
            OpeningChange::CloseFor(time) => *time,
            OpeningChange::None => 0,
            OpeningChange::Open => unreachable!("the model opens no key"),
        },
        at: queued.at,
    }
}

impl Queued {
    fn settlement(&self, is_bucket: bool) -> QueuedSettlement {
        let charge = charge(is_bucket).with_cost(self.admission as u64);
        let opening = match self.close_us {
            0 => OpeningChange::None,
            time => OpeningChange::CloseFor(time),
        };
        let settled = SettledCharge { charge, correction: self.correction, opening };
        let pending = WorkCount::default().begin();
        QueuedSettlement { settled, at: self.at, closing: None, _pending: pending }
    }
}
