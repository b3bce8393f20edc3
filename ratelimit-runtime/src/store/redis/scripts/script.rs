//! The scripts that the store calls: their arguments and their replies. [`program`](super::program) has their
//! texts.

use once_cell::sync::Lazy;
use redis::{Cmd, Value};

use super::program::{self, FORMS, Form};
use crate::algorithm::{
    BlockChange, Charged, Correction, MOST, Outcome, Receipt, Reservation, Verdict,
};
use crate::limit::Terms;
use crate::reply::StoreError;
use crate::store::redis::network::failure::{about, server_error};
use crate::store::{Charge, CorrectedCharge};

/// Decides calls, each of all its limits.
pub(crate) static ALL: Lazy<Script> = Lazy::new(|| Script::new(program::several("all")));

/// Decides many calls, each by itself.
pub(crate) static BATCH: Lazy<Script> = Lazy::new(|| Script::new(program::several("batch")));

/// Decides many calls of keys in any hash slots of a node. The keys are its last arguments.
pub(crate) static BATCH_OF_NODE: Lazy<Script> = Lazy::new(|| Script::new(program::batch_of_node()));

/// Corrects charges, and states what this process holds of calls in flight.
pub(crate) static CORRECT: Lazy<Script> = Lazy::new(|| Script::new(program::several("correct")));

/// The text of a script, and its hash.
pub(crate) struct Script {
    text: String,
    hash: String,
}

impl Script {
    /// Returns the script that decides one call of a limit.
    pub(crate) fn of(terms: &Terms) -> &'static Self {
        static SCRIPTS: Lazy<[Script; FORMS.len()]> =
            Lazy::new(|| FORMS.map(|form| Script::new(form.script("one"))));
        &SCRIPTS[Form::index_of(terms)]
    }

    fn new(text: String) -> Self {
        let hash = redis::Script::new(&text).get_hash().to_owned();
        Self { text, hash }
    }

    /// Returns the command that calls the script by its hash, which fails if the server does not know the script; or by
    /// its text: the server then knows the script.
    pub(crate) fn call(&self, by_hash: bool, keys: &[&[u8]], arguments: &[Vec<u8>]) -> Cmd {
        let (name, script) = if by_hash { ("EVALSHA", &self.hash) } else { ("EVAL", &self.text) };
        redis::cmd(name).arg(script).arg(keys.len()).arg(keys).arg(arguments).take()
    }
}

/// Returns a command that succeeds if a server would decide. It reads the clock of the server if decisions do, and
/// writes a key, which a replica and a server without free memory reject.
pub(crate) fn probe(key: &[u8], clock: Option<u64>) -> Cmd {
    const WRITE: &str =
        "redis.call('SET', KEYS[1], '', 'PX', 1000) return redis.call('DEL', KEYS[1])";
    let time = if clock.is_none() { "redis.call('TIME') " } else { "" };
    redis::cmd("EVAL").arg(format!("{time}{WRITE}")).arg(1).arg(key).take()
}

/// An operation, as scripts receive it: its name, its cost, its birth and its operand. `lua/prelude.lua` explains them.
pub(crate) type ScriptOp = (&'static str, [u64; 3]);

/// States what this process holds of a count of calls in flight.
pub(crate) const HOLD: ScriptOp = ("hold", [0; 3]);

/// Returns a correction, as scripts receive it: its cost, in two's complement, the birth and the place of a receipt or
/// a recorded time, and the moment that it gives back; otherwise 0.
pub(crate) fn numbers_of(Correction { charged, change }: Correction) -> [u64; 4] {
    let (birth, place, moment) = match charged {
        Charged::Newest => (0, 0, 0),
        // A time of 0 would mean the newest units.
        Charged::At(time) => (0, time.max(1), 0),
        Charged::By(Receipt { birth, place }) => (birth, place, 0),
        Charged::Reserved(Reservation { receipt, moment }) => {
            (receipt.birth, receipt.place, moment)
        }
    };
    [change as u64, birth, place, moment]
}

/// Returns the arguments of the script that decides one call.
pub(crate) fn arguments_of_one(op: ScriptOp, charge: &Charge, clock: Option<u64>) -> Vec<Vec<u8>> {
    let mut call = Vec::with_capacity(64);
    call.extend(op.0.as_bytes());
    call.push(0);
    put(&mut call, op.1);
    FORMS[Form::index_of(&charge.terms)].put_terms(&mut call, charge, clock);
    let mut arguments = vec![call];
    arguments.extend(clock.map(packed_clock));
    arguments
}

/// Returns the arguments of `lua/batch.lua` and `lua/correct.lua`: for each entry the index of its limit and what `put`
/// appends, the clock, and the limits.
pub(crate) fn arguments_of_each<'a, E>(
    entries: impl IntoIterator<Item = (&'a Charge, E)>,
    put: impl Fn(&mut Vec<u8>, E),
    clock: Option<u64>,
) -> Vec<Vec<u8>> {
    let (mut limits, mut packed): (Vec<&Charge>, _) = (Vec::new(), Vec::with_capacity(1_024));
    for (charge, entry) in entries {
        // A statement is of one count.
        let is_known =
            |limit: &&Charge| limit.terms == charge.terms && limit.statement == charge.statement;
        let limit = limits.iter().position(is_known).unwrap_or_else(|| {
            limits.push(charge);
            limits.len() - 1
        });
        packed.push(limit as u8 + 1);
        put(&mut packed, entry);
    }
    arguments_of_several(packed, clock, limits)
}

/// Returns the arguments of a script of several limits: its calls, the clock, and the limits.
pub(crate) fn arguments_of_several<'a>(
    calls: Vec<u8>,
    clock: Option<u64>,
    limits: impl IntoIterator<Item = &'a Charge>,
) -> Vec<Vec<u8>> {
    let packed_limit = |charge: &Charge| {
        let (index, mut out) = (Form::index_of(&charge.terms), Vec::with_capacity(32));
        out.push(index as u8 + 1);
        FORMS[index].put_terms(&mut out, charge, clock);
        out
    };
    let packed = clock.map_or_else(Vec::new, packed_clock);
    [calls, packed].into_iter().chain(limits.into_iter().map(packed_limit)).collect()
}

/// The times that unblock and reset a key, in an entry of `lua/correct.lua`: no key is blocked for as long.
const OPEN: u64 = MOST;
const RESET: u64 = MOST - 1;

/// Appends an entry of `lua/correct.lua` after its limit.
pub(crate) fn put_correction(out: &mut Vec<u8>, corrected: &CorrectedCharge) {
    let CorrectedCharge { charge, correction, block } = corrected;
    let states = charge.statement.is_some_and(|statement| statement.process > 0);
    let numbers = numbers_of(*correction);
    // The operands of a reset of units in flight and of a statement.
    let (numbers, time) = match *block {
        BlockChange::None if states => ([0, 0, 2, 0], RESET),
        BlockChange::None => (numbers, 0),
        BlockChange::BlockFor(time) => (numbers, time),
        BlockChange::Unblock => (numbers, OPEN),
        BlockChange::Reset if charge.terms.is_in_flight() => ([0, 0, 1, 0], RESET),
        BlockChange::Reset => (numbers, RESET),
    };
    put(out, numbers);
    put(out, [time]);
}

/// The length of the reply of one limit, in bytes.
pub(crate) const REPLY: usize = 36;

/// Takes bytes from the front of a reply; `None` if it is shorter.
pub(crate) fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*taken)
}

/// Takes a number of 7 bytes from the front of a reply.
pub(crate) fn take_7(bytes: &mut &[u8]) -> Option<u64> {
    let number: [u8; 7] = take(bytes)?;
    Some(number.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

/// Takes a receipt from the front of a reply.
pub(crate) fn take_receipt(bytes: &mut &[u8]) -> Option<Receipt> {
    Some(Receipt { birth: take_7(bytes)?, place: take_7(bytes)? })
}

/// Takes a reply of `lua/answer.lua` from the front; `None` if it is malformed. Returns the outcome and the slack: the
/// units of a bucket by which `reset_us` was rounded up, or [`LEASED`].
pub(crate) fn take_outcome(bytes: &mut &[u8]) -> Option<(Outcome, u64)> {
    let outcome = Outcome {
        clock: take_7(bytes)?,
        verdict: match take(bytes)? {
            [0] => Verdict::Rejected,
            [1] => Verdict::Admitted,
            [2] => Verdict::Blocked { also_limited: false },
            [3] => Verdict::Blocked { also_limited: true },
            _ => return None,
        },
        remaining: take_7(bytes)?,
        retry_us: take_7(bytes)?,
        reset_us: take_7(bytes)?,
    };
    Some((outcome, take_7(bytes)?))
}

/// Decodes a reply that has a receipt, unless nothing was charged.
pub(crate) fn decode_acquired(mut reply: &[u8]) -> Option<(Outcome, Receipt)> {
    let (outcome, _) = take_outcome(&mut reply)?;
    let receipt = if reply.is_empty() { Receipt::default() } else { take_receipt(&mut reply)? };
    reply.is_empty().then_some((outcome, receipt))
}

/// The slack of a `reset_us` that is the wait until leased units have drained. Other calls do not change that wait.
pub(crate) const LEASED: u64 = MOST;

/// Returns the outcome of an admitted call after which `units` more units were charged at the same time. `last` is
/// the outcome of the last of these charges, and `slack` is from its reply.
pub(crate) fn outcome_before(last: Outcome, terms: &Terms, units: u64, slack: u64) -> Outcome {
    let sooner = if units > 0 && terms.is_bucket() && slack != LEASED {
        // The level was lower by these units, and `last.reset_us` was rounded up by the slack.
        (slack + units * terms.rate.token) / terms.rate.drain
    } else {
        0
    };
    Outcome {
        remaining: last.remaining.saturating_add(units),
        reset_us: last.reset_us.saturating_sub(sooner),
        ..last
    }
}

/// Reads the error message of one entry; `None` if it is malformed.
pub(crate) fn take_error<'a>(
    errors: &mut impl Iterator<Item = &'a Value>,
    key: &[u8],
) -> Option<StoreError> {
    let Value::BulkString(message) = errors.next()? else { return None };
    let message = &*String::from_utf8_lossy(message);
    // Redis writes the code, a space and the message. Before Redis 7, the position in the script can come first.
    let is_code =
        |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_uppercase());
    let split = message.trim_start_matches('-').split_once(' ');
    let (code, rest) = split.filter(|(code, _)| is_code(code)).unwrap_or(("ERR", message));
    Some(about(server_error(code, rest), &[key]))
}

fn packed_clock(clock: u64) -> Vec<u8> {
    clock.to_be_bytes()[1..].to_vec()
}

/// Appends numbers of 7 bytes.
pub(crate) fn put<const N: usize>(out: &mut Vec<u8>, numbers: [u64; N]) {
    for number in numbers {
        out.extend(&number.to_be_bytes()[1..]);
    }
}
