//! The circuit breaker of a server and the fallback of a process: calls of two runtimes, and every order in which they
//! send, receive replies, time out and open the breaker, the server stops and starts to reply, and the background
//! thread probes it.
//!
//! The breaker, the slot of the job that probes and the store of the fallback are those of the runtime. The model
//! retells what calls them: `network/node/mod.rs`, `network/node/jobs.rs` and `Backend::fall_back`. A state is built
//! again from the steps that lead to it.

mod play;

use stateright::{Model, Property};

use self::play::Play;
use crate::replayed::Replayed;

/// What a model does at most, and the fault that it has.
#[derive(Clone, Copy, Debug)]
pub struct Breakers {
    /// The calls of each runtime, which can be pending at the same time.
    pub calls: [usize; 2],
    /// How often the server changes: it stops to reply, closes its connections, or replies again.
    pub changes: usize,
    /// Probes that the server does not answer in time.
    pub failed_probes: usize,
    /// Jobs that are dropped, because the background thread cannot start.
    pub dropped_jobs: usize,
    pub fault: Option<Fault>,
}

/// A fault that the checker must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A breaker that opens starts no probes.
    OpeningStartsNoProbes,
    /// The job that probes ends although a breaker has opened since it looked.
    ProberDoesNotLookAgain,
    /// The probes half-open the breaker of one runtime only.
    ProbesCloseOneBreaker,
    /// A call that finds the breaker open does not start probes that could not start before.
    CallsStartNoProbes,
    /// A breaker that half-opens waits for as many timeouts as a closed one.
    HalfOpenIsClosed,
    /// The process decides without the server by the whole limit.
    FallbackHasNoShare,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Server {
    Replies,
    /// It accepts connections, and replies to nothing.
    IsSilent,
    /// It has closed its connections, and accepts none.
    IsDown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A call arrives in a runtime: it sends a request, or finds the breaker open.
    Call(usize),
    /// A call takes its next step: it receives a reply, times out or opens the breaker.
    Step(usize),
    /// The job that probes takes its next step.
    Probe,
    /// A probe is not answered in time, whatever the server does.
    FailProbe,
    /// The job that probes is dropped before it runs.
    DropProber,
    Change(Server),
}

/// A state of the model.
pub type State = Replayed<Action>;

const PROBED: &str = "an open breaker is probed";
const CLOSES: &str = "every breaker closes once the server replies";
const FEW_WAIT: &str = "few calls wait for a server that does not reply";
const SHARE: &str = "a fallback admits no more than its share";

impl Breakers {
    fn state(&self, steps: Vec<Action>) -> State {
        let mut play = Play::new(*self);
        for action in &steps {
            play.step(*action);
        }
        let (parts, enabled) = (play.parts(), play.enabled());
        play.judge();
        play.finish();
        State { steps, parts, enabled, mistakes: play.mistakes }
    }
}

impl Model for Breakers {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.state(Vec::new())]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend(&state.enabled);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        Some(self.state(last.steps_with(action)))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(PROBED, |_: &Self, state: &State| state.is_free_of(PROBED)),
            Property::always(CLOSES, |_: &Self, state: &State| state.is_free_of(CLOSES)),
            Property::always(FEW_WAIT, |_: &Self, state: &State| state.is_free_of(FEW_WAIT)),
            Property::always(SHARE, |_: &Self, state: &State| state.is_free_of(SHARE)),
        ]
    }
}
