//! The reservations of a line: which of them a request cancels, and which the store has forgotten.

use std::mem;

use super::grant::Grant;
use super::requests::LOOK_AGAIN;
use super::{Line, Now, WaiterStage};
use crate::algorithm::Outcome;
use crate::reply::Source;
use crate::store::CancelledUnits;

/// The reservations that a request cancels.
#[derive(Default)]
pub(super) struct Cancellation {
    pub(super) units: Option<CancelledUnits>,
    /// The reservations, with the calls that held some of them. These calls queue again.
    pub(super) grants: Vec<(Option<u64>, Grant)>,
}

impl Line {
    /// Returns whether reservations are to be made again, because units were given back, or another process may have
    /// given units back.
    pub(super) fn rebooks(&self, now: Now) -> bool {
        let is_due = self.has_changed
            || self.key_is_closed
            || self.looks_again().is_some_and(|at| now.local >= at);
        is_due
            && self.bucket.is_some()
            && self.granted.last().is_some_and(|(at, _)| *at > now.local)
    }

    /// Chooses the reservations to cancel: the spare reservations and all later ones, whose calls queue again. If units
    /// were given back, or if the key is closed, it chooses all of them.
    ///
    /// It never chooses a reservation that is before one of another process: a new reservation could be made at that
    /// same moment. While the key is closed, no call starts, and these earlier reservations are held back until the
    /// other process has cancelled its own. Calls with reservations of a fallback keep them, but do not start while the
    /// key is closed. A reservation that is not cancelled passes unused.
    pub(super) fn cancel(&mut self, now: Now) -> Cancellation {
        let Some(bucket) = &self.bucket else { return Cancellation::default() };
        let rate = bucket.charge().terms.rate();
        // A count that was reset since has none of these units.
        let mut spares = mem::take(&mut self.spares);
        if self.cancels_held_back(now) {
            spares.append(&mut self.held_back);
        }
        let spares = spares.into_iter().filter(|grant| grant.reset.is_empty());
        let mut reserved: Vec<_> = spares.map(|grant| (None, grant)).collect();
        let first_spare = reserved.iter().map(|(_, grant)| grant.at).min();
        let from = if self.rebooks(now) { Some(0) } else { first_spare };
        let Some(from) = from else { return Cancellation::default() };
        for (_, arrival) in self.granted.range((from.max(now.local + 1), 0)..) {
            if let Some(WaiterStage::Granted(grant)) =
                self.waiters.get(arrival).map(|waiter| &waiter.stage)
            {
                reserved.push((Some(*arrival), grant.clone()));
            }
        }
        let is_cancelled = |(_, grant): &(_, Grant)| grant.source != Source::Fallback;
        let (mut reserved, by_fallback): (Vec<_>, Vec<_>) =
            reserved.into_iter().partition(is_cancelled);
        if self.key_is_closed {
            for (arrival, grant) in by_fallback {
                if let Some(arrival) = arrival {
                    self.granted.remove(&(grant.at, arrival));
                    self.queue(arrival);
                }
            }
        }
        // In the order of their charges. If another process has given units back in between, a later charge has an
        // earlier end, so it does not follow.
        reserved.sort_by_key(|(_, grant)| (grant.asked, grant.receipt().place, grant.end));
        let pairs = reserved.windows(2).rev();
        let together = pairs.take_while(|pair| pair[1].1.follows(&pair[0].1, rate)).count() + 1;
        let cancelled = reserved.split_off(reserved.len().saturating_sub(together));
        if self.key_is_closed {
            let spares = reserved.into_iter().filter(|(arrival, _)| arrival.is_none());
            self.held_back.extend(spares.map(|(_, grant)| grant));
        }

        let units = Grant::cancelled(cancelled.iter().map(|(_, grant)| grant));
        for (arrival, grant) in &cancelled {
            if let Some(arrival) = *arrival {
                self.granted.remove(&(grant.at, arrival));
                self.queue(arrival);
            }
        }
        Cancellation { units, grants: cancelled }
    }

    /// Records whether the key is closed. Reservations that are held back when it opens pass unused.
    pub(super) fn record_closing(&mut self, is_closed: bool) {
        self.key_is_closed = is_closed;
        if !is_closed {
            self.held_back.clear();
        }
    }

    /// Holds back the reservations of a closed key, because another process has later ones. It cancels them within a
    /// second. The calls queue again. If no call waits, the reservations pass unused.
    pub(super) fn hold_back(&mut self, refused: Vec<(Option<u64>, Grant)>, now: Now) {
        self.record_closing(true);
        self.held_back.extend(refused.into_iter().map(|(_, grant)| grant));
        let ahead = self.take_ahead(now, |grant| grant.source != Source::Fallback);
        self.held_back.extend(ahead);
        self.next_cancel = now.local.saturating_add(LOOK_AGAIN);
        if self.queued.is_empty() {
            self.held_back.clear();
        }
    }

    /// Returns whether the next request cancels reservations that were held back.
    pub(super) fn cancels_held_back(&self, now: Now) -> bool {
        let is_due = now.local >= self.next_cancel || self.queued.is_empty();
        is_due && !self.held_back.is_empty()
    }

    /// Gives grants back to the calls that held them, because the store has not cancelled them.
    pub(super) fn restore(&mut self, cancelled: Vec<(Option<u64>, Grant)>) {
        for (arrival, grant) in cancelled {
            let Some(arrival) = arrival else { continue };
            if self.queued.contains(&arrival) {
                self.grant(arrival, grant);
            } else {
                self.spares.push(grant);
            }
        }
    }

    /// Forgets the moments ahead that the store has forgotten: their calls queue again. The store admits a call at once
    /// and without them if another process has reset the count, or if the server has lost its memory.
    pub(super) fn forget_lost_moments(&mut self, outcomes: &[Outcome], source: Source, now: Now) {
        let Some(first) = outcomes.first().filter(|_| self.bucket.is_some()) else { return };
        let end = first.clock + first.reset_us;
        let is_lost = |grant: &Grant| grant.source == source && grant.end > end;
        if first.is_allowed() && first.retry_us == 0 {
            self.take_ahead(now, is_lost);
        }
    }
}
