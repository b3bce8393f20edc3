//! A line of calls that wait for a bucket or a window on a server, and every order in which calls arrive, are dropped
//! and are not polled, requests are executed and their replies are delivered and lost, units are given back, another
//! process takes units, and time passes.
//!
//! The line is the one of the runtime, and so is the store: the algorithms of the embedded store. The model retells the
//! driver (`waiting/driver.rs`). A state is built again from the steps that lead to it, and two states are the same if
//! all parts of the line and all that the store has executed agree.

mod play;

use std::hash::{Hash, Hasher};
use std::mem;

use stateright::{Model, Property};

use self::play::Play;
use crate::bounds::{Bound, Counts};

#[derive(Clone, Debug)]
pub struct Lines {
    /// A bucket of one token in a second, or a sliding window of one call in a second.
    pub is_bucket: bool,
    pub most: Counts,
    pub fault: Option<Fault>,
}

/// A fault that the checker must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The grant of a call that is dropped is not given back.
    GrantIsNotGivenBack,
    /// The grant of a call that is dropped goes back twice.
    GrantIsGivenBackTwice,
    /// The grant of a call that is dropped passes to the next call, and goes back as well.
    GrantIsUsedTwice,
    /// The first call of a line queues again behind the others when a reply comes.
    FirstCallQueuesAgain,
    /// The driver does not record that a request has failed.
    FailureIsNotRecorded,
    /// The driver does not wake calls.
    CallsAreNotWoken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A call arrives, which waits for as many ticks.
    Arrive(u8),
    /// A call is polled that was woken.
    Poll(usize),
    Drop(usize),
    /// The store executes the pending request.
    Execute,
    /// The line receives the reply.
    Deliver,
    /// The line receives no reply, after the request was executed.
    Lose,
    /// The store executes the first pending give-back.
    GiveBack,
    /// Another process takes a unit.
    TakeForeign,
    Reset,
    Tick,
}

impl Action {
    fn bound(self) -> Option<Bound> {
        Some(match self {
            Self::Arrive(_) => Bound::Calls,
            Self::Drop(_) => Bound::Drops,
            Self::Lose => Bound::Lost,
            Self::TakeForeign => Bound::Plain,
            Self::Reset => Bound::Resets,
            Self::Tick => Bound::Ticks,
            Self::Poll(_) | Self::Execute | Self::Deliver | Self::GiveBack => return None,
        })
    }
}

/// The steps that lead to a state, and what follows from them. States with the same parts are the same.
#[derive(Clone, Debug)]
pub struct State {
    steps: Vec<Action>,
    /// All parts of the state.
    parts: String,
    enabled: Vec<Action>,
    /// What is wrong with the state.
    mistakes: Vec<&'static str>,
}

const OVER: &str = "never more than the limit";
const ORDER: &str = "first come, first served";
const FORGOTTEN: &str = "no waiter is forgotten";
const RESTS: &str = "the driver rests";
const LOSS: &str = "no unit is lost, and none is used twice";

impl Lines {
    fn state(&self, steps: Vec<Action>) -> State {
        let mut play = Play::new(self.clone());
        for action in &steps {
            play.step(*action);
        }
        let (parts, enabled) = (play.parts(), play.enabled());
        play.finish();
        play.judge();
        let mistakes = mem::take(&mut play.mistakes);
        State { steps, parts, enabled, mistakes }
    }
}

impl State {
    fn is_free_of(&self, mistake: &str) -> bool {
        !self.mistakes.contains(&mistake)
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.parts == other.parts
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts.hash(state);
    }
}

impl Model for Lines {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.state(Vec::new())]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend(&state.enabled);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        Some(self.state(last.steps.iter().copied().chain([action]).collect()))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(OVER, |_: &Self, state: &State| state.is_free_of(OVER)),
            Property::always(ORDER, |_: &Self, state: &State| state.is_free_of(ORDER)),
            Property::always(FORGOTTEN, |_: &Self, state: &State| state.is_free_of(FORGOTTEN)),
            Property::always(LOSS, |_: &Self, state: &State| state.is_free_of(LOSS)),
            Property::always(RESTS, |_: &Self, state: &State| state.is_free_of(RESTS)),
        ]
    }
}
