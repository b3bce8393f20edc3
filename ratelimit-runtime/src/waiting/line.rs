//! A line: the calls of this process that wait for the same counts, in the order of their arrival.
//!
//! A line is a state machine: it reads no clock, sends no request and wakes no task. Its driver does: a task of the
//! background thread for a line of Redis (`driver.rs`), and the waiting calls themselves for a line of the embedded
//! store (`call.rs`).
//!
//! A request decides the longest prefix of the line that the store admits. The store charges a call before the call
//! takes its turn: the call holds a [`Grant`]. A bucket also grants moments ahead. A call that leaves the line passes
//! its grant to the next call. If no call can use it, it goes back to the store.

use std::collections::{BTreeSet, HashMap};
use std::mem;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use super::estimate::Estimate;
use super::grant::{Grant, Returned};
use crate::algorithm::Outcome;
use crate::key::KeyId;
use crate::limit::OnError;
use crate::reply::{Source, StoreError};
use crate::store::{
    BucketCharge, CancelledUnits, Charge, EqualCalls, LineCounts, LineRequest, OneOrMany, Reply,
    Reservations,
};

/// The shortest time between two requests of a line that waits for Redis.
pub(super) const PAUSE: Duration = Duration::from_millis(5);

/// The longest time between two requests of a line that waits for Redis, because another process can give units back.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The most runs and the most calls of a request.
const MAX_RUNS: usize = 64;
const MAX_CALLS: usize = 1024;

/// The time in which tokens refill that a process may reserve, in microseconds.
const RESERVED_AHEAD: u128 = 1_000_000;

/// Calls with a longer wait share runs, which have the shortest of their waits. A call that such a run does not reserve
/// is first in a later request, in a run of its own.
const SHARED_WAIT: u64 = 50_000;

/// The number of calls of a long line, which an event reports.
const LONG_LINE: usize = 1_000;

/// The most calls that a line wakes to learn whether they are polled.
const MAX_PINGED: usize = 1024;

/// The time, by both clocks that a line uses.
#[derive(Clone, Copy)]
pub(super) struct Now {
    /// By the clock of the limiter: of moments, waits and `retry_after`.
    pub(super) local: u64,
    /// Real time: of grants that are not taken, and of the pauses between requests.
    pub(super) real: Instant,
}

pub(super) struct Line {
    /// The counts. Their costs have no meaning.
    counts: OneOrMany<Arc<Charge>>,
    bucket: Option<BucketCharge>,
    settings: LineSettings,
    waiters: HashMap<u64, Waiter>,
    /// The calls without a grant that are polled, by arrival.
    queued: BTreeSet<u64>,
    /// The units that the queued calls take from each count.
    queued_units: Vec<u64>,
    /// The moments of the calls with a grant, and the arrivals of these calls.
    granted: BTreeSet<(u64, u64)>,
    arrivals: u64,
    /// Grants that no call uses.
    spares: Vec<Grant>,
    /// When the first queued call can be admitted; `None` if the line has not asked since it changed.
    estimate: Option<Estimate>,
    /// The time of the next request, by the clock of the limiter.
    next_request: u64,
    last_request: Option<Instant>,
    /// Whether the next request must not follow the last one at once.
    pauses: bool,
    last_scan: Option<Instant>,
    is_asking: bool,
    /// The number of give-backs in flight.
    returning: usize,
    /// Whether units were given back since the last request was sent.
    has_changed: bool,
    closed: Option<StoreError>,
    wakers: Vec<Waker>,
    /// The number of calls from which the line is reported as long.
    long: usize,
}

#[derive(Clone, Copy)]
pub(super) struct LineSettings {
    pub(super) is_shared: bool,
    /// Whether the clock of the limiter moves only when the program moves it. Real time then says nothing about a
    /// moment.
    pub(super) is_virtual: bool,
    /// How long a grant is valid once its moment has come.
    pub(super) validity: Duration,
}

struct Waiter {
    costs: OneOrMany<u32>,
    /// The end of the wait, by the clock of the limiter.
    deadline: u64,
    on_error: OnError,
    waker: Waker,
    /// The time of a wake-up after which the call was not polled yet.
    pinged: Option<Instant>,
    stage: WaiterStage,
}

enum WaiterStage {
    Queued,
    /// In the request that is in flight.
    Asked,
    Granted(Grant),
    /// Not polled when its turn came. The call queues again when it is polled.
    Asleep,
    Ended(Result<Reply, StoreError>),
}

/// What the driver of a line does next.
pub(super) enum Duty {
    Request(Asked),
    Return(Returned),
    /// Sleeps until one of these times, or until the line changes.
    Sleep(WakeTimes),
    /// No call waits.
    Rest,
}

#[derive(Clone, Copy, Default)]
pub(super) struct WakeTimes {
    pub(super) local: Option<u64>,
    pub(super) real: Option<Instant>,
}

/// A request of a line.
pub(super) struct Asked {
    pub(super) request: LineRequest,
    calls: Vec<u64>,
    /// The grants of waiting calls that the request cancels.
    cancelled: Vec<(u64, Grant)>,
}

/// The reservations that a request cancels.
#[derive(Default)]
struct Cancellation {
    units: Option<CancelledUnits>,
    /// The calls that held some of them. They queue again.
    calls: Vec<(u64, Grant)>,
}

impl Line {
    pub(super) fn new(counts: OneOrMany<Arc<Charge>>, settings: LineSettings) -> Self {
        let bucket = match &counts {
            OneOrMany::One(charge) => BucketCharge::new(Arc::clone(charge)),
            OneOrMany::Many(_) => None,
        };
        Self {
            queued_units: vec![0; counts.len()],
            counts,
            bucket,
            settings,
            waiters: HashMap::new(),
            queued: BTreeSet::new(),
            granted: BTreeSet::new(),
            arrivals: 0,
            spares: Vec::new(),
            estimate: None,
            next_request: 0,
            last_request: None,
            pauses: false,
            last_scan: None,
            is_asking: false,
            returning: 0,
            has_changed: false,
            closed: None,
            wakers: Vec::new(),
            long: LONG_LINE,
        }
    }

    /// Returns whether calls with these charges wait in this line: counts and amounts agree.
    pub(super) fn is_of(&self, charges: &[Arc<Charge>], is_shared: bool) -> bool {
        let same =
            |(a, b): (&Arc<Charge>, &Arc<Charge>)| a.key_id == b.key_id && a.terms == b.terms;
        self.settings.is_shared == is_shared
            && self.counts.len() == charges.len()
            && self.counts.iter().zip(charges).all(same)
    }

    pub(super) fn counts(&self) -> &[Arc<Charge>] {
        &self.counts
    }

    pub(super) fn is_shared(&self) -> bool {
        self.settings.is_shared
    }

    /// Returns whether the line holds nothing: no call, no grant.
    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty() && !self.holds_units()
    }

    /// Returns whether a driver has something to do, now or later.
    pub(super) fn has_work(&self) -> bool {
        !(self.queued.is_empty() && self.granted.is_empty() && self.spares.is_empty())
    }

    pub(super) fn validity(&self) -> Duration {
        self.settings.validity
    }

    /// Returns whether the driver has to be woken. While a request is in flight, the reply wakes it.
    pub(super) fn has_duty(&self, now: Now) -> bool {
        !self.is_asking && !self.is_settled(now)
    }

    /// Returns whether the line would do nothing before the clock of the limiter moves.
    pub(super) fn is_settled(&self, now: Now) -> bool {
        let is_later = |time: WakeTimes| {
            !time.has_come(now) && time.real.is_none_or(|at| at > now.real + 2 * PAUSE)
        };
        !self.is_asking
            && self.returning == 0
            && self.spares.is_empty()
            && self.request_time(now).is_none_or(is_later)
    }

    /// Returns the number of calls if the line has become long, or twice as long as before.
    pub(super) fn outgrown(&mut self) -> Option<usize> {
        let calls = self.waiters.len();
        let is_long = calls >= self.long;
        if is_long {
            self.long *= 2;
        }
        is_long.then_some(calls)
    }

    /// Returns whether no call is in the line.
    pub(super) fn is_deserted(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Returns whether units are charged for calls of the line, or may be.
    pub(super) fn holds_units(&self) -> bool {
        !(self.granted.is_empty() && self.spares.is_empty()) || self.is_asking || self.returning > 0
    }

    /// Adds a call, and returns the number that identifies it.
    pub(super) fn enter(
        &mut self,
        costs: OneOrMany<u32>,
        deadline: u64,
        on_error: OnError,
        now: Now,
    ) -> u64 {
        self.arrivals += 1;
        let arrival = self.arrivals;
        let stage = match &self.closed {
            Some(error) => WaiterStage::Ended(Err(error.clone())),
            None => WaiterStage::Queued,
        };
        let waker = Waker::noop().clone();
        let waiter = Waiter { costs, deadline, on_error, waker, pinged: None, stage };
        self.waiters.insert(arrival, waiter);
        if self.closed.is_none() {
            self.queue(arrival);
            if let Some(earliest) = self.earliest_of_last()
                && earliest > deadline
            {
                self.reject(arrival, earliest, now);
            }
        }
        arrival
    }

    /// Polls a call. If it is pending, returns the times at which it polls again.
    pub(super) fn poll(
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
            WaiterStage::Asked | WaiterStage::Queued if is_late && self.settings.is_shared => {
                // The store has not replied in time. A grant that comes later goes to another call.
                self.dequeue(arrival);
                self.remove(arrival);
                return Poll::Ready(Err(StoreError::Timeout { deadline: self.settings.validity }));
            }
            WaiterStage::Granted(_) | WaiterStage::Asked => return Poll::Pending,
            WaiterStage::Asleep => self.queue(arrival),
            WaiterStage::Queued => {}
            WaiterStage::Ended(_) => return self.take_result(arrival),
        }
        let deadline = self.waiters.get(&arrival).map_or(0, |waiter| waiter.deadline);
        if now.local >= deadline && self.estimate.is_some() {
            let earliest = self.earliest_of(arrival);
            // If the call may be admitted now, the next reply decides.
            if earliest > now.local {
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
        Poll::Pending
    }

    /// Returns the time at which a pending call polls again, by the clock of the limiter.
    pub(super) fn wake_time(&self, arrival: u64, now: Now) -> Option<u64> {
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
    pub(super) fn rank(&self, arrival: u64, limit: usize) -> usize {
        let queued = self.queued.range(..arrival).take(limit).count();
        if self.queued.contains(&arrival) {
            return queued;
        }
        // The queued calls drive the line before those that have a moment.
        let queued = self.queued.iter().take(limit).count();
        queued + self.granted.iter().take_while(|(_, other)| *other != arrival).take(limit).count()
    }

    /// Removes a call that was dropped.
    pub(super) fn leave(&mut self, arrival: u64) {
        let is_first = self.queued.first() == Some(&arrival);
        self.dequeue(arrival);
        let Some(waiter) = self.remove(arrival) else { return };
        if let Some(grant) = waiter.into_grant() {
            self.granted.remove(&(grant.at, arrival));
            self.spares.push(grant);
            self.wake_first();
        } else if is_first {
            // The next call may have other costs.
            self.estimate = None;
            self.wake_first();
        }
    }

    /// Records that units were given back to a count of the line. `end` is the time of the full bucket since, with the
    /// store that has it.
    pub(super) fn observe_give_back(&mut self, end: Option<(Source, u64)>) {
        self.has_changed = true;
        self.estimate = None;
        if let Some((source, end)) = end.filter(|_| self.bucket.is_some()) {
            // The reservations now end earlier. The bucket would not cancel them by their old ends.
            let lower = |grant: &mut Grant| {
                if grant.source == source {
                    grant.end = grant.end.min(end);
                }
            };
            let last = self.granted.last().and_then(|(_, arrival)| self.waiters.get_mut(arrival));
            if let Some(WaiterStage::Granted(grant)) = last.map(|waiter| &mut waiter.stage) {
                lower(grant);
            }
            self.spares.iter_mut().for_each(lower);
        }
        self.wake_first();
    }

    /// Records that a count of the line was reset. Calls that hold moments ahead queue again. A call whose moment has
    /// come keeps its grant, but its units do not go back to the count.
    pub(super) fn observe_reset(&mut self, key_id: KeyId, now: Now) {
        self.has_changed = true;
        self.estimate = None;
        let reset = self.counts.iter().position(|charge| charge.key_id == key_id);
        let held = self.waiters.values_mut().filter_map(|waiter| match &mut waiter.stage {
            WaiterStage::Granted(grant) => Some(grant),
            _ => None,
        });
        for grant in held.chain(&mut self.spares) {
            grant.reset.extend(reset);
        }
        if self.bucket.is_some() {
            self.spares.clear();
        }
        let ahead: Vec<_> = self.granted.range((now.local + 1, 0)..).copied().collect();
        for (at, arrival) in ahead {
            self.granted.remove(&(at, arrival));
            self.queue(arrival);
        }
        self.wake_first();
    }

    /// Ends all calls with `error`, also those that enter later. Their grants go back to the store.
    pub(super) fn close(&mut self, error: &StoreError) {
        self.closed = Some(error.clone());
        for arrival in self.waiters.keys().copied().collect::<Vec<_>>() {
            let has_ended = |waiter: &Waiter| matches!(waiter.stage, WaiterStage::Ended(_));
            if !self.waiters.get(&arrival).is_some_and(has_ended) {
                self.end(arrival, Err(error.clone()));
            }
        }
    }

    /// Returns what the driver does next.
    pub(super) fn duty(&mut self, now: Now) -> Duty {
        let mut wake = self.expire(now);
        self.pass_on(now);
        if self.is_asking {
            return Duty::Sleep(wake);
        }
        if let Some(returned) = self.take_return(now) {
            self.returning += 1;
            return Duty::Return(returned);
        }
        match self.request_time(now) {
            Some(time) if time.has_come(now) => {
                if let Some(asked) = self.ask(now) {
                    return Duty::Request(asked);
                }
            }
            Some(time) => wake = wake.or_earlier(time),
            None => {}
        }
        if !self.has_work() {
            return Duty::Rest;
        }
        Duty::Sleep(wake)
    }

    /// Applies the reply to a request. Calls that it admits hold grants, and calls that cannot be admitted in time are
    /// rejected.
    pub(super) fn replied(&mut self, asked: Asked, reply: Reply, now: Now) {
        let Asked { request, calls, cancelled, .. } = asked;
        self.end_request(&calls);
        let Reply { outcomes, source } = reply;
        let mut outcomes = &outcomes[..];
        if request.cancels() {
            let Some((cancellation, rest)) = outcomes.split_first() else { return };
            outcomes = rest;
            if !cancellation.allowed {
                // Another process has reserved a later moment: the reservations stay.
                return self.restore(cancelled);
            }
        }
        let (mut granted, mut rejected) = (0, None);
        // Replies take different times. The moments of a bucket stay in their order all the same.
        let mut last = self.granted.last().map_or(0, |(at, _)| *at).max(now.local);
        for (arrival, outcomes) in calls.iter().zip(outcomes.chunks(self.counts.len())) {
            let Some(costs) = request.costs_of(granted) else { break };
            if !outcomes.iter().all(|outcome| outcome.allowed) {
                rejected = Some((*arrival, outcomes));
                break;
            }
            granted += 1;
            let at = self.moment_of(outcomes, now).max(last);
            last = if self.bucket.is_some() { at } else { last };
            let due = self.due_of(at, now);
            let grant = Grant::new(costs.clone(), outcomes, source, at, due);
            self.assign(*arrival, grant, now);
        }
        self.pauses = granted == 0 || self.granted.last().is_some_and(|(at, _)| *at > now.local);
        self.estimate = None;
        if let Some((arrival, outcomes)) = rejected {
            self.pauses = true;
            if self.queued.first() == Some(&arrival) {
                let at = self.moment_of(outcomes, now);
                let costs = self.waiters.get(&arrival).map(|waiter| waiter.costs.clone());
                self.estimate =
                    costs.map(|costs| Estimate::new(at, costs, outcomes, source, now.local));
                self.next_request = self.next_after(at, now);
                self.scan(now);
            }
        }
        self.wake_first();
    }

    /// Applies `on_error` to the calls of a line whose store failed. Returns a request for the embedded store if it
    /// decides some of them.
    pub(super) fn failed(
        &mut self,
        asked: &mut Asked,
        error: &StoreError,
        now: Now,
    ) -> Option<Asked> {
        self.end_request(&asked.calls);
        // If the request may have been executed, the cancelled reservations may not exist any more.
        let cancelled = mem::take(&mut asked.cancelled);
        if matches!(error, StoreError::CircuitOpen { .. } | StoreError::Overloaded { .. }) {
            self.restore(cancelled);
        }
        self.pauses = true;
        for arrival in self.queued.iter().copied().collect::<Vec<_>>() {
            let Some(waiter) = self.waiters.get(&arrival) else { continue };
            match waiter.on_error {
                OnError::Local => {}
                OnError::Deny => self.end(arrival, Err(error.clone())),
                OnError::Allow => {
                    let outcomes = vec![Outcome::UNDECIDED; self.counts.len()].into();
                    self.end(arrival, Ok(Reply { outcomes, source: Source::Fallback }));
                }
            }
        }
        let is_left = !self.queued.is_empty();
        if is_left { self.ask_for(Cancellation::default(), now) } else { None }
    }

    /// Ends all calls with an error, because nothing drives the line.
    pub(super) fn abandon(&mut self, error: &StoreError) {
        self.is_asking = false;
        self.spares.clear();
        for arrival in self.waiters.keys().copied().collect::<Vec<_>>() {
            let stage = self.waiters.get(&arrival).map(|waiter| &waiter.stage);
            if !matches!(stage, Some(WaiterStage::Granted(_) | WaiterStage::Ended(_))) {
                self.end(arrival, Err(error.clone()));
            }
        }
    }

    /// Takes the wakers of the calls that have changed. The driver wakes them once the line is unlocked.
    pub(super) fn take_wakers(&mut self) -> Vec<Waker> {
        mem::take(&mut self.wakers)
    }

    fn queue(&mut self, arrival: u64) {
        let Some(waiter) = self.waiters.get_mut(&arrival) else { return };
        waiter.stage = WaiterStage::Queued;
        let is_first = self.queued.first().is_none_or(|first| *first > arrival);
        if self.queued.insert(arrival) {
            add_units(&mut self.queued_units, &waiter.costs);
        }
        if is_first {
            self.estimate = None;
        }
    }

    fn dequeue(&mut self, arrival: u64) {
        if self.queued.remove(&arrival)
            && let Some(waiter) = self.waiters.get(&arrival)
        {
            for (sum, cost) in self.queued_units.iter_mut().zip(&*waiter.costs) {
                *sum -= u64::from(*cost);
            }
        }
    }

    fn remove(&mut self, arrival: u64) -> Option<Waiter> {
        self.waiters.remove(&arrival)
    }

    fn take_result(&mut self, arrival: u64) -> Poll<Result<Reply, StoreError>> {
        match self.remove(arrival) {
            Some(Waiter { stage: WaiterStage::Ended(result), .. }) => Poll::Ready(result),
            _ => Poll::Pending,
        }
    }

    /// Ends a call. Its grant, if it has one, becomes a spare.
    fn end(&mut self, arrival: u64, result: Result<Reply, StoreError>) {
        self.dequeue(arrival);
        let Some(waiter) = self.waiters.get_mut(&arrival) else { return };
        self.wakers.push(waiter.waker.clone());
        let stage = mem::replace(&mut waiter.stage, WaiterStage::Ended(result));
        if let WaiterStage::Granted(grant) = stage {
            self.granted.remove(&(grant.at, arrival));
            self.spares.push(grant);
        }
    }

    fn reject(&mut self, arrival: u64, earliest: u64, now: Now) {
        let shortest = if self.settings.is_shared { PAUSE } else { Duration::from_millis(1) };
        let retry = earliest.saturating_sub(now.local).max(shortest.as_micros() as u64);
        if let Some(estimate) = &self.estimate {
            let reply = estimate.rejection(retry, now.local);
            self.end(arrival, Ok(reply));
        }
    }

    /// Rejects the queued calls that cannot be admitted in time.
    fn scan(&mut self, now: Now) {
        let is_long = self.queued.len() > MAX_CALLS;
        if is_long && self.last_scan.is_some_and(|last| now.real < last + 20 * PAUSE) {
            return;
        }
        self.last_scan = Some(now.real);
        let Some(estimate) = &self.estimate else { return };
        let mut units = vec![0; self.counts.len()];
        let (mut late, first) = (Vec::new(), self.queued.first().copied());
        for arrival in &self.queued {
            let Some(waiter) = self.waiters.get(arrival) else { continue };
            // Once the first call is rejected, a call with a lower cost may be admitted earlier than the first call.
            if !late.is_empty() && !estimate.holds_for(&waiter.costs) {
                break;
            }
            add_units(&mut units, &waiter.costs);
            let earliest = estimate.earliest(&self.counts, &units);
            if earliest > waiter.deadline {
                late.push((*arrival, earliest));
                for (sum, cost) in units.iter_mut().zip(&*waiter.costs) {
                    *sum -= u64::from(*cost);
                }
            }
        }
        for (arrival, earliest) in late {
            self.reject(arrival, earliest, now);
        }
        if self.queued.first().copied() != first {
            self.estimate = None;
        }
    }

    /// Returns the earliest time at which the last queued call can be admitted.
    fn earliest_of_last(&self) -> Option<u64> {
        let estimate = self.estimate.as_ref()?;
        Some(estimate.earliest(&self.counts, &self.queued_units))
    }

    /// Returns the earliest time at which a queued call can be admitted, from the calls of the first request.
    fn earliest_of(&self, arrival: u64) -> u64 {
        let Some(estimate) = &self.estimate else { return 0 };
        let mut units = vec![0; self.counts.len()];
        for other in self.queued.range(..=arrival).take(MAX_CALLS) {
            if let Some(waiter) = self.waiters.get(other) {
                add_units(&mut units, &waiter.costs);
            }
        }
        estimate.earliest(&self.counts, &units)
    }

    /// Returns the moment of an admitted call, or the time at which a rejected call can be admitted.
    fn moment_of(&self, outcomes: &[Outcome], now: Now) -> u64 {
        // A virtual clock may have moved since the decision. Other clocks of stores differ from that of the line.
        let of = |outcome: &Outcome| {
            let from = if self.settings.is_virtual { outcome.clock } else { now.local };
            from.saturating_add(outcome.retry_us)
        };
        outcomes.iter().map(of).max().unwrap_or(now.local)
    }

    /// Returns the time of the next request after the store has rejected the first queued call until `at`.
    fn next_after(&self, at: u64, now: Now) -> u64 {
        let Some(bucket) = &self.bucket else { return at };
        // Half of the reservations that a process may hold: the line asks before it has none.
        let (half, mut ahead) = (most_reserved(bucket) / 2, 0_u32);
        for (moment, arrival) in self.granted.range((now.local + 1, 0)..).rev() {
            ahead = ahead.saturating_add(self.waiters.get(arrival).map_or(0, Waiter::first_cost));
            if ahead > half {
                return at.min(*moment);
            }
        }
        at
    }

    /// Gives a grant to the first queued call. If that call has other costs and came before the call for which the grant
    /// was requested, no call may use the grant: the first call must not be overtaken.
    fn assign(&mut self, arrival: u64, grant: Grant, now: Now) {
        let Some(first) = self.queued.first().copied() else { return self.spares.push(grant) };
        let costs_agree =
            self.waiters.get(&first).is_some_and(|waiter| waiter.costs == grant.costs);
        if self.can_use(first, &grant, now) {
            self.grant(first, grant);
        } else if (costs_agree || first == arrival) && self.queued.contains(&arrival) {
            // The first call cannot be admitted in time.
            self.grant(arrival, grant);
        } else {
            self.spares.push(grant);
        }
    }

    fn can_use(&self, arrival: u64, grant: &Grant, now: Now) -> bool {
        let waiter = self.waiters.get(&arrival);
        waiter.is_some_and(|waiter| {
            waiter.costs == grant.costs && (grant.at <= now.local || grant.at <= waiter.deadline)
        })
    }

    fn grant(&mut self, arrival: u64, grant: Grant) {
        self.dequeue(arrival);
        let Some(waiter) = self.waiters.get_mut(&arrival) else { return };
        self.granted.insert((grant.at, arrival));
        self.wakers.push(waiter.waker.clone());
        waiter.stage = WaiterStage::Granted(grant);
    }

    /// Passes grants that no call uses to the calls behind them. These move up in order, so the last grants are left for
    /// the queued calls. A call with other costs cannot move up without a request, and neither can the calls behind it.
    fn pass_on(&mut self, now: Now) {
        let (void, mut grants): (Vec<_>, Vec<_>) =
            mem::take(&mut self.spares).into_iter().partition(|grant| grant.is_void);
        self.spares = void;
        grants.sort_by_key(|grant| grant.at);
        while let Some(first) = grants.first() {
            let costs = first.costs.clone();
            let from = first.at.max(now.local.saturating_add(1));
            let has_costs = |(_, arrival): &&(u64, u64)| {
                self.waiters.get(arrival).is_some_and(|waiter| waiter.costs == costs)
            };
            let ahead = self.granted.range((from, 0)..);
            let moves: Vec<_> = ahead.clone().take_while(has_costs).copied().collect();
            let blocked = ahead.map(|(at, _)| *at).nth(moves.len());
            let (mut group, rest): (Vec<_>, Vec<_>) = grants.into_iter().partition(|grant| {
                grant.costs == costs && blocked.is_none_or(|blocked| grant.at <= blocked)
            });
            grants = rest;
            for (at, arrival) in &moves {
                self.granted.remove(&(*at, *arrival));
                let waiter = self.waiters.get_mut(arrival);
                let stage =
                    waiter.map(|waiter| mem::replace(&mut waiter.stage, WaiterStage::Asked));
                if let Some(WaiterStage::Granted(grant)) = stage {
                    group.push(grant);
                }
            }
            group.sort_by_key(|grant| grant.at);
            let mut group = group.into_iter();
            let mut arrivals: Vec<_> = moves.iter().map(|(_, arrival)| *arrival).collect();
            arrivals.sort_unstable();
            for (arrival, grant) in arrivals.into_iter().zip(&mut group) {
                self.grant(arrival, grant);
            }
            for grant in group {
                let first = self.queued.first().copied().filter(|_| blocked.is_none());
                match first.filter(|first| self.can_use(*first, &grant, now)) {
                    Some(first) => {
                        self.grant(first, grant);
                        self.estimate = None;
                    }
                    None => self.spares.push(grant),
                }
            }
        }
    }

    /// Takes grants from calls that do not take their turn. Returns when to look again.
    fn expire(&mut self, now: Now) -> WakeTimes {
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
                if let WaiterStage::Granted(mut grant) = stage {
                    (grant.is_void, grant.was_passed) = (is_void, true);
                    self.spares.push(grant);
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
        if let WaiterStage::Granted(mut grant) = stage {
            grant.is_void = true;
            self.spares.push(grant);
        }
    }

    /// Returns the real time of a moment.
    fn due_of(&self, at: u64, now: Now) -> Option<Instant> {
        let ahead = Duration::from_micros(at.saturating_sub(now.local));
        if self.settings.is_virtual { None } else { now.real.checked_add(ahead) }
    }

    /// Records that a give-back has ended.
    pub(super) fn returned(&mut self) {
        self.returning -= 1;
    }

    fn costs_agree(&self, one: u64, other: u64) -> bool {
        let costs = |arrival| self.waiters.get(&arrival).map(|waiter: &Waiter| &waiter.costs);
        costs(one) == costs(other)
    }

    /// Wakes the first queued calls: a call that is not polled then is not asked for.
    fn ping(&mut self, now: Now) {
        for arrival in self.queued.iter().take(MAX_PINGED) {
            let Some(waiter) = self.waiters.get_mut(arrival) else { continue };
            waiter.pinged.get_or_insert(now.real);
            self.wakers.push(waiter.waker.clone());
        }
    }

    /// Wakes the call that drives a line of the embedded store: the first queued call, or the first with a moment.
    fn wake_first(&mut self) {
        let ahead = self.granted.first().map(|(_, arrival)| arrival);
        let first = self.queued.first().or(ahead).and_then(|first| self.waiters.get(first));
        self.wakers.extend(first.map(|waiter| waiter.waker.clone()));
    }

    /// Takes spares whose moment has come, to give them back to the store.
    fn take_return(&mut self, now: Now) -> Option<Returned> {
        let (due, ahead) = mem::take(&mut self.spares).into_iter().partition(|grant| {
            // Tokens that were reserved drain from their moment on.
            grant.at <= now.local || self.bucket.is_none()
        });
        self.spares = ahead;
        Returned::new(&self.counts, due)
    }

    /// Returns the time of the next request; `None` if nothing is to be asked.
    fn request_time(&self, now: Now) -> Option<WakeTimes> {
        let cancels = !self.spares.is_empty() || self.rebooks(now);
        let again = self.last_request.filter(|_| self.settings.is_shared);
        let again = again.map(|last| last + LOOK_AGAIN);
        if self.queued.is_empty() && !cancels {
            // Another process may have given units back, so that reserved calls can be admitted earlier.
            let is_ahead = self.granted.last().is_some_and(|(at, _)| *at > now.local);
            return again.filter(|_| is_ahead).map(|at| WakeTimes { local: None, real: Some(at) });
        }
        let earliest = match self.last_request {
            Some(last) if self.settings.is_shared && self.pauses => last + PAUSE,
            _ => now.real,
        };
        if cancels || self.has_changed || self.estimate.is_none() || now.local >= self.next_request
        {
            return Some(WakeTimes { local: None, real: Some(earliest) });
        }
        Some(WakeTimes { local: Some(self.next_request), real: again })
    }

    /// Returns whether reservations are to be made again, because units were given back, or another process may have
    /// given units back.
    fn rebooks(&self, now: Now) -> bool {
        let last = self.last_request.filter(|_| self.settings.is_shared);
        let is_due = self.has_changed || last.is_some_and(|last| now.real >= last + LOOK_AGAIN);
        is_due
            && self.bucket.is_some()
            && self.granted.last().is_some_and(|(at, _)| *at > now.local)
    }

    /// Creates the next request: cancels spare reservations, and asks for the first queued calls.
    fn ask(&mut self, now: Now) -> Option<Asked> {
        let cancellation = self.cancel(now);
        self.ask_for(cancellation, now)
    }

    fn ask_for(&mut self, cancellation: Cancellation, now: Now) -> Option<Asked> {
        let Cancellation { units: cancelled_units, calls: cancelled } = cancellation;
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
            None => LineCounts::Each(self.counts.clone()),
            Some(bucket) => {
                let held = self.granted.range((now.local + 1, 0)..);
                let held = held.filter_map(|(_, arrival)| self.waiters.get(arrival));
                let held = held.fold(0_u32, |sum, waiter| sum.saturating_add(waiter.first_cost()));
                let reservations =
                    Reservations { cancelled: cancelled_units, held, most: most_reserved(bucket) };
                LineCounts::Bucket(bucket.clone(), reservations)
            }
        };
        (self.is_asking, self.has_changed) = (true, false);
        self.last_request = Some(now.real);
        Some(Asked { request: LineRequest { counts, calls: runs }, calls, cancelled })
    }

    /// Chooses the reservations to cancel: the spare ones and those after them, whose calls queue again. If units were
    /// given back, all of them. Reservations of a fallback are not cancelled: they pass unused.
    fn cancel(&mut self, now: Now) -> Cancellation {
        let mut spares = mem::take(&mut self.spares);
        spares.retain(|grant| grant.source != Source::Fallback);
        let first_spare = spares.iter().map(|grant| grant.at).min();
        let from = if self.rebooks(now) { Some(now.local + 1) } else { first_spare };
        let Some(from) = from else { return Cancellation::default() };
        let mut calls = Vec::new();
        for (at, arrival) in self.granted.range((from, 0)..).copied().collect::<Vec<_>>() {
            let Some(waiter) = self.waiters.get_mut(&arrival) else { continue };
            let WaiterStage::Granted(grant) = &waiter.stage else { continue };
            if grant.source == Source::Fallback {
                continue;
            }
            calls.push((arrival, grant.clone()));
            self.granted.remove(&(at, arrival));
            self.queue(arrival);
        }
        let all = calls.iter().map(|(_, grant)| grant).chain(&spares);
        let end = all.clone().map(|grant| grant.end).max();
        let units = all.filter_map(|grant| grant.costs.first()).copied();
        let units = units.fold(0_u32, u32::saturating_add);
        Cancellation { units: end.map(|end| CancelledUnits { units, end }), calls }
    }

    /// Puts the calls to sleep that were woken and not polled.
    fn put_pinged_to_sleep(&mut self, now: Now) {
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

    /// Groups calls by equal costs. Returns the runs, and the calls that are in them.
    fn runs(&self, calls: Vec<u64>, now: Now) -> (Vec<EqualCalls>, Vec<u64>) {
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

    fn end_request(&mut self, calls: &[u64]) {
        self.is_asking = false;
        for arrival in calls {
            if let Some(waiter) = self.waiters.get_mut(arrival)
                && matches!(waiter.stage, WaiterStage::Asked)
            {
                waiter.stage = WaiterStage::Queued;
            }
        }
    }

    /// Gives grants back to the calls that held them, because the store has not cancelled them.
    fn restore(&mut self, cancelled: Vec<(u64, Grant)>) {
        for (arrival, grant) in cancelled {
            if self.queued.contains(&arrival) {
                self.grant(arrival, grant);
            } else {
                self.spares.push(grant);
            }
        }
    }
}

impl Waiter {
    fn into_grant(self) -> Option<Grant> {
        match self.stage {
            WaiterStage::Granted(grant) => Some(grant),
            _ => None,
        }
    }

    fn first_cost(&self) -> u32 {
        self.costs.first().copied().unwrap_or(0)
    }
}

impl LineSettings {
    fn validity_us(&self) -> u64 {
        u64::try_from(self.validity.as_micros()).unwrap_or(u64::MAX)
    }
}

impl WakeTimes {
    fn has_come(self, now: Now) -> bool {
        self.local.is_some_and(|at| at <= now.local) || self.real.is_some_and(|at| at <= now.real)
    }

    fn or_earlier(self, other: Self) -> Self {
        let local = self.local.into_iter().chain(other.local).min();
        let real = self.real.into_iter().chain(other.real).min();
        Self { local, real }
    }
}

fn add_units(sums: &mut [u64], costs: &[u32]) {
    for (sum, cost) in sums.iter_mut().zip(costs) {
        *sum += u64::from(*cost);
    }
}

/// Returns the most tokens that a process reserves in a bucket: what refills in a second.
fn most_reserved(bucket: &BucketCharge) -> u32 {
    let rate = bucket.charge().terms.rate();
    let tokens = RESERVED_AHEAD * u128::from(rate.drain) / u128::from(rate.token);
    u32::try_from(tokens).unwrap_or(u32::MAX)
}
