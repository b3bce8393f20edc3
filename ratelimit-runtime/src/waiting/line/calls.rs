//! The calls of a line: they enter, are polled, and leave. A turn says which call gets a grant, and what happens to a
//! grant that its call does not take.

use std::collections::hash_map::Entry;
use std::mem;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use super::{Destination, Grant, Line, Now, ReplyTimes, Waiter, WaiterStage, WakeTimes, add_units};
use crate::algorithm::Outcome;
use crate::key::KeyId;
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

    /// Polls a call. The line wakes a pending call when it is decided.
    pub(in crate::waiting) fn poll(
        &mut self,
        arrival: u64,
        waker: &Waker,
        now: Now,
    ) -> Poll<Result<Reply, StoreError>> {
        if let Some(waiter) = self.waiters.get_mut(&arrival) {
            waiter.waker.clone_from(waker);
            waiter.pinged = None;
        }
        self.end_waits(now);
        let Some(waiter) = self.waiters.get(&arrival) else { return Poll::Pending };
        match &waiter.stage {
            WaiterStage::Granted(grant) if grant.is_overdue(now, self.settings.validity) => {
                let at = grant.at;
                self.granted.remove(&(at, arrival));
                self.void(arrival);
                self.queue(arrival);
                self.end_waits(now);
                self.take_result(arrival)
            }
            WaiterStage::Granted(grant) if grant.at <= now.local => {
                self.granted.remove(&(grant.at, arrival));
                let grant = self.waiters.remove(&arrival).and_then(Waiter::into_grant);
                grant.map_or(Poll::Pending, |grant| Poll::Ready(Ok(grant.into_reply())))
            }
            WaiterStage::Asleep => {
                self.queue(arrival);
                self.end_waits(now);
                self.take_result(arrival)
            }
            _ => self.take_result(arrival),
        }
    }

    /// Ends the calls whose waits have ended, unless the next reply may still admit them.
    pub(super) fn end_waits(&mut self, now: Now) {
        while let Some(arrival) = self.looks.take_due(now.local) {
            self.end_wait(arrival, now);
        }
    }

    fn end_wait(&mut self, arrival: u64, now: Now) {
        let Some(waiter) = self.waiters.get(&arrival) else { return };
        let is_asked = matches!(waiter.stage, WaiterStage::Asked);
        let late = waiter.deadline.saturating_add(self.settings.validity_us());
        let is_late = now.local >= late;
        if self.estimate.is_some() && !is_asked {
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
                }
                return;
            }
        }
        if is_late && self.settings.is_shared {
            // The store has not replied in time. A grant that comes later goes to another call.
            let error = StoreError::Timeout { deadline: self.settings.validity };
            return self.end(arrival, Err(error));
        }
        self.overstaying.push(arrival);
        self.looks.plan(arrival, (!is_late).then_some(late));
    }

    /// Removes a call. Its grant, if it has one, passes on.
    pub(in crate::waiting) fn leave(&mut self, arrival: u64) -> Option<Waiter> {
        let is_first = self.queued.first() == Some(&arrival);
        self.dequeue(arrival);
        let mut waiter = self.waiters.remove(&arrival)?;
        match mem::replace(&mut waiter.stage, WaiterStage::Queued) {
            WaiterStage::Granted(grant) => {
                self.granted.remove(&(grant.at, arrival));
                self.passing.push((arrival, grant));
            }
            WaiterStage::Asleep => waiter.stage = WaiterStage::Asleep,
            // The next call may have other costs.
            _ if is_first => self.estimate = None,
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
            self.looks.plan(arrival, Some(waiter.deadline));
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
            self.looks.plan(arrival, None);
        }
    }

    fn take_result(&mut self, arrival: u64) -> Poll<Result<Reply, StoreError>> {
        let Entry::Occupied(entry) = self.waiters.entry(arrival) else { return Poll::Pending };
        if !matches!(entry.get().stage, WaiterStage::Ended(_)) {
            return Poll::Pending;
        }
        match entry.remove().stage {
            WaiterStage::Ended(result) => Poll::Ready(result),
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

/// The most calls that a line wakes to learn whether they are polled.
const MAX_PINGED: usize = 1024;

impl Line {
    /// Records that units were given back to a count of the line, or that its key was unblocked.
    ///
    /// The units are of no use to the first call if only another count rejects it. So a line does not ask again because
    /// of the units that its own request gives back, once a later hash slot has rejected it.
    pub(in crate::waiting) fn record_give_back(&mut self, key_id: KeyId) {
        let Some(count) = self.counts.iter().position(|charge| charge.key_id == key_id) else {
            return;
        };
        let is_of_use = self.estimate.as_ref().is_none_or(|it| it.is_because_of(count));
        if !self.is_asking {
            self.has_changed |= is_of_use;
        } else if !self.changed_counts.contains(&count) {
            self.changed_counts.push(count);
        }
        if is_of_use {
            self.estimate = None;
        }
    }

    /// Decides whether the counts that have changed since a request was sent are a reason to ask again. `outcomes` is
    /// the reply to the request; empty if the request has failed.
    pub(super) fn apply_changed_counts(&mut self, outcomes: &[Outcome]) {
        let is_rejected = |of_call: &&[Outcome]| !of_call.iter().all(Outcome::is_allowed);
        let mut of_calls = outcomes.chunks(self.counts.len()).filter(|_| !self.is_bucket);
        let rejected = of_calls.find(is_rejected);
        let is_of_use = |count: usize| rejected.is_none_or(|of_call| !of_call[count].is_allowed());
        self.has_changed |= self.changed_counts.drain(..).any(is_of_use);
    }

    /// Records that a count of the line was reset, or that its key was blocked. The moments ahead go back, and their
    /// calls queue again. A call whose moment has come keeps its grant.
    pub(in crate::waiting) fn record_reset_or_block(&mut self, now: Now) {
        self.has_changed = true;
        self.estimate = None;
        self.withdraw(now);
    }

    /// Gives the moments ahead back. Their calls queue again.
    pub(super) fn withdraw(&mut self, now: Now) {
        let ahead: Vec<_> = self.granted.range((now.local + 1, 0)..).copied().collect();
        for (_, arrival) in ahead {
            let grant = self.take_moment(arrival);
            self.spares.extend(grant);
        }
    }

    /// Takes a grant from its call, which queues again.
    pub(super) fn take_moment(&mut self, arrival: u64) -> Option<Grant> {
        let waiter = self.waiters.get_mut(&arrival)?;
        let stage = mem::replace(&mut waiter.stage, WaiterStage::Queued);
        let WaiterStage::Granted(grant) = stage else { return None };
        self.granted.remove(&(grant.at, arrival));
        self.queue(arrival);
        Some(grant)
    }

    /// Records that a give-back has ended.
    pub(in crate::waiting) fn returned(&mut self) {
        self.returning = self.returning.saturating_sub(1);
    }

    /// Gives a grant to the first queued call. If that call has other costs and came before the call for which the
    /// grant was requested, no call may use the grant: the first call must not be overtaken. If the moment is after the
    /// wait of the call for which it was requested, because calls with moments are before it, that call is rejected.
    pub(super) fn assign(&mut self, arrival: u64, grant: Grant, times: ReplyTimes) {
        let now = times.received;
        let Some(first) = self.queued.first().copied() else { return self.spares.push(grant) };
        let costs_agree =
            self.waiters.get(&first).is_some_and(|waiter| waiter.costs == grant.costs);
        if self.can_use(first, &grant, now) {
            return self.grant(first, grant);
        }
        if (costs_agree || first == arrival) && self.queued.contains(&arrival) {
            // The first call cannot be admitted in time.
            if self.is_in_time(arrival, &grant, times) {
                return self.grant(arrival, grant);
            }
            self.reject_until(arrival, &grant, now);
        }
        self.spares.push(grant);
    }

    /// Returns whether the call for which a grant was requested can use it. The moment may be as late as the reply is.
    fn is_in_time(
        &self,
        arrival: u64,
        grant: &Grant,
        ReplyTimes { asked, received }: ReplyTimes,
    ) -> bool {
        let delay = received.local.saturating_sub(asked.local).min(self.settings.validity_us());
        let deadline = self.waiters.get(&arrival).map_or(0, |waiter| waiter.deadline);
        grant.at <= received.local.max(deadline.saturating_add(delay))
    }

    fn can_use(&self, arrival: u64, grant: &Grant, now: Now) -> bool {
        let waiter = self.waiters.get(&arrival);
        waiter.is_some_and(|waiter| {
            waiter.costs == grant.costs && (grant.at <= now.local || grant.at <= waiter.deadline)
        })
    }

    pub(super) fn grant(&mut self, arrival: u64, grant: Grant) {
        self.dequeue(arrival);
        let Some(waiter) = self.waiters.get_mut(&arrival) else { return };
        self.granted.insert((grant.at, arrival));
        // Otherwise, the call is woken at its moment.
        if grant.at <= self.woken {
            self.wakers.push(waiter.waker.clone());
        }
        waiter.stage = WaiterStage::Granted(grant);
    }

    /// Passes the grants of calls that do not use them on: all together, so that calls which are dropped together cost
    /// little.
    pub(super) fn pass_all_on(&mut self, now: Now) {
        let mut passing = mem::take(&mut self.passing);
        passing.sort_by_key(|(arrival, grant)| (grant.at, *arrival));
        for (arrival, grant) in passing {
            self.pass_on(arrival, grant, now);
        }
    }

    /// Passes the grant of a call that does not use it to the calls behind it: each hands its own grant on, so that no
    /// call has a later moment than before. What the last one hands on goes back. A call with other costs cannot move
    /// up, and neither can the calls behind it.
    fn pass_on(&mut self, arrival: u64, mut grant: Grant, now: Now) {
        let mut from = (grant.at, arrival).max((now.local, u64::MAX));
        loop {
            let ahead = self.granted.range((Excluded(from), Unbounded)).next().copied();
            let next = ahead.map(|(_, arrival)| arrival).or_else(|| self.queued.first().copied());
            let Some(next) = next.filter(|next| self.can_use(*next, &grant, now)) else { break };
            let Some(place) = ahead else {
                self.estimate = None;
                return self.grant(next, grant);
            };
            let Some(waiter) = self.waiters.get_mut(&next) else { break };
            self.granted.remove(&place);
            self.granted.insert((grant.at, next));
            if grant.at <= self.woken {
                self.wakers.push(waiter.waker.clone());
            }
            match mem::replace(&mut waiter.stage, WaiterStage::Granted(grant)) {
                WaiterStage::Granted(own) => (grant, from) = (own, place),
                _ => return,
            }
        }
        self.spares.push(grant);
    }

    /// Wakes the calls whose moments have come, and takes grants from calls that do not take their turn. Returns when to
    /// look again.
    pub(super) fn expire(&mut self, now: Now) -> WakeTimes {
        let (half, mut wake) = (self.settings.validity / 2, WakeTimes::default());
        let mut was_untaken = false;
        let ahead = (now.local.saturating_add(1), 0);
        let first_ahead = self.granted.range(ahead..).next().copied();
        let next_ahead = first_ahead.map(|(_, arrival)| arrival);
        wake.local = first_ahead.map(|(at, _)| at);
        let come = (self.woken.min(now.local) + 1, 0);
        for (_, arrival) in self.granted.range(come..ahead) {
            let waiter = self.waiters.get(arrival);
            self.wakers.extend(waiter.map(|waiter| waiter.waker.clone()));
        }
        self.woken = now.local;
        for (at, arrival) in self.granted.range(..ahead).copied().collect::<Vec<_>>() {
            let Some(waiter) = self.waiters.get_mut(&arrival) else { continue };
            let WaiterStage::Granted(grant) = &mut waiter.stage else { continue };
            let due = *grant.due.get_or_insert(now.real);
            let (was_passed, is_void) = (grant.was_passed, now.real >= due + 2 * half);
            let next = next_ahead.or_else(|| self.queued.first().copied());
            let passes = !was_passed && next.is_some_and(|next| self.costs_agree(next, arrival));
            if is_void || passes && now.real >= due + half {
                self.granted.remove(&(at, arrival));
                was_untaken = true;
                let Some(waiter) = self.waiters.get_mut(&arrival) else { continue };
                let stage = mem::replace(&mut waiter.stage, WaiterStage::Asleep);
                match stage {
                    WaiterStage::Granted(grant) if is_void => self.spares.push(grant),
                    WaiterStage::Granted(mut grant) => {
                        grant.was_passed = true;
                        self.passing.push((arrival, grant));
                    }
                    _ => {}
                }
                self.estimate = None;
            } else {
                let next = if now.real < due + half { due + half } else { due + 2 * half };
                wake.real = Some(wake.real.map_or(next, |wake| wake.min(next)));
            }
        }
        if was_untaken {
            self.ping(now);
        }
        wake
    }

    /// Takes a grant from a call that did not take its turn in time. No call may use it.
    fn void(&mut self, arrival: u64) {
        let Some(waiter) = self.waiters.get_mut(&arrival) else { return };
        let stage = mem::replace(&mut waiter.stage, WaiterStage::Asleep);
        if let WaiterStage::Granted(grant) = stage {
            self.spares.push(grant);
        }
    }

    /// Returns the real time of a moment.
    pub(super) fn due_of(&self, at: u64, now: Now) -> Option<Instant> {
        let ahead = Duration::from_micros(at.saturating_sub(now.local));
        if self.settings.is_virtual { None } else { now.real.checked_add(ahead) }
    }

    fn costs_agree(&self, one: u64, other: u64) -> bool {
        let costs = |arrival| self.waiters.get(&arrival).map(|waiter: &Waiter| &waiter.costs);
        costs(one) == costs(other)
    }

    /// Wakes the first queued calls. The next request leaves out a call that is not polled after that.
    fn ping(&mut self, now: Now) {
        for arrival in self.queued.iter().take(MAX_PINGED) {
            let Some(waiter) = self.waiters.get_mut(arrival) else { continue };
            waiter.pinged.get_or_insert(now.real);
            self.wakers.push(waiter.waker.clone());
        }
    }

    /// Puts the calls to sleep that were woken and have not polled.
    pub(super) fn put_pinged_to_sleep(&mut self, now: Now) {
        let half = self.settings.validity / 2;
        let mut asleep = Vec::new();
        for arrival in self.queued.iter().take(MAX_PINGED) {
            let pinged = self.waiters.get(arrival).and_then(|waiter| waiter.pinged);
            if pinged.is_some_and(|pinged| now.real >= pinged + half) {
                asleep.push(*arrival);
            }
        }
        for arrival in asleep {
            self.dequeue(arrival);
            if let Some(waiter) = self.waiters.get_mut(&arrival) {
                waiter.stage = WaiterStage::Asleep;
            }
        }
    }
}
