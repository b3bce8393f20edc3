//! Calls in flight: processes that take slots on one server, and every order in which requests and replies are
//! executed, delivered and lost, calls end, time passes, counts are reset, and processes crash.
//!
//! What a process holds is [`SlotUnits`] of the runtime, and the server runs `lua/slots.lua`. A
//! process has one request pending at a time. A process that is stopped is one that takes no step while time passes.

use std::mem;

use stateright::{Model, Property};

use super::{SlotUnits, TakenUnits};
use crate::bounds::{Bound, Counts};
use crate::limit::Limit;
use crate::scripts::{AHEAD, Mistakes, START, Script, Server, charge, decoded};
use crate::server::StoredCount;
use crate::store::{Charge, Stated, Statement};

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The hold of a process begins when it receives a reply, and not when it sends the request.
    HoldSinceReply,
    UnitsAreNotLost,
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
    Execute(usize),
    Deliver(usize),
    GiveUp(usize),
    Crash(usize),
    Flush,
    Tick,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    /// By the clocks of the processes, in microseconds.
    time: u64,
    server: StoredCount,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Pending {
    number: u64,
    sent_at: u64,
    wants: bool,
    /// The resets when it was sent; `None` if one of them had no reply.
    resets: Option<u8>,
}

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
    /// The units, the epoch and the hold that a process states, with a call that wants a unit or without.
    State { stated: [u64; 3], wants: bool },
    /// Frees the slots of all processes.
    Reset,
    /// The reply, and the generation of its execution.
    Reply { bytes: Vec<u8>, generation: u8 },
}

impl Model for Slots {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let processes = (1..=self.processes as u64).map(Process::new).collect();
        vec![State { time: START, processes, ..State::default() }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (index, process) in state.processes.iter().enumerate() {
            actions.extend([Action::LocalCall(index), Action::Reset(index), Action::Crash(index)]);
            actions.extend((0..process.calls.len()).map(|call| Action::End(index, call)));
            let is_pending = process.pending.is_some();
            actions.push(if is_pending { Action::GiveUp(index) } else { Action::Call(index) });
            if process.is_due(state.time) {
                actions.push(Action::State(index));
            }
        }
        actions.extend(state.network.iter().enumerate().map(|(index, message)| {
            if message.is_reply() { Action::Deliver(index) } else { Action::Execute(index) }
        }));
        actions.extend([Action::Flush, Action::Tick]);
        actions.retain(|action| self.most.allow(&state.used, bound(*action)));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        state.used.add(bound(action));
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
                process.units.is_unsure &= self.fault != Some(Fault::GivenUpIsForgotten);
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
                state.server = StoredCount::default();
            }
            Action::Tick => state.time += TICK,
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("never more than the limit", Self::is_within),
            Property::always("the server counts what runs", Self::recovers),
            Property::always("a reset loses no later slot", Self::keeps_calls),
            Property::always("a reset loses earlier slots only", Self::keeps_local_calls),
        ]
    }
}

fn bound(action: Action) -> Option<Bound> {
    Some(match action {
        Action::Call(_) => Bound::Calls,
        Action::LocalCall(_) => Bound::LocalCalls,
        Action::Reset(_) => Bound::Resets,
        Action::GiveUp(_) => Bound::Lost,
        Action::Crash(_) => Bound::Crashes,
        Action::Flush => Bound::Flushes,
        Action::Tick => Bound::Ticks,
        Action::End(..) | Action::State(_) | Action::Execute(_) | Action::Deliver(_) => {
            return None;
        }
    })
}

impl Slots {
    fn has(&self, bound: Bound) -> bool {
        self.most.get(bound) > 0
    }

    fn records_lateness(&self) -> bool {
        self.has(Bound::Resets) || self.has(Bound::LocalCalls)
    }

    /// Sends the statement of a process, with a call that wants a unit or without.
    fn send(&self, state: &mut State, process: usize, wants: bool) {
        let now = state.time;
        let is_reset = state.processes.iter().any(|process| process.resetting.is_some());
        let resets = (!is_reset).then_some(state.used.get(Bound::Resets));
        let sender = &mut state.processes[process];
        let is_over = sender.units.alive_until().is_some_and(|at| now >= at);
        sender.was_late |= self.records_lateness() && is_over;
        sender.units.expire(now);
        sender.last_seq += 1;
        let (process, number) = (sender.id, sender.last_seq);
        let Statement { units, epoch, hold_us, .. } = sender.units.state(number, now);
        let stated = [units, epoch, hold_us];
        sender.pending = Some(Pending { number, sent_at: now, wants, resets });
        state.put(Message { process, number, body: Body::State { stated, wants } });
    }

    fn deliver(&self, state: &mut State, message: Message) {
        let (now, used_resets) = (state.time, state.used.get(Bound::Resets));
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
        if self.fault == Some(Fault::HoldSinceReply)
            && let Some(pending) = &mut process.units.pending
        {
            pending.sent_at = now;
        }
        if self.fault == Some(Fault::UnitsAreNotLost) {
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

    fn execute(&self, state: &mut State, message: Message) -> Message {
        let Message { process, number: seq, body } = message;
        let statement = match body {
            Body::State { stated: [units, epoch, hold_us], .. } => {
                Statement { process, seq, units, epoch, hold_us, ..Statement::default() }
            }
            _ => Statement { hold_us: HOLD, ..Statement::default() },
        };
        state.generation += u8::from(body == Body::Reset);
        let (generation, charge) = (state.generation, self.charge(statement));
        let mut server = self.server(state, &charge);
        let bytes = match body {
            Body::State { wants: true, .. } => server.run_one("take", [1, 1, 0]),
            Body::State { wants: false, .. } => server.run_one("hold", [0, 0, 0]),
            Body::Reset => server.run_one("hold", [0, 0, 1]),
            Body::Reply { .. } => unreachable!("a reply is not executed"),
        };
        Message { process, number: seq, body: Body::Reply { bytes, generation } }
    }

    fn measured(&self, state: &mut State) -> u64 {
        self.server(state, &self.charge(Statement::default())).measured()
    }

    fn charge(&self, statement: Statement) -> Charge {
        charge(*Limit::in_flight("slots", self.threshold).terms(), Some(statement))
    }

    fn server<'a>(&self, state: &'a mut State, charge: &'a Charge) -> Server<'a> {
        let (clock, mistakes) = (AHEAD + state.time, self.mistakes());
        Server { count: &mut state.server, mistakes, clock, charge }
    }
}

/// Whether a state is right, and recovers once no fault happens any more.
impl Slots {
    /// A reset frees the slots of running calls, and a server that has lost its memory does: calls that were admitted
    /// before do not count.
    fn is_within(&self, state: &State) -> bool {
        let running = state.processes.iter().map(|process| {
            let calls = process.calls.iter().filter(|it| it.generation == Some(state.generation));
            let is_lost = |at| state.time >= at;
            calls.filter(|it| !process.units.lost_at(it.held).is_some_and(is_lost)).count() as u64
        });
        running.sum::<u64>() <= self.threshold
    }

    /// Returns whether the calls that the server has admitted since the last reset have their slots, as long as the
    /// server keeps them.
    fn keeps_calls(&self, state: &State) -> bool {
        let (now, generation) = (state.time, Some(state.generation));
        !self.has(Bound::Resets)
            || self.has(Bound::Lost)
            || state.keeps(|call| call.generation == generation && now < call.kept_until)
    }

    /// Returns whether the calls that fallbacks have admitted since the last reset have their slots. One of several
    /// processes does not know whether it has admitted a call before another one has reset the count.
    fn keeps_local_calls(&self, state: &State) -> bool {
        let resets = state.used.get(Bound::Resets);
        self.processes > 1 || state.keeps(|call| call.generation.is_none() && call.resets >= resets)
    }

    /// Plays on without faults until no message is left and no statement is due.
    fn settle(&self, state: &mut State) {
        for _ in 0..20 {
            while let Some(message) = state.network.pop() {
                let is_reply = message.is_reply();
                let reply = if is_reply { message } else { self.execute(state, message) };
                self.deliver(state, reply);
            }
            let mut processes = state.processes.iter();
            let Some(next) = processes.position(|it| it.is_due(state.time)) else { return };
            self.send(state, next, false);
        }
        panic!("processes state without end: {state:#?}");
    }

    /// Returns whether the server counts what runs once messages have arrived and dead processes have expired, and
    /// nothing once all calls have ended.
    fn recovers(&self, state: &State) -> bool {
        let mut state = state.clone();
        for process in &mut state.processes {
            // A request without a message reaches its deadline.
            let number = process.pending.map(|pending| pending.number);
            let is_sent = |it: &Message| it.process == process.id && Some(it.number) == number;
            if !state.network.iter().any(is_sent) {
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
        let (used, is_late) = (state.used.clone(), state.time >= START + HOLD);
        let has_had = |bound| used.get(bound) > 0;
        if has_had(Bound::Crashes) || has_had(Bound::Flushes) || has_had(Bound::Lost) && is_late {
            return true;
        }
        let (measured, held) = (self.measured(state), state.held());
        measured == held || measured < held && has_had(Bound::Resets)
    }
}

impl State {
    /// Returns whether the calls of processes that were not late have their slots, if these must be kept.
    fn keeps(&self, must_keep: impl Fn(&Call) -> bool) -> bool {
        let mut in_time = self.processes.iter().filter(|process| !process.was_late);
        in_time.all(|process| {
            process.calls.iter().all(|call| !must_keep(call) || process.units.has(call.held))
        })
    }

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

    fn is_due(&self, now: u64) -> bool {
        let mut units = self.units;
        self.pending.is_none()
            && (units.expire(now) > 0
                || units.is_dirty()
                || units.next_statement().is_some_and(|at| at <= now))
    }

    fn waits_for(&self, number: u64) -> bool {
        self.pending.is_some_and(|pending| pending.number == number)
            || self.resetting == Some(number)
    }

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
