//! Calls in flight: processes that take slots on one server, and every order in which requests and replies are
//! executed, delivered, repeated and lost, calls end, time passes, and processes crash.
//!
//! The states of the processes are [`HolderState`] of the runtime, the server runs `lua/slots.lua` and `lua/hold.lua`.
//! The model retells what stands between them: `backend/holders.rs`, which sends one statement at a time. A process
//! that is stopped is one that takes no step while time passes.

use std::mem;
use std::sync::LazyLock;

use stateright::{Model, Property};

use crate::algorithm::{Outcome, Receipt, Verdict};
use crate::form::Form;
use crate::program;
use crate::server::{Keys, Reply};
use crate::store::Statement;
use crate::store::holder_state::{HolderState, PendingUnits, SentStatement, TakenUnits};

/// The length of a step of time, in microseconds.
const TICK: u64 = 100_000;
const HOLD: u64 = 2 * TICK;
/// The times at which the clocks of the server and of the limiters start.
const SERVER_START: u64 = 1_000_000_000_000;
const LOCAL_START: u64 = 5_000_000;

const KEY: &[u8] = b"slots";

/// What a model does at most, and the fault that it has.
#[derive(Clone, Debug)]
pub struct Holders {
    pub processes: usize,
    pub threshold: u32,
    pub calls: u8,
    pub local_calls: u8,
    pub ticks: u8,
    /// Requests whose process does not wait for the reply any longer.
    pub given_up: u8,
    /// Requests that are executed a second time.
    pub repeated: u8,
    pub resets: u8,
    /// How often the server loses its memory.
    pub flushes: u8,
    pub crashes: u8,
    pub fault: Option<Fault>,
}

/// A fault of which the properties must have a counterexample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The hold of a process begins when it receives a reply, and not when it sends the request.
    HoldSinceReply,
    /// The server forgets the record of a process that holds nothing, so a late statement counts again.
    EmptyRecordIsForgotten,
    /// The server takes a smaller number of a late statement.
    LateStatementCounts,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    time: u8,
    server: Keys,
    /// How often the server has freed all slots: by a reset, or because it has lost its memory.
    generation: u8,
    processes: Vec<Process>,
    network: Vec<Message>,
    used: Used,
}

/// What was done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Used {
    calls: u8,
    local_calls: u8,
    given_up: u8,
    repeated: u8,
    resets: u8,
    flushes: u8,
    crashes: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Process {
    id: u64,
    holder: HolderState,
    /// The number of the next message.
    next: u8,
    /// Requests that take units and have no reply, by number, with the time at which they were sent.
    taking: Vec<(u8, u64, PendingUnits)>,
    stating: Option<(u8, SentStatement)>,
    resetting: Option<u8>,
    calls: Vec<Call>,
}

/// A call that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Call {
    held: TakenUnits,
    /// The generation in which the server has admitted it; `None` if a fallback has.
    generation: Option<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Message {
    process: u64,
    number: u8,
    body: Body,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Body {
    Take(Vec<u8>),
    State(Vec<u8>),
    Reset,
    Reply { bytes: Vec<u8>, generation: u8 },
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
    /// The server executes a message, which arrives a second time later.
    ExecuteAndRepeat(usize),
    /// A process receives a reply.
    Deliver(usize),
    /// A process does not wait for the reply to its request any longer.
    GiveUp(usize, u8),
    Crash(usize),
    Flush,
    Tick,
}

impl State {
    fn server_clock(&self) -> u64 {
        SERVER_START + u64::from(self.time) * TICK
    }

    fn local_clock(&self) -> u64 {
        LOCAL_START + u64::from(self.time) * TICK
    }

    /// Returns how many calls of `generation` run and do not know that they have lost their slot.
    fn running(&self, generation: u8) -> usize {
        let now = self.local_clock();
        let calls = self.processes.iter().flat_map(|process| {
            process.calls.iter().filter(move |call| !process.holder.is_lost(call.held, now))
        });
        calls.filter(|call| call.generation == Some(generation)).count()
    }

    /// Returns how many units are held.
    fn held(&self) -> u64 {
        self.processes.iter().map(|process| process.holder.units()).sum()
    }

    fn send(&mut self, process: usize, body: impl FnOnce(Vec<u8>) -> Body, threshold: u32) -> u8 {
        let sender = &mut self.processes[process];
        let number = sender.next;
        sender.next += 1;
        let body = body(packed_terms(threshold, &sender.holder.statement(sender.id)));
        let message = Message { process: sender.id, number, body };
        self.put(message);
        number
    }

    fn put(&mut self, message: Message) {
        let place = self.network.partition_point(|other| *other < message);
        self.network.insert(place, message);
    }
}

impl Holders {
    fn is(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// Returns the text of a script, with the fault of the model.
    fn script(&self, text: &str) -> String {
        let (part, fault) = match self.fault {
            Some(Fault::EmptyRecordIsForgotten) => (
                "if own_taken > 0 and op ~= 'reset'",
                "if own_taken > own_released and op ~= 'reset'",
            ),
            Some(Fault::LateStatementCounts) => ("if taken > own_taken then", "if true then"),
            _ => return text.to_owned(),
        };
        assert!(text.contains(part), "the script has no {part}");
        text.replace(part, fault)
    }

    /// Applies an operation on the server. Returns the reply.
    fn execute(&self, state: &mut State, body: Body, process: u64) -> Body {
        static DECIDE: LazyLock<String> = LazyLock::new(|| Form::Slots.script());
        static HOLDING: LazyLock<String> = LazyLock::new(program::hold);
        let clock = state.server_clock();
        let (text, arguments) = match body {
            Body::Take(terms) => (&*DECIDE, vec![packed_op("acquire", 1, &terms)]),
            Body::State(terms) => {
                let limit = [&[Form::Slots.index() as u8 + 1], &terms[..]].concat();
                (&*HOLDING, vec![vec![1], Vec::new(), limit])
            }
            Body::Reset => {
                let statement = Statement { process, ..Statement::default() };
                let terms = packed_terms(self.threshold, &statement);
                let terms = packed_op("reset", 0, &terms);
                state.generation += 1;
                (&*DECIDE, vec![terms])
            }
            Body::Reply { .. } => unreachable!("a reply is not executed"),
        };
        let generation = state.generation;
        let reply = match state.server.run(&self.script(text), clock, &[KEY], &arguments) {
            Reply::Text(bytes) => bytes,
            Reply::List(mut list) => mem::take(&mut list[0]),
            Reply::Error(error) => panic!("{error}"),
        };
        Body::Reply { bytes: reply, generation }
    }

    /// Returns the units that the server counts.
    fn measured(&self, state: &mut State) -> u64 {
        let clock = state.server_clock();
        let terms = packed_terms(self.threshold, &Statement::default());
        let arguments = [packed_op("measure", 0, &terms)];
        match state.server.run(&self.script(&Form::Slots.script()), clock, &[KEY], &arguments) {
            Reply::Text(bytes) => decoded(&bytes).0.remaining.into(),
            other => panic!("{other:?}"),
        }
    }

    fn deliver(&self, state: &mut State, message: Message) {
        let now = state.local_clock();
        let sender = |process: &&mut Process| process.id == message.process;
        let Some(process) = state.processes.iter_mut().find(sender) else { return };
        let Body::Reply { bytes, generation } = message.body else { return };
        let (outcome, receipt) = decoded(&bytes);
        if let Some(at) = process.taking.iter().position(|taking| taking.0 == message.number) {
            let (_, sent_at, pending) = process.taking.remove(at);
            let sent_at = if self.is(Fault::HoldSinceReply) { now } else { sent_at };
            let units = u64::from(outcome.is_allowed());
            let last = outcome.is_allowed().then_some(receipt);
            let (granted, _) =
                process.holder.take(pending, units, last, outcome.clock, [sent_at, now]);
            if outcome.is_allowed() {
                let held = process.holder.granted(1, granted);
                let call = Call { held, generation: Some(generation) };
                process.calls.push(call);
            }
        } else if let Some((_, sent)) = process.stating.take_if(|it| it.0 == message.number) {
            process.holder.stated(sent, &outcome, receipt, now);
        } else if process.resetting.take_if(|number| *number == message.number).is_some() {
            process.holder.reset();
        }
    }

    /// Returns whether a statement of a process is due.
    fn states(process: &Process, now: u64) -> bool {
        let mut holder = process.holder.clone();
        process.stating.is_none()
            && (holder.lose_late(now) > 0 || holder.next_statement().is_some_and(|at| at <= now))
    }

    fn state(&self, state: &mut State, process: usize) {
        let now = state.local_clock();
        let sender = &mut state.processes[process];
        sender.holder.lose_late(now);
        if sender.holder.next_statement().is_some_and(|at| at <= now) {
            let sent = sender.holder.state(now);
            let number = state.send(process, Body::State, self.threshold);
            state.processes[process].stating = Some((number, sent));
        }
    }

    /// Plays on without faults until no message is left and no statement is due.
    fn settle(&self, state: &mut State) {
        for _ in 0..20 {
            while let Some(message) = state.network.pop() {
                let Message { process, number, body } = message;
                let reply = match body {
                    Body::Reply { .. } => body,
                    request => self.execute(state, request, process),
                };
                self.deliver(state, Message { process, number, body: reply });
            }
            let now = state.local_clock();
            let due = |process: &Process| Self::states(process, now);
            let Some(next) = state.processes.iter().position(due) else { return };
            self.state(state, next);
        }
        panic!("processes state without end: {state:#?}");
    }

    /// Returns whether the server counts, once messages have arrived and dead processes have expired, what runs, and
    /// nothing once all calls have ended.
    fn recovers(&self, state: &State) -> bool {
        let mut state = state.clone();
        for process in &mut state.processes {
            // What has no message left waits for its deadline.
            for taking @ (number, _, pending) in mem::take(&mut process.taking) {
                if state.network.iter().any(|it| (it.process, it.number) == (process.id, number)) {
                    process.taking.push(taking);
                } else {
                    process.holder.end_without_reply(pending);
                }
            }
            let sent = |number: u8| {
                state.network.iter().any(|it| (it.process, it.number) == (process.id, number))
            };
            if process.stating.is_some_and(|(number, _)| !sent(number)) {
                process.stating = None;
                process.holder.not_stated();
            }
        }
        self.settle(&mut state);
        for _ in 0..4 {
            state.time += 1;
            self.settle(&mut state);
        }
        let counts_what_runs = self.measured(&mut state) == state.held();
        for process in &mut state.processes {
            for call in mem::take(&mut process.calls) {
                process.holder.release(call.held);
            }
        }
        self.settle(&mut state);
        let can_call =
            state.processes.iter().all(|process| process.holder.clone().begin(1).is_some());
        counts_what_runs && can_call && self.measured(&mut state) == 0 && state.held() == 0
    }
}

impl Model for Holders {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let process = |index| {
            let mut holder = HolderState::default();
            holder.set_hold(HOLD);
            let (taking, calls) = Default::default();
            Process {
                id: 1 + index as u64,
                holder,
                next: 0,
                taking,
                stating: None,
                resetting: None,
                calls,
            }
        };
        vec![State {
            time: 0,
            server: Keys::default(),
            generation: 0,
            processes: (0..self.processes).map(process).collect(),
            network: Vec::new(),
            used: Used::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let (used, now) = (&state.used, state.local_clock());
        for (index, process) in state.processes.iter().enumerate() {
            if used.calls < self.calls && process.holder.clone().begin(1).is_some() {
                actions.push(Action::Call(index));
            }
            if used.local_calls < self.local_calls {
                actions.push(Action::LocalCall(index));
            }
            actions.extend((0..process.calls.len()).map(|call| Action::End(index, call)));
            if Self::states(process, now) {
                actions.push(Action::State(index));
            }
            if used.resets < self.resets {
                actions.push(Action::Reset(index));
            }
            if used.given_up < self.given_up {
                let taking = process.taking.iter().map(|taking| taking.0);
                let stating = process.stating.map(|(number, _)| number);
                let numbers = taking.chain(stating);
                actions.extend(numbers.map(|number| Action::GiveUp(index, number)));
            }
            if used.crashes < self.crashes {
                actions.push(Action::Crash(index));
            }
        }
        for (index, message) in state.network.iter().enumerate() {
            if matches!(message.body, Body::Reply { .. }) {
                actions.push(Action::Deliver(index));
                continue;
            }
            actions.push(Action::Execute(index));
            // Only statements are sent again if they may have been executed.
            if used.repeated < self.repeated && matches!(message.body, Body::State(_)) {
                actions.push(Action::ExecuteAndRepeat(index));
            }
        }
        if used.flushes < self.flushes {
            actions.push(Action::Flush);
        }
        if state.time < self.ticks {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let now = state.local_clock();
        match action {
            Action::Call(process) => {
                state.used.calls += 1;
                let pending = state.processes[process].holder.begin(1)?;
                let number = state.send(process, Body::Take, self.threshold);
                state.processes[process].taking.push((number, now, pending));
            }
            Action::LocalCall(process) => {
                state.used.local_calls += 1;
                let process = &mut state.processes[process];
                let held = process.holder.take_locally(1);
                process.calls.push(Call { held, generation: None });
            }
            Action::End(process, call) => {
                let process = &mut state.processes[process];
                let call = process.calls.remove(call);
                process.holder.release(call.held);
            }
            Action::State(process) => self.state(&mut state, process),
            Action::Reset(process) => {
                state.used.resets += 1;
                let number = state.send(process, |_| Body::Reset, self.threshold);
                state.processes[process].resetting = Some(number);
            }
            Action::Execute(index) | Action::ExecuteAndRepeat(index) => {
                let Message { process, number, body } = state.network.remove(index);
                if matches!(action, Action::ExecuteAndRepeat(_)) {
                    state.used.repeated += 1;
                    state.put(Message { process, number, body: body.clone() });
                }
                let body = self.execute(&mut state, body, process);
                // Nobody waits for the reply to a request that was given up.
                let waits = |it: &Process| {
                    it.id == process
                        && (it.taking.iter().any(|taking| taking.0 == number)
                            || it.stating.is_some_and(|(stating, _)| stating == number)
                            || it.resetting == Some(number))
                };
                if state.processes.iter().any(waits) {
                    state.put(Message { process, number, body });
                }
            }
            Action::Deliver(index) => {
                let message = state.network.remove(index);
                self.deliver(&mut state, message);
            }
            Action::GiveUp(process, number) => {
                state.used.given_up += 1;
                let process = &mut state.processes[process];
                let taking = process.taking.iter().position(|taking| taking.0 == number);
                if let Some(at) = taking {
                    let (_, _, pending) = process.taking.remove(at);
                    process.holder.end_without_reply(pending);
                } else {
                    process.stating = None;
                    process.holder.not_stated();
                }
                let id = process.id;
                let is_reply = |it: &Message| matches!(it.body, Body::Reply { .. });
                state.network.retain(|it| (it.process, it.number) != (id, number) || !is_reply(it));
            }
            Action::Crash(process) => {
                state.used.crashes += 1;
                let process = &mut state.processes[process];
                let id = process.id;
                let mut holder = HolderState::default();
                holder.set_hold(HOLD);
                let (taking, calls) = Default::default();
                *process = Process {
                    id: id + 100,
                    holder,
                    next: 0,
                    taking,
                    stating: None,
                    resetting: None,
                    calls,
                };
                // What it has sent can still be executed.
                let is_reply = |it: &Message| matches!(it.body, Body::Reply { .. });
                state.network.retain(|it| it.process != id || !is_reply(it));
            }
            Action::Flush => {
                state.used.flushes += 1;
                state.generation += 1;
                state.server.flush();
            }
            Action::Tick => state.time += 1,
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            // A reset frees the slots of running calls, and a server that has lost its memory does: calls that were
            // admitted before do not count (docs/in_flight.md).
            Property::always("never more than the limit", |model: &Self, state: &State| {
                state.running(state.generation) <= model.threshold as usize
            }),
            Property::always("no slot is lost for ever", |model: &Self, state: &State| {
                model.recovers(state)
            }),
        ]
    }
}

fn packed_terms(threshold: u32, stated: &Statement) -> Vec<u8> {
    debug_assert_eq!(Form::Slots.layout(), "I4I7I7I7I7I7I7I7");
    let mut out = threshold.to_be_bytes().to_vec();
    let Statement { process, epoch, taken, released, promised, hold_us, waited_us } = *stated;
    for number in [hold_us, process, epoch, taken, released, promised, waited_us] {
        out.extend(&number.to_be_bytes()[1..]);
    }
    out
}

fn packed_op(word: &str, cost: u32, terms: &[u8]) -> Vec<u8> {
    [word.as_bytes(), &[0], &cost.to_be_bytes(), &[0; 7], terms].concat()
}

/// Returns the outcome and the receipt of a reply (`lua/answer.lua`).
fn decoded(reply: &[u8]) -> (Outcome, Receipt) {
    let number = |at: usize, width: usize| {
        let bytes = reply.get(at..at + width).unwrap_or_default();
        bytes.iter().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte))
    };
    let outcome = Outcome {
        clock: number(0, 7),
        verdict: Verdict::from(number(7, 1) == 1),
        remaining: number(8, 4) as u32,
        retry_us: number(12, 7),
        reset_us: number(19, 7),
    };
    (outcome, Receipt { birth: number(30, 7), place: number(37, 7) })
}
