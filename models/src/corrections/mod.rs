//! Corrections: a process that settles its charges of a bucket or a window, blocks the key and resets it, and one that
//! does not settle, in every order in which calls are admitted and end, corrections are sent, executed, refused, lost
//! and late, the count is reset, and time passes.
//!
//! The queue of the process is [`Corrections`] of the runtime, and the server runs the script of the algorithm and
//! `lua/correct.lua`. The calls of the processes take no time, because only the moment of their execution matters.

use std::sync::LazyLock;
use std::time::Duration;

use stateright::{Model, Property};

use super::{Corrections, Kind, Queueable, Sent};
use crate::algorithm::{BlockChange, Charged, Correction, MOST, Receipt, Reservation};
use crate::bounds::{Bound, Counts};
use crate::judge;
use crate::key::KeyId;
use crate::limit::Limit;
use crate::reply::StoreError;
use crate::scripts::{AHEAD, Mistakes, START, Server, charge};
use crate::server::StoredCount;
use crate::store::{Charge, Failure};

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    LostIsSentAgain,
    RefusedIsForgotten,
    ResetPasses,
    /// A count gives units back to charges that were made before its reset.
    BirthIsIgnored,
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
    TakeRest,
    /// Another process reserves a moment for a call of so many units.
    Reserve(u64),
    /// The reservation with an index of its admission goes back.
    Cancel(usize),
    Send,
    Execute,
    Deliver,
    Refuse,
    Lose,
    /// The server executes a request that the process has given up.
    ExecuteLate(usize),
    Reset,
    ResetOwn,
    Tick,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    /// By the clock of the process, in microseconds.
    time: u64,
    server: StoredCount,
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
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

/// A correction that is queued or sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Queued {
    is_bucket: bool,
    change: Change,
    /// The resets that were queued before.
    own_resets: u8,
    /// The time at which it was queued, by the clock of the process.
    at: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Change {
    Settle {
        /// The index of the admission.
        admission: usize,
        correction: Correction,
        /// For how long the key is blocked, in microseconds; 0 if it is not.
        block_us: u64,
    },
    /// `passes` is the fault: it passes settlements.
    Reset { passes: bool },
}

/// The pending request. A probe corrects nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Pending {
    due: Vec<Queued>,
    is_executed: bool,
}

impl Model for Settling {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State { time: START, ..State::default() }]
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
        actions.retain(|action| self.most.allow(&state.used, bound(*action)));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        state.used.add(bound(action));
        let not_executed = || Failure::NotExecuted(StoreError::ShuttingDown);
        match action {
            Action::Acquire => {
                let birth = state.used.get(Bound::Calls).into();
                let (outcome, receipt) = self.server(&mut state).take(CHARGED, birth);
                let receipt = outcome.is_allowed().then_some(receipt)?;
                state.running.push(state.admissions.len());
                state.admit(CHARGED, receipt, 0);
            }
            Action::End(call, units, blocks) => state.end(self.is_bucket, call, units, blocks),
            Action::TakeRest => {
                let rest = self.server(&mut state).take_rest()?;
                state.admit(rest, Receipt::default(), 0).use_all();
            }
            Action::Reserve(units) => {
                // The births of other calls are smaller.
                let birth = 100 + u64::from(state.used.get(Bound::Reserved));
                let (outcome, receipt) =
                    self.server(&mut state).reserve(units, birth, LONGEST_WAIT);
                let wait = outcome.is_allowed().then_some(outcome.retry_us)?;
                let admission = state.admit(units, receipt, wait);
                admission.use_all();
                admission.is_reserved = wait > 0;
            }
            Action::Cancel(index) => self.cancel(&mut state, index),
            Action::Send => state.send(),
            Action::Execute => {
                let due = state.pending.as_ref()?.due.clone();
                self.correct(&mut state, &due);
                state.pending.as_mut()?.is_executed = true;
            }
            Action::Deliver => drop(state.replied(Ok(()))),
            Action::Refuse => {
                let is_forgotten = self.fault == Some(Fault::RefusedIsForgotten);
                state.replied(if is_forgotten { Ok(()) } else { Err(not_executed()) });
            }
            Action::Lose => {
                let no_reply = Failure::NoReply(StoreError::ShuttingDown);
                let is_mistaken = self.fault == Some(Fault::LostIsSentAgain);
                let error = if is_mistaken { not_executed() } else { no_reply };
                let pending = state.replied(Err(error))?;
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
                state.server = StoredCount::default();
                state.begin_anew();
            }
            Action::ResetOwn => {
                let passes = self.fault == Some(Fault::ResetPasses);
                state.add(self.is_bucket, Change::Reset { passes });
            }
            Action::Tick => state.time += TICK,
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("never more than the limit", Self::is_within),
            Property::always("a count has what was used", Self::counts_what_was_used),
            Property::always("a blocked key admits nothing", |_, state: &State| {
                !state.was_admitted_while_blocked
            }),
            Property::always("corrections keep their order", |_, state: &State| !state.was_passed),
            Property::always("each settlement is executed", Self::settles_all),
        ]
    }
}

fn bound(action: Action) -> Option<Bound> {
    Some(match action {
        Action::Acquire => Bound::Calls,
        Action::End(_, _, true) => Bound::Blocks,
        Action::TakeRest => Bound::Plain,
        Action::Reserve(_) => Bound::Reserved,
        Action::Cancel(_) => Bound::Cancelled,
        Action::Refuse => Bound::Refused,
        Action::Lose => Bound::Lost,
        Action::Reset => Bound::Resets,
        Action::ResetOwn => Bound::OwnResets,
        Action::Tick => Bound::Ticks,
        _ => return None,
    })
}

/// Returns the charge of a call of a bucket or of a window.
fn charge_of(is_bucket: bool) -> &'static Charge {
    const BUCKET: Limit = Limit::token_bucket("settled", 4, PERIOD);
    const WINDOW: Limit = Limit::sliding("settled", 4, PERIOD);
    static CHARGES: LazyLock<[Charge; 2]> =
        LazyLock::new(|| [WINDOW, BUCKET].map(|limit| charge(*limit.terms(), None)));
    &CHARGES[usize::from(is_bucket)]
}

impl Settling {
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
        let (clock, charge) = (AHEAD + state.time, charge_of(self.is_bucket));
        Server { count: &mut state.server, mistakes: self.mistakes(), clock, charge }
    }

    /// A process gives a reservation back, whose call has not started. If charges after it need it, its moment passes
    /// unused.
    fn cancel(&self, state: &mut State, index: usize) {
        let cancelled = &mut state.admissions[index];
        (cancelled.is_reserved, cancelled.used) = (false, 0);
        let Admission { at, charged, receipt, .. } = *cancelled;
        let reservation = Reservation { receipt, moment: AHEAD + at };
        let back = Correction::give_back(Charged::Reserved(reservation), charged);
        self.server(state).correct(&[(back, 0)]);
    }

    fn correct(&self, state: &mut State, due: &[Queued]) {
        let mut corrections = Vec::new();
        for queued in due {
            match queued.change {
                Change::Reset { .. } => {
                    corrections.push((Correction::default(), RESET));
                    state.begin_anew();
                    state.own_resets += 1;
                }
                Change::Settle { admission, correction, block_us } => {
                    corrections.push((correction, block_us));
                    state.was_passed |= queued.own_resets < state.own_resets;
                    state.admissions[admission].is_settled |= block_us == 0;
                    let blocked_until = if block_us > 0 { state.time + block_us } else { 0 };
                    state.blocked_until = state.blocked_until.max(blocked_until);
                }
            }
        }
        if !corrections.is_empty() {
            self.server(state).correct(&corrections);
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

impl Admission {
    /// A call uses at once what it is charged.
    fn use_all(&mut self) {
        (self.used, self.ended, self.is_settled) = (self.charged, true, true);
    }
}

impl State {
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

    /// Adds units that are not used before `wait`.
    fn admit(&mut self, charged: u64, receipt: Receipt, wait: u64) -> &mut Admission {
        self.was_admitted_while_blocked |= self.time < self.blocked_until;
        let (at, generation) = (self.time + wait, self.generation);
        let admission = Admission { at, generation, charged, receipt, ..Admission::default() };
        self.admissions.push(admission);
        self.admissions.last_mut().expect("added above")
    }

    /// A call ends: its settlement is queued, unless it has nothing to correct.
    fn end(&mut self, is_bucket: bool, call: usize, used: u64, blocks: bool) {
        let admission = self.running.remove(call);
        let ended = &mut self.admissions[admission];
        (ended.used, ended.ended) = (used, true);
        ended.is_settled = used == CHARGED;
        let correction = Correction::settled(ended.receipt, CHARGED, used);
        if blocks {
            let (correction, block_us) = (Correction::default(), TICK + TICK / 2);
            self.add(is_bucket, Change::Settle { admission, correction, block_us });
        }
        if used != CHARGED {
            self.add(is_bucket, Change::Settle { admission, correction, block_us: 0 });
        }
    }

    fn add(&mut self, is_bucket: bool, change: Change) {
        let is_reset = matches!(change, Change::Reset { .. });
        let own_resets = self.used.get(Bound::OwnResets) - u8::from(is_reset);
        let queued = Queued { is_bucket, change, own_resets, at: self.time };
        let mut left = Vec::new();
        let lost = self.queue.add(0, 0, queued, self.real, &mut left);
        assert!(lost.is_none(), "the queue is not full");
        // The reset unblocks the key: a block that waits is not sent.
        let is_block = |it: &Queued| matches!(it.change, Change::Settle { block_us: 1.., .. });
        assert!(left.iter().all(is_block), "no settlement is dropped");
    }

    /// The process sends what is due once the lane does not pause any more.
    fn send(&mut self) {
        let (now, wake) = (self.time, self.queue.next_wake().unwrap_or_default());
        self.real = self.real.max(wake);
        let mut left = Vec::new();
        let sent = self.queue.next(now, self.real, &mut left);
        // What has left the window needs no correction.
        left.into_iter().for_each(|left| self.lose(left));
        self.pending = sent.map(|(_, sent)| Pending {
            due: match sent {
                Sent::Corrections => self.queue.sent(0).map(|it| it.due(now)).collect(),
                Sent::Probe => Vec::new(),
            },
            is_executed: false,
        });
    }

    /// The pending request ends, with the same result for each of its corrections. Returns the request.
    fn replied(&mut self, result: Result<(), Failure>) -> Option<Pending> {
        let pending = self.pending.take()?;
        let is_lost = matches!(result, Err(Failure::NoReply(_)));
        let results = vec![result; pending.due.len().max(1)];
        let ended = self.queue.replied(0, results, self.real).into_iter();
        ended.filter(|_| is_lost).for_each(|(lost, _)| self.lose(lost));
        Some(pending)
    }

    /// A settlement is not executed, or perhaps late.
    fn lose(&mut self, lost: Queued) {
        if let Change::Settle { admission, block_us: 0, .. } = lost.change {
            self.admissions[admission].is_lost = true;
        }
    }
}

impl Queueable for Queued {
    fn key_id(&self) -> KeyId {
        charge_of(self.is_bucket).key_id
    }

    fn kind(&self) -> Kind {
        match self.change {
            Change::Reset { passes: true } => Kind::Block,
            Change::Reset { passes: false } => Kind::Awaited,
            Change::Settle { block_us: 1.., .. } => Kind::Block,
            Change::Settle { correction, .. } if correction.less() > 0 => Kind::GiveBack,
            Change::Settle { .. } => Kind::Settlement,
        }
    }

    fn block(&self) -> BlockChange {
        match self.change {
            Change::Reset { passes: false } => BlockChange::Reset,
            _ if self.kind() == Kind::Block => BlockChange::BlockFor(1),
            Change::Settle { .. } | Change::Reset { .. } => BlockChange::None,
        }
    }

    fn is_due(&self, now: u64) -> bool {
        match self.due(now).change {
            Change::Reset { .. } => true,
            Change::Settle { correction, block_us, .. } => correction.change != 0 || block_us > 0,
        }
    }
}

impl Queued {
    /// Returns this without what does not count any more at `now`.
    fn due(mut self, now: u64) -> Self {
        let delay = now - self.at;
        if let Change::Settle { correction, block_us, .. } = &mut self.change {
            *block_us = block_us.saturating_sub(delay);
            if !self.is_bucket && delay >= PERIOD.as_micros() as u64 {
                *correction = Correction::default();
            }
        }
        self
    }
}
