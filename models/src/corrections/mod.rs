//! Corrections: a process that settles its charges of a bucket or a window, blocks the key and resets it, and one that
//! does not settle, in every order in which calls are admitted and end, corrections are sent, executed, refused, lost
//! and late, the count is reset, and time passes.
//!
//! The queue of the process is [`Corrections`] of the runtime, and the server runs the script of the algorithm and
//! `lua/correct.lua`. The calls of the processes take no time, because only the moment of their execution matters.

mod queue;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use stateright::{Model, Property};

use self::queue::{Change, Pending, Queued};
use super::Corrections;
use crate::algorithm::{Charged, Correction, MOST, Receipt, Reservation};
use crate::bounds::{Bound, Counts};
use crate::judge;
use crate::limit::Limit;
use crate::scripts::{LOCAL_START, Mistakes, SERVER_START, Server, charge};
use crate::server::Keys;
use crate::store::Charge;

/// The length of a step of time, in microseconds: a charge leaves the window after three steps.
const TICK: u64 = 4_000_000;

const PERIOD: Duration = Duration::from_secs(10);

/// What a call is charged before it is settled.
const CHARGED: u64 = 2;

/// What a call may reserve: half a burst or a whole one.
const RESERVED: [u64; 2] = [2, 4];

/// The time of a reset in `lua/correct.lua`.
const RESET: u64 = MOST - 1;

/// The longest wait until a reserved moment, in microseconds.
const LONGEST_WAIT: u64 = 20_000_000;

#[derive(Clone, Debug)]
pub struct Settling {
    /// A bucket or a sliding window, of four units in ten seconds.
    pub is_bucket: bool,
    pub most: Counts,
    pub fault: Option<Fault>,
}

/// A fault that the checker must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A settlement whose reply is lost is sent again.
    LostIsSentAgain,
    /// A settlement that was refused is forgotten.
    RefusedIsForgotten,
    /// A reset passes the settlements before it.
    ResetPasses,
    /// A count gives units back to charges that were made before its reset.
    BirthIsIgnored,
    /// A bucket gives back units that have drained since their charge.
    DrainedUnitsComeBack,
    /// A settlement gives back units that the moments reserved since need.
    ReservedUnitsComeBack,
    /// A reservation goes back as the last charge although it is not.
    EarlierIsLast,
    /// A correction that empties a count unblocks its key.
    EmptyCountOpens,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Acquire,
    /// The call with an index ends. It has used so many units, and blocks the key or does not.
    End(usize, u64, bool),
    /// Another process takes all units that are left.
    TakeRest,
    /// Another process reserves a moment for a call of so many units.
    Reserve(u64),
    /// The reservation with an index of its admission goes back.
    Cancel(usize),
    /// The process sends what is queued.
    Send,
    /// The server executes the pending request.
    Execute,
    /// The process receives the reply.
    Deliver,
    /// The server does not execute the pending request.
    Refuse,
    /// The process receives no reply.
    Lose,
    /// The server executes a request that the process has given up.
    ExecuteLate(usize),
    /// Another process resets the count.
    Reset,
    /// The process resets the count.
    ResetOwn,
    Tick,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    /// The time since the start, in microseconds.
    time: u64,
    server: Keys,
    /// The calls that have not ended, as indices of `admissions`.
    running: Vec<usize>,
    /// What the process has not sent.
    queue: Corrections<Queued>,
    pending: Option<Pending>,
    /// The real time of the process, by which a lane pauses.
    real: u64,
    /// Requests that the process has given up, before the server executes them.
    late: Vec<Vec<Queued>>,
    /// What was admitted, also before a reset.
    admissions: Vec<Admission>,
    /// How often the count was reset, and how often by the process.
    generation: u8,
    own_resets: u8,
    /// Whether a settlement was executed after a reset that was queued later.
    was_passed: bool,
    /// The time until which the server keeps the key blocked.
    blocked_until: u64,
    was_admitted_while_blocked: bool,
    used: Counts,
}

/// Units that the server has admitted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Admission {
    at: u64,
    generation: u8,
    charged: u64,
    /// What the call has used, once it has ended.
    used: u64,
    ended: bool,
    /// Whether the server has corrected the charge.
    is_settled: bool,
    /// Whether no request corrects the charge any more, or perhaps a late one.
    is_lost: bool,
    receipt: Receipt,
    /// Whether the units are of a reserved moment that no call uses yet.
    is_reserved: bool,
}

impl Model for Settling {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend([Action::Acquire, Action::TakeRest, Action::Tick]);
        actions.extend([Action::Reset, Action::ResetOwn]);
        actions.extend(RESERVED.map(Action::Reserve));
        for call in 0..state.running.len() {
            for units in 0..=CHARGED {
                actions.extend([false, true].map(|blocks| Action::End(call, units, blocks)));
            }
        }
        let admissions = state.admissions.iter().enumerate();
        let reserved = admissions.filter(|(_, it)| it.is_reserved);
        actions.extend(reserved.map(|(index, _)| Action::Cancel(index)));
        actions.extend(state.next_action());
        if let Some(pending) = &state.pending {
            actions.push(Action::Lose);
            if !pending.is_executed {
                actions.push(Action::Refuse);
            }
        }
        actions.extend((0..state.late.len()).map(Action::ExecuteLate));
        actions.retain(|action| self.most.allow(&state.used, action.bound()));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        state.used.add(action.bound());
        match action {
            Action::Acquire => {
                let birth = state.used.get(Bound::Calls).into();
                let (outcome, receipt) = self.server(&mut state).acquire(CHARGED, birth);
                let receipt = outcome.is_allowed().then_some(receipt)?;
                state.running.push(state.admissions.len());
                let admission = Admission { used: 0, ended: false, ..state.admission(CHARGED) };
                state.admit(Admission { is_settled: false, receipt, ..admission });
            }
            Action::End(call, units, blocks) => state.end(self.is_bucket, call, units, blocks),
            Action::TakeRest => {
                let rest = self.server(&mut state).take_rest()?;
                state.admit(state.admission(rest));
            }
            Action::Reserve(units) => {
                // The births of other calls are smaller.
                let birth = 100 + u64::from(state.used.get(Bound::Reserved));
                let (outcome, receipt) =
                    self.server(&mut state).reserve(units, birth, LONGEST_WAIT);
                let wait = outcome.is_allowed().then_some(outcome.retry_us)?;
                let (at, is_reserved) = (state.time + wait, wait > 0);
                state.admit(Admission { at, receipt, is_reserved, ..state.admission(units) });
            }
            Action::Cancel(index) => self.cancel(&mut state, index),
            Action::Send => state.send(),
            Action::Execute => {
                let due = state.pending.as_ref()?.due.clone();
                self.correct(&mut state, &due);
                state.pending.as_mut()?.is_executed = true;
            }
            Action::Deliver => state.deliver(),
            Action::Refuse if self.is(Fault::RefusedIsForgotten) => state.deliver(),
            Action::Refuse => state.refuse(),
            Action::Lose => {
                let pending = state.pending.clone()?;
                if self.is(Fault::LostIsSentAgain) {
                    state.refuse();
                } else {
                    state.lose_reply();
                }
                if !pending.is_executed {
                    state.late.push(pending.due);
                }
            }
            Action::ExecuteLate(index) => {
                let due = state.late.remove(index);
                self.correct(&mut state, &due);
            }
            Action::Reset => {
                // `UNLINK` removes the one key of the count.
                state.server.flush();
                state.begin_anew();
            }
            Action::ResetOwn => {
                state.add(self.is_bucket, Change::Reset { passes: self.is(Fault::ResetPasses) });
            }
            Action::Tick => state.time += TICK,
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("never more than the limit", Self::is_within),
            Property::always("a count has what was used", Self::counts_what_was_used),
            Property::always("a blocked key admits nothing", |_: &Self, state: &State| {
                !state.was_admitted_while_blocked
            }),
            Property::always("corrections keep their order", |_: &Self, state: &State| {
                !state.was_passed
            }),
            Property::always("each settlement is executed", Self::settles_all),
        ]
    }
}

impl Action {
    fn bound(self) -> Option<Bound> {
        Some(match self {
            Self::Acquire => Bound::Calls,
            Self::End(_, _, true) => Bound::Blocks,
            Self::TakeRest => Bound::Plain,
            Self::Reserve(_) => Bound::Reserved,
            Self::Cancel(_) => Bound::Cancelled,
            Self::Refuse => Bound::Refused,
            Self::Lose => Bound::Lost,
            Self::Reset => Bound::Resets,
            Self::ResetOwn => Bound::OwnResets,
            Self::Tick => Bound::Ticks,
            Self::End(_, _, false)
            | Self::Send
            | Self::Execute
            | Self::Deliver
            | Self::ExecuteLate(_) => return None,
        })
    }
}

/// Returns the charge of a call of a bucket or of a window.
fn charge_of(is_bucket: bool) -> &'static Arc<Charge> {
    const BUCKET: Limit = Limit::token_bucket("settled", 4, PERIOD);
    const WINDOW: Limit = Limit::sliding("settled", 4, PERIOD);
    static CHARGES: LazyLock<[Arc<Charge>; 2]> =
        LazyLock::new(|| [WINDOW, BUCKET].map(|limit| Arc::new(charge(*limit.terms(), None))));
    &CHARGES[usize::from(is_bucket)]
}

impl Settling {
    fn is(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn mistakes(&self) -> Mistakes {
        match self.fault {
            Some(Fault::BirthIsIgnored) => &[(" birth == own_birth", " true")],
            Some(Fault::DrainedUnitsComeBack) => &[("math.min(units, level[step])", "units")],
            Some(Fault::ReservedUnitsComeBack) => &[("lower(level_then)", "lower(level)")],
            Some(Fault::EarlierIsLast) => {
                &[("if number ~= last then return end", "if number > last then return end")]
            }
            Some(Fault::EmptyCountOpens) => &[("if need > 0 then", "if false then")],
            _ => &[],
        }
    }

    fn server<'a>(&self, state: &'a mut State) -> Server<'a> {
        let (clock, charge) = (SERVER_START + state.time, charge_of(self.is_bucket));
        Server { keys: &mut state.server, mistakes: self.mistakes(), clock, charge }
    }

    /// A process gives a reservation back, whose call has not started. If charges after it need it, its moment passes
    /// unused.
    fn cancel(&self, state: &mut State, index: usize) {
        let cancelled = &mut state.admissions[index];
        (cancelled.is_reserved, cancelled.used) = (false, 0);
        let Admission { at, charged, receipt, .. } = *cancelled;
        let reservation = Reservation { receipt, moment: SERVER_START + at };
        let back = Correction::give_back(Charged::Reserved(reservation), charged);
        self.server(state).correct(&[(back, 0)]);
    }

    /// Executes a request of corrections.
    fn correct(&self, state: &mut State, due: &[Queued]) {
        let entry = |queued: &Queued| match queued.change {
            Change::Settle { correction, block_us, .. } => (correction, block_us),
            Change::Reset { .. } => (Correction::default(), RESET),
        };
        let corrections: Vec<_> = due.iter().map(entry).collect();
        if !corrections.is_empty() {
            self.server(state).correct(&corrections);
        }
        for queued in due {
            match queued.change {
                Change::Reset { .. } => {
                    state.begin_anew();
                    state.own_resets += 1;
                }
                Change::Settle { admission, block_us, .. } => {
                    state.was_passed |= queued.own_resets < state.own_resets;
                    state.admissions[admission].is_settled |= block_us == 0;
                    if block_us > 0 {
                        state.blocked_until = state.blocked_until.max(state.time + block_us);
                    }
                }
            }
        }
    }

    /// Returns whether the limit allows what was used since the last reset.
    fn is_within(&self, state: &State) -> bool {
        let own = state.admissions.iter().filter(|it| it.generation == state.generation);
        let used: Vec<_> = own.map(|it| (it.at, it.used)).collect();
        let terms = &charge_of(self.is_bucket).terms;
        if self.is_bucket {
            judge::is_within(terms, &used, |_, _| 0)
        } else {
            judge::is_within_window(terms, &used)
        }
    }

    /// Returns whether the server counts what was charged or, once a charge is corrected, used. A bucket may count
    /// more, and a window does not.
    fn counts_what_was_used(&self, state: &State) -> bool {
        let counted = self.server(&mut state.clone()).measured();
        let counts = |it: &&Admission| {
            it.generation == state.generation && it.at + PERIOD.as_micros() as u64 > state.time
        };
        let own = state.admissions.iter().filter(counts);
        let used: u64 = own.map(|it| if it.is_settled { it.used } else { it.charged }).sum();
        self.is_bucket || counted == used
    }

    /// Plays on without faults. Returns whether each settlement that was not lost has been executed, and the count then
    /// has what was used.
    fn settles_all(&self, state: &State) -> bool {
        let mut state = state.clone();
        for _ in 0..20 {
            let Some(next) = state.next_action() else {
                let is_open = |it: &Admission| it.ended && !it.is_settled && !it.is_lost;
                return !state.admissions.iter().any(is_open) && self.counts_what_was_used(&state);
            };
            state = self.next_state(&state, next).expect("a step without a fault");
        }
        false
    }
}

impl State {
    fn local_clock(&self) -> u64 {
        LOCAL_START + self.time
    }

    /// Returns the next step of the process and of the server without a fault.
    fn next_action(&self) -> Option<Action> {
        match &self.pending {
            Some(Pending { is_executed: true, .. }) => Some(Action::Deliver),
            Some(_) => Some(Action::Execute),
            None => self.queue.next_wake().map(|_| Action::Send),
        }
    }

    /// A reset: what was charged before does not count.
    fn begin_anew(&mut self) {
        self.generation += 1;
        self.blocked_until = 0;
    }

    /// Returns the admission of a call that uses at once what it is charged.
    fn admission(&self, units: u64) -> Admission {
        Admission {
            at: self.time,
            generation: self.generation,
            charged: units,
            used: units,
            ended: true,
            is_settled: true,
            is_lost: false,
            receipt: Receipt::default(),
            is_reserved: false,
        }
    }

    fn admit(&mut self, admission: Admission) {
        self.was_admitted_while_blocked |= self.time < self.blocked_until;
        self.admissions.push(admission);
    }
}
