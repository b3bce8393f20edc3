//! Leases: a process that leases units of a bucket, one that does not lease, and one that settles its charges, in every
//! order in which calls arrive and are dropped, requests and replies are executed, delivered, repeated and lost, leases
//! end, time passes, a clock steps and the process crashes.
//!
//! The ledger of the process is [`LeaseState`] of the runtime, and the server runs `lua/bucket.lua` and
//! `lua/correct.lua`. The model retells what stands between them: the task that requests leases (`lease/mod.rs`), the
//! map of leases (`lease/ledger.rs`) and the calls (`lease/mod.rs`). The requests of the other processes take no time,
//! because only the moment of their execution matters.

mod process;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use stateright::{Model, Property};

use self::process::{Fetch, Process, Stage, Unspent};
use super::state::LeaseTarget;
use crate::algorithm::{Charged, Correction, Receipt};
use crate::bounds::{Bound, Counts};
use crate::judge::{self, Admitted};
use crate::limit::Limit;
use crate::scripts::{LOCAL_START, Mistakes, SERVER_START, Server, charge, decoded};
use crate::server::Keys;
use crate::store::Charge;

/// The length of a step of time, in microseconds: a lease ends right after two steps.
const TICK: u64 = 499_499;

/// The most units that the process holds.
const LEASED: u64 = 4;

/// Five tokens refill in a term, which is a second.
const LIMIT: Limit =
    Limit::token_bucket("lease", 500, Duration::from_secs(100)).burst(17).lease(LEASED);

/// The time in which the bucket refills after a first lease, which it counts as so many units more as refill in a term.
const REFILL: u64 = 1_800_000;

/// The longest wait until a reserved moment, in microseconds.
const LONGEST_WAIT: u64 = 5_000_000;

/// What a call that settles is charged.
const ACQUIRED: u64 = 2;

static PLAIN: LazyLock<Charge> = LazyLock::new(|| charge(*LIMIT.terms(), None));
static TARGET: LazyLock<Arc<LeaseTarget>> =
    LazyLock::new(|| LeaseTarget::new(&LIMIT, Arc::new(charge(LIMIT.terms().leased(), None))));

#[derive(Clone, Debug)]
pub struct Leases {
    pub most: Counts,
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
    /// It reserves a moment for a call of the whole burst.
    Reserve,
    Acquire,
    /// Settles the first charge that is not settled.
    Settle,
    /// The server executes a message.
    Execute(usize),
    /// The server executes a message, which arrives a second time later.
    ExecuteAndRepeat(usize),
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

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    /// The real time since the start, in microseconds.
    time: u64,
    /// The real time at which the clock of the server has stepped, and by how much.
    stepped: Option<(u64, i64)>,
    server: Keys,
    process: Process,
    network: Vec<Message>,
    /// Of the charges that are not settled.
    receipts: Vec<Receipt>,
    /// What was admitted, at its real time, in the order of the times.
    admitted: Vec<Admitted>,
    /// The leased units that are not spent, given back or lost by a fault.
    owned: u64,
    used: Counts,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Message {
    number: u8,
    body: Body,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Body {
    /// A request for units.
    Lease { units: u64 },
    /// Its reply, and the real time of its execution.
    Reply { units: u64, reply: Vec<u8>, at: u64 },
    /// Units that go back. No reply is needed.
    Return(Unspent),
}

impl Model for Leases {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        // The bucket is full, and the process has spent some units of its last lease, so it leases as many again.
        let mut state = State::default();
        let calls = [Action::Call; LEASED as usize];
        let request = [Action::Fetch, Action::Execute(0), Action::Deliver(0), Action::Fetch];
        let polls = (1..=LEASED as u8).map(Action::Poll);
        for action in calls.into_iter().chain(request).chain(polls) {
            state = self.next_state(&state, action).expect("a first step");
        }
        state.time += TARGET.lifetime();
        state.look();
        state.time += REFILL - TARGET.lifetime();
        (state.used, state.admitted) = Default::default();
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend([Action::Call, Action::SpendHeld, Action::TakeRest, Action::Reserve]);
        actions.extend([Action::Acquire, Action::Crash, Action::Tick]);
        actions.extend(state.process.next_action());
        if matches!(state.process.fetch, Some(Fetch::Waits { .. })) {
            actions.push(Action::GiveUp);
        }
        for call in &state.process.calls {
            actions.extend(call.next_action());
            actions.push(Action::Drop(call.id));
        }
        if state.process.is_due(state.local_clock()) {
            actions.push(Action::Look);
        }
        if !state.receipts.is_empty() {
            actions.push(Action::Settle);
        }
        for (index, message) in state.network.iter().enumerate() {
            actions.extend([message.next_action(index), Action::Lose(index)]);
            // A give-back that may have been executed is not sent again.
            if matches!(message.body, Body::Lease { .. }) {
                actions.push(Action::ExecuteAndRepeat(index));
            }
        }
        if state.stepped.is_none() {
            actions.extend(self.steps.iter().map(|by| Action::Step(*by)));
        }
        actions.retain(|action| self.most.allow(&state.used, action.bound()));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        state.used.add(action.bound());
        match action {
            Action::Call => state.call(),
            Action::SpendHeld => state.spend_held()?,
            Action::Fetch => state.fetch(),
            Action::Poll(id) => {
                let Stage::Ready { units, admitted } = state.process.remove(id)? else {
                    return None;
                };
                state.spend(units.units, admitted);
            }
            Action::Ask(id) => {
                state.process.remove(id);
                let is_allowed = self.server(&mut state, &TARGET.charge).take(1).is_allowed();
                if is_allowed {
                    state.admit(1, state.time);
                }
            }
            Action::Drop(id) => state.drop_call(id, self.fault),
            Action::Look => state.look(),
            Action::TakeRest => {
                let rest = self.server(&mut state, &PLAIN).take_rest()?;
                state.admit(rest, state.time);
            }
            Action::Reserve => {
                let burst = LIMIT.terms().capacity();
                let (outcome, _) = self.server(&mut state, &PLAIN).reserve(burst, 1, LONGEST_WAIT);
                let at = outcome.is_allowed().then_some(state.time + outcome.retry_us)?;
                state.admit(burst, at);
            }
            Action::Acquire => {
                let birth = state.used.get(Bound::Settled).into();
                let (outcome, receipt) = self.server(&mut state, &PLAIN).acquire(ACQUIRED, birth);
                state.receipts.push(outcome.is_allowed().then_some(receipt)?);
            }
            Action::Settle => {
                let correction = Correction::settled(state.receipts.remove(0), ACQUIRED, 0);
                self.server(&mut state, &PLAIN).correct(&[(correction, 0)]);
            }
            Action::Execute(index) => {
                let message = state.network.remove(index);
                self.execute(&mut state, message);
            }
            Action::ExecuteAndRepeat(index) => {
                let message = state.network[index].clone();
                self.execute(&mut state, message);
            }
            Action::Lose(index) => state.lose(index),
            Action::Deliver(index) => {
                let Message { number, body } = state.network.remove(index);
                let Body::Reply { reply, at, .. } = body else { return None };
                let is_late = self.fault == Some(Fault::TermSinceReply);
                state.receive(number, decoded(&reply).0, at, is_late);
            }
            Action::GiveUp => state.give_up(),
            Action::Crash => state.crash(),
            Action::Step(by) => state.stepped = Some((state.time, by)),
            Action::Tick => state.time += TICK,
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("never more than the limit", Self::is_within),
            Property::always(
                "each unit is spent, held or given back once",
                |_: &Self, state: &State| state.owned == state.known(),
            ),
            Property::always("no unit and no call is lost for ever", Self::recovers),
        ]
    }
}

impl Action {
    fn bound(self) -> Option<Bound> {
        Some(match self {
            Self::Call | Self::SpendHeld => Bound::Calls,
            Self::Drop(_) => Bound::Drops,
            Self::TakeRest => Bound::Plain,
            Self::Reserve => Bound::Reserved,
            Self::Acquire => Bound::Settled,
            Self::ExecuteAndRepeat(_) => Bound::Repeated,
            Self::Lose(_) | Self::GiveUp => Bound::Lost,
            Self::Crash => Bound::Crashes,
            Self::Tick => Bound::Ticks,
            _ => return None,
        })
    }
}

impl Leases {
    fn mistakes(&self) -> Mistakes {
        match self.fault {
            Some(Fault::LeasedUnitsDrain) => &[
                ("floor = math.min(kept * token, level)\n    level = math", "level = math"),
                ("level = math.max(level, reserve * token)", ""),
            ],
            Some(Fault::DrainedUnitsComeBack) => {
                &[("math.min(-charge, capacity) - drained", "math.min(-charge, capacity)")]
            }
            Some(Fault::ReservedBeforeEndOfLease) => &[("        level = level_now\n", "")],
            Some(Fault::SettlementGivesReserveBack) => {
                &[("lower(leased > now and 0 or level)", "lower(level)")]
            }
            _ => &[],
        }
    }

    fn server<'a>(&self, state: &'a mut State, charge: &'a Charge) -> Server<'a> {
        let stepped = state.stepped.map_or(0, |(_, by)| by);
        let clock = (SERVER_START + state.time).saturating_add_signed(stepped);
        Server { keys: &mut state.server, mistakes: self.mistakes(), clock, charge }
    }

    /// Executes a message on the server.
    fn execute(&self, state: &mut State, Message { number, body }: Message) {
        match body {
            Body::Lease { units } => {
                let mut reply = self.server(state, &TARGET.charge).run_one("take", units, (0, 0));
                // Its receipt is not used.
                reply.truncate(29);
                // A reply for which the process does not wait any longer is dropped, and so is a second one.
                state.drop_reply(number);
                if state.process.fetch.is_some_and(|fetch| fetch.waits_for(number)) {
                    let body = Body::Reply { units, reply, at: state.time };
                    state.owned += body.owned();
                    state.put(number, body);
                }
            }
            Body::Return(Unspent { units, place, .. }) => {
                let back = Correction::give_back(Charged::At(place), units);
                self.server(state, &TARGET.charge).correct_one(back);
                state.owned = state.owned.wrapping_sub(units);
            }
            Body::Reply { .. } => unreachable!("a reply is not executed"),
        }
    }

    /// Returns whether the limit allows what was admitted.
    fn is_within(&self, state: &State) -> bool {
        let is_exception = self.fault != Some(Fault::StepAheadIsNoException);
        let term = if is_exception { TARGET.lifetime() } else { 0 };
        judge::is_within(LIMIT.terms(), &state.admitted, |from, to| {
            // A step ahead lets the bucket refill, and leased units drain before the end of their lease.
            let refills = from.saturating_sub(term)..=to;
            let ahead = state.stepped.filter(|(at, _)| refills.contains(at));
            ahead.map_or(0, |(_, by)| by.max(0).unsigned_abs())
        })
    }

    /// Plays on without faults. Returns whether all calls end, the process gives up all units within two terms, and the
    /// bucket is full once it has had the time to refill.
    fn recovers(&self, state: &State) -> bool {
        let mut state = state.clone();
        let term = TARGET.lifetime();
        for _ in 0..4 {
            let mut steps = 0;
            while let Some(action) = state.next_action() {
                state = self.next_state(&state, action).expect("a step without a fault");
                steps += 1;
                assert!(steps < 100, "steps without end: {state:#?}");
            }
            state.time += term;
        }
        let has_ended = state.process.calls.is_empty() && state.process.lease.is_none();
        // After a step of the clock back, the bucket stands still until the clock has caught up.
        let behind = state.stepped.map_or(0, |(_, by)| by.min(0).unsigned_abs());
        state.time += behind + 8 * term;
        has_ended && self.server(&mut state, &PLAIN).remaining(0) == LIMIT.terms().capacity()
    }
}

impl State {
    fn local_clock(&self) -> u64 {
        LOCAL_START + self.time
    }

    /// Returns the next step without a fault, before time passes.
    fn next_action(&self) -> Option<Action> {
        let process = &self.process;
        if let Some(first) = self.network.first() {
            return Some(first.next_action(0));
        }
        let of_task = match process.fetch {
            // Its request or its reply was lost.
            Some(Fetch::Waits { .. }) => Some(Action::GiveUp),
            _ => process.next_action(),
        };
        of_task
            .or_else(|| process.calls.iter().find_map(|call| call.next_action()))
            .or_else(|| process.is_due(self.local_clock()).then_some(Action::Look))
    }

    /// Records that units were admitted at the real time `at`.
    fn admit(&mut self, units: u64, at: u64) {
        let place = self.admitted.partition_point(|other| *other < (at, units));
        self.admitted.insert(place, (at, units));
    }

    /// Records that a call has spent leased units, which were admitted at the real time `at`.
    fn spend(&mut self, units: u64, at: u64) {
        self.owned = self.owned.wrapping_sub(units);
        self.admit(units, at);
    }

    /// Returns the leased units that are somewhere.
    fn known(&self) -> u64 {
        self.process.known() + self.network.iter().map(|it| it.body.owned()).sum::<u64>()
    }

    fn put(&mut self, number: u8, body: Body) {
        let message = Message { number, body };
        let place = self.network.partition_point(|other| *other < message);
        self.network.insert(place, message);
    }

    fn lose(&mut self, index: usize) {
        let message = self.network.remove(index);
        self.owned -= message.body.owned();
    }

    /// Loses the reply to a request.
    fn drop_reply(&mut self, number: u8) {
        let is_reply = |it: &Message| it.number == number && matches!(it.body, Body::Reply { .. });
        if let Some(index) = self.network.iter().position(is_reply) {
            self.lose(index);
        }
    }
}

impl Message {
    /// Returns how the message with this index arrives.
    fn next_action(&self, index: usize) -> Action {
        match self.body {
            Body::Reply { .. } => Action::Deliver(index),
            Body::Lease { .. } | Body::Return(_) => Action::Execute(index),
        }
    }
}

impl Body {
    /// Returns the leased units that this message carries.
    fn owned(&self) -> u64 {
        match self {
            Self::Reply { units, reply, .. } if decoded(reply).0.is_allowed() => *units,
            Self::Lease { .. } | Self::Reply { .. } => 0,
            Self::Return(units) => units.units,
        }
    }
}
