//! Settlements: a process that settles its charges of a bucket or a window and closes the key, and one that does not
//! settle, in every order in which calls are admitted and end, settlements are sent, executed, refused, lost and late,
//! the count is reset, and time passes.
//!
//! The queue of the process is [`SettlementQueue`](super::SettlementQueue) of the runtime, and the server runs the
//! script of the algorithm and `lua/correct.lua`. The model retells the job that sends a lane
//! (`settle/sender.rs`). The calls of the processes take no time, because only the moment of their execution matters.

mod execution;
mod lanes;
mod state;

use stateright::{Model, Property};

pub use self::state::State;
use self::state::{Admission, Queued, Sent};

/// What a model does at most, and the fault that it has.
#[derive(Clone, Debug)]
pub struct Settlements {
    /// A bucket or a sliding window, of four units in ten seconds.
    pub is_bucket: bool,
    /// Calls that are charged two units, and use none, one or two.
    pub calls: u8,
    /// Calls of the process that does not settle, each of as many units as are left.
    pub plain: u8,
    /// Calls of half a burst or of a whole one for which other processes reserve moments of a bucket.
    pub reserved: u8,
    /// Reservations that are cancelled, before their moment or, if no task polls the call, after it.
    pub cancelled: u8,
    pub ticks: u8,
    /// Calls whose result closes the key.
    pub closings: u8,
    pub resets: u8,
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
    /// A count gives units back to charges that were made before its reset.
    BirthIsIgnored,
    /// A bucket gives back units that have drained since their charge.
    DrainedUnitsComeBack,
    /// A settlement gives back units that the moments reserved since need.
    ReservedUnitsComeBack,
    /// A reservation is the last one if the bucket is full when it was after it.
    EarlierIsLast,
    /// A cancellation gives back units that have drained since their moment.
    CancelledUnitsDoNotDrain,
    /// A correction that empties a count opens its key.
    EmptyCountOpens,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Acquire,
    /// The call with an index ends. It has used so many units, and closes the key or does not.
    End(usize, u64, bool),
    /// Another process takes all units that are left.
    TakeRest,
    /// A call of so many units.
    Reserve(u64),
    /// The reservation with an index of its admission.
    Cancel(usize),
    /// The job of one lane sends its settlements. `true` is the lane of those that close the key.
    Send(bool),
    /// The server executes the pending request of a lane.
    Execute(bool),
    /// The job of a lane receives the reply.
    Deliver(bool),
    /// The server does not execute the pending request of a lane.
    Refuse(bool),
    /// The job of a lane receives no reply.
    Lose(bool),
    /// The server executes a request for which no job waits.
    ExecuteLate(usize),
    Reset,
    Tick,
}

const LANES: [bool; 2] = [false, true];

impl Settlements {
    fn is(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }
}

impl Model for Settlements {
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
                if used.closings < self.closings {
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
            let reserved = admissions.filter(|(_, it)| it.reserved_until.is_some());
            actions.extend(reserved.map(|(index, _)| Action::Cancel(index)));
        }
        for closes in LANES {
            match &state.sent[usize::from(closes)] {
                None if !state.queued[usize::from(closes)].is_empty() => {
                    actions.push(Action::Send(closes));
                }
                None => {}
                Some(sent) => {
                    if sent.is_executed {
                        actions.push(Action::Deliver(closes));
                    } else {
                        actions.push(Action::Execute(closes));
                        if used.refused < self.refused {
                            actions.push(Action::Refuse(closes));
                        }
                    }
                    if used.lost < self.lost {
                        actions.push(Action::Lose(closes));
                    }
                }
            }
        }
        actions.extend((0..state.late.len()).map(Action::ExecuteLate));
        if used.resets < self.resets {
            actions.push(Action::Reset);
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
            Action::End(call, units, closes) => {
                state.used.closings += u8::from(closes);
                lanes::end(&mut state, self.is_bucket, call, units, closes);
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
            Action::Send(closes) => lanes::send(&mut state, self.is_bucket, closes),
            Action::Execute(closes) => {
                let mut sent = state.sent[usize::from(closes)].take()?;
                self.settle(&mut state, &sent.due);
                sent.is_executed = true;
                state.sent[usize::from(closes)] = Some(sent);
            }
            Action::Deliver(closes) => state.sent[usize::from(closes)] = None,
            Action::Refuse(closes) => {
                state.used.refused += 1;
                let sent = state.sent[usize::from(closes)].take()?;
                if self.is(Fault::RefusedIsForgotten) {
                    return Some(state);
                }
                lanes::put_back(&mut state, self.is_bucket, closes, sent.taken);
            }
            Action::Lose(closes) => {
                state.used.lost += 1;
                let sent = state.sent[usize::from(closes)].take()?;
                if self.is(Fault::LostIsSentAgain) {
                    lanes::put_back(&mut state, self.is_bucket, closes, sent.taken);
                } else {
                    for Queued { admission, .. } in &sent.due {
                        state.admissions[*admission].is_lost = true;
                    }
                }
                if !sent.is_executed {
                    state.late.push(sent.due);
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
            Property::always("a closed key admits nothing", |_: &Self, state: &State| {
                !state.was_admitted_while_closed
            }),
            Property::always("each settlement is executed", |model: &Self, state: &State| {
                model.settles_all(state)
            }),
        ]
    }
}

impl Settlements {
    /// Plays on without faults. Returns whether each settlement that was not lost has been executed, and the count then
    /// has what was used.
    fn settles_all(&self, state: &State) -> bool {
        let mut state = state.clone();
        for _ in 0..20 {
            let next =
                LANES.into_iter().find_map(|closes| match &state.sent[usize::from(closes)] {
                    Some(Sent { is_executed: true, .. }) => Some(Action::Deliver(closes)),
                    Some(_) => Some(Action::Execute(closes)),
                    None if !state.queued[usize::from(closes)].is_empty() => {
                        Some(Action::Send(closes))
                    }
                    None => None,
                });
            let Some(next) = next else {
                let is_open = |it: &Admission| it.ended && !it.is_settled && !it.is_lost;
                return !state.admissions.iter().any(is_open) && self.counts_what_was_used(&state);
            };
            state = self.next_state(&state, next).expect("a step without a fault");
        }
        false
    }
}
