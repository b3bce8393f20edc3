//! Runs the scripts of rates on a server of the models, with arguments and replies as the store packs them
//! (`store/redis/scripts/script.rs`, which needs a client of Redis).

use crate::algorithm::{Outcome, Receipt, Settlement, Verdict};
use crate::form::Form;
use crate::server::{Keys, Reply};
use crate::store::{CancelledUnits, Charge};

/// The key of the only count of a model.
const KEY: &[u8] = b"count";

/// An operation of `lua/one.lua`, its cost and its operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScriptCall {
    pub(crate) word: &'static str,
    pub(crate) cost: u32,
    pub(crate) operand: u64,
}

impl ScriptCall {
    pub(crate) fn new(word: &'static str, cost: u32) -> Self {
        Self { word, cost, operand: 0 }
    }

    /// Runs the script of the form of `charge`, whose cost is not used.
    pub(crate) fn run(
        self,
        keys: &mut Keys,
        script: &str,
        clock: u64,
        charge: &Charge,
    ) -> (Outcome, Receipt) {
        let mut call = [self.word.as_bytes(), &[0], &self.cost.to_be_bytes()].concat();
        put_7(&mut call, self.operand);
        Form::of(&charge.terms).put_terms(&mut call, charge);
        match keys.run(script, clock, &[KEY], &[call]) {
            Reply::Text(reply) => decoded(&reply),
            other => panic!("{self:?}: {other:?}"),
        }
    }
}

/// Corrects charges by `lua/settle.lua`, each for `time` microseconds closed or, if that is 0, left open.
pub(crate) fn settle(
    keys: &mut Keys,
    script: &str,
    clock: u64,
    charge: &Charge,
    settlements: &[(Settlement, u64)],
) -> Vec<Outcome> {
    let mut entries = Vec::new();
    for (settlement, time) in settlements {
        entries.push(1);
        put_7(&mut entries, settlement.receipt.birth);
        put_7(&mut entries, settlement.receipt.place);
        entries.extend(settlement.less().to_be_bytes());
        entries.extend(settlement.more().to_be_bytes());
        put_7(&mut entries, *time);
    }
    let each = vec![KEY; settlements.len()];
    match keys.run(script, clock, &each, &[entries, Vec::new(), packed_limit(charge)]) {
        Reply::List(list) if list.len() == 1 => {
            list[0].chunks(30).map(|reply| decoded(reply).0).collect()
        }
        other => panic!("{settlements:?}: {other:?}"),
    }
}

/// Reserves a moment of a bucket at most `wait` microseconds ahead, by `lua/all.lua`.
pub(crate) fn reserve(
    keys: &mut Keys,
    script: &str,
    clock: u64,
    charge: &Charge,
    (cost, wait): (u32, u64),
) -> (Outcome, Receipt) {
    let mut run = 1_u32.to_be_bytes().to_vec();
    put_7(&mut run, wait);
    run.extend(cost.to_be_bytes());
    let reply = run_all(keys, script, clock, charge, (CancelledUnits::default(), run));
    // Behind the number of calls.
    decoded(&reply[4..])
}

/// Cancels reservations of a bucket by `lua/all.lua`.
pub(crate) fn cancel(
    keys: &mut Keys,
    script: &str,
    clock: u64,
    charge: &Charge,
    cancelled: CancelledUnits,
) -> Outcome {
    decoded(&run_all(keys, script, clock, charge, (cancelled, Vec::new()))).0
}

fn run_all(
    keys: &mut Keys,
    script: &str,
    clock: u64,
    charge: &Charge,
    (CancelledUnits { units, last }, run): (CancelledUnits, Vec<u8>),
) -> Vec<u8> {
    let mut calls = b"decide\0".to_vec();
    for number in [0, last.end, last.receipt.birth, last.receipt.place, last.moment] {
        put_7(&mut calls, number);
    }
    for number in [last.count, units, 0, 0] {
        calls.extend(number.to_be_bytes());
    }
    calls.extend(run);
    match keys.run(script, clock, &[KEY], &[calls, Vec::new(), packed_limit(charge)]) {
        Reply::Text(reply) => reply,
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
            closed => Verdict::Closed { also_limited: closed == 3 },
        },
        remaining: number(8, 4) as u32,
        retry_us: number(12, 7),
        reset_us: number(19, 7),
    };
    (outcome, Receipt { birth: number(30, 7), place: number(37, 7) })
}

fn put_7(out: &mut Vec<u8>, number: u64) {
    out.extend(&number.to_be_bytes()[1..]);
}
