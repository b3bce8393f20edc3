//! The calls of a line: they enter, are polled, and leave. A turn says which call gets a grant, and what happens to a
//! grant that its call does not take.

use std::collections::BTreeSet;
use std::mem;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Instant;

use super::waiters::{Stage, Waiter};
use super::{Grant, Line, LineSpec, Now, WakeTimes};
use crate::algorithm::Outcome;
use crate::key::KeyId;
use crate::reply::StoreError;
use crate::store::Reply;
use crate::waiting::Ticket;

impl Line {
    /// Adds a call. If calls that have arrived later are before it, all calls with moments ahead queue again.
    pub(in crate::waiting) fn enter(&mut self, mut waiter: Waiter, to: &LineSpec, now: Now) {
        let (arrival, deadline) = (waiter.ticket.arrival, waiter.deadline);
        self.change_by(to.changes_at);
        waiter.costs = to.counts.iter().map(|charge| charge.cost).collect();
        waiter.has_old_rules = false;
        self.waiters.insert(arrival, waiter);
        if self.waiters.granted.last().is_some_and(|(_, last)| arrival < *last) {
            self.withdraw(now);
        }
        let earliest = self.earliest_of(arrival);
        if earliest > deadline {
            self.reject(arrival, earliest, now);
        }
    }

    /// Returns the tickets of all calls. The rules of each are resolved again.
    pub(in crate::waiting) fn tickets(&mut self) -> impl Iterator<Item = Arc<Ticket>> {
        self.changes_at = None;
        self.waiters.iter().map(|(_, waiter)| Arc::clone(&waiter.ticket))
    }

    /// Records that a rule of a call ends at `at`.
    pub(in crate::waiting) fn change_by(&mut self, at: Option<u64>) {
        self.changes_at = self.changes_at.into_iter().chain(at).min();
    }

    /// Removes a call to which other rules apply now, and wakes it. A call whose turn has come stays.
    pub(in crate::waiting) fn take(&mut self, arrival: u64, now: Now) -> Option<Waiter> {
        let waiter = self.waiters.get_mut(arrival)?;
        match waiter.stage() {
            Stage::Granted(grant) if grant.at <= now.local => {
                waiter.has_old_rules = true;
                None
            }
            Stage::Ended(_) => None,
            Stage::Queued | Stage::Granted(_) | Stage::Asleep => {
                self.wake(arrival);
                self.leave(arrival)
            }
        }
    }

    /// Polls a call. The line wakes a pending call when it is decided.
    pub(in crate::waiting) fn poll(
        &mut self,
        arrival: u64,
        waker: &Waker,
        now: Now,
    ) -> Poll<Result<Reply, StoreError>> {
        // Another thread may have woken calls at a later time, and this one before the line had its waker.
        let now = Now { local: now.local.max(self.woken), ..now };
        let Some(waiter) = self.waiters.get_mut(arrival) else { return Poll::Pending };
        waiter.waker.clone_from(waker);
        waiter.pinged = None;
        let is_overdue = |due: Instant| now.real >= due + self.spec.validity;
        match waiter.stage() {
            Stage::Granted(grant) if grant.due.is_some_and(is_overdue) => {
                self.give_up(arrival, Stage::Queued);
            }
            Stage::Granted(grant) if grant.at <= now.local => {
                let taken = self.waiters.remove(arrival).and_then(|(_, it)| it.into_grant());
                return taken.map_or(Poll::Pending, |grant| Poll::Ready(Ok(grant.into_reply())));
            }
            Stage::Asleep => drop(self.waiters.set(arrival, Stage::Queued)),
            Stage::Queued | Stage::Granted(_) | Stage::Ended(_) => {}
        }
        let waiter = self.waiters.get_mut(arrival).filter(|waiter| waiter.is_queued());
        if waiter.is_some_and(|waiter| mem::take(&mut waiter.has_old_rules)) {
            self.changes_at = Some(0);
        }
        self.end_waits(now);
        let has_ended = |waiter: &Waiter| matches!(waiter.stage(), Stage::Ended(_));
        let ended = self.waiters.get(arrival).is_some_and(has_ended);
        match ended.then(|| self.waiters.remove(arrival)).flatten() {
            Some((_, Stage::Ended(result))) => Poll::Ready(result),
            _ => Poll::Pending,
        }
    }

    /// Ends the calls whose waits have ended, unless the next reply may still admit them.
    pub(super) fn end_waits(&mut self, now: Now) {
        if !self.is_asking {
            for arrival in mem::take(&mut self.overstaying) {
                self.end_wait(arrival, now);
            }
        }
        while let Some(arrival) = self.waiters.looks.take_due(now.local) {
            self.end_wait(arrival, now);
        }
    }

    fn end_wait(&mut self, arrival: u64, now: Now) {
        let validity = self.spec.validity_us();
        let waiter = self.waiters.get_mut(arrival);
        let Some(waiter) = waiter.filter(|waiter| waiter.is_queued()) else { return };
        let late_at = *waiter.late_at.get_or_insert(now.local.saturating_add(validity));
        let is_late = now.local >= late_at;
        if !self.is_asking
            && let Some(estimate) = self.estimate()
        {
            // If the call may be admitted now, the next reply decides, unless it takes too long.
            // Units in flight that come back later are for the next call.
            let (is_busy, earliest) = (estimate.is_busy, self.earliest_of(arrival));
            if earliest > now.local || is_busy && !self.has_changed || is_late {
                return self.reject(arrival, earliest, now);
            }
        }
        if is_late && self.spec.is_shared {
            // The store has not replied in time. A grant that comes later goes to another call.
            let error = StoreError::Timeout { deadline: self.spec.validity };
            return self.end(arrival, Err(error));
        }
        self.overstaying.push(arrival);
        self.waiters.looks.plan(arrival, (!is_late).then_some(late_at));
    }

    /// Removes a call. Its grant, if it has one, passes on.
    pub(in crate::waiting) fn leave(&mut self, arrival: u64) -> Option<Waiter> {
        let (waiter, stage) = self.waiters.remove(arrival)?;
        self.passing.extend(stage.into_grant().map(|grant| (arrival, grant)));
        Some(waiter)
    }

    /// Ends all calls with an error, because nothing drives the line.
    pub(in crate::waiting) fn abandon(&mut self, error: &StoreError) {
        (self.is_asking, self.returning) = (false, 0);
        self.passing.clear();
        self.spares.clear();
        self.end_all(error, |waiter| waiter.grant().is_none());
    }

    /// Ends each call that is undecided and for which `ends` returns `true` with `error`. Its grant goes back to the
    /// store.
    pub(in crate::waiting) fn end_all(&mut self, error: &StoreError, ends: fn(&Waiter) -> bool) {
        let has_ended = |waiter: &Waiter| matches!(waiter.stage(), Stage::Ended(_));
        let ending = self.waiters.iter().filter(|(_, it)| !has_ended(it) && ends(it));
        for arrival in ending.map(|(arrival, _)| arrival).collect::<BTreeSet<_>>() {
            self.end(arrival, Err(error.clone()));
        }
    }

    /// Ends a call. Its grant, if it has one, goes back.
    pub(super) fn end(&mut self, arrival: u64, result: Result<Reply, StoreError>) {
        self.give_up(arrival, Stage::Ended(result));
        self.wake(arrival);
    }

    /// Moves a call to another stage. Its grant, if it has one, goes back.
    fn give_up(&mut self, arrival: u64, stage: Stage) {
        let grant = self.waiters.set(arrival, stage);
        self.spares.extend(grant);
    }

    fn wake(&mut self, arrival: u64) {
        self.wakers.extend(self.waiters.get(arrival).map(|waiter| waiter.waker.clone()));
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
        let counts = &self.spec.counts;
        let Some(count) = counts.iter().position(|charge| charge.key_id == key_id) else { return };
        let is_of_use = self.estimate().is_none_or(|it| !it.reply.outcomes[count].is_allowed());
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
        let of_calls = outcomes.chunks(self.spec.counts.len());
        let rejected = of_calls.filter(|_| !self.spec.is_bucket()).find(is_rejected);
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
        let ahead = self.waiters.granted.range((now.local + 1, 0)..);
        for arrival in ahead.map(|(_, arrival)| *arrival).collect::<Vec<_>>() {
            self.give_up(arrival, Stage::Queued);
        }
    }

    /// Records that a give-back has ended.
    pub(in crate::waiting) fn returned(&mut self) {
        self.returning = self.returning.saturating_sub(1);
    }

    /// Gives a grant to the first queued call. If that call has other costs and came before the call for which the
    /// grant was requested, no call may use the grant: the first call must not be overtaken. If the moment is after the
    /// wait of the call for which it was requested, because calls with moments are before it, that call is rejected.
    /// The moment may be as late as the reply was: `delay`.
    pub(super) fn assign(&mut self, arrival: u64, grant: Grant, delay: u64, now: Now) {
        let Some(first) = self.waiters.first() else { return self.spares.push(grant) };
        if self.can_use(first, &grant, now) {
            self.grant(first, grant);
            return;
        }
        let costs_agree = self.waiters.costs_of(first) == Some(&grant.costs);
        if (costs_agree || first == arrival) && self.waiters.queued.contains(&arrival) {
            // The first call cannot be admitted in time.
            let deadline = self.waiters.get(arrival).map_or(0, |waiter| waiter.deadline);
            if grant.at <= now.local.max(deadline.saturating_add(delay)) {
                self.grant(arrival, grant);
                return;
            }
            let rejection = grant.rejection(self.retry_until(grant.at, now));
            self.end(arrival, Ok(rejection));
        }
        self.spares.push(grant);
    }

    fn can_use(&self, arrival: u64, grant: &Grant, now: Now) -> bool {
        self.waiters.get(arrival).is_some_and(|waiter| {
            waiter.costs == grant.costs && (grant.at <= now.local || grant.at <= waiter.deadline)
        })
    }

    /// Gives a grant to a call, which is woken at its moment. Returns the grant that it had.
    pub(super) fn grant(&mut self, arrival: u64, grant: Grant) -> Option<Grant> {
        let has_come = grant.at <= self.woken;
        let before = self.waiters.set(arrival, Stage::Granted(grant));
        if has_come {
            self.wake(arrival);
        }
        before
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
            let ahead = self.waiters.granted.range((Excluded(from), Unbounded)).next().copied();
            let next = ahead.map(|(_, arrival)| arrival).or(self.waiters.first());
            let Some(next) = next.filter(|next| self.can_use(*next, &grant, now)) else { break };
            let own = self.grant(next, grant);
            let (Some(place), Some(own)) = (ahead, own) else { return };
            (grant, from) = (own, place);
        }
        self.spares.push(grant);
    }

    /// Wakes the calls whose moments have come, and takes grants from calls that do not take their turn. Returns when
    /// to look again.
    pub(super) fn expire(&mut self, now: Now) -> WakeTimes {
        let ahead = (now.local.saturating_add(1), 0);
        let granted = &self.waiters.granted;
        let mut wake =
            WakeTimes { local: granted.range(ahead..).next().map(|it| it.0), real: None };
        let turns: Vec<_> = granted.range(..ahead).copied().collect();
        let woken = mem::replace(&mut self.woken, now.local);
        let mut was_untaken = false;
        for (at, arrival) in turns {
            if at > woken {
                self.wake(arrival);
            }
            let waiter = self.waiters.get_mut(arrival);
            let Some(grant) = waiter.and_then(Waiter::grant_mut) else { continue };
            let end = *grant.due.get_or_insert(now.real) + self.spec.validity;
            if now.real >= end {
                self.give_up(arrival, Stage::Asleep);
                was_untaken = true;
            } else {
                wake = wake.or_earlier(WakeTimes { local: None, real: Some(end) });
            }
        }
        if was_untaken {
            self.ping(now);
        }
        wake
    }

    /// Wakes the first queued calls. The next request leaves out a call that is not polled after that.
    fn ping(&mut self, now: Now) {
        for arrival in self.waiters.queued.iter().copied().take(MAX_PINGED).collect::<Vec<_>>() {
            if let Some(waiter) = self.waiters.get_mut(arrival) {
                waiter.pinged.get_or_insert(now.real);
                self.wakers.push(waiter.waker.clone());
            }
        }
    }

    /// Puts the calls to sleep that were woken and have not polled.
    pub(super) fn put_pinged_to_sleep(&mut self, now: Now) {
        let half = self.spec.validity / 2;
        let sleeps = |arrival: &u64| {
            let pinged = self.waiters.get(*arrival).and_then(|waiter| waiter.pinged);
            pinged.is_some_and(|pinged| now.real >= pinged + half)
        };
        let first = self.waiters.queued.iter().copied().take(MAX_PINGED);
        for arrival in first.filter(sleeps).collect::<Vec<_>>() {
            self.waiters.set(arrival, Stage::Asleep);
        }
    }
}
