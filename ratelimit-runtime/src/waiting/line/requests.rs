//! The requests of a line: which calls it asks for, and when. It rejects calls that cannot be admitted in time as soon
//! as that is known.

use std::sync::Arc;
use std::time::Duration;

use super::waiters::Stage;
use super::{Estimate, Grant, Line, Now, WakeTimes};
use crate::algorithm::{Op, Outcome, Verdict};
use crate::limit::OnError;
use crate::reply::{Source, StoreError};
use crate::store::{Calls, Charge, EqualCalls, Reply};

/// The shortest time between two requests of a line that waits for Redis.
pub(super) const PAUSE: Duration = Duration::from_millis(5);

/// The longest time between two requests of a line that waits for Redis, in microseconds. Another process can give
/// units back.
pub(super) const LOOK_AGAIN: u64 = 1_000_000;

/// The most runs and the most calls of a request.
const MAX_RUNS: usize = 64;
const MAX_CALLS: usize = 1024;

/// How far ahead a line reserves moments, in microseconds. Without moments, it reserves one for its first call at any
/// distance: otherwise, smaller calls of other processes could keep it out for ever.
const RESERVED_AHEAD: u64 = 1_000_000;

/// A request of a line.
#[derive(Debug)]
pub(in crate::waiting) struct Asked {
    pub(in crate::waiting) request: Calls,
    calls: Vec<u64>,
    /// The grant that the first call gives up for an earlier moment.
    replaced: Option<Grant>,
}

impl Line {
    /// Applies the reply to a request. Calls that it admits hold grants, and calls that cannot be admitted in time are
    /// rejected.
    pub(in crate::waiting) fn replied(&mut self, asked: Asked, reply: Reply, now: Now) {
        let Asked { request, calls, replaced } = asked;
        self.is_asking = false;
        let Reply { outcomes, receipts, source, .. } = reply;
        self.apply_changed_counts(&outcomes);
        if outcomes.is_empty() {
            // Another process has reserved a later moment, so the first call keeps its own.
            self.pauses = true;
            return self.restore(&calls, replaced);
        }
        if outcomes.iter().any(Outcome::is_blocked) {
            // The moment was not given up.
            self.spares.extend(replaced);
        }
        let mut receipts = receipts.chunks(self.spec.counts.len());
        let (mut granted, mut rejected) = (0, None);
        let asked = self.last_request.map_or(now.local, |last| last.local);
        let delay = now.local.saturating_sub(asked).min(self.spec.validity_us());
        // Replies take different times. The moments of a bucket stay in their order all the same.
        let mut last = self.waiters.granted.last().map_or(0, |(at, _)| *at).max(now.local);
        for (arrival, outcomes) in calls.iter().zip(outcomes.chunks(self.spec.counts.len())) {
            let Some(costs) = request.costs_of(granted) else { break };
            if !outcomes.iter().all(Outcome::is_allowed) {
                rejected = Some((*arrival, outcomes));
                break;
            }
            granted += 1;
            let moment = self.moment_of(outcomes, now);
            let shift = self.shift_of(source, moment, now);
            let at = moment.saturating_add(shift).max(last);
            last = if self.spec.is_bucket() { at } else { last };
            let ahead = Duration::from_micros(at.saturating_sub(now.local));
            let due = if self.spec.is_virtual { None } else { now.real.checked_add(ahead) };
            let receipts = receipts.next().unwrap_or(&[]).to_vec().into();
            let reply = Reply { receipts, ..Reply::new(outcomes.to_vec().into(), source) };
            let grant = Grant { costs: costs.clone(), reply, at, due, shift };
            self.assign(*arrival, grant, delay, now);
        }
        let is_ahead = self.last_moment(now).is_some();
        self.pauses = granted == 0 || is_ahead || rejected.is_some();
        self.estimate = None;
        if granted > 0 || !rejected.is_some_and(|(_, outcomes)| self.is_busy(outcomes)) {
            self.busy_since = None;
        }
        if let Some((arrival, outcomes)) = rejected {
            if outcomes.iter().any(Outcome::is_blocked) {
                self.withdraw(now);
            }
            let at = self.moment_of(outcomes, now);
            if self.waiters.first() == Some(arrival) {
                let is_busy = self.is_busy(outcomes);
                // The end of a call in flight wakes the line.
                let next = if is_busy { self.next_look(now.local) } else { at };
                self.estimate = self.waiters.costs_of(arrival).map(|costs| Estimate {
                    of: arrival,
                    at,
                    next: self.next_after(next, now),
                    costs: costs.clone(),
                    reply: Reply::new(outcomes.to_vec().into(), source),
                    received: now.local,
                    is_busy,
                });
                self.scan(now);
            }
        }
    }

    /// Applies `on_error` to the calls of a line whose store failed. Returns a request for the embedded store if it
    /// decides some of them.
    pub(in crate::waiting) fn failed(
        &mut self,
        asked: &mut Asked,
        error: &StoreError,
        now: Now,
    ) -> Option<Asked> {
        self.is_asking = false;
        self.apply_changed_counts(&[]);
        // If the request may have been executed, the first call may have another moment.
        let replaced = asked.replaced.take();
        if matches!(error, StoreError::CircuitOpen { .. } | StoreError::Overloaded { .. }) {
            self.restore(&asked.calls, replaced);
        }
        self.pauses = true;
        // The others then fall back by themselves.
        self.end_all(error, |it| it.is_queued() && it.on_error != OnError::Local);
        let is_left = !self.waiters.queued.is_empty();
        if is_left { self.ask_for(None, now) } else { None }
    }

    /// Gives its grant back to the first call of a request, because the store has not replaced it.
    fn restore(&mut self, calls: &[u64], replaced: Option<Grant>) {
        let (Some(grant), Some(first)) = (replaced, calls.first()) else { return };
        if self.waiters.queued.contains(first) {
            self.grant(*first, grant);
        } else {
            self.spares.push(grant);
        }
    }

    /// Returns the call that reserves its moment again, because units were given back, or another process may have
    /// given units back or blocked the key: the last one with a moment, if that was more than a second ahead when the
    /// line last asked.
    pub(super) fn replaced(&self, now: Now) -> Option<u64> {
        let is_due = self.has_changed || self.looks_again().is_some_and(|at| now.local >= at);
        self.far_call(now).filter(|_| is_due)
    }

    /// Returns the call whose moment is farther ahead than a line reserves others, if this process does not decide it.
    fn far_call(&self, now: Now) -> Option<u64> {
        let near = self.last_request?.local.saturating_add(RESERVED_AHEAD);
        let (arrival, grant) = self.last_ahead(now).filter(|(_, grant)| grant.at > near)?;
        (grant.reply.source != Source::Fallback).then_some(arrival)
    }

    /// Returns the time of the next request; `None` if the line needs none.
    pub(super) fn request_time(&self, now: Now) -> Option<WakeTimes> {
        if self.spec.is_blocked {
            return None;
        }
        let replaces = self.replaced(now).is_some();
        let again = self.looks_again();
        if self.waiters.queued.is_empty() && !replaces {
            // Another process may have given units back.
            let at = again.filter(|_| self.far_call(now).is_some());
            return at.map(|at| WakeTimes { local: Some(at), real: None });
        }
        let pauses = self.last_request.filter(|_| self.spec.is_shared && self.pauses);
        let earliest = pauses.map_or(now.real, |last| last.real + PAUSE);
        match self.estimate() {
            Some(estimate) if !replaces && !self.has_changed && now.local < estimate.next => {
                let next = again.into_iter().fold(estimate.next, u64::min);
                Some(WakeTimes { local: Some(next), real: None })
            }
            _ => Some(WakeTimes { local: None, real: Some(earliest) }),
        }
    }

    /// Returns when the line asks at the latest, by the clock of the limiter.
    fn looks_again(&self) -> Option<u64> {
        let last = self.last_request.filter(|_| self.spec.is_shared)?;
        Some(last.local.saturating_add(LOOK_AGAIN))
    }

    /// Creates a request for the first queued calls. `replaced` is the call that gives its moment up for an earlier
    /// one.
    pub(super) fn ask_for(&mut self, replaced: Option<u64>, now: Now) -> Option<Asked> {
        self.put_pinged_to_sleep(now);
        let given_up = replaced.and_then(|arrival| self.waiters.set(arrival, Stage::Queued));
        let queued = self.waiters.queued.iter().copied();
        let behind = queued.filter(|arrival| Some(*arrival) != replaced);
        let calls: Vec<u64> = replaced.into_iter().chain(behind).take(MAX_CALLS).collect();
        let has_moments = replaced.is_none() && self.last_moment(now).is_some();
        let (runs, calls) = self.runs(calls, has_moments, now);
        if runs.is_empty() {
            self.has_changed = false;
            return None;
        }
        (self.is_asking, self.has_changed) = (true, false);
        self.last_request = Some(now);
        let request = Calls {
            op: Op::ACQUIRE,
            charges: self.spec.counts.clone(),
            runs: runs.into(),
            replaces: given_up.as_ref().and_then(Grant::reservation),
            is_mixed: false,
            waited_us: self.waited(now.local),
        };
        Some(Asked { request, calls, replaced: given_up })
    }

    /// Groups calls of windows by equal costs. Returns the runs, and the calls that are in them. `has_moments` says
    /// whether the first call is behind calls with moments.
    fn runs(&self, calls: Vec<u64>, has_moments: bool, now: Now) -> (Vec<EqualCalls>, Vec<u64>) {
        let (mut runs, mut included): (Vec<EqualCalls>, _) = (Vec::new(), Vec::new());
        let is_bucket = self.spec.is_bucket();
        for arrival in calls {
            let Some(waiter) = self.waiters.get(arrival) else { continue };
            let longest = if runs.is_empty() && !has_moments { 1 << 52 } else { RESERVED_AHEAD };
            let ahead = waiter.deadline.saturating_sub(now.local).min(longest);
            let is_full = runs.len() == MAX_RUNS;
            match runs.last_mut().filter(|run| !is_bucket && run.costs == waiter.costs) {
                Some(run) => run.count += 1,
                None if is_full => break,
                None => {
                    let wait = if is_bucket { ahead } else { 0 };
                    runs.push(EqualCalls { costs: waiter.costs.clone(), count: 1, wait });
                }
            }
            included.push(arrival);
        }
        (runs, included)
    }

    /// Returns whether calls in flight hold units that a rejected call needs.
    fn is_busy(&self, outcomes: &[Outcome]) -> bool {
        let is_busy = |(charge, outcome): (&Arc<Charge>, &Outcome)| {
            charge.terms.is_in_flight() && outcome.verdict == Verdict::Rejected
        };
        self.spec.counts.iter().zip(outcomes).any(is_busy)
    }

    /// Returns the moment of an admitted call, or the time at which a rejected call can be admitted.
    fn moment_of(&self, outcomes: &[Outcome], now: Now) -> u64 {
        // A virtual clock may have moved since the decision, so the time of the decision counts. The other stores have
        // clocks of their own, so the time of the reply counts.
        let of = |outcome: &Outcome| {
            let from = if self.spec.is_virtual { outcome.clock } else { now.local };
            from.saturating_add(outcome.retry_us)
        };
        outcomes.iter().map(of).max().unwrap_or(now.local)
    }

    /// Returns how much later the moments of `source` are used. While Redis is down, the process reserves moments from
    /// now on, but the calls before them still wait for moments of Redis. Without a shift, all moments up to then would
    /// be used at once.
    fn shift_of(&self, source: Source, moment: u64, now: Now) -> u64 {
        let Some((_, last)) = self.last_ahead(now) else { return 0 };
        if last.reply.source == source {
            return last.shift;
        }
        // At one moment, a call that came earlier can have the later grant.
        let latest = self.waiters.granted.range((last.at, 0)..);
        let latest = latest.filter_map(|(_, arrival)| self.waiters.get(*arrival)?.grant());
        let own = latest.filter(|grant| grant.reply.source == source).map(|grant| grant.shift);
        own.max().unwrap_or(0).max(last.at.saturating_sub(moment))
    }

    /// Returns the time of the next request after the store has rejected the first queued call until `at`.
    fn next_after(&self, at: u64, now: Now) -> u64 {
        // The line asks before it has no moments, and when it can reserve one at any distance.
        let last = self.last_moment(now);
        let soon = at.saturating_sub(RESERVED_AHEAD / 2).max(now.local + 1);
        last.map_or(at, |last| soon.min(last))
    }
}

impl Line {
    /// Returns the `retry_after` of a call that can be admitted at `earliest`, in microseconds.
    pub(super) fn retry_until(&self, earliest: u64, now: Now) -> u64 {
        let shortest = if self.spec.is_shared { PAUSE } else { Duration::from_millis(1) };
        earliest.saturating_sub(now.local).max(shortest.as_micros() as u64)
    }

    pub(super) fn reject(&mut self, arrival: u64, earliest: u64, now: Now) {
        let retry = self.retry_until(earliest, now);
        if let Some(estimate) = self.estimate() {
            let reply = estimate.rejection(retry, now.local);
            self.end(arrival, Ok(reply));
        }
    }

    /// Rejects the queued calls that cannot be admitted in time.
    fn scan(&mut self, now: Now) {
        let is_long = self.waiters.queued.len() > MAX_CALLS;
        if is_long && self.last_scan.is_some_and(|last| now.real < last + 20 * PAUSE) {
            return;
        }
        self.last_scan = Some(now.real);
        let Some(estimate) = self.estimate() else { return };
        let mut units = vec![0; self.spec.counts.len()];
        let (mut late, mut is_first_late) = (Vec::new(), false);
        for arrival in &self.waiters.queued {
            let Some(waiter) = self.waiters.get(*arrival) else { continue };
            // Once the first call is rejected, a call with a lower cost may be admitted earlier than the first call.
            let mut costs = estimate.costs.iter().zip(&*waiter.costs);
            if is_first_late && costs.any(|(first, cost)| cost < first) {
                break;
            }
            add_units(&mut units, &waiter.costs);
            let earliest = estimate.earliest(&self.spec.counts, &units);
            if earliest > waiter.deadline {
                is_first_late |= *arrival == estimate.of;
                let retry = self.retry_until(earliest, now);
                late.push((*arrival, estimate.rejection(retry, now.local)));
                for (sum, cost) in units.iter_mut().zip(&*waiter.costs) {
                    *sum -= u128::from(*cost);
                }
            }
        }
        for (arrival, rejection) in late {
            self.end(arrival, Ok(rejection));
        }
    }

    /// Returns the earliest time at which a queued call can be admitted, from the calls of the first request.
    pub(super) fn earliest_of(&self, arrival: u64) -> u64 {
        let Some(estimate) = self.estimate() else { return 0 };
        let mut units = vec![0; self.spec.counts.len()];
        let before = self.waiters.queued.range(..=arrival).take(MAX_CALLS);
        for costs in before.filter_map(|other| self.waiters.costs_of(*other)) {
            add_units(&mut units, costs);
        }
        estimate.earliest(&self.spec.counts, &units)
    }
}

fn add_units(sums: &mut [u128], costs: &[u64]) {
    for (sum, cost) in sums.iter_mut().zip(costs) {
        *sum += u128::from(*cost);
    }
}
