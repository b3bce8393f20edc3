//! Leases: a process that leases units of a bucket, one that does not lease, and one that settles its charges, in every
//! order in which calls arrive and are dropped, requests and replies are executed, delivered, repeated and lost, leases
//! end, time passes, a clock steps and the process crashes.
//!
//! The lease of the process is [`LeaseState`] of the runtime, and the server runs `lua/bucket.lua` and
//! `lua/correct.lua`. The requests of the other processes take no time, because only the moment of their execution
//! matters.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use stateright::{Model, Property};

use super::state::{Delivery, LeaseCaller, LeaseState, LeaseTarget, UnspentUnits};
use crate::algorithm::{Charged, Correction, Receipt};
use crate::bounds::{Bound, Counts};
use crate::judge::{self, Admitted};
use crate::limit::Limit;
use crate::reply::{Source, StoreError};
use crate::scripts::{AHEAD, Mistakes, START, Server, charge, decoded};
use crate::server::StoredCount;
use crate::store::{Charge, Reply};

/// The length of a step of time, in microseconds: a lease ends right after two steps.
const TICK: u64 = 499_499;

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The term of a lease begins when the process receives the reply, and not when it sends the request.
    TermSinceReply,
    DroppedUnitsAreForgotten,
    DroppedUnitsGoBackTwice,
    /// The bucket does not keep a reserve for leased units.
    LeasedUnitsDrain,
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
    Call,
    /// A call arrives there that spends all units that it can.
    SpendHeld,
    Fetch,
    Poll(u8),
    /// A call that is not leased is decided by the server.
    Ask(u8),
    Drop(u8),
    Look,
    TakeRest,
    /// It reserves a moment for a call of the whole burst.
    Reserve,
    Acquire,
    Settle,
    Execute(usize),
    /// The server executes a message, which arrives a second time later.
    ExecuteAndRepeat(usize),
    Lose(usize),
    Deliver(usize),
    GiveUp,
    Crash,
    Step(i64),
    Tick,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    /// The real time, in microseconds, by the clock of the process.
    time: u64,
    /// The real time at which the clock of the server has stepped, and by how much.
    stepped: Option<(u64, i64)>,
    server: StoredCount,
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

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Process {
    /// What its ledger has of the count.
    lease: Option<LeaseState<Caller>>,
    /// The task that requests leases, while it runs.
    fetch: Option<Fetch>,
    calls: Vec<Call>,
    next: u8,
    look: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Fetch {
    /// It looks for calls that wait.
    Looks,
    /// It waits for the reply to a request, which was sent at `since`.
    Waits { number: u8, units: u64, since: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Caller {
    id: u8,
    is_present: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Call {
    id: u8,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    /// It waits for the ledger.
    Waiting,
    /// It has received units, which were admitted at this real time.
    Ready { units: Unspent, admitted: u64 },
    /// Its count is not leased, so it sends its own request.
    Asking,
}

/// [`UnspentUnits`] without their target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Unspent {
    units: u64,
    at: u64,
    place: u64,
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
        let mut state = State { time: START, ..State::default() };
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
        for call in &state.process.calls {
            actions.extend(call.next_action());
            actions.push(Action::Drop(call.id));
        }
        if state.process.is_due(state.time) {
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
        actions.retain(|action| self.most.allow(&state.used, bound(*action)));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        state.used.add(bound(action));
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
                let (outcome, _) = self.server(&mut state, &TARGET.charge).take(1, 0);
                if outcome.is_allowed() {
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
                let burst = LIMIT.terms().capacity;
                let (outcome, _) = self.server(&mut state, &PLAIN).reserve(burst, 1, LONGEST_WAIT);
                let at = outcome.is_allowed().then_some(state.time + outcome.retry_us)?;
                state.admit(burst, at);
            }
            Action::Acquire => {
                let birth = state.used.get(Bound::Settled).into();
                let (outcome, receipt) = self.server(&mut state, &PLAIN).take(ACQUIRED, birth);
                state.receipts.push(outcome.is_allowed().then_some(receipt)?);
            }
            Action::Settle => {
                let correction = Correction::settled(state.receipts.remove(0), ACQUIRED, 0);
                self.server(&mut state, &PLAIN).correct(&[(correction, 0)]);
            }
            Action::Execute(index) | Action::ExecuteAndRepeat(index) => {
                let message = state.network[index].clone();
                if action == Action::Execute(index) {
                    state.network.remove(index);
                }
                self.execute(&mut state, message);
            }
            Action::Lose(index) => state.lose(index),
            Action::Deliver(index) => {
                let Message { number, body } = state.network.remove(index);
                let Body::Reply { reply, at, .. } = body else { return None };
                if state.process.waits_for(number) {
                    let (outcome, _) = decoded(&reply);
                    let is_late = self.fault == Some(Fault::TermSinceReply) && outcome.is_allowed();
                    state.replied(Ok(Reply::one(outcome, Source::Redis)), at, is_late);
                }
            }
            Action::GiveUp => state.replied(Err(StoreError::ShuttingDown), 0, false),
            Action::Crash => state.crash(),
            Action::Step(by) => state.stepped = Some((state.time, by)),
            Action::Tick => state.time += TICK,
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("never more than the limit", Self::is_within),
            Property::always("each unit is spent, held or given back once", |_, state: &State| {
                state.owned == state.known()
            }),
            Property::always("no unit and no call is lost for ever", Self::recovers),
        ]
    }
}

fn bound(action: Action) -> Option<Bound> {
    Some(match action {
        Action::Call | Action::SpendHeld => Bound::Calls,
        Action::Drop(_) => Bound::Drops,
        Action::TakeRest => Bound::Plain,
        Action::Reserve => Bound::Reserved,
        Action::Acquire => Bound::Settled,
        Action::ExecuteAndRepeat(_) => Bound::Repeated,
        Action::Lose(_) | Action::GiveUp => Bound::Lost,
        Action::Crash => Bound::Crashes,
        Action::Tick => Bound::Ticks,
        _ => return None,
    })
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
        let clock = (AHEAD + state.time).saturating_add_signed(stepped);
        Server { count: &mut state.server, mistakes: self.mistakes(), clock, charge }
    }

    fn execute(&self, state: &mut State, Message { number, body }: Message) {
        match body {
            Body::Lease { units } => {
                let mut reply = self.server(state, &TARGET.charge).run_one("take", [units, 0, 0]);
                // Its receipt is not used.
                reply.truncate(29);
                // A reply for which the process does not wait any longer is dropped, and so is a second one.
                state.drop_reply(number);
                if state.process.waits_for(number) {
                    let body = Body::Reply { units, reply, at: state.time };
                    state.owned += body.owned();
                    state.put(number, body);
                }
            }
            Body::Return(Unspent { units, place, .. }) => {
                let back = Correction::give_back(Charged::At(place), units);
                self.server(state, &TARGET.charge).correct(&[(back, 0)]);
                state.owned = state.owned.wrapping_sub(units);
            }
            Body::Reply { .. } => unreachable!("a reply is not executed"),
        }
    }

    /// Returns whether the limit allows what was admitted.
    fn is_within(&self, state: &State) -> bool {
        let term =
            if self.fault == Some(Fault::StepAheadIsNoException) { 0 } else { TARGET.lifetime() };
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
        has_ended && self.server(&mut state, &PLAIN).remaining(0) == LIMIT.terms().capacity
    }
}

impl State {
    /// Returns the next step without a fault, before time passes.
    fn next_action(&self) -> Option<Action> {
        let process = &self.process;
        if let Some(first) = self.network.first() {
            return Some(first.next_action(0));
        }
        process
            .next_action()
            .or_else(|| process.calls.iter().find_map(|call| call.next_action()))
            .or_else(|| process.is_due(self.time).then_some(Action::Look))
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

    fn drop_reply(&mut self, number: u8) {
        let is_reply = |it: &Message| it.number == number && matches!(it.body, Body::Reply { .. });
        if let Some(index) = self.network.iter().position(is_reply) {
            self.lose(index);
        }
    }

    /// A call arrives: it spends units, waits for some, or sends its own request.
    fn call(&mut self) {
        let (now, id) = (self.time, self.used.get(Bound::Calls));
        let process = &mut self.process;
        let lease = process.lease.get_or_insert_with(|| LeaseState::new(&TARGET));
        let stage = if lease.is_paused(now) {
            Stage::Asking
        } else if lease.waiters.is_empty() && lease.take(1, now).is_some() {
            return self.spend(1, self.time);
        } else {
            lease.wait(1, Caller { id, is_present: true });
            process.fetch.get_or_insert(Fetch::Looks);
            Stage::Waiting
        };
        process.calls.push(Call { id, stage });
    }

    /// A call spends all units that the process holds. Returns `None` if it holds none.
    fn spend_held(&mut self) -> Option<()> {
        let now = self.time;
        let lease = self.process.lease.as_mut().filter(|lease| lease.waiters.is_empty())?;
        let units = Some(lease.held.spendable(now)).filter(|units| *units > 0)?;
        lease.take(units, now)?;
        self.spend(units, self.time);
        Some(())
    }

    /// The first part of the loop of the task that requests leases.
    fn fetch(&mut self) {
        let (now, process) = (self.time, &mut self.process);
        process.fetch = None;
        let Some(lease) = &mut process.lease else { return };
        let deliveries = lease.serve(now);
        let request = lease.request(now);
        if request.is_none() {
            // The watch looks at all leases after the end of a task.
            process.schedule(now);
        }
        self.deliver(deliveries, self.time);
        if let Some(request) = request {
            self.give_back(request.unspent);
            let (number, units) = (self.process.next, request.units);
            self.process.next += 1;
            self.process.fetch = Some(Fetch::Waits { number, units, since: now });
            self.put(number, Body::Lease { units });
        }
    }

    /// The request of the task ends with a reply, which the server has sent at the real time `at`, or without one. If
    /// `is_late`, the term of its lease begins now.
    fn replied(&mut self, result: Result<Reply, StoreError>, at: u64, is_late: bool) {
        let (now, fetch) = (self.time, self.process.fetch.replace(Fetch::Looks));
        let Some(Fetch::Waits { number, units, since }) = fetch else { return };
        self.drop_reply(number);
        let Some(lease) = &mut self.process.lease else { return };
        let requested = if is_late { now } else { since };
        let (deliveries, excess) = lease.replied(units, requested, now, result);
        self.deliver(deliveries, at);
        self.give_back(excess);
    }

    /// Delivers what the ledger replies to calls. Units were admitted at the real time `at`.
    fn deliver(&mut self, deliveries: Vec<Delivery<Caller>>, at: u64) {
        for Delivery { to, reply, units } in deliveries {
            let calls = &mut self.process.calls;
            // The channel of a call that was dropped is closed.
            let Some(index) = calls.iter().position(|call| call.id == to.id) else { continue };
            match (reply, units) {
                (_, Some(UnspentUnits { units, at: charged, place, .. })) => {
                    let units = Unspent { units, at: charged, place };
                    calls[index].stage = Stage::Ready { units, admitted: at };
                }
                (None, None) => calls[index].stage = Stage::Asking,
                (Some(_), None) => drop(calls.remove(index)),
            }
        }
    }

    fn drop_call(&mut self, id: u8, fault: Option<Fault>) {
        let process = &mut self.process;
        match process.remove(id) {
            Some(Stage::Waiting) => {
                let waiters = process.lease.iter_mut().flat_map(|lease| &mut lease.waiters);
                let own = waiters.map(|waiter| &mut waiter.caller).find(|caller| caller.id == id);
                own.expect("the call waits").is_present = false;
            }
            Some(Stage::Ready { units, .. }) if fault != Some(Fault::DroppedUnitsAreForgotten) => {
                let Unspent { units, at, place } = units;
                let unspent = UnspentUnits { target: TARGET.clone(), units, at, place };
                let kept = process.lease.as_mut().map_or(0, |lease| lease.put_back(&unspent));
                let twice = fault == Some(Fault::DroppedUnitsGoBackTwice);
                let units = units - if twice { 0 } else { kept };
                self.give_back(UnspentUnits { units, ..unspent }.some());
            }
            _ => {}
        }
    }

    fn look(&mut self) {
        let (now, process) = (self.time, &mut self.process);
        process.look = None;
        let Some(lease) = &mut process.lease else { return };
        lease.is_fetching = process.fetch.is_some();
        let (unspent, again) = lease.look(now);
        lease.is_fetching = false;
        match again {
            Some(again) => process.schedule(again),
            None => process.lease = None,
        }
        self.give_back(unspent);
    }

    /// Ends the process and starts another. What it has sent can still be executed.
    fn crash(&mut self) {
        if let Some(Fetch::Waits { number, .. }) = self.process.fetch {
            self.drop_reply(number);
        }
        self.process = Process { next: self.process.next, ..Process::default() };
        self.owned = self.known();
    }

    fn give_back(&mut self, unspent: Option<UnspentUnits>) {
        if let Some(UnspentUnits { units, at, place, .. }) = unspent {
            self.put(u8::MAX, Body::Return(Unspent { units, at, place }));
        }
    }
}

impl Process {
    fn known(&self) -> u64 {
        let held = self.lease.as_ref().map_or(0, |lease| lease.held.units);
        let ready = self.calls.iter().map(|call| match call.stage {
            Stage::Ready { units, .. } => units.units,
            Stage::Waiting | Stage::Asking => 0,
        });
        held + ready.sum::<u64>()
    }

    /// Returns the next step of the task, if no message comes any more.
    fn next_action(&self) -> Option<Action> {
        self.fetch.map(|fetch| match fetch {
            Fetch::Looks => Action::Fetch,
            Fetch::Waits { .. } => Action::GiveUp,
        })
    }

    fn waits_for(&self, sent: u8) -> bool {
        matches!(self.fetch, Some(Fetch::Waits { number, .. }) if number == sent)
    }

    /// Returns whether the watch has a lease to look at.
    fn is_due(&self, now: u64) -> bool {
        self.look.is_some_and(|at| at <= now)
    }

    fn schedule(&mut self, at: u64) {
        self.look = Some(self.look.map_or(at, |planned| planned.min(at)));
    }

    fn remove(&mut self, id: u8) -> Option<Stage> {
        let place = self.calls.iter().position(|call| call.id == id)?;
        Some(self.calls.remove(place).stage)
    }
}

impl Call {
    fn next_action(&self) -> Option<Action> {
        match self.stage {
            Stage::Waiting => None,
            Stage::Ready { .. } => Some(Action::Poll(self.id)),
            Stage::Asking => Some(Action::Ask(self.id)),
        }
    }
}

impl LeaseCaller for Caller {
    fn is_present(&self) -> bool {
        self.is_present
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
