//! The requests of a line: which calls it asks for, which reservations it cancels, and when.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use super::estimate::Estimate;
use super::grant::Grant;
use super::reservations::Cancellation;
use super::{Line, Now, ReplyTimes, Waiter, WaiterStage, WakeTimes};
use crate::algorithm::{Op, Outcome, Verdict};
use crate::limit::OnError;
use crate::reply::{Source, StoreError};
use crate::store::{BucketCharge, Calls, Charge, Counts, EqualCalls, Reply, Reservations};

/// The shortest time between two requests of a line that waits for Redis.
pub(super) const PAUSE: Duration = Duration::from_millis(5);

/// The longest time between two requests of a line that waits for Redis, in microseconds. Another process can give
/// units back.
pub(super) const LOOK_AGAIN: u64 = 1_000_000;

/// The most runs and the most calls of a request.
const MAX_RUNS: usize = 64;
pub(super) const MAX_CALLS: usize = 1024;

/// A process reserves at most the tokens that refill in this time, in microseconds.
const RESERVED_AHEAD: u128 = 1_000_000;

/// Calls with a longer wait share runs, which have the shortest of their waits. A call that such a run does not reserve
/// is first in a later request, in a run of its own.
const SHARED_WAIT: u64 = 50_000;

/// A request of a line.
#[derive(Debug)]
pub(in crate::waiting) struct Asked {
    pub(in crate::waiting) request: Calls,
    calls: Vec<u64>,
    /// The grants that the request cancels, with the calls that held some of them.
    cancelled: Vec<(Option<u64>, Grant)>,
}

impl Line {
    /// Applies the reply to a request. Calls that it admits hold grants, and calls that cannot be admitted in time are
    /// rejected.
    pub(in crate::waiting) fn replied(&mut self, asked: Asked, reply: Reply, now: Now) {
        let Asked { request, calls, cancelled } = asked;
        self.end_request(&calls);
        let Reply { outcomes, receipts, source, .. } = reply;
        self.apply_changed_counts(&outcomes);
        let mut outcomes = &outcomes[..];
        let mut receipts = receipts.chunks(self.counts.len());
        if request.cancels() {
            let Some((cancellation, rest)) = outcomes.split_first() else { return };
            outcomes = rest;
            if !cancellation.is_allowed() {
                // Another process has reserved a later moment: the reservations stay.
                self.pause_if(true);
                if is_closed(cancellation) {
                    return self.hold_back(cancelled, now);
                }
                self.record_closing(false);
                return self.restore(cancelled);
            }
        }
        let (mut granted, mut rejected) = (0, None);
        self.forget_lost_moments(outcomes, source, now);
        let times = ReplyTimes { asked: self.last_request.unwrap_or(now), received: now };
        // Replies take different times. The moments of a bucket stay in their order all the same.
        let mut last = self.granted.last().map_or(0, |(at, _)| *at).max(now.local);
        for (arrival, outcomes) in calls.iter().zip(outcomes.chunks(self.counts.len())) {
            let Some(costs) = request.costs_of(granted) else { break };
            if !outcomes.iter().all(Outcome::is_allowed) {
                rejected = Some((*arrival, outcomes));
                break;
            }
            granted += 1;
            let moment = self.moment_of(outcomes, now);
            let at = moment.saturating_add(self.delay_of(source, moment, now)).max(last);
            last = if self.bucket.is_some() { at } else { last };
            let due = self.due_of(at, now);
            let charged = (outcomes, receipts.next().unwrap_or(&[]));
            let grant = Grant::new(costs.clone(), charged, source, at, due, times.asked.real);
            self.assign(*arrival, grant, times);
        }
        let is_ahead = self.granted.last().is_some_and(|(at, _)| *at > now.local);
        self.pause_if(granted == 0 || is_ahead || rejected.is_some());
        self.estimate = None;
        if granted > 0 || !rejected.is_some_and(|(_, outcomes)| self.is_busy(outcomes)) {
            self.overdue.end();
        }
        if !calls.is_empty() {
            let rejected = rejected.map_or(&[][..], |(_, outcomes)| outcomes);
            self.record_closing(rejected.iter().any(is_closed));
        }
        if let Some((arrival, outcomes)) = rejected {
            let at = self.moment_of(outcomes, now);
            // The run had a shorter wait than this call. If the store rejected the call because of that, the line asks
            // again at once.
            let was_cut_short = granted > 0 && self.may_reserve(arrival, at, now);
            if self.queued.first() == Some(&arrival) && !was_cut_short {
                let costs = self.waiters.get(&arrival).map(|waiter| waiter.costs.clone());
                let is_busy = self.is_busy(outcomes);
                self.estimate = costs
                    .map(|costs| Estimate::new(at, costs, outcomes, source, now.local, is_busy));
                // The end of a call in flight wakes the line.
                let next = if is_busy { self.overdue.next_look(now.local) } else { at };
                self.next_request = self.next_after(next, now);
                self.scan(now);
            }
        }
        self.wake_first();
    }

    /// Applies `on_error` to the calls of a line whose store failed. Returns a request for the embedded store if it
    /// decides some of them.
    pub(in crate::waiting) fn failed(
        &mut self,
        asked: &mut Asked,
        error: &StoreError,
        now: Now,
    ) -> Option<Asked> {
        self.end_request(&asked.calls);
        self.apply_changed_counts(&[]);
        // If the request may have been executed, the cancelled reservations may not exist any more.
        let cancelled = mem::take(&mut asked.cancelled);
        if matches!(error, StoreError::CircuitOpen { .. } | StoreError::Overloaded { .. }) {
            self.restore(cancelled);
        }
        self.pause_if(true);
        for arrival in self.queued.iter().copied().collect::<Vec<_>>() {
            let Some(waiter) = self.waiters.get(&arrival) else { continue };
            match waiter.on_error {
                OnError::Local => {}
                // The call then falls back by itself.
                OnError::Allow | OnError::Deny => self.end(arrival, Err(error.clone())),
            }
        }
        let is_left = !self.queued.is_empty();
        if is_left { self.ask_for(Cancellation::default(), now) } else { None }
    }

    /// Returns the time of the next request; `None` if the line needs none.
    pub(super) fn request_time(&self, now: Now) -> Option<WakeTimes> {
        if self.settings.is_closed {
            return None;
        }
        let cancels = !self.spares.is_empty() || self.cancels_held_back(now) || self.rebooks(now);
        let again = self.looks_again();
        if self.queued.is_empty() && !cancels {
            // Another process may have given units back, so that reserved calls can be admitted earlier.
            let is_ahead = self.granted.last().is_some_and(|(at, _)| *at > now.local);
            return again.filter(|_| is_ahead).map(|at| WakeTimes { local: Some(at), real: None });
        }
        let earliest = self.pause_end.unwrap_or(now.real);
        if cancels || self.has_changed || self.estimate.is_none() || now.local >= self.next_request
        {
            return Some(WakeTimes { local: None, real: Some(earliest) });
        }
        let next_cancel = (!self.held_back.is_empty()).then_some(self.next_cancel);
        let next = [again, next_cancel].into_iter().flatten().fold(self.next_request, u64::min);
        Some(WakeTimes { local: Some(next), real: None })
    }

    /// Makes the next request to a shared store a little later than the last one, if it `pauses`.
    fn pause_if(&mut self, pauses: bool) {
        let last = self.last_request.filter(|_| self.settings.is_shared && pauses);
        self.pause_end = last.map(|last| last.real + PAUSE);
    }

    /// Returns when the line asks at the latest, by the clock of the limiter.
    pub(super) fn looks_again(&self) -> Option<u64> {
        let last = self.last_request.filter(|_| self.settings.is_shared)?;
        Some(last.local.saturating_add(LOOK_AGAIN))
    }

    /// Creates the next request: cancels spare reservations, and asks for the first queued calls.
    pub(super) fn ask(&mut self, now: Now) -> Option<Asked> {
        let cancellation = self.cancel(now);
        self.ask_for(cancellation, now)
    }

    pub(super) fn ask_for(&mut self, cancellation: Cancellation, now: Now) -> Option<Asked> {
        let Cancellation { units: cancelled_units, grants: cancelled } = cancellation;
        self.put_pinged_to_sleep(now);
        let calls: Vec<u64> = self.queued.iter().copied().take(MAX_CALLS).collect();
        let (runs, calls) = self.runs(calls, now);
        if runs.is_empty() && cancelled_units.is_none() {
            self.has_changed = false;
            return None;
        }
        for arrival in &calls {
            if let Some(waiter) = self.waiters.get_mut(arrival) {
                waiter.stage = WaiterStage::Asked;
            }
        }
        let counts = match &self.bucket {
            None => Counts::Each(self.counts.clone()),
            Some(bucket) => {
                let (held, most) = (self.held(now), most_reserved(bucket));
                let reservations = Reservations { cancelled: cancelled_units, held, most };
                Counts::Bucket(bucket.clone(), reservations)
            }
        };
        (self.is_asking, self.has_changed) = (true, false);
        self.last_request = Some(now);
        let op = Op::Take { wait: 0, receipt: self.settings.settles };
        let waited_us = self.overdue.waited(now.local);
        let request = Calls { op, counts, runs: runs.into(), waited_us };
        Some(Asked { request, calls, cancelled })
    }

    /// Groups calls by equal costs. Returns the runs, and the calls that are in them.
    pub(super) fn runs(&self, calls: Vec<u64>, now: Now) -> (Vec<EqualCalls>, Vec<u64>) {
        let (mut runs, mut included): (Vec<EqualCalls>, _) = (Vec::new(), Vec::new());
        for arrival in calls {
            let Some(waiter) = self.waiters.get(&arrival) else { continue };
            let ahead = waiter.deadline.saturating_sub(now.local).min(1 << 52);
            let wait = if self.bucket.is_some() { ahead } else { 0 };
            // The first call of a bucket has a run of its own: it is reserved whenever its wait allows it.
            let is_second = runs.len() == 1 && self.bucket.is_some();
            let is_open = |run: &&mut EqualCalls| {
                let has_time = self.bucket.is_none() || run.wait.min(wait) >= SHARED_WAIT;
                !is_second && has_time && run.costs == waiter.costs
            };
            let is_full = runs.len() == MAX_RUNS;
            if let Some(run) = runs.last_mut().filter(is_open) {
                run.count += 1;
                run.wait = run.wait.min(wait);
            } else if is_full {
                break;
            } else {
                runs.push(EqualCalls { costs: waiter.costs.clone(), count: 1, wait });
            }
            included.push(arrival);
        }
        (runs, included)
    }

    /// Returns whether the bucket would reserve the moment `at` for a queued call.
    fn may_reserve(&self, arrival: u64, at: u64, now: Now) -> bool {
        let (Some(bucket), Some(waiter)) = (&self.bucket, self.waiters.get(&arrival)) else {
            return false;
        };
        let held = self.held(now);
        let has_room =
            held == 0 || held.saturating_add(waiter.first_cost()) <= most_reserved(bucket);
        has_room && at <= waiter.deadline
    }

    /// Returns the tokens that are reserved.
    fn held(&self, now: Now) -> u64 {
        let held = self.granted.range((now.local + 1, 0)..);
        let held = held.filter_map(|(_, arrival)| self.waiters.get(arrival));
        held.fold(0, |sum, waiter| sum.saturating_add(waiter.first_cost()))
    }

    /// Returns whether calls in flight hold units that a rejected call needs.
    fn is_busy(&self, outcomes: &[Outcome]) -> bool {
        let is_busy = |(charge, outcome): (&Arc<Charge>, &Outcome)| {
            charge.terms.is_in_flight() && outcome.verdict == Verdict::Rejected
        };
        self.counts.iter().zip(outcomes).any(is_busy)
    }

    pub(super) fn end_request(&mut self, calls: &[u64]) {
        self.is_asking = false;
        for arrival in calls {
            if let Some(waiter) = self.waiters.get_mut(arrival)
                && matches!(waiter.stage, WaiterStage::Asked)
            {
                waiter.stage = WaiterStage::Queued;
            }
        }
    }

    /// Returns the moment of an admitted call, or the time at which a rejected call can be admitted.
    pub(super) fn moment_of(&self, outcomes: &[Outcome], now: Now) -> u64 {
        // A virtual clock may have moved since the decision, so the time of the decision counts. The other stores have
        // clocks of their own, so the time of the reply counts.
        let of = |outcome: &Outcome| {
            let from = if self.settings.is_virtual { outcome.clock } else { now.local };
            from.saturating_add(outcome.retry_us)
        };
        outcomes.iter().map(of).max().unwrap_or(now.local)
    }

    /// Returns how much later the moments of `source` are used. While Redis is down, the process reserves moments from
    /// now on, but the calls before them still wait for moments of Redis. Without a delay, all moments up to then would
    /// be used at once.
    fn delay_of(&mut self, source: Source, moment: u64, now: Now) -> u64 {
        let last = self.granted.last().filter(|(at, _)| self.bucket.is_some() && *at > now.local);
        let Some((last, arrival)) = last.copied() else {
            self.delay = None;
            return 0;
        };
        if let Some((delayed, delay)) = self.delay
            && delayed == source
        {
            return delay;
        }
        let is_other = self.waiters.get(&arrival).is_some_and(|waiter| match &waiter.stage {
            WaiterStage::Granted(grant) => grant.source != source,
            _ => false,
        });
        if !is_other {
            return 0;
        }
        let delay = last.saturating_sub(moment);
        self.delay = Some((source, delay));
        delay
    }

    /// Returns the time of the next request after the store has rejected the first queued call until `at`.
    pub(super) fn next_after(&self, at: u64, now: Now) -> u64 {
        let Some(bucket) = &self.bucket else { return at };
        // Half of the reservations that a process may hold: the line asks before it has none.
        let (half, mut ahead) = (most_reserved(bucket) / 2, 0_u64);
        for (moment, arrival) in self.granted.range((now.local + 1, 0)..).rev() {
            ahead = ahead.saturating_add(self.waiters.get(arrival).map_or(0, Waiter::first_cost));
            if ahead > half {
                return at.min(*moment);
            }
        }
        at
    }
}

fn is_closed(outcome: &Outcome) -> bool {
    matches!(outcome.verdict, Verdict::Closed { .. })
}

/// Returns the most tokens that a process reserves in a bucket: the refill of a second.
fn most_reserved(bucket: &BucketCharge) -> u64 {
    let rate = bucket.charge().terms.rate();
    let tokens = RESERVED_AHEAD * u128::from(rate.drain) / u128::from(rate.token);
    u64::try_from(tokens).unwrap_or(u64::MAX)
}
