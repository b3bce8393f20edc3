//! Whether a state recovers, once no fault happens any more.

use super::state::{Body, Fetch, Stage, State};
use super::{Action, Leases, execution};
use stateright::Model;

impl Leases {
    /// Returns the next step without a fault, before time passes.
    fn next_step(state: &State) -> Option<Action> {
        let process = &state.process;
        if !state.network.is_empty() {
            let is_reply = matches!(state.network[0].body, Body::Reply { .. });
            return Some(if is_reply { Action::Deliver(0) } else { Action::Execute(0) });
        }
        match process.fetch {
            Some(Fetch::Looks) => return Some(Action::Fetch),
            // Its request or its reply was lost.
            Some(Fetch::Waits { .. }) => return Some(Action::GiveUp),
            None => {}
        }
        for call in &process.calls {
            match call.stage {
                Stage::Waiting => {}
                Stage::Ready { .. } => return Some(Action::Poll(call.id)),
                Stage::Asking => return Some(Action::Ask(call.id)),
            }
        }
        process.is_due(state.local_clock()).then_some(Action::Look)
    }

    /// Returns whether all calls end, the process gives up all units within two terms, and the bucket is full once it
    /// has had the time to refill.
    pub(super) fn recovers(&self, state: &State) -> bool {
        let mut state = state.clone();
        let term = execution::target().lifetime();
        for _ in 0..4 {
            let mut steps = 0;
            while let Some(action) = Self::next_step(&state) {
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
        has_ended && self.remaining(&mut state) == execution::burst()
    }
}
