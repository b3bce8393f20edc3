//! What the server does: it runs the scripts of the runtime.

use std::mem;
use std::sync::LazyLock;

use super::state::{Body, HOLD, State, packed_terms};
use super::{Fault, Slots};
use crate::program::Form;
use crate::scripts::decoded;
use crate::server::Reply;
use crate::store::Statement;

const KEY: &[u8] = b"slots";

impl Slots {
    /// Returns the text of a script, with the fault of the model.
    fn script(&self, text: &str) -> String {
        let (part, fault) = match self.fault {
            Some(Fault::EmptyRecordIsForgotten) => (
                "own_units == 0 and hold > EMPTY and EMPTY or hold",
                "own_units == 0 and 0 or hold",
            ),
            Some(Fault::LateRequestCounts) => ("seq <= own_seq", "false"),
            _ => return text.to_owned(),
        };
        assert!(text.contains(part), "the script has no {part}");
        let text = text.replace(part, fault);
        match self.fault {
            Some(Fault::LateRequestCounts) => text.replace("if seq > own_seq then", "if true then"),
            _ => text,
        }
    }

    /// Applies an operation on the server. Returns the reply.
    pub(super) fn execute(&self, state: &mut State, body: Body) -> Body {
        static DECIDE: LazyLock<String> = LazyLock::new(|| Form::Slots.script());
        let clock = state.server_clock();
        let (text, arguments) = match body {
            Body::Take(terms) => (&*DECIDE, vec![packed_op("take", 1, 1, 0, &terms)]),
            Body::State(terms) => (&*DECIDE, vec![packed_op("hold", 0, 0, 0, &terms)]),
            Body::Reset => {
                let statement = Statement { hold_us: HOLD, ..Statement::default() };
                let terms = packed_terms(self.threshold, &statement);
                let terms = packed_op("hold", 0, 0, 1, &terms);
                state.generation += 1;
                (&*DECIDE, vec![terms])
            }
            Body::Reply { .. } => unreachable!("a reply is not executed"),
        };
        let generation = state.generation;
        let reply = match state.server.run(&self.script(text), clock, &[KEY], &arguments) {
            Reply::Text(bytes) => bytes,
            Reply::List(mut list) => mem::take(&mut list[0]),
            Reply::Error(error) => panic!("{error}"),
        };
        Body::Reply { bytes: reply, generation }
    }

    /// Returns the units that the server counts.
    pub(super) fn measured(&self, state: &mut State) -> u64 {
        let clock = state.server_clock();
        let terms = packed_terms(self.threshold, &Statement::default());
        let arguments = [packed_op("peek", 0, 0, 1, &terms)];
        match state.server.run(&self.script(&Form::Slots.script()), clock, &[KEY], &arguments) {
            Reply::Text(bytes) => decoded(&bytes).0.remaining,
            other => panic!("{other:?}"),
        }
    }
}

fn packed_op(word: &str, cost: u8, birth: u8, operand: u8, terms: &[u8]) -> Vec<u8> {
    let numbers = [cost, birth, operand].map(|number| [0, 0, 0, 0, 0, 0, number]);
    [word.as_bytes(), &[0], &numbers.concat(), terms].concat()
}
