//! Turns: which call gets a grant, and what happens to a grant that its call does not take.

use std::mem;
use std::ops::Bound::{Excluded, Unbounded};
use std::time::{Duration, Instant};

use super::grant::Grant;
use super::{Line, Now, ReplyTimes, Waiter, WaiterStage, WakeTimes};
use crate::algorithm::Outcome;
use crate::key::KeyId;

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
            self.wake_first();
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
        self.wake_first();
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

    pub(super) fn can_use(&self, arrival: u64, grant: &Grant, now: Now) -> bool {
        let waiter = self.waiters.get(&arrival);
        waiter.is_some_and(|waiter| {
            waiter.costs == grant.costs && (grant.at <= now.local || grant.at <= waiter.deadline)
        })
    }

    pub(super) fn grant(&mut self, arrival: u64, grant: Grant) {
        self.dequeue(arrival);
        let Some(waiter) = self.waiters.get_mut(&arrival) else { return };
        self.granted.insert((grant.at, arrival));
        self.wakers.push(waiter.waker.clone());
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
            self.wakers.push(waiter.waker.clone());
            match mem::replace(&mut waiter.stage, WaiterStage::Granted(grant)) {
                WaiterStage::Granted(own) => (grant, from) = (own, place),
                _ => return,
            }
        }
        self.spares.push(grant);
    }

    /// Takes grants from calls that do not take their turn. Returns when to look again.
    pub(super) fn expire(&mut self, now: Now) -> WakeTimes {
        let (half, mut wake) = (self.settings.validity / 2, WakeTimes::default());
        let mut was_untaken = false;
        let ahead = (now.local.saturating_add(1), 0);
        let first_ahead = self.granted.range(ahead..).next().copied();
        let next_ahead = first_ahead.map(|(_, arrival)| arrival);
        if let Some((at, _)) = first_ahead {
            // Looks rarely: a call that is polled takes its grant without the driver.
            wake.local = Some(at.max(now.local + half.as_micros() as u64 / 2));
        }
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
    pub(super) fn void(&mut self, arrival: u64) {
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

    pub(super) fn costs_agree(&self, one: u64, other: u64) -> bool {
        let costs = |arrival| self.waiters.get(&arrival).map(|waiter: &Waiter| &waiter.costs);
        costs(one) == costs(other)
    }

    /// Wakes the first queued calls. The next request leaves out a call that is not polled after that.
    pub(super) fn ping(&mut self, now: Now) {
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
