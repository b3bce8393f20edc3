//! Leases: a process that leases units of a bucket, one that does not lease, and one that settles its charges, in every
//! order in which calls arrive and are dropped, requests and replies are executed, delivered, repeated and lost, leases
//! end, time passes, a clock steps and the process crashes.
//!
//! The ledger of the process is [`LeaseState`](super::state::LeaseState) of the runtime, and the server runs
//! `lua/bucket.lua` and `lua/settle.lua`. The model retells what stands between them: the task that requests leases
//! (`lease/fetch.rs`), the map of leases (`lease/ledger.rs`) and the calls (`lease/mod.rs`). The requests of the other
//! processes take no time, because only the moment of their execution matters.

mod execution;
mod recovery;
mod state;

use stateright::{Model, Property};

pub use self::state::State;
use self::state::{Body, Call, Fetch, Message, Stage};
use crate::algorithm::Outcome;
use crate::reply::{Source, StoreError};
use crate::store::Reply;

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

    /// A call arrives: it spends units, waits for some, or sends its own request.
    fn call(&self, state: &mut State) {
        let now = state.local_clock();
        let id = state.used.calls;
        state.used.calls += 1;
        let process = &mut state.process;
        let lease = process.lease.get_or_insert_default();
        let target = execution::target();
        let stage = if lease.is_paused(now) {
            Stage::Asking
        } else if lease.waiters.is_empty() && lease.take(target, 1, now).is_some() {
            state.spend(1, state.time);
            return;
        } else {
            lease.wait(1, state::Caller { id, is_present: true });
            process.fetch.get_or_insert(Fetch::Looks);
            Stage::Waiting
        };
        state.process.calls.push(Call { id, stage });
    }

    /// A call spends all units that the process holds. Returns `None` if it holds none.
    fn spend_held(&self, state: &mut State) -> Option<()> {
        let (now, time) = (state.local_clock(), state.time);
        let lease = state.process.lease.as_mut().filter(|lease| lease.waiters.is_empty())?;
        let units = lease.held.spendable(now);
        lease.take(execution::target(), units, now)?;
        state.spend(units, time);
        (units > 0).then_some(())
    }

    /// The first part of the loop of the task that requests leases.
    fn fetch(&self, state: &mut State) {
        let (now, time) = (state.local_clock(), state.time);
        let (target, process) = (execution::target(), &mut state.process);
        process.fetch = None;
        let Some(lease) = &mut process.lease else { return };
        let deliveries = lease.serve(target, now);
        let request = lease.request(target, now);
        if request.is_none() && lease.scheduled.is_none() {
            process.lease = None;
        }
        state.deliver(deliveries, time);
        if let Some(request) = request {
            state.give_back(request.unspent);
            let number = state.process.next;
            state.process.next += 1;
            state.process.fetch = Some(Fetch::Waits { number, units: request.units, since: now });
            state.put(Message { number, body: Body::Lease { units: request.units } });
        }
    }

    /// The task receives the reply, which the server has sent at the real time `at`.
    fn receive(&self, state: &mut State, number: u8, outcome: &Outcome, at: u64) {
        let now = state.local_clock();
        let Some(Fetch::Waits { units, since, .. }) =
            state.process.fetch.take_if(|fetch| fetch.waits_for(number))
        else {
            return;
        };
        state.process.fetch = Some(Fetch::Looks);
        let target = execution::target();
        let Some(lease) = &mut state.process.lease else { return };
        if outcome.is_allowed() {
            let since = if self.is(Fault::TermSinceReply) { now } else { since };
            let charged = lease.charged(target, units, since, now, *outcome);
            state.deliver(charged.deliveries, at);
            state.give_back(charged.excess);
        } else {
            let rejection = Reply::one(*outcome, Source::Redis);
            let (deliveries, _) = lease.rejected(target, units, now, &rejection);
            state.deliver(deliveries, at);
        }
    }

    /// The task receives no reply.
    fn give_up(&self, state: &mut State) {
        let Some(Fetch::Waits { number, .. }) = state.process.fetch else { return };
        state.process.fetch = Some(Fetch::Looks);
        state.drop_reply(number);
        let Some(lease) = &mut state.process.lease else { return };
        let deliveries = lease.failed(&StoreError::NoRuntime);
        state.deliver(deliveries, 0);
    }

    fn drop_call(&self, state: &mut State, id: u8) {
        let process = &mut state.process;
        let Some(at) = process.calls.iter().position(|call| call.id == id) else { return };
        match process.calls.remove(at).stage {
            Stage::Asking => {}
            Stage::Waiting => {
                let waiters = process.lease.iter_mut().flat_map(|lease| &mut lease.waiters);
                let own = waiters.map(|waiter| &mut waiter.caller).find(|caller| caller.id == id);
                own.expect("the call waits").is_present = false;
            }
            Stage::Ready { units, .. } => {
                if self.is(Fault::DroppedUnitsAreForgotten) {
                    return;
                }
                let unspent = units.unspent();
                let kept = process
                    .lease
                    .as_mut()
                    .map_or(0, |lease| lease.put_back(execution::target(), &unspent));
                let twice = self.is(Fault::DroppedUnitsGoBackTwice);
                let rest = unspent.units - if twice { 0 } else { kept };
                state.give_back(super::entry::UnspentUnits { units: rest, ..unspent }.some());
            }
        }
    }

    /// The watch looks at the lease.
    fn look(&self, state: &mut State) {
        let (now, process) = (state.local_clock(), &mut state.process);
        let is_fetching = process.fetch.is_some();
        let Some(lease) = &mut process.lease else { return };
        let Some(due) = lease.scheduled.filter(|due| *due <= now) else { return };
        let look = lease.look(execution::target(), is_fetching, due, now);
        let (unspent, again) = look.expect("the look is the scheduled one");
        if again.is_none() {
            process.lease = None;
        }
        state.give_back(unspent);
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
        state.time += execution::target().lifetime;
        self.look(&mut state);
        state.time += execution::REFILL - execution::target().lifetime;
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
