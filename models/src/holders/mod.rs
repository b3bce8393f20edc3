//! Calls in flight: processes that take slots on one server, and every order in which requests and replies are
//! executed, delivered, repeated and lost, calls end, time passes, and processes crash.
//!
//! The states of the processes are [`HolderState`] of the runtime, the server runs `lua/slots.lua` and `lua/hold.lua`.
//! The model retells what stands between them: `backend/statements.rs`, which sends one statement at a time. A process
//! that is stopped is one that takes no step while time passes.

mod execution;
mod recovery;
mod state;

use stateright::{Model, Property};

pub use self::state::State;
use self::state::{Body, Call, Message, OWN_HOLD, Process, Taking, Used};
use crate::scripts::decoded;
use crate::server::Keys;

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

/// A fault that the checker must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The hold of a process begins when it receives a reply, and not when it sends the request.
    HoldSinceReply,
    /// The server forgets the record of a process that holds nothing, so a late statement counts again.
    EmptyRecordIsForgotten,
    /// The server takes a smaller number of a late statement.
    LateStatementCounts,
    /// The server executes a request that its process has given up.
    GivenUpRequestTakes,
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

impl Holders {
    fn is(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn deliver(&self, state: &mut State, message: Message) {
        let now = state.local_clock();
        let sender = |process: &&mut Process| process.id == message.process;
        let Some(process) = state.processes.iter_mut().find(sender) else { return };
        let Body::Reply { bytes, generation } = message.body else { return };
        let (outcome, receipt) = decoded(&bytes);
        let is_over = process.holder.ends_at().is_some_and(|at| now >= at);
        process.was_late |= is_over && self.resets > 0;
        if let Some(at) = process.taking.iter().position(|taking| taking.number == message.number) {
            let Taking { sent_at, pending, resets: resets_before, .. } = process.taking.remove(at);
            let sent_at = if self.is(Fault::HoldSinceReply) { now } else { sent_at };
            process.was_late |= now >= sent_at + OWN_HOLD && self.resets > 0;
            let units = u64::from(outcome.is_allowed());
            let last = outcome.is_allowed().then_some(receipt);
            let (granted, _) =
                process.holder.take(pending, units, last, outcome.clock, [sent_at, now]);
            if outcome.is_allowed() {
                let held = process.holder.granted(1, granted);
                let resets = state.used.resets;
                let is_apart = resets_before == Some(resets) && self.resets > 0;
                let kept_until = if is_apart { sent_at + OWN_HOLD } else { 0 };
                let call = Call { held, generation: Some(generation), resets, kept_until };
                process.calls.push(call);
            }
        } else if let Some((_, sent)) = process.stating.take_if(|it| it.0 == message.number) {
            process.holder.stated(sent, &outcome, receipt, now);
        } else if process.resetting.take_if(|number| *number == message.number).is_some() {
            process.holder.reset(Some(receipt));
        }
    }
}

impl Model for Holders {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            time: 0,
            server: Keys::default(),
            generation: 0,
            processes: (1..=self.processes as u64).map(Process::new).collect(),
            network: Vec::new(),
            used: Used::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let (used, now) = (&state.used, state.local_clock());
        for (index, process) in state.processes.iter().enumerate() {
            if used.calls < self.calls && process.holder.clone().begin().is_some() {
                actions.push(Action::Call(index));
            }
            if used.local_calls < self.local_calls {
                actions.push(Action::LocalCall(index));
            }
            actions.extend((0..process.calls.len()).map(|call| Action::End(index, call)));
            if process.is_due(now) {
                actions.push(Action::State(index));
            }
            if used.resets < self.resets {
                actions.push(Action::Reset(index));
            }
            if used.given_up < self.given_up {
                let taking = process.taking.iter().map(|taking| taking.number);
                let stating = process.stating.map(|(number, _)| number);
                let numbers = taking.chain(stating);
                actions.extend(numbers.map(|number| Action::GiveUp(index, number)));
            }
            if used.crashes < self.crashes {
                actions.push(Action::Crash(index));
            }
        }
        for (index, message) in state.network.iter().enumerate() {
            if message.is_reply() {
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
                let pending = state.processes[process].holder.begin()?;
                let number = state.send(process, Body::Take, self.threshold);
                let is_reset = state.processes.iter().any(|process| process.resetting.is_some());
                let resets = (!is_reset).then_some(state.used.resets);
                let taking = Taking { number, sent_at: now, pending, resets };
                state.processes[process].taking.push(taking);
            }
            Action::LocalCall(process) => {
                state.used.local_calls += 1;
                let process = &mut state.processes[process];
                let held = process.holder.take_locally(1);
                let resets = state.used.resets - u8::from(process.resetting.is_some());
                process.calls.push(Call { held, generation: None, resets, kept_until: 0 });
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
                // A request that was given up needs no reply.
                let waits = |it: &Process| it.id == process && it.waits_for(number);
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
                let taking = process.taking.iter().position(|taking| taking.number == number);
                if let Some(at) = taking {
                    let Taking { pending, .. } = process.taking.remove(at);
                    process.holder.end_without_reply(pending);
                } else {
                    process.give_up_statement();
                }
                let id = process.id;
                state
                    .network
                    .retain(|it| (it.process, it.number) != (id, number) || !it.is_reply());
            }
            Action::Crash(process) => {
                state.used.crashes += 1;
                let process = &mut state.processes[process];
                let id = process.id;
                *process = Process::new(id + 100);
                // What it has sent can still be executed.
                state.network.retain(|it| it.process != id || !it.is_reply());
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
            Property::always("the server counts what runs", |model: &Self, state: &State| {
                model.recovers(state)
            }),
            Property::always("a reset loses no later slot", |model: &Self, state: &State| {
                model.resets == 0 || model.given_up > 0 || state.keeps_calls()
            }),
            // A process does not know whether it has admitted a call before another process has reset the count.
            Property::always("a reset loses earlier slots only", |model: &Self, state: &State| {
                model.processes > 1 || state.keeps_local_calls()
            }),
        ]
    }
}
