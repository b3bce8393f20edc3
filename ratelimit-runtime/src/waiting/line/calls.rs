//! The calls of a line: they enter, are polled, and leave.

use std::mem;
use std::sync::Arc;
use std::task::{Poll, Waker};

use super::{Destination, Line, Now, Waiter, WaiterStage, add_units};
use crate::reply::StoreError;
use crate::store::Reply;
use crate::waiting::Ticket;

impl Line {
    /// Adds a call. If calls that have arrived later are before it, all calls with moments ahead queue again.
    pub(in crate::waiting) fn enter(&mut self, waiter: Waiter, to: &Destination, now: Now) {
        let (arrival, deadline) = (waiter.ticket.arrival, waiter.deadline);
        let is_asleep = matches!(waiter.stage, WaiterStage::Asleep);
        self.change_by(to.changes_at);
        let costs = to.charges.iter().map(|charge| charge.cost).collect();
        self.waiters.insert(arrival, Waiter { costs, has_old_rules: false, ..waiter });
        if is_asleep {
            return;
        }
        self.queue(arrival);
        if arrival < self.last_arrival {
            self.estimate = None;
            self.withdraw(now);
        }
        self.last_arrival = self.last_arrival.max(arrival);
        if let Some(earliest) = self.earliest_of_last()
            && earliest > deadline
        {
            self.reject(arrival, earliest, now);
        }
    }

    /// Returns the tickets of all calls. The rules of each are resolved again.
    pub(in crate::waiting) fn tickets(&mut self) -> impl Iterator<Item = Arc<Ticket>> {
        self.changes_at = None;
        self.waiters.values().map(|waiter| Arc::clone(&waiter.ticket))
    }

    /// Records that a rule of a call ends at `at`.
    pub(in crate::waiting) fn change_by(&mut self, at: Option<u64>) {
        let earlier = at.filter(|at| self.changes_at.is_none_or(|known| *at < known));
        if earlier.is_some() {
            self.changes_at = earlier;
            self.wake_first();
        }
    }

    /// Removes a call to which other rules apply now, and wakes it. A call whose turn has come stays.
    pub(in crate::waiting) fn take(&mut self, arrival: u64, now: Now) -> Option<Waiter> {
        let waiter = self.waiters.get_mut(&arrival)?;
        match &waiter.stage {
            WaiterStage::Granted(grant) if grant.at <= now.local => {
                waiter.has_old_rules = true;
                return None;
            }
            WaiterStage::Ended(_) => return None,
            _ => self.wakers.push(waiter.waker.clone()),
        }
        self.leave(arrival)
    }

    /// Polls a call. A pending call polls again at its [`wake_time`](Self::wake_time), or when the line wakes it.
    pub(in crate::waiting) fn poll(
        &mut self,
        arrival: u64,
        waker: &Waker,
        now: Now,
    ) -> Poll<Result<Reply, StoreError>> {
        let Some(waiter) = self.waiters.get_mut(&arrival) else { return Poll::Pending };
        waiter.waker.clone_from(waker);
        waiter.pinged = None;
        let is_late = now.local >= waiter.deadline.saturating_add(self.settings.validity_us());
        match &waiter.stage {
            WaiterStage::Granted(grant) if grant.is_overdue(now, self.settings.validity) => {
                let at = grant.at;
                self.granted.remove(&(at, arrival));
                self.void(arrival);
                self.queue(arrival);
            }
            WaiterStage::Granted(grant) if grant.at <= now.local => {
                self.granted.remove(&(grant.at, arrival));
                let grant = self.remove(arrival).and_then(Waiter::into_grant);
                return grant.map_or(Poll::Pending, |grant| Poll::Ready(Ok(grant.into_reply())));
            }
            WaiterStage::Queued if is_late && self.estimate.is_some() => {}
            WaiterStage::Asked | WaiterStage::Queued if is_late && self.settings.is_shared => {
                // The store has not replied in time. A grant that comes later goes to another call.
                self.dequeue(arrival);
                self.remove(arrival);
                return Poll::Ready(Err(StoreError::Timeout { deadline: self.settings.validity }));
            }
            WaiterStage::Asked if now.local >= waiter.deadline => {
                self.overstaying.insert(arrival);
                return Poll::Pending;
            }
            WaiterStage::Granted(_) | WaiterStage::Asked => return Poll::Pending,
            WaiterStage::Asleep => self.queue(arrival),
            WaiterStage::Queued => {}
            WaiterStage::Ended(_) => return self.take_result(arrival),
        }
        let deadline = self.waiters.get(&arrival).map_or(0, |waiter| waiter.deadline);
        if now.local >= deadline && self.estimate.is_some() {
            let earliest = self.earliest_of(arrival);
            // If the call may be admitted now, the next reply decides, unless it takes too long.
            // Units in flight that come back later are for the next call.
            let is_busy = self.estimate.as_ref().is_some_and(|it| it.is_busy) && !self.has_changed;
            if earliest > now.local || is_busy || is_late {
                let is_first = self.queued.first() == Some(&arrival);
                self.reject(arrival, earliest, now);
                if is_first {
                    // The next call may have other costs.
                    self.estimate = None;
                    self.wake_first();
                }
                return self.take_result(arrival);
            }
        }
        if now.local >= deadline {
            self.overstaying.insert(arrival);
        }
        Poll::Pending
    }

    /// Returns the time at which a pending call polls again, by the clock of the limiter.
    pub(in crate::waiting) fn wake_time(&self, arrival: u64, now: Now) -> Option<u64> {
        let waiter = self.waiters.get(&arrival)?;
        match &waiter.stage {
            WaiterStage::Granted(grant) => Some(grant.at),
            WaiterStage::Queued | WaiterStage::Asked => {
                let late = waiter.deadline.saturating_add(self.settings.validity_us());
                [waiter.deadline, late].into_iter().find(|at| *at > now.local)
            }
            WaiterStage::Asleep | WaiterStage::Ended(_) => None,
        }
    }

    /// Returns how many calls before this one would drive the line, up to `limit`.
    pub(in crate::waiting) fn rank(&self, arrival: u64, limit: usize) -> usize {
        let queued = self.queued.range(..arrival).take(limit).count();
        if self.queued.contains(&arrival) {
            return queued;
        }
        // A queued call has its turn to drive before a call that already has a moment.
        let queued = self.queued.iter().take(limit).count();
        queued + self.granted.iter().take_while(|(_, other)| *other != arrival).take(limit).count()
    }

    /// Removes a call. Its grant, if it has one, passes on.
    pub(in crate::waiting) fn leave(&mut self, arrival: u64) -> Option<Waiter> {
        let is_first = self.queued.first() == Some(&arrival);
        self.dequeue(arrival);
        let mut waiter = self.remove(arrival)?;
        match mem::replace(&mut waiter.stage, WaiterStage::Queued) {
            WaiterStage::Granted(grant) => {
                self.granted.remove(&(grant.at, arrival));
                self.passing.push((arrival, grant));
                self.wake_first();
            }
            WaiterStage::Asleep => waiter.stage = WaiterStage::Asleep,
            _ if is_first => {
                // The next call may have other costs.
                self.estimate = None;
                self.wake_first();
            }
            _ => {}
        }
        Some(waiter)
    }

    /// Ends all calls with `error`. Their grants go back to the store.
    pub(in crate::waiting) fn shut_down(&mut self, error: &StoreError) {
        for arrival in self.waiters.keys().copied().collect::<Vec<_>>() {
            let has_ended = |waiter: &Waiter| matches!(waiter.stage, WaiterStage::Ended(_));
            if !self.waiters.get(&arrival).is_some_and(has_ended) {
                self.end(arrival, Err(error.clone()));
            }
        }
    }

    /// Ends all calls with an error, because nothing drives the line.
    pub(in crate::waiting) fn abandon(&mut self, error: &StoreError) {
        self.is_asking = false;
        self.returning = 0;
        self.passing.clear();
        self.spares.clear();
        for arrival in self.waiters.keys().copied().collect::<Vec<_>>() {
            let stage = self.waiters.get(&arrival).map(|waiter| &waiter.stage);
            if !matches!(stage, Some(WaiterStage::Granted(_) | WaiterStage::Ended(_))) {
                self.end(arrival, Err(error.clone()));
            }
        }
    }

    pub(super) fn queue(&mut self, arrival: u64) {
        let Some(waiter) = self.waiters.get_mut(&arrival) else { return };
        waiter.stage = WaiterStage::Queued;
        if waiter.has_old_rules {
            self.changes_at = Some(0);
        }
        let is_first = self.queued.first().is_none_or(|first| *first > arrival);
        if self.queued.insert(arrival) {
            add_units(&mut self.queued_units, &waiter.costs);
        }
        if is_first {
            self.estimate = None;
        }
    }

    pub(super) fn dequeue(&mut self, arrival: u64) {
        if self.queued.remove(&arrival)
            && let Some(waiter) = self.waiters.get(&arrival)
        {
            for (sum, cost) in self.queued_units.iter_mut().zip(&*waiter.costs) {
                *sum -= u128::from(*cost);
            }
        }
    }

    pub(super) fn remove(&mut self, arrival: u64) -> Option<Waiter> {
        self.waiters.remove(&arrival)
    }

    pub(super) fn take_result(&mut self, arrival: u64) -> Poll<Result<Reply, StoreError>> {
        match self.remove(arrival) {
            Some(Waiter { stage: WaiterStage::Ended(result), .. }) => Poll::Ready(result),
            _ => Poll::Pending,
        }
    }

    /// Ends a call. Its grant, if it has one, goes back.
    pub(super) fn end(&mut self, arrival: u64, result: Result<Reply, StoreError>) {
        self.dequeue(arrival);
        let Some(waiter) = self.waiters.get_mut(&arrival) else { return };
        self.wakers.push(waiter.waker.clone());
        let stage = mem::replace(&mut waiter.stage, WaiterStage::Ended(result));
        if let WaiterStage::Granted(grant) = stage {
            self.granted.remove(&(grant.at, arrival));
            self.spares.push(grant);
        }
    }
}
