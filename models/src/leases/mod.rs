//! Leases: a process that leases units of a bucket, one that does not lease, and one that settles its charges, in every
//! order in which calls arrive and are dropped, requests and replies are executed, delivered, repeated and lost, leases
//! end, time passes, a clock steps and the process crashes.
//!
//! The ledger of the process is [`LeaseState`](super::state::LeaseState) of the runtime, and the server runs
//! `lua/bucket.lua` and `lua/correct.lua`. The model retells what stands between them: the task that requests leases
//! (`lease/mod.rs`), the map of leases (`lease/ledger.rs`) and the calls (`lease/mod.rs`). The requests of the other
//! processes take no time, because only the moment of their execution matters.

mod execution;
mod process;
mod recovery;
mod state;

use stateright::{Model, Property};

pub use self::state::State;
use self::state::{Body, Fetch, Message, Stage};

/// What a model does at most, and the fault that it has.
#[derive(Clone, Debug)]
pub struct Leases {
    /// The calls of the process that leases.
    pub calls: u8,
    pub ticks: u8,
    pub drops: u8,
    /// Calls of the process that does not lease, each of as many units as are left.
    pub plain: u8,
    /// Calls of the process that settles, each charged two units.
    pub settled: u8,
    /// Calls of the whole burst for which the process that does not lease reserves a moment.
    pub reserved: u8,
    /// Requests and replies that are lost, and requests whose process does not wait for the reply any longer.
    pub lost: u8,
    /// Requests that are executed a second time.
    pub repeated: u8,
    pub crashes: u8,
    /// The steps of the clock of the server, in microseconds; one of them happens.
    pub steps: &'static [i64],
    pub fault: Option<Fault>,
}

/// A fault that the checker must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The term of a lease begins when the process receives the reply, and not when it sends the request.
    TermSinceReply,
    /// The units of a call that is dropped before it spends them are forgotten.
    DroppedUnitsAreForgotten,
    /// The units of such a call go back to the ledger and to the server.
    DroppedUnitsGoBackTwice,
    /// The bucket does not keep a reserve for leased units.
    LeasedUnitsDrain,
    /// The bucket gives units back that have drained since their charge.
    DrainedUnitsComeBack,
    /// A moment that is reserved while units are leased takes its units before the end of the lease.
    ReservedBeforeEndOfLease,
    /// A settlement gives back what is kept for leased units.
    SettlementGivesReserveBack,
    /// Not one of the code: the judge does not know that leased units drain when the clock of the server steps ahead.
    StepAheadIsNoException,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A call arrives at the process that leases.
    Call,
    /// A call arrives there that spends all units that it can.
    SpendHeld,
    /// The task that requests leases looks for calls that wait.
    Fetch,
    /// A call with units is polled.
    Poll(u8),
    /// A call that is not leased is decided by the server.
    Ask(u8),
    Drop(u8),
    /// The watch looks at the lease.
    Look,
    /// A process that does not lease takes all units that are left.
    TakeRest,
    Reserve,
    Acquire,
    /// Settles the first charge that is not settled.
    Settle,
    /// The server executes a message.
    Execute(usize),
    /// The server executes a message, which arrives a second time later.
    ExecuteAndRepeat(usize),
    /// A message is lost.
    Lose(usize),
    /// The process receives a reply.
    Deliver(usize),
    /// The process does not wait for the reply to its request any longer.
    GiveUp,
    Crash,
    /// The clock of the server steps.
    Step(i64),
    Tick,
}

impl Leases {
    fn is(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }
}

impl Model for Leases {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        // The bucket is full, and the process has spent some units of its last lease, so it leases as many again.
        let mut state = State::new();
        let calls = [Action::Call; execution::LEASED as usize];
        let request = [Action::Fetch, Action::Execute(0), Action::Deliver(0), Action::Fetch];
        let polls = (0..execution::LEASED as u8).map(Action::Poll);
        for action in calls.into_iter().chain(request).chain(polls) {
            state = self.next_state(&state, action).expect("a first step");
        }
        state.time += execution::target().lifetime();
        self.look(&mut state);
        state.time += execution::REFILL - execution::target().lifetime();
        (state.used, state.admitted) = Default::default();
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let (used, process) = (&state.used, &state.process);
        if used.calls < self.calls {
            actions.extend([Action::Call, Action::SpendHeld]);
        }
        if process.fetch == Some(Fetch::Looks) {
            actions.push(Action::Fetch);
        }
        for call in &process.calls {
            match call.stage {
                Stage::Waiting => {}
                Stage::Ready { .. } => actions.push(Action::Poll(call.id)),
                Stage::Asking => actions.push(Action::Ask(call.id)),
            }
            if used.drops < self.drops {
                actions.push(Action::Drop(call.id));
            }
        }
        if process.is_due(state.local_clock()) {
            actions.push(Action::Look);
        }
        if used.plain < self.plain {
            actions.push(Action::TakeRest);
        }
        if used.reserved < self.reserved {
            actions.push(Action::Reserve);
        }
        if used.settled < self.settled {
            actions.push(Action::Acquire);
        }
        if !state.receipts.is_empty() {
            actions.push(Action::Settle);
        }
        for (index, message) in state.network.iter().enumerate() {
            match message.body {
                Body::Reply { .. } => actions.push(Action::Deliver(index)),
                // A give-back that may have been executed is not sent again.
                Body::Return { .. } => actions.push(Action::Execute(index)),
                Body::Lease { .. } => {
                    actions.push(Action::Execute(index));
                    if used.repeated < self.repeated {
                        actions.push(Action::ExecuteAndRepeat(index));
                    }
                }
            }
            if used.lost < self.lost {
                actions.push(Action::Lose(index));
            }
        }
        if used.lost < self.lost && matches!(process.fetch, Some(Fetch::Waits { .. })) {
            actions.push(Action::GiveUp);
        }
        if used.crashes < self.crashes {
            actions.push(Action::Crash);
        }
        if state.stepped.is_none() {
            actions.extend(self.steps.iter().map(|by| Action::Step(*by)));
        }
        if used.ticks < self.ticks {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Call => self.call(&mut state),
            Action::SpendHeld => {
                state.used.calls += 1;
                self.spend_held(&mut state)?;
            }
            Action::Fetch => self.fetch(&mut state),
            Action::Poll(id) => {
                let place = state.process.calls.iter().position(|call| call.id == id)?;
                let Stage::Ready { units, admitted } = state.process.calls.remove(place).stage
                else {
                    return None;
                };
                state.spend(units.units, admitted);
            }
            Action::Ask(id) => {
                state.process.calls.retain(|call| call.id != id);
                self.ask(&mut state);
            }
            Action::Drop(id) => {
                state.used.drops += 1;
                self.drop_call(&mut state, id);
            }
            Action::Look => self.look(&mut state),
            Action::TakeRest => {
                state.used.plain += 1;
                self.take_rest(&mut state)?;
            }
            Action::Reserve => {
                state.used.reserved += 1;
                self.reserve(&mut state)?;
            }
            Action::Acquire => {
                state.used.settled += 1;
                self.acquire(&mut state)?;
            }
            Action::Settle => self.settle(&mut state),
            Action::Execute(index) => {
                let message = state.network.remove(index);
                self.execute(&mut state, message);
            }
            Action::ExecuteAndRepeat(index) => {
                state.used.repeated += 1;
                let message = state.network[index].clone();
                self.execute(&mut state, message);
            }
            Action::Lose(index) => {
                state.used.lost += 1;
                state.lose(index);
            }
            Action::Deliver(index) => {
                let Message { number, body } = state.network.remove(index);
                let Body::Reply { outcome, at, .. } = body else { return None };
                self.receive(&mut state, number, &outcome.outcome(), at);
            }
            Action::GiveUp => {
                state.used.lost += 1;
                self.give_up(&mut state);
            }
            Action::Crash => {
                state.used.crashes += 1;
                state.crash();
            }
            Action::Step(by) => state.stepped = Some((state.time, by)),
            Action::Tick => {
                state.used.ticks += 1;
                state.time += state::TICK;
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("never more than the limit", |model: &Self, state: &State| {
                model.is_within(state)
            }),
            Property::always(
                "each unit is spent, held or given back once",
                |_: &Self, state: &State| state.owned == state.known(),
            ),
            Property::always(
                "no unit and no call is lost for ever",
                |model: &Self, state: &State| model.recovers(state),
            ),
        ]
    }
}
