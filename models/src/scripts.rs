//! Runs the scripts of rates on a server of the models, with arguments and replies as the store packs them
//! (`store/redis/scripts/script.rs`, which needs a client of Redis).

use crate::algorithm::{Charged, Correction, Outcome, Receipt, Reservation, Verdict};
use crate::program::Form;
use crate::server::{Keys, Reply};
use crate::store::Charge;

/// The key of the only count of a model.
const KEY: &[u8] = b"count";

/// An operation of `lua/one.lua`: `lua/prelude.lua` explains its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScriptCall {
    word: &'static str,
    cost: i64,
    birth: u64,
    operand: u64,
    moment: u64,
}

impl ScriptCall {
    /// Counts the units in use.
    pub(crate) const MEASURE: Self =
        Self { word: "peek", cost: 0, birth: 0, operand: 1, moment: 0 };

    /// Returns a take that needs no receipt, or a peek.
    pub(crate) fn new(word: &'static str, cost: u64) -> Self {
        Self { word, cost: cost as i64, birth: 0, operand: 0, moment: 0 }
    }

    /// Returns a take that needs a receipt.
    pub(crate) fn acquire(cost: u64, birth: u64) -> Self {
        Self { birth, ..Self::new("take", cost) }
    }

    pub(crate) fn correct(Correction { charged, change }: Correction) -> Self {
        let (birth, operand, moment) = match charged {
            Charged::Newest => (0, 0, 0),
            Charged::At(time) => (0, time, 0),
            Charged::By(Receipt { birth, place }) => (birth, place, 0),
            Charged::Reserved(Reservation { receipt: Receipt { birth, place }, moment }) => {
                (birth, place, moment)
            }
        };
        Self { word: "correct", cost: change, birth, operand, moment }
    }

    fn put_numbers(self, out: &mut Vec<u8>) {
        out.extend(&self.cost.to_be_bytes()[1..]);
        put_7(out, self.birth);
        put_7(out, self.operand);
    }

    /// Runs the script of the form of `charge`, whose cost is not used.
    pub(crate) fn run(
        self,
        keys: &mut Keys,
        script: &str,
        clock: u64,
        charge: &Charge,
    ) -> (Outcome, Receipt) {
        let mut call = [self.word.as_bytes(), &[0]].concat();
        self.put_numbers(&mut call);
        Form::of(&charge.terms).put_terms(&mut call, charge);
        match keys.run(script, clock, &[KEY], &[call]) {
            Reply::Text(reply) => decoded(&reply),
            other => panic!("{self:?}: {other:?}"),
        }
    }
}

/// Corrects charges by `lua/correct.lua`, each for `time` microseconds blocked or, if that is 0, left open.
pub(crate) fn correct(
    keys: &mut Keys,
    script: &str,
    clock: u64,
    charge: &Charge,
    corrections: &[(Correction, u64)],
) -> Vec<Outcome> {
    let mut entries = Vec::new();
    for (correction, time) in corrections {
        entries.push(1);
        let correct = ScriptCall::correct(*correction);
        correct.put_numbers(&mut entries);
        put_7(&mut entries, correct.moment);
        put_7(&mut entries, *time);
    }
    let each = vec![KEY; corrections.len()];
    match keys.run(script, clock, &each, &[entries, Vec::new(), packed_limit(charge)]) {
        Reply::List(list) if list.len() == 1 => {
            list[0].chunks(36).map(|reply| decoded(reply).0).collect()
        }
        other => panic!("{corrections:?}: {other:?}"),
    }
}

/// Reserves a moment of a bucket at most `wait` microseconds ahead, by `lua/all.lua`.
pub(crate) fn reserve(
    keys: &mut Keys,
    script: &str,
    clock: u64,
    charge: &Charge,
    (cost, birth, wait): (u64, u64, u64),
) -> (Outcome, Receipt) {
    let mut calls = b"take\0".to_vec();
    // The birth, and no moment that is given up.
    for number in [birth, 0, 0, 0, 0] {
        put_7(&mut calls, number);
    }
    calls.extend(1_u32.to_be_bytes());
    put_7(&mut calls, wait);
    put_7(&mut calls, cost);
    match keys.run(script, clock, &[KEY], &[calls, Vec::new(), packed_limit(charge)]) {
        // Behind the number of calls.
        Reply::Text(reply) => decoded(&reply[4..]),
        other => panic!("{other:?}"),
    }
}

fn packed_limit(charge: &Charge) -> Vec<u8> {
    let form = Form::of(&charge.terms);
    let mut limit = vec![form.index() as u8 + 1];
    form.put_terms(&mut limit, charge);
    limit
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

fn put_7(out: &mut Vec<u8>, number: u64) {
    out.extend(&number.to_be_bytes()[1..]);
}
