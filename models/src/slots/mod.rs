//! Calls in flight: processes that take slots on one server, and every order in which requests and replies are
//! executed, delivered and lost, calls end, time passes, counts are reset, and processes crash.
//!
//! What a process holds is [`SlotUnits`] of the runtime, and the server runs `lua/slots.lua` and `lua/hold.lua`. A
//! process has one request pending at a time. A process that is stopped is one that takes no step while time passes.

use std::mem;

use stateright::{Model, Property};

use super::{SlotUnits, StatedUnits, TakenUnits};
use crate::bounds::{Bound, Counts};
use crate::limit::Limit;
use crate::scripts::{LOCAL_START, Mistakes, SERVER_START, Script, Server, charge, decoded};
use crate::server::Keys;
use crate::store::{Stated, Statement};

/// The length of a step of time, in microseconds.
const TICK: u64 = 100_000;
const HOLD: u64 = 2 * TICK;
/// The hold as a process measures it. Clocks drift, so a process ends it before the server does.
const OWN_HOLD: u64 = HOLD - HOLD / 100;

#[derive(Clone, Debug)]
pub struct Slots {
    pub processes: usize,
    pub threshold: u64,
    pub most: Counts,
    pub fault: Option<Fault>,
}

/// A fault that the checker must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The hold of a process begins when it receives a reply, and not when it sends the request.
    HoldSinceReply,
    /// A process keeps its units until a reply comes, however late that is.
    UnitsAreNotLost,
    /// A process that has given up a request takes it for one that was not executed.
    GivenUpIsForgotten,
    /// The server forgets the record of a process that holds nothing, so a late request counts again.
    EmptyRecordIsForgotten,
    /// The server executes a request after a later one of the same process.
    LateRequestCounts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Call(usize),
    LocalCall(usize),
    End(usize, usize),
    State(usize),
    Reset(usize),
    /// The server executes a message.
    Execute(usize),
    /// A process receives a reply.
    Deliver(usize),
    /// A process does not wait for the reply to its request any longer.
    GiveUp(usize),
    Crash(usize),
    Flush,
    Tick,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// Since the start, in microseconds.
    time: u64,
    server: Keys,
    /// How often the server has freed all slots: by a reset, or because it has lost its memory.
    generation: u8,
    processes: Vec<Process>,
    /// By process and number, which identify a message.
    network: Vec<Message>,
    used: Counts,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Process {
    id: u64,
    units: SlotUnits,
    last_seq: u64,
    pending: Option<Pending>,
    /// The number of a reset without a reply.
    resetting: Option<u64>,
    calls: Vec<Call>,
    /// Whether its hold has ended before a reply or a statement, which can lose the slots of all of its calls. Recorded
    /// in models with resets or fallbacks only.
    was_late: bool,
}

/// The pending request of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Pending {
    /// The number of its statement.
    number: u64,
    sent_at: u64,
    wants: bool,
    /// The resets when it was sent; `None` if one of them had no reply.
    resets: Option<u8>,
}

/// A call that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Call {
    held: TakenUnits,
    /// The generation in which the server has admitted it; `None` if a fallback has.
    generation: Option<u8>,
    /// How many resets had their replies before the call began.
    resets: u8,
    /// Until when the server keeps the slot, by the clock of the limiter, unless the count is reset; 0 if a reset was
    /// under way when the call began.
    kept_until: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Message {
    process: u64,
    number: u64,
    body: Body,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Body {
    Take(StatedUnits),
    State(StatedUnits),
    Reset,
    Reply { bytes: Vec<u8>, generation: u8 },
}

impl Model for Slots {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            time: 0,
            server: Keys::default(),
            generation: 0,
            processes: (1..=self.processes as u64).map(Process::new).collect(),
            network: Vec::new(),
            used: Counts::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (index, process) in state.processes.iter().enumerate() {
            actions.extend([Action::LocalCall(index), Action::Reset(index), Action::Crash(index)]);
            actions.extend((0..process.calls.len()).map(|call| Action::End(index, call)));
            let is_pending = process.pending.is_some();
            actions.push(if is_pending { Action::GiveUp(index) } else { Action::Call(index) });
            if process.is_due(state.local_clock()) {
                actions.push(Action::State(index));
            }
        }
        actions.extend(state.network.iter().enumerate().map(|(index, message)| {
            if message.is_reply() { Action::Deliver(index) } else { Action::Execute(index) }
        }));
        actions.extend([Action::Flush, Action::Tick]);
        actions.retain(|action| self.most.allow(&state.used, action.bound()));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        state.used.add(action.bound());
        match action {
            Action::Call(process) => self.send(&mut state, process, true),
            Action::LocalCall(process) => {
                let process = &mut state.processes[process];
                let held = process.units.take_locally(1);
                let resetting = u8::from(process.resetting.is_some());
                let resets = state.used.get(Bound::Resets) - resetting;
                process.calls.push(Call { held, generation: None, resets, kept_until: 0 });
            }
            Action::End(process, call) => {
                let process = &mut state.processes[process];
                let call = process.calls.remove(call);
                process.units.release(call.held);
            }
            Action::State(process) => self.send(&mut state, process, false),
            Action::Reset(process) => {
                let sender = &mut state.processes[process];
                sender.last_seq += 1;
                let (id, number) = (sender.id, sender.last_seq);
                sender.resetting = Some(number);
                state.put(Message { process: id, number, body: Body::Reset });
            }
            Action::Execute(index) => {
                let message = state.network.remove(index);
                let reply = self.execute(&mut state, message);
                // A request that was given up needs no reply.
                let waits = |it: &Process| it.id == reply.process && it.waits_for(reply.number);
                if state.processes.iter().any(waits) {
                    state.put(reply);
                }
            }
            Action::Deliver(index) => {
                let message = state.network.remove(index);
                self.deliver(&mut state, message);
            }
            Action::GiveUp(process) => {
                let process = &mut state.processes[process];
                let (id, number) = (process.id, process.pending?.number);
                process.give_up();
                process.units.is_unsure &= !self.is(Fault::GivenUpIsForgotten);
                let is_reply = |it: &Message| (it.process, it.number) == (id, number);
                state.network.retain(|it| !is_reply(it) || !it.is_reply());
            }
            Action::Crash(process) => {
                let process = &mut state.processes[process];
                let id = process.id;
                *process = Process::new(id + 100);
                // What it has sent can still be executed.
                state.network.retain(|it| it.process != id || !it.is_reply());
            }
            Action::Flush => {
                state.generation += 1;
                state.server.flush();
            }
            Action::Tick => state.time += TICK,
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("never more than the limit", Self::is_within),
            Property::always("the server counts what runs", Self::recovers),
            Property::always("a reset loses no later slot", |model: &Self, state: &State| {
                !model.has(Bound::Resets) || model.has(Bound::Lost) || state.keeps_calls()
            }),
            // A process does not know whether it has admitted a call before another process has reset the count.
            Property::always("a reset loses earlier slots only", |model: &Self, state: &State| {
                model.processes > 1 || state.keeps_local_calls()
            }),
        ]
    }
}

impl Action {
    fn bound(self) -> Option<Bound> {
        Some(match self {
            Self::Call(_) => Bound::Calls,
            Self::LocalCall(_) => Bound::LocalCalls,
            Self::Reset(_) => Bound::Resets,
            Self::GiveUp(_) => Bound::Lost,
            Self::Crash(_) => Bound::Crashes,
            Self::Flush => Bound::Flushes,
            Self::Tick => Bound::Ticks,
            Self::End(..) | Self::State(_) | Self::Execute(_) | Self::Deliver(_) => return None,
        })
    }
}

/// What the processes do.
impl Slots {
    fn is(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn has(&self, bound: Bound) -> bool {
        self.most.get(bound) > 0
    }

    fn records_lateness(&self) -> bool {
        self.has(Bound::Resets) || self.has(Bound::LocalCalls)
    }

    /// Sends the statement of a process, with a call that wants a unit or without.
    fn send(&self, state: &mut State, process: usize, wants: bool) {
        let now = state.local_clock();
        let is_reset = state.processes.iter().any(|process| process.resetting.is_some());
        let resets = (!is_reset).then_some(state.used.get(Bound::Resets));
        let sender = &mut state.processes[process];
        let is_over = sender.units.alive_until().is_some_and(|at| now >= at);
        sender.was_late |= self.records_lateness() && is_over;
        sender.units.expire(now);
        sender.last_seq += 1;
        let (process, number) = (sender.id, sender.last_seq);
        let stated = sender.units.state(number, now);
        sender.pending = Some(Pending { number, sent_at: now, wants, resets });
        let body = if wants { Body::Take(stated) } else { Body::State(stated) };
        state.put(Message { process, number, body });
    }

    fn deliver(&self, state: &mut State, message: Message) {
        let (now, used_resets) = (state.local_clock(), state.used.get(Bound::Resets));
        let sender = |process: &&mut Process| process.id == message.process;
        let Some(process) = state.processes.iter_mut().find(sender) else { return };
        let Body::Reply { bytes, generation } = message.body else { return };
        let (outcome, receipt) = decoded(&bytes);
        if process.resetting.take_if(|number| *number == message.number).is_some() {
            process.last_seq += 1;
            process.units.reset(process.last_seq, receipt.birth);
            return;
        }
        let pending = process.pending.take_if(|pending| pending.number == message.number);
        let Some(Pending { sent_at, wants, resets, .. }) = pending else { return };
        let is_over = process.units.alive_until().is_some_and(|at| now >= at);
        process.was_late |= (is_over || now >= sent_at + OWN_HOLD) && self.records_lateness();
        if self.is(Fault::HoldSinceReply)
            && let Some(pending) = &mut process.units.pending
        {
            pending.sent_at = now;
        }
        if self.is(Fault::UnitsAreNotLost) {
            process.units.confirmed_at = now;
        }
        let granted = u64::from(wants && outcome.is_allowed());
        let replied = process.units.replied(Stated::new(receipt, granted), now);
        let Some(stamp) = replied.stamp else { return };
        if granted > 0 {
            let held = TakenUnits { units: 1, stamp, is_local: false };
            let is_apart = resets == Some(used_resets) && self.has(Bound::Resets);
            let kept_until = if is_apart { sent_at + OWN_HOLD } else { 0 };
            let generation = Some(generation);
            process.calls.push(Call { held, generation, resets: used_resets, kept_until });
        }
    }
}

/// What the server does.
impl Slots {
    fn mistakes(&self) -> Mistakes {
        match self.fault {
            Some(Fault::EmptyRecordIsForgotten) => &[(
                "own_units == 0 and hold > EMPTY and EMPTY or hold",
                "own_units == 0 and 0 or hold",
            )],
            Some(Fault::LateRequestCounts) => {
                &[("seq <= own_seq", "false"), ("if seq > own_seq then", "if true then")]
            }
            _ => &[],
        }
    }

    /// Executes a request. Returns the reply.
    fn execute(&self, state: &mut State, message: Message) -> Message {
        let Message { process, number, body } = message;
        let stated = |StatedUnits { units, epoch, hold_us }| Statement {
            process,
            seq: number,
            units,
            epoch,
            hold_us,
            waited_us: 0,
        };
        let bytes = match body {
            Body::Take(units) => {
                self.run(state, stated(units), |server| server.run_one("take", 1, (1, 0)))
            }
            Body::State(units) => self
                .run(state, stated(units), |server| server.run_several(Script::Hold, 1, vec![1])),
            Body::Reset => {
                state.generation += 1;
                let statement = Statement { hold_us: HOLD, ..Statement::default() };
                self.run(state, statement, |server| server.run_one("hold", 0, (0, 1)))
            }
            Body::Reply { .. } => unreachable!("a reply is not executed"),
        };
        Message { process, number, body: Body::Reply { bytes, generation: state.generation } }
    }

    /// Returns the units that the server counts.
    fn measured(&self, state: &mut State) -> u64 {
        self.run(state, Statement::default(), |server| server.measured())
    }

    fn run<T>(
        &self,
        state: &mut State,
        statement: Statement,
        run: impl FnOnce(&mut Server<'_>) -> T,
    ) -> T {
        let charge = charge(*Limit::in_flight("slots", self.threshold).terms(), Some(statement));
        let (clock, mistakes) = (SERVER_START + state.time, self.mistakes());
        run(&mut Server { keys: &mut state.server, mistakes, clock, charge: &charge })
    }
}

/// Whether a state is right, and recovers once no fault happens any more.
impl Slots {
    /// A reset frees the slots of running calls, and a server that has lost its memory does: calls that were admitted
    /// before do not count.
    fn is_within(&self, state: &State) -> bool {
        state.running(state.generation) <= self.threshold as usize
    }

    /// Plays on without faults until no message is left and no statement is due.
    fn settle(&self, state: &mut State) {
        for _ in 0..20 {
            while let Some(message) = state.network.pop() {
                let is_reply = message.is_reply();
                let reply = if is_reply { message } else { self.execute(state, message) };
                self.deliver(state, reply);
            }
            let now = state.local_clock();
            let mut processes = state.processes.iter();
            let Some(next) = processes.position(|process| process.is_due(now)) else { return };
            self.send(state, next, false);
        }
        panic!("processes state without end: {state:#?}");
    }

    /// Returns whether the server counts what runs once messages have arrived and dead processes have expired, and
    /// nothing once all calls have ended.
    fn recovers(&self, state: &State) -> bool {
        let mut state = state.clone();
        for process in &mut state.processes {
            let is_sent = |number| {
                let mut sent = state.network.iter();
                sent.any(|it| (it.process, it.number) == (process.id, number))
            };
            // A request without a message reaches its deadline.
            if process.pending.is_some_and(|pending| !is_sent(pending.number)) {
                process.give_up();
            }
        }
        self.settle(&mut state);
        if !self.counts_at_once(&mut state) {
            return false;
        }
        for _ in 0..4 {
            state.time += TICK;
            self.settle(&mut state);
        }
        let counts_what_runs = self.measured(&mut state) == state.held();
        for process in &mut state.processes {
            for call in mem::take(&mut process.calls) {
                process.units.release(call.held);
            }
        }
        self.settle(&mut state);
        // Otherwise `flush` does not complete.
        let is_stated = |process: &Process| !process.units.is_dirty() && process.pending.is_none();
        let is_ready = state.processes.iter().all(is_stated);
        counts_what_runs && is_ready && self.measured(&mut state) == 0 && state.held() == 0
    }

    /// Returns whether the server counts what runs as soon as all messages have arrived. What a process that was killed
    /// has held expires, and so does what a request takes that was given up and arrives after the hold; processes learn
    /// of a reset later, and a server of slots that it has forgotten.
    fn counts_at_once(&self, state: &mut State) -> bool {
        let has_had = |bound| state.used.get(bound) > 0;
        let (was_reset, is_late) = (has_had(Bound::Resets), state.time >= HOLD);
        if has_had(Bound::Crashes) || has_had(Bound::Flushes) || has_had(Bound::Lost) && is_late {
            return true;
        }
        let (measured, held) = (self.measured(state), state.held());
        measured == held || measured < held && was_reset
    }
}

impl State {
    fn local_clock(&self) -> u64 {
        LOCAL_START + self.time
    }

    /// Returns how many calls of `generation` run and do not know that they have lost their slot.
    fn running(&self, generation: u8) -> usize {
        let now = self.local_clock();
        let calls = self.processes.iter().flat_map(|process| {
            process.calls.iter().filter(move |call| !process.units.is_lost(call.held, now))
        });
        calls.filter(|call| call.generation == Some(generation)).count()
    }

    /// Returns whether the calls that fallbacks have admitted since the last reset have their slots.
    fn keeps_local_calls(&self) -> bool {
        let resets = self.used.get(Bound::Resets);
        self.keeps(|call| call.generation.is_none() && call.resets >= resets)
    }

    /// Returns whether the calls that the server has admitted since the last reset have their slots, as long as the
    /// server keeps them.
    fn keeps_calls(&self) -> bool {
        let now = self.local_clock();
        self.keeps(|call| call.generation == Some(self.generation) && now < call.kept_until)
    }

    /// Returns whether some calls have their slots, except those of processes that were late.
    fn keeps(&self, is_kept: impl Fn(&Call) -> bool) -> bool {
        let is_right =
            |it: &Process, call| !is_kept(call) || it.was_late || it.units.has(call.held);
        self.processes.iter().all(|it| it.calls.iter().all(|call| is_right(it, call)))
    }

    /// Returns how many units are held.
    fn held(&self) -> u64 {
        self.processes.iter().map(|process| process.units.units()).sum()
    }

    fn put(&mut self, message: Message) {
        let key = |it: &Message| (it.process, it.number);
        let place = self.network.partition_point(|other| key(other) < key(&message));
        self.network.insert(place, message);
    }
}

impl Process {
    fn new(id: u64) -> Self {
        let mut units = SlotUnits::new(1);
        units.set_hold(HOLD);
        let (pending, resetting, calls, was_late) = Default::default();
        Self { id, units, last_seq: 1, pending, resetting, calls, was_late }
    }

    /// Returns whether a statement is due.
    fn is_due(&self, now: u64) -> bool {
        let mut units = self.units;
        self.pending.is_none()
            && (units.expire(now) > 0
                || units.is_dirty()
                || units.next_statement().is_some_and(|at| at <= now))
    }

    /// Returns whether the process waits for the reply to a request.
    fn waits_for(&self, number: u64) -> bool {
        self.pending.is_some_and(|pending| pending.number == number)
            || self.resetting == Some(number)
    }

    /// The process does not wait for the reply to its request any longer.
    fn give_up(&mut self) {
        self.pending = None;
        self.units.unanswered();
    }
}

impl Message {
    fn is_reply(&self) -> bool {
        matches!(self.body, Body::Reply { .. })
    }
}
