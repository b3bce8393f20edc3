//! A line of calls that wait for a bucket or a window on a server, and every order in which calls arrive, are dropped
//! and are not polled, requests are executed and their replies are delivered and lost, units are given back, another
//! process takes units, and time passes.
//!
//! The line is the one of the runtime, and so is the store: the algorithms of the embedded store. The model retells the
//! driver (`waiting/driver.rs`). A state is built again from the steps that lead to it, and two states are the same if
//! all parts of the line and all that the store has executed agree.

use std::fmt::Write;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::task::{Poll, Wake, Waker};
use std::time::{Duration, Instant};

use stateright::{Model, Property};

use super::waiters::Stage;
use super::{Asked, Duty, Line, LineSpec, Now, ReturnedGrant, Waiter};
use crate::algorithm::{Correction, Op, Outcome};
use crate::bounds::{Bound, Counts};
use crate::clock::{Clock, VirtualClock};
use crate::key::OwnedKey;
use crate::limit::{Access, Limit, OnError};
use crate::local::Local;
use crate::reply::{Source, StoreError};
use crate::scripts;
use crate::store::{Calls, Charge, Reply};
use crate::waiting::{OwnedPart, Ticket};

/// The length of a step of time.
const TICK: Duration = Duration::from_millis(500);
const START: Duration = Duration::from_secs(1_000_000);
/// How long a grant is valid, and a request takes at most.
const VALIDITY: Duration = Duration::from_secs(1);
static BASE: LazyLock<Instant> = LazyLock::new(Instant::now);

#[derive(Clone, Debug)]
pub struct Lines {
    /// A bucket of one token in a second, or a sliding window of one call in a second.
    pub is_bucket: bool,
    pub most: Counts,
    pub fault: Option<Fault>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    GrantIsNotGivenBack,
    GrantIsGivenBackTwice,
    /// The grant of a call that is dropped passes to the next call, and goes back as well.
    GrantIsUsedTwice,
    /// The first call of a line queues again behind the others when a reply comes.
    FirstCallQueuesAgain,
    FailureIsNotRecorded,
    CallsAreNotWoken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A call arrives, which waits for as many ticks.
    Arrive(u8),
    /// A call is polled that was woken.
    Poll(usize),
    Drop(usize),
    Execute,
    Deliver,
    /// The line receives no reply, after the request was executed.
    Lose,
    GiveBack,
    TakeForeign,
    Reset,
    Tick,
}

fn bound(action: Action) -> Option<Bound> {
    Some(match action {
        Action::Arrive(_) => Bound::Calls,
        Action::Drop(_) => Bound::Drops,
        Action::Lose => Bound::Lost,
        Action::TakeForeign => Bound::Plain,
        Action::Reset => Bound::Resets,
        Action::Tick => Bound::Ticks,
        _ => return None,
    })
}

/// The steps that lead to a state, and what follows from them. States with the same parts are the same.
#[derive(Clone, Debug)]
pub struct State {
    steps: Vec<Action>,
    parts: String,
    enabled: Vec<Action>,
    mistakes: Vec<&'static str>,
}

const OVER: &str = "never more than the limit";
const ORDER: &str = "first come, first served";
const FORGOTTEN: &str = "no waiter is forgotten";
const RESTS: &str = "the driver rests";
const LOSS: &str = "no unit is lost, and none is used twice";

impl Lines {
    fn state(&self, steps: Vec<Action>) -> State {
        let mut play = Play::new(self.clone());
        for action in &steps {
            play.step(*action);
        }
        let (parts, enabled) = (play.parts(), play.enabled());
        play.finish();
        play.judge();
        State { steps, parts, enabled, mistakes: play.mistakes }
    }
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
        Some(self.state(last.steps.iter().copied().chain([action]).collect()))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(OVER, |_, state: &State| !state.mistakes.contains(&OVER)),
            Property::always(ORDER, |_, state: &State| !state.mistakes.contains(&ORDER)),
            Property::always(FORGOTTEN, |_, state: &State| !state.mistakes.contains(&FORGOTTEN)),
            Property::always(LOSS, |_, state: &State| !state.mistakes.contains(&LOSS)),
            Property::always(RESTS, |_, state: &State| !state.mistakes.contains(&RESTS)),
        ]
    }
}

#[derive(Debug, Default)]
struct Call {
    deadline: u64,
    woken: Arc<Woken>,
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
    store: Local,
    clock: VirtualClock,
    /// What the store has executed.
    log: String,
    /// The pending request, and its reply once it is executed.
    pending: Option<(Asked, Option<Reply>)>,
    /// The pending give-backs, each with its requests.
    returns: Vec<Vec<ReturnedGrant>>,
    calls: Vec<Call>,
    /// The units that are taken: by calls, by other processes, and by replies that were lost.
    taken_elsewhere: Vec<u64>,
    /// The units that requests of the line have taken from the store, without those of lost replies.
    charged: usize,
    /// The units that the line has given back to the store.
    given_back: usize,
    used: Counts,
    mistakes: Vec<&'static str>,
}

impl Play {
    fn new(model: Lines) -> Self {
        let second = Duration::from_secs(1);
        let limits = [Limit::sliding("line", 1, second), Limit::token_bucket("line", 1, second)];
        let limit = limits[usize::from(model.is_bucket)];
        let charge = Arc::new(scripts::charge(*limit.terms(), None));
        let spec = Arc::new(spec_of(&charge));
        let clock = VirtualClock::at(START);
        Self {
            model,
            line: Line::new(spec),
            charge,
            limit,
            store: Local::new(64, Clock::Virtual(clock.clone())),
            clock,
            log: String::new(),
            pending: None,
            returns: Vec::new(),
            calls: Vec::new(),
            taken_elsewhere: Vec::new(),
            charged: 0,
            given_back: 0,
            used: Counts::default(),
            mistakes: Vec::new(),
        }
    }

    fn now(&self) -> Now {
        let passed = self.clock.now().saturating_sub(START);
        Now { local: self.clock.now().as_micros() as u64, real: *BASE + passed }
    }

    fn execute(&mut self, calls: &Calls) -> Reply {
        let _ = write!(self.log, "{:?} {calls:?};", self.clock.now());
        self.store.apply(calls, Source::Redis)
    }

    /// Does what the driver does without waiting for the store.
    fn drive(&mut self) {
        for _ in 0..100 {
            let duty = self.line.duty(false, self.now());
            let wakers = self.line.take_wakers().into_iter();
            let is_woken = self.model.fault != Some(Fault::CallsAreNotWoken);
            wakers.filter(|_| is_woken).for_each(Waker::wake);
            match duty {
                Duty::Request(asked) => self.pending = Some((*asked, None)),
                Duty::Return(returned) => self.returns.push(returned),
                Duty::FollowRules => {}
                Duty::Sleep(_) => {
                    for (arrival, waiter) in self.line.waiters.iter() {
                        let is_asleep = matches!(waiter.stage(), Stage::Asleep);
                        self.calls[arrival as usize].was_asleep |= is_asleep;
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
        if let Poll::Ready(result) = self.line.poll(arrival, &waker, now) {
            let is_admitted = result.is_ok_and(|reply| reply.is_allowed());
            call.end = Some(if is_admitted { End::Admitted(now.local) } else { End::Rejected });
            // Calls before it that were polled whenever they were woken have their moments before it.
            let queues = |it: &Waiter| it.pinged.is_none() && it.is_queued();
            let is_overtaken = |(arrival, call): (usize, &Call)| {
                !call.was_asleep && self.line.waiters.get(arrival as u64).is_some_and(queues)
            };
            if is_admitted && self.calls[..index].iter().enumerate().any(is_overtaken) {
                self.mistakes.push(ORDER);
            }
        }
    }

    fn step(&mut self, action: Action) {
        let now = self.now();
        self.used.add(bound(action));
        match action {
            Action::Arrive(ticks) => {
                let arrival = self.calls.len() as u64;
                let limit = self.limit.wait(TICK * u32::from(ticks));
                let part =
                    OwnedPart { limit, key: OwnedKey::of(&()), cost: 1, access: Access::Limited };
                let ticket = Ticket::new(vec![part].into(), false, arrival, now.local);
                self.calls.push(Call { deadline: ticket.deadline, ..Call::default() });
                let spec = spec_of(&self.charge);
                self.line.enter(Waiter::new(ticket, OnError::Deny), &spec, now);
                self.poll(self.calls.len() - 1);
            }
            Action::Poll(index) => self.poll(index),
            Action::Drop(index) => {
                let passing = self.line.passing.len();
                self.line.leave(index as u64);
                match self.model.fault {
                    Some(Fault::GrantIsNotGivenBack) => self.line.passing.truncate(passing),
                    Some(Fault::GrantIsGivenBackTwice) => {
                        self.line.passing.extend_from_within(passing..);
                    }
                    Some(Fault::GrantIsUsedTwice) => {
                        let copies = self.line.passing[passing..].iter().map(|(_, it)| it.clone());
                        self.line.spares.extend(copies);
                    }
                    _ => {}
                }
                self.calls[index].end = Some(End::Dropped);
            }
            Action::Execute => {
                let Some((asked, _)) = self.pending.take() else { return };
                let request = asked.request.clone();
                let reply = self.execute(&request);
                // A moment that is given up for another one is not charged any more.
                let has_given_up = !reply.outcomes.is_empty() && !reply.first().is_blocked();
                let given_up = request.replaces.is_some() && has_given_up;
                self.given_back += usize::from(given_up);
                self.charged += admitted(&reply).count();
                self.pending = Some((asked, Some(reply)));
            }
            Action::Deliver => {
                let Some((asked, Some(reply))) = self.pending.take() else { return };
                let first = self.line.waiters.first();
                let first = first.filter(|_| self.model.fault == Some(Fault::FirstCallQueuesAgain));
                first.and_then(|first| self.line.waiters.set(first, Stage::Asleep));
                self.line.replied(asked, reply, now);
                first.and_then(|first| self.line.waiters.set(first, Stage::Queued));
            }
            Action::Lose => {
                let Some((mut asked, Some(reply))) = self.pending.take() else { return };
                let admitted = admitted(&reply);
                self.charged -= admitted.clone().count();
                self.taken_elsewhere
                    .extend(admitted.map(|outcome| outcome.clock + outcome.retry_us));
                if self.model.fault == Some(Fault::FailureIsNotRecorded) {
                    return;
                }
                let error = StoreError::Timeout { deadline: VALIDITY };
                let here = self.line.failed(&mut asked, &error, now);
                debug_assert!(here.is_none(), "no call falls back to this process");
            }
            Action::GiveBack => {
                for (_, charge, charged) in self.returns.remove(0) {
                    let _ = write!(self.log, "{:?} {charged:?};", self.clock.now());
                    let correction = Correction::give_back(charged, charge.cost);
                    self.store.correct((&*charge).into(), correction);
                    self.given_back += charge.cost as usize;
                }
                self.line.returned();
                self.line.record_give_back(self.charge.key_id);
            }
            Action::TakeForeign => {
                let charges = vec![Arc::clone(&self.charge)].into();
                let reply = self.execute(&Calls::one(Op::TAKE, charges));
                if reply.is_allowed() {
                    self.taken_elsewhere.push(now.local);
                }
            }
            Action::Reset => {
                self.log.push_str("reset;");
                self.store.remove(self.charge.key_id);
                self.line.record_reset_or_block(now);
            }
            Action::Tick => self.clock.advance(TICK),
        }
        self.drive();
    }

    fn enabled(&self) -> Vec<Action> {
        let mut actions = vec![Action::Arrive(2), Action::Arrive(4), Action::TakeForeign];
        actions.extend([Action::Reset, Action::Tick]);
        for (index, call) in self.calls.iter().enumerate() {
            actions.extend(call.end.is_none().then_some(Action::Drop(index)));
        }
        actions.extend(matches!(self.pending, Some((_, Some(_)))).then_some(Action::Lose));
        actions.extend(self.due());
        actions.retain(|action| self.model.most.allow(&self.used, bound(*action)));
        actions
    }

    /// Returns the steps without a fault, before time passes.
    fn due(&self) -> impl Iterator<Item = Action> {
        let of_request = self.pending.as_ref().map(|(_, reply)| match reply {
            Some(_) => Action::Deliver,
            None => Action::Execute,
        });
        let give_back = (!self.returns.is_empty()).then_some(Action::GiveBack);
        let is_due = |call: &Call| call.end.is_none() && call.woken.0.load(Relaxed);
        let polls = (0..self.calls.len()).filter(move |index| is_due(&self.calls[*index]));
        of_request.into_iter().chain(give_back).chain(polls.map(Action::Poll))
    }

    /// Returns all that later steps depend on.
    fn parts(&self) -> String {
        let line = &self.line;
        let mut waiters: Vec<_> = line.waiters.iter().collect();
        waiters.sort_unstable_by_key(|(arrival, _)| *arrival);
        let mut parts = String::with_capacity(1_024);
        for (arrival, waiter) in waiters {
            let Waiter { costs, deadline, late_at, on_error, pinged, .. } = waiter;
            let stage = waiter.stage();
            let of_waiter = (arrival, costs, deadline, late_at, on_error, pinged, stage);
            let _ = write!(parts, "{of_waiter:?}");
        }
        let grants = (&line.passing, &line.spares, line.estimate(), line.returning);
        let requests = (line.last_request, line.pauses, line.last_scan, line.is_asking);
        let wakes = (&line.waiters.looks, &line.overstaying, line.woken);
        let changes = (line.has_changed, &line.changed_counts);
        let of_line = (grants, requests, wakes, changes);
        let counts = (&self.used, self.charged, self.given_back, &self.taken_elsewhere);
        let of_store = (&self.pending, &self.returns, &self.log);
        let _ = write!(parts, "{of_line:?}{of_store:?}{:?}{counts:?}", self.calls);
        parts
    }

    /// Plays on without faults until all calls have ended and all units were given back.
    fn finish(&mut self) {
        for _ in 0..12 {
            for _ in 0..40 {
                let Some(next) = self.due().next() else { break };
                self.step(next);
            }
            let waits = |call: &Call| call.end.is_none();
            if !self.calls.iter().any(waits) && !self.line.holds_units() {
                return;
            }
            self.step(Action::Tick);
            let late_at = |call: &Call| call.deadline + (VALIDITY + TICK).as_micros() as u64;
            let (now, mut waiting) = (self.now().local, self.calls.iter().filter(|it| waits(it)));
            if waiting.any(|call| now > late_at(call)) {
                self.mistakes.push(FORGOTTEN);
            }
        }
        self.mistakes.push(LOSS);
    }

    /// Checks the admissions: those in any time, and units that no one has.
    fn judge(&mut self) {
        let admitted = self.calls.iter().filter_map(|call| match call.end {
            Some(End::Admitted(at)) => Some(at),
            _ => None,
        });
        let mut times: Vec<u64> = admitted.collect();
        let used = times.len();
        times.extend(&self.taken_elsewhere);
        times.sort_unstable();
        let has_had = |bound| self.used.get(bound) > 0;
        // A call takes its grant up to a deadline after its moment.
        let validity = VALIDITY.as_micros() as u64;
        let rest = if has_had(Bound::Resets) { u64::MAX / 2 } else { validity };
        for (first, from) in times.iter().enumerate() {
            for (last, to) in times.iter().enumerate().skip(first) {
                let units = (last - first + 1) as u64;
                let admitted = 1 + (to - from + rest) / 1_000_000;
                if units > admitted {
                    self.mistakes.push(OVER);
                }
            }
        }
        if used + self.given_back > self.charged {
            self.mistakes.push(LOSS);
        }
        // Without lost replies and resets, the count has what was taken in the last second, and no more.
        if !has_had(Bound::Lost) && !has_had(Bound::Resets) && !self.model.is_bucket {
            let now = self.now().local;
            let in_window = times.iter().filter(|at| **at + 1_000_000 > now).count();
            let charges = vec![self.charge.with_cost(0)].into();
            let measured = self.store.apply(&Calls::one(Op::Measure, charges), Source::Redis);
            let used = measured.outcomes.first().map_or(0, |outcome| outcome.remaining);
            // The charge can be older than the turn of its call.
            if used as usize > in_window {
                self.mistakes.push(LOSS);
            }
        }
    }
}

fn spec_of(charge: &Arc<Charge>) -> LineSpec {
    LineSpec {
        counts: vec![Arc::clone(charge)].into(),
        is_shared: true,
        is_blocked: false,
        is_virtual: true,
        validity: VALIDITY,
        changes_at: None,
    }
}

/// Returns the outcomes of the admitted calls of a request.
fn admitted(reply: &Reply) -> impl Iterator<Item = &Outcome> + Clone {
    reply.outcomes.iter().filter(|outcome| outcome.is_allowed())
}
