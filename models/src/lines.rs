//! A line of calls that wait for a bucket or a window on a server, and every order in which calls arrive, are dropped
//! and are not polled, requests are executed and their replies are delivered and lost, units are given back, another
//! process takes units, and time passes.
//!
//! The line is the one of the runtime, and so is the store: the algorithms of the embedded store. The model retells the
//! driver (`waiting/driver.rs`). A state is built again from the steps that lead to it, and two states are the same if
//! all parts of the line and all that the store has executed agree.

use std::fmt::Write;
use std::hash::{Hash, Hasher};
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::task::{Poll, Wake, Waker};
use std::time::{Duration, Instant};

use stateright::{Model, Property};

use super::grant::Returned;
use super::{Asked, Destination, Duty, Line, LineSettings, Now, Ticket, Waiter, WaiterStage};
use crate::algorithm::Op;
use crate::clock::{Clock, VirtualClock};
use crate::key::{KeyId, OwnedKey};
use crate::limit::{Access, Limit, OnError};
use crate::reply::{Source, StoreError};
use crate::store::embedded::Embedded;
use crate::store::{Calls, Charge, DecideOp, Reply, Request};
use crate::waiting::OwnedPart;

/// The length of a step of time.
const TICK: Duration = Duration::from_millis(500);
const START: Duration = Duration::from_secs(1_000_000);
/// How long a grant is valid, and a request takes at most.
const VALIDITY: Duration = Duration::from_secs(1);

/// What a model does at most, and the fault that it has.
#[derive(Clone, Copy, Debug)]
pub struct Lines {
    /// A bucket of one token in a second, or a sliding window of one call in a second.
    pub is_bucket: bool,
    pub calls: usize,
    pub ticks: usize,
    pub drops: usize,
    /// Replies that are lost after their request was executed.
    pub lost: usize,
    /// Units that another process takes.
    pub foreign: usize,
    pub resets: usize,
    pub fault: Option<Fault>,
}

/// A fault of which the properties must have a counterexample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The grant of a call that is dropped is not given back.
    GrantIsNotGivenBack,
    /// The first call of a line queues again behind the others when a reply comes.
    FirstCallQueuesAgain,
    /// The driver does not record that a request has failed.
    FailureIsNotRecorded,
    /// The timers of calls do not ring.
    TimersDoNotRing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A call arrives, which waits for as many ticks.
    Arrive(u8),
    /// A call is polled that was woken, or whose timer has rung.
    Poll(usize),
    /// A call is dropped.
    Drop(usize),
    /// The store executes the pending request.
    Execute,
    /// The line receives the reply.
    Deliver,
    /// The line receives no reply, after the request was executed.
    Lose,
    /// The store executes the first pending give-back.
    GiveBack,
    /// Another process takes a unit.
    TakeForeign,
    Reset,
    Tick,
}

/// The steps that lead to a state, and what follows from them.
#[derive(Clone, Debug)]
pub struct State {
    steps: Vec<Action>,
    /// All parts of the state.
    parts: String,
    enabled: Vec<Action>,
    /// What is wrong with the state.
    mistakes: Vec<&'static str>,
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.parts == other.parts
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts.hash(state);
    }
}

const OVER: &str = "never more than the limit";
const ORDER: &str = "first come, first served";
const FORGOTTEN: &str = "no waiter is forgotten";
const RESTS: &str = "the driver rests";
const LOSS: &str = "no unit is lost, and none is used twice";

/// A call that waits, or has waited.
#[derive(Debug)]
struct Call {
    deadline: u64,
    woken: Arc<Woken>,
    /// When its timer rings.
    timer: Option<u64>,
    /// Whether it was not polled in its turn.
    was_asleep: bool,
    end: Option<End>,
}

/// Whether a call was woken since its last poll.
#[derive(Debug, Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Relaxed);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Admitted(u64),
    Rejected,
    Dropped,
}

/// A line, its driver and its store, as a step after the other makes them.
struct Play {
    model: Lines,
    line: Line,
    charge: Arc<Charge>,
    limit: Limit,
    store: Embedded,
    clock: VirtualClock,
    /// What the store has executed.
    log: String,
    pending: Option<Asked>,
    reply: Option<Reply>,
    /// The pending give-backs, each with its requests.
    returns: Vec<Vec<Request>>,
    calls: Vec<Call>,
    /// The units that are taken: by calls, by other processes, and by replies that were lost.
    taken_elsewhere: Vec<u64>,
    ticks: usize,
    drops: usize,
    lost: usize,
    foreign: usize,
    resets: usize,
    mistakes: Vec<&'static str>,
}

static BASE: LazyLock<Instant> = LazyLock::new(Instant::now);

impl Play {
    fn new(model: Lines) -> Self {
        let second = Duration::from_secs(1);
        let limit = if model.is_bucket {
            Limit::token_bucket("line", 1, second)
        } else {
            Limit::sliding("line", 1, second)
        };
        let terms = *limit.terms();
        let key_id = KeyId::new(terms.identity(), 0);
        let charge =
            Arc::new(Charge { terms, key_id, count_name: Vec::new(), cost: 1, holder: None });
        let settings = LineSettings {
            is_shared: true,
            is_closed: false,
            is_virtual: true,
            settles: false,
            validity: VALIDITY,
        };
        let clock = VirtualClock::at(START);
        Self {
            model,
            line: Line::new(vec![Arc::clone(&charge)].into(), settings),
            charge,
            limit,
            store: Embedded::new(64, Clock::Virtual(clock.clone())),
            clock,
            log: String::new(),
            pending: None,
            reply: None,
            returns: Vec::new(),
            calls: Vec::new(),
            taken_elsewhere: Vec::new(),
            ticks: 0,
            drops: 0,
            lost: 0,
            foreign: 0,
            resets: 0,
            mistakes: Vec::new(),
        }
    }

    fn now(&self) -> Now {
        let passed = self.clock.now().saturating_sub(START);
        Now { local: self.clock.now().as_micros() as u64, real: *BASE + passed }
    }

    fn execute(&mut self, request: &Request) -> Reply {
        let _ = write!(self.log, "{:?} {request:?};", self.clock.now());
        self.store.apply(request, Source::Redis)
    }

    /// Does what the driver does without waiting for the store.
    fn drive(&mut self) {
        for _ in 0..100 {
            let duty = self.line.duty(self.now());
            self.line.take_wakers().into_iter().for_each(Waker::wake);
            match duty {
                Duty::Request(asked) => self.pending = Some(asked),
                Duty::Return(Returned { requests }) => {
                    self.returns.push(requests.into_iter().map(|(_, request)| request).collect());
                }
                Duty::FollowRules => {}
                Duty::Sleep(_) | Duty::Rest => {
                    let waiters = self.line.waiters.iter();
                    for (arrival, _) in
                        waiters.filter(|(_, it)| matches!(it.stage, WaiterStage::Asleep))
                    {
                        self.calls[*arrival as usize].was_asleep = true;
                    }
                    return;
                }
            }
        }
        self.mistakes.push(RESTS);
    }

    fn poll(&mut self, index: usize) {
        let (now, arrival, call) = (self.now(), index as u64, &mut self.calls[index]);
        call.woken.0.store(false, Relaxed);
        let waker = Waker::from(Arc::clone(&call.woken));
        match self.line.poll(arrival, &waker, now) {
            Poll::Pending => call.timer = self.line.wake_time(arrival, now),
            Poll::Ready(result) => {
                let is_admitted = result.is_ok_and(|reply| reply.is_allowed());
                call.end = Some(if is_admitted { End::Admitted(now.local) } else { End::Rejected });
                // Calls before it that were polled whenever they were woken have their moments before it.
                let is_overtaken = |(arrival, call): (usize, &Call)| {
                    let waiter = self.line.waiters.get(&(arrival as u64));
                    let queues = |it: &Waiter| {
                        it.pinged.is_none()
                            && matches!(it.stage, WaiterStage::Queued | WaiterStage::Asked)
                    };
                    !call.was_asleep && waiter.is_some_and(queues)
                };
                if is_admitted && self.calls[..index].iter().enumerate().any(is_overtaken) {
                    self.mistakes.push(ORDER);
                }
            }
        }
    }

    fn is_due(&self, index: usize) -> bool {
        let call = &self.calls[index];
        let is_woken = call.woken.0.load(Relaxed);
        let rings = self.model.fault != Some(Fault::TimersDoNotRing);
        call.end.is_none()
            && (is_woken || rings && call.timer.is_some_and(|at| at <= self.now().local))
    }

    fn step(&mut self, action: Action) {
        let now = self.now();
        match action {
            Action::Arrive(ticks) => {
                let arrival = self.calls.len() as u64;
                let limit = self.limit.wait(TICK * u32::from(ticks));
                let part =
                    OwnedPart { limit, key: OwnedKey::of(&()), cost: 1, access: Access::Limited };
                let ticket = Ticket::new(vec![part].into(), false, arrival, now.local);
                self.calls.push(Call {
                    deadline: ticket.deadline,
                    woken: Arc::default(),
                    timer: None,
                    was_asleep: false,
                    end: None,
                });
                let to = Destination {
                    charges: vec![Arc::clone(&self.charge)].into(),
                    is_shared: true,
                    is_closed: false,
                    changes_at: None,
                };
                self.line.enter(Waiter::new(ticket, OnError::Deny), &to, now);
                self.poll(self.calls.len() - 1);
            }
            Action::Poll(index) => self.poll(index),
            Action::Drop(index) => {
                self.drops += 1;
                let spares = self.line.spares.len();
                self.line.leave(index as u64);
                if self.model.fault == Some(Fault::GrantIsNotGivenBack) {
                    self.line.spares.truncate(spares);
                }
                self.calls[index].end = Some(End::Dropped);
            }
            Action::Execute => {
                let Some(asked) = &self.pending else { return };
                let request = Request::Decide(asked.request.clone());
                let reply = self.execute(&request);
                self.reply = Some(reply);
            }
            Action::Deliver => {
                let (Some(asked), Some(reply)) = (self.pending.take(), self.reply.take()) else {
                    return;
                };
                let first = self.line.queued.first().copied();
                let first = first.filter(|_| self.model.fault == Some(Fault::FirstCallQueuesAgain));
                first.into_iter().for_each(|first| self.line.dequeue(first));
                self.line.replied(asked, reply, now);
                first.into_iter().for_each(|first| self.line.queue(first));
            }
            Action::Lose => {
                self.lost += 1;
                let (Some(mut asked), Some(reply)) = (self.pending.take(), self.reply.take())
                else {
                    return;
                };
                // The first outcome is that of the cancellation, if there is one.
                let calls = reply.outcomes.iter().skip(asked.request.cancels().into());
                let admitted = calls.filter(|outcome| outcome.is_allowed());
                let moments = admitted.map(|outcome| outcome.clock + outcome.retry_us);
                self.taken_elsewhere.extend(moments);
                if self.model.fault == Some(Fault::FailureIsNotRecorded) {
                    return;
                }
                let error = StoreError::Timeout { deadline: VALIDITY };
                let here = self.line.failed(&mut asked, &error, now);
                debug_assert!(here.is_none(), "no call falls back to this process");
            }
            Action::GiveBack => {
                for request in self.returns.remove(0) {
                    self.execute(&request);
                }
                self.line.returned();
                self.line.record_give_back(None);
            }
            Action::TakeForeign => {
                self.foreign += 1;
                let charges = vec![Arc::clone(&self.charge)].into();
                let reply = self.execute(&Request::Decide(Calls::one(DecideOp::Decide, charges)));
                if reply.is_allowed() {
                    self.taken_elsewhere.push(now.local);
                }
            }
            Action::Reset => {
                self.resets += 1;
                self.log.push_str("reset;");
                self.store.remove(&self.charge.terms, self.charge.key_id);
                self.line.record_reset(self.charge.key_id, now);
            }
            Action::Tick => {
                self.ticks += 1;
                self.clock.advance(TICK);
            }
        }
        self.drive();
    }

    fn enabled(&self) -> Vec<Action> {
        let model = self.model;
        let mut actions = Vec::new();
        if self.calls.len() < model.calls {
            actions.extend([Action::Arrive(2), Action::Arrive(4)]);
        }
        actions.extend((0..self.calls.len()).filter(|index| self.is_due(*index)).map(Action::Poll));
        if self.drops < model.drops {
            let waits = |index: &usize| self.calls[*index].end.is_none();
            actions.extend((0..self.calls.len()).filter(waits).map(Action::Drop));
        }
        match (&self.pending, &self.reply) {
            (Some(_), None) => actions.push(Action::Execute),
            (Some(_), Some(_)) => {
                actions.push(Action::Deliver);
                if self.lost < model.lost {
                    actions.push(Action::Lose);
                }
            }
            (None, _) => {}
        }
        if !self.returns.is_empty() {
            actions.push(Action::GiveBack);
        }
        if self.foreign < model.foreign {
            actions.push(Action::TakeForeign);
        }
        if self.resets < model.resets {
            actions.push(Action::Reset);
        }
        if self.ticks < model.ticks {
            actions.push(Action::Tick);
        }
        actions
    }

    /// Returns all that later steps depend on.
    fn parts(&self) -> String {
        let mut parts = String::with_capacity(1_024);
        let line = &self.line;
        let mut waiters: Vec<_> = line.waiters.iter().collect();
        waiters.sort_unstable_by_key(|(arrival, _)| **arrival);
        for (arrival, waiter) in waiters {
            let Waiter { ticket: _, costs, deadline, on_error, waker: _, pinged, stage, .. } =
                waiter;
            let _ =
                write!(parts, "{arrival} {costs:?} {deadline} {on_error:?} {pinged:?} {stage:?};");
        }
        let _ = write!(
            parts,
            "{:?} {:?} {:?} {:?} {} {:?} {:?} {} {:?} {} {:?} {:?} {:?} {} {} {} {};",
            line.queued,
            line.queued_units,
            line.granted,
            line.delay,
            line.last_arrival,
            line.spares,
            line.held_back,
            line.next_cancel,
            line.estimate,
            line.next_request,
            line.last_request,
            line.pause_end,
            line.last_scan,
            line.is_asking,
            line.returning,
            line.has_changed,
            line.key_is_closed,
        );
        let _ = write!(
            parts,
            "{:?} {:?} {:?} {:?} {:?} {} {:?}",
            self.pending,
            self.reply,
            self.returns,
            self.calls,
            self.taken_elsewhere,
            self.log,
            [self.ticks, self.drops, self.lost, self.foreign, self.resets],
        );
        parts
    }

    /// Plays on without faults until all calls have ended and all units were given back.
    fn finish(&mut self) {
        for _ in 0..12 {
            for _ in 0..40 {
                if self.pending.is_some() && self.reply.is_none() {
                    self.step(Action::Execute);
                } else if self.reply.is_some() {
                    self.step(Action::Deliver);
                } else if !self.returns.is_empty() {
                    self.step(Action::GiveBack);
                } else if let Some(due) = (0..self.calls.len()).find(|index| self.is_due(*index)) {
                    self.step(Action::Poll(due));
                } else {
                    break;
                }
            }
            let waits = |call: &Call| call.end.is_none();
            if !self.calls.iter().any(waits) && !self.line.holds_units() {
                return;
            }
            self.step(Action::Tick);
            let now = self.now().local;
            let is_late = |call: &Call| {
                call.end.is_none() && now > call.deadline + (VALIDITY + TICK).as_micros() as u64
            };
            if self.calls.iter().any(is_late) {
                self.mistakes.push(FORGOTTEN);
            }
        }
        self.mistakes.push(LOSS);
    }

    /// Checks the admissions: those in any time, and units that no one has.
    fn judge(&mut self) {
        let mut times: Vec<u64> = self.taken_elsewhere.clone();
        times.extend(self.calls.iter().filter_map(|call| match call.end {
            Some(End::Admitted(at)) => Some(at),
            _ => None,
        }));
        times.sort_unstable();
        // A call takes its grant up to a deadline after its moment.
        let rest = if self.resets == 0 { VALIDITY.as_micros() as u64 } else { u64::MAX / 2 };
        for (first, from) in times.iter().enumerate() {
            for (last, to) in times.iter().enumerate().skip(first) {
                let units = (last - first + 1) as u64;
                let admitted = 1 + (to - from + rest) / 1_000_000;
                if units > admitted {
                    self.mistakes.push(OVER);
                }
            }
        }
        // Without lost replies and resets, the count has what was taken in the last second, and no more.
        if self.lost == 0 && self.resets == 0 && !self.model.is_bucket {
            let now = self.now().local;
            let in_window = times.iter().filter(|at| **at + 1_000_000 > now).count();
            let charges = vec![self.charge.with_cost(0)].into();
            let measured = self
                .store
                .apply(&Request::Decide(Calls::one(DecideOp::Measure, charges)), Source::Redis);
            let used = measured.outcomes.first().map_or(0, |outcome| outcome.remaining);
            // The charge can be older than the turn of its call.
            if used as usize > in_window {
                self.mistakes.push(LOSS);
            }
        }
    }
}

impl Lines {
    fn state(&self, steps: Vec<Action>) -> State {
        let mut play = Play::new(*self);
        for action in &steps {
            play.step(*action);
        }
        let (parts, enabled) = (play.parts(), play.enabled());
        play.finish();
        play.judge();
        let mistakes = mem::take(&mut play.mistakes);
        State { steps, parts, enabled, mistakes }
    }
}

impl Model for Lines {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.state(Vec::new())]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend(&state.enabled);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut steps = last.steps.clone();
        steps.push(action);
        Some(self.state(steps))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn no(mistake: &'static str, state: &State) -> bool {
            !state.mistakes.contains(&mistake)
        }
        vec![
            Property::always(OVER, |_: &Self, state: &State| no(OVER, state)),
            Property::always(ORDER, |_: &Self, state: &State| no(ORDER, state)),
            Property::always(FORGOTTEN, |_: &Self, state: &State| no(FORGOTTEN, state)),
            Property::always(LOSS, |_: &Self, state: &State| no(LOSS, state)),
            Property::always(RESTS, |_: &Self, state: &State| no(RESTS, state)),
        ]
    }
}
