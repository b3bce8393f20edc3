//! Runs the scripts of the runtime on a server of the models, with arguments and replies as the store packs them
//! (`store/redis/scripts/script.rs`, which needs a client of Redis).

use crate::algorithm::{Charged, Correction, Outcome, Receipt, Reservation, Verdict};
use crate::key::KeyId;
use crate::limit::Terms;
use crate::program::{self, FORMS, Form};
use crate::server::StoredCount;
use crate::store::{Charge, Statement};

/// The time at which a model starts, by the clock of a process.
pub(crate) const START: u64 = 5_000_000;
/// By how much the clock of the server is ahead.
pub(crate) const AHEAD: u64 = 1_000_000_000_000 - START;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Script {
    One(usize),
    All,
    Correct,
}

/// The parts of scripts that a fault replaces, each with the mistake.
pub(crate) type Mistakes = &'static [(&'static str, &'static str)];

impl Script {
    pub(crate) fn text(self, mistakes: Mistakes) -> String {
        let text = match self {
            Self::One(form) => FORMS[form].script("one"),
            Self::All => program::several("all"),
            Self::Correct => program::several("correct"),
        };
        let with_all_rules = program::several("correct");
        mistakes.iter().fold(text, |text, (part, mistake)| {
            assert!(with_all_rules.contains(part), "no script has {part}");
            text.replace(part, mistake)
        })
    }
}

/// A server at a time, with a count under the terms of `charge`, whose cost is not used.
pub(crate) struct Server<'a> {
    pub(crate) count: &'a mut StoredCount,
    pub(crate) mistakes: Mistakes,
    pub(crate) clock: u64,
    pub(crate) charge: &'a Charge,
}

impl Server<'_> {
    /// Runs an operation of `lua/one.lua` with its cost, birth and operand, which `lua/prelude.lua` explains. Returns
    /// the reply.
    pub(crate) fn run_one(&mut self, word: &str, numbers: [u64; 3]) -> Vec<u8> {
        let (form, mut call) = (Form::index_of(&self.charge.terms), packed_call(word, &numbers));
        FORMS[form].put_terms(&mut call, self.charge, None);
        self.count.run(Script::One(form), self.mistakes, self.clock, 1, vec![call])
    }

    /// Takes units, with a receipt if `birth` is not 0.
    pub(crate) fn take(&mut self, cost: u64, birth: u64) -> (Outcome, Receipt) {
        decoded(&self.run_one("take", [cost, birth, 0]))
    }

    /// Returns the units that are left for a call of this cost.
    pub(crate) fn remaining(&mut self, cost: u64) -> u64 {
        decoded(&self.run_one("peek", [cost, 0, 0])).0.remaining
    }

    /// Returns the units in use.
    pub(crate) fn measured(&mut self) -> u64 {
        decoded(&self.run_one("peek", [0, 0, 1])).0.remaining
    }

    /// Takes all units that are left. Returns how many; `None` if there are none, or if the key is blocked.
    pub(crate) fn take_rest(&mut self) -> Option<u64> {
        let rest = Some(self.remaining(1)).filter(|rest| *rest > 0)?;
        let (outcome, _) = self.take(rest, 0);
        assert!(outcome.is_allowed() || outcome.is_blocked(), "what is left is admitted");
        outcome.is_allowed().then_some(rest)
    }

    /// Reserves a moment of a bucket at most `wait` microseconds ahead.
    pub(crate) fn reserve(&mut self, cost: u64, birth: u64, wait: u64) -> (Outcome, Receipt) {
        // No moment is given up.
        let mut calls = packed_call("take", &[birth, 0, 0, 0, 0]);
        calls.extend(1_u32.to_be_bytes());
        put_7(&mut calls, wait);
        put_7(&mut calls, cost);
        let reply = self.run_several(Script::All, 1, calls);
        // Behind the number of calls.
        decoded(&reply[4..])
    }

    /// Corrects charges, each for `time` microseconds blocked or, if that is 0, left open.
    pub(crate) fn correct(&mut self, corrections: &[(Correction, u64)]) {
        let mut entries = Vec::new();
        for (correction, time) in corrections {
            let (Receipt { birth, place }, moment) = match correction.charged {
                Charged::Newest => Default::default(),
                Charged::At(place) => (Receipt { birth: 0, place }, 0),
                Charged::By(receipt) => (receipt, 0),
                Charged::Reserved(Reservation { receipt, moment }) => (receipt, moment),
            };
            entries.push(1);
            for number in [correction.change as u64, birth, place, moment, *time] {
                put_7(&mut entries, number);
            }
        }
        self.run_several(Script::Correct, corrections.len(), entries);
    }

    /// Runs a script whose arguments are calls, the clock, and the limit.
    pub(crate) fn run_several(&mut self, script: Script, keys: usize, calls: Vec<u8>) -> Vec<u8> {
        let form = Form::index_of(&self.charge.terms);
        let mut limit = vec![form as u8 + 1];
        FORMS[form].put_terms(&mut limit, self.charge, None);
        let arguments = vec![calls, Vec::new(), limit];
        self.count.run(script, self.mistakes, self.clock, keys, arguments)
    }
}

pub(crate) fn charge(terms: Terms, statement: Option<Statement>) -> Charge {
    let key_id = KeyId::new(&terms.identity, 0);
    Charge { terms, key_id, count_name: Vec::new(), cost: 1, statement }
}

/// Returns the outcome and the receipt of a reply (`lua/answer.lua`).
pub(crate) fn decoded(reply: &[u8]) -> (Outcome, Receipt) {
    let number = |at: usize, width: usize| {
        let bytes = reply.get(at..at + width).unwrap_or_default();
        bytes.iter().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte))
    };
    let outcome = Outcome {
        clock: number(0, 7),
        verdict: match number(7, 1) {
            0 => Verdict::Rejected,
            1 => Verdict::Admitted,
            blocked => Verdict::Blocked { also_limited: blocked == 3 },
        },
        remaining: number(8, 7),
        retry_us: number(15, 7),
        reset_us: number(22, 7),
    };
    (outcome, Receipt { birth: number(36, 7), place: number(43, 7) })
}

fn packed_call(word: &str, numbers: &[u64]) -> Vec<u8> {
    let mut call = [word.as_bytes(), &[0]].concat();
    for number in numbers {
        put_7(&mut call, *number);
    }
    call
}

fn put_7(out: &mut Vec<u8>, number: u64) {
    out.extend(&number.to_be_bytes()[1..]);
}
