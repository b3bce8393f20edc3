//! Calls in flight: processes that take slots on one server, and every order in which requests and replies are
//! executed, delivered and lost, calls end, time passes, counts are reset, and processes crash.
//!
//! What a process holds is [`SlotUnits`](super::SlotUnits) of the runtime, and the server runs `lua/slots.lua`. A
//! process has one request pending at a time. A process that is stopped is one that takes no step while time passes.

mod execution;
mod recovery;
mod state;

use stateright::{Model, Property};

pub use self::state::State;
use self::state::{Body, Call, Message, OWN_HOLD, Pending, Process, Used};
use super::TakenUnits;
use crate::scripts::decoded;
use crate::server::Keys;
use crate::store::Stated;

/// What a model does at most, and the fault that it has.
#[derive(Clone, Debug)]
pub struct Slots {
    pub processes: usize,
    pub threshold: u64,
    pub calls: u8,
    pub local_calls: u8,
    pub ticks: u8,
    /// Requests whose process does not wait for the reply any longer.
    pub given_up: u8,
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

impl Slots {
    fn is(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn records_lateness(&self) -> bool {
        self.resets > 0 || self.local_calls > 0
    }

    fn deliver(&self, state: &mut State, message: Message) {
        let (now, used_resets) = (state.local_clock(), state.used.resets);
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
            let is_apart = resets == Some(used_resets) && self.resets > 0;
            let kept_until = if is_apart { sent_at + OWN_HOLD } else { 0 };
            let generation = Some(generation);
            process.calls.push(Call { held, generation, resets: used_resets, kept_until });
        }
    }
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
            used: Used::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let (used, now) = (&state.used, state.local_clock());
        for (index, process) in state.processes.iter().enumerate() {
            if used.calls < self.calls && process.pending.is_none() {
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
            if used.given_up < self.given_up && process.pending.is_some() {
                actions.push(Action::GiveUp(index));
            }
            if used.crashes < self.crashes {
                actions.push(Action::Crash(index));
            }
        }
        for (index, message) in state.network.iter().enumerate() {
            actions.push(if message.is_reply() {
                Action::Deliver(index)
            } else {
                Action::Execute(index)
            });
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
        match action {
            Action::Call(process) => {
                state.used.calls += 1;
                self.send(&mut state, process, true);
            }
            Action::LocalCall(process) => {
                state.used.local_calls += 1;
                let process = &mut state.processes[process];
                let held = process.units.take_locally(1);
                let resets = state.used.resets - u8::from(process.resetting.is_some());
                process.calls.push(Call { held, generation: None, resets, kept_until: 0 });
            }
            Action::End(process, call) => {
                let process = &mut state.processes[process];
                let call = process.calls.remove(call);
                process.units.release(call.held);
            }
            Action::State(process) => self.send(&mut state, process, false),
            Action::Reset(process) => {
                state.used.resets += 1;
                let sender = &mut state.processes[process];
                sender.last_seq += 1;
                let (id, number) = (sender.id, sender.last_seq);
                sender.resetting = Some(number);
                state.put(Message { process: id, number, body: Body::Reset });
            }
            Action::Execute(index) => {
                let Message { process, number, body } = state.network.remove(index);
                let body = self.execute(&mut state, body);
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
            Action::GiveUp(process) => {
                state.used.given_up += 1;
                let process = &mut state.processes[process];
                let (id, number) = (process.id, process.pending?.number);
                process.give_up();
                process.units.is_unsure &= !self.is(Fault::GivenUpIsForgotten);
                let is_reply = |it: &Message| (it.process, it.number) == (id, number);
                state.network.retain(|it| !is_reply(it) || !it.is_reply());
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
            // admitted before do not count.
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
