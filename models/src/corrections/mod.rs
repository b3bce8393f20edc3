//! Corrections: a process that settles its charges of a bucket or a window, blocks the key and resets it, and one that
//! does not settle, in every order in which calls are admitted and end, corrections are sent, executed, refused, lost
//! and late, the count is reset, and time passes.
//!
//! The queue of the process is [`Corrections`](super::Corrections) of the runtime, and the server runs the script of
//! the algorithm and `lua/correct.lua`. The calls of the processes take no time, because only the moment of their
//! execution matters.

mod execution;
mod queue;
mod state;

use stateright::{Model, Property};

pub use self::state::State;
use self::state::{Admission, Change, Pending};

/// What a model does at most, and the fault that it has.
#[derive(Clone, Debug)]
pub struct Settling {
    /// A bucket or a sliding window, of four units in ten seconds.
    pub is_bucket: bool,
    /// Calls that are charged two units, and use none, one or two.
    pub calls: u8,
    /// Calls of the process that does not settle, each of as many units as are left.
    pub plain: u8,
    /// Calls of half a burst or of a whole one for which other processes reserve moments of a bucket.
    pub reserved: u8,
    /// Reservations that go back, before their moment or, if no task polls the call, after it.
    pub cancelled: u8,
    pub ticks: u8,
    /// Calls whose result blocks the key.
    pub blocks: u8,
    /// Resets of another process.
    pub resets: u8,
    /// Resets of the process that settles.
    pub own_resets: u8,
    /// Requests that the server has certainly not executed.
    pub refused: u8,
    /// Requests whose reply is lost, before or after they are executed; they can be executed late.
    pub lost: u8,
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
    /// A call of so many units.
    Reserve(u64),
    /// The reservation with an index of its admission.
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

impl Settling {
    fn is(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }
}

impl Model for Settling {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let used = &state.used;
        if used.calls < self.calls {
            actions.push(Action::Acquire);
        }
        for call in 0..state.running.len() {
            for units in 0..=execution::CHARGED {
                actions.push(Action::End(call, units, false));
                if used.blocks < self.blocks {
                    actions.push(Action::End(call, units, true));
                }
            }
        }
        if used.plain < self.plain {
            actions.push(Action::TakeRest);
        }
        if used.reserved < self.reserved {
            actions.extend(execution::RESERVED.map(Action::Reserve));
        }
        if used.cancelled < self.cancelled {
            let admissions = state.admissions.iter().enumerate();
            let reserved = admissions.filter(|(_, it)| it.is_reserved);
            actions.extend(reserved.map(|(index, _)| Action::Cancel(index)));
        }
        match &state.pending {
            None => actions.extend(state.queue.next_wake().map(|_| Action::Send)),
            Some(pending) => {
                if pending.is_executed {
                    actions.push(Action::Deliver);
                } else {
                    actions.push(Action::Execute);
                    if used.refused < self.refused {
                        actions.push(Action::Refuse);
                    }
                }
                if used.lost < self.lost {
                    actions.push(Action::Lose);
                }
            }
        }
        actions.extend((0..state.late.len()).map(Action::ExecuteLate));
        if used.resets < self.resets {
            actions.push(Action::Reset);
        }
        if used.own_resets < self.own_resets {
            actions.push(Action::ResetOwn);
        }
        if used.ticks < self.ticks {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Acquire => {
                state.used.calls += 1;
                self.acquire(&mut state)?;
            }
            Action::End(call, units, blocks) => {
                state.used.blocks += u8::from(blocks);
                queue::end(&mut state, self.is_bucket, call, units, blocks);
            }
            Action::TakeRest => {
                state.used.plain += 1;
                self.take_rest(&mut state)?;
            }
            Action::Reserve(units) => {
                state.used.reserved += 1;
                self.reserve(&mut state, units)?;
            }
            Action::Cancel(index) => {
                state.used.cancelled += 1;
                self.cancel(&mut state, index);
            }
            Action::Send => queue::send(&mut state),
            Action::Execute => {
                let mut pending = state.pending.take()?;
                self.settle(&mut state, &pending.due);
                pending.is_executed = true;
                state.pending = Some(pending);
            }
            Action::Deliver => {
                let pending = state.pending.take()?;
                queue::deliver(&mut state, &pending);
            }
            Action::Refuse => {
                state.used.refused += 1;
                let pending = state.pending.take()?;
                if self.is(Fault::RefusedIsForgotten) {
                    queue::deliver(&mut state, &pending);
                } else {
                    queue::refuse(&mut state, &pending);
                }
            }
            Action::Lose => {
                state.used.lost += 1;
                let pending = state.pending.take()?;
                if self.is(Fault::LostIsSentAgain) {
                    queue::refuse(&mut state, &pending);
                } else {
                    queue::lose(&mut state, &pending);
                }
                if !pending.is_executed {
                    state.late.push(pending.due);
                }
            }
            Action::ExecuteLate(index) => {
                let settlements = state.late.remove(index);
                self.settle(&mut state, &settlements);
            }
            Action::Reset => {
                state.used.resets += 1;
                self.reset(&mut state);
            }
            Action::ResetOwn => {
                state.used.own_resets += 1;
                queue::reset(&mut state, self.is_bucket, self.is(Fault::ResetPasses));
            }
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
            Property::always("a count has what was used", |model: &Self, state: &State| {
                model.counts_what_was_used(state)
            }),
            Property::always("a blocked key admits nothing", |_: &Self, state: &State| {
                !state.was_admitted_while_blocked
            }),
            Property::always("corrections keep their order", |_: &Self, state: &State| {
                !state.was_passed
            }),
            Property::always("each settlement is executed", |model: &Self, state: &State| {
                model.settles_all(state)
            }),
        ]
    }
}

impl Settling {
    /// Plays on without faults. Returns whether each settlement that was not lost has been executed, and the count then
    /// has what was used.
    fn settles_all(&self, state: &State) -> bool {
        let mut state = state.clone();
        for _ in 0..20 {
            let next = match &state.pending {
                Some(Pending { is_executed: true, .. }) => Some(Action::Deliver),
                Some(_) => Some(Action::Execute),
                None => state.queue.next_wake().map(|_| Action::Send),
            };
            let Some(next) = next else {
                let is_open = |it: &Admission| it.ended && !it.is_settled && !it.is_lost;
                return !state.admissions.iter().any(is_open) && self.counts_what_was_used(&state);
            };
            state = self.next_state(&state, next).expect("a step without a fault");
        }
        false
    }
}
