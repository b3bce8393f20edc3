//! The scripts of `lua/`, what they take and what they reply.

use once_cell::sync::Lazy;
use redis::Cmd;

use crate::algorithm::{BucketOp, Op, Outcome};
use crate::limit::{Algorithm, Terms};
use crate::reply::StoreError;

/// A script, as the server gets it.
pub(super) struct Script {
    text: String,
    hash: String,
}

const PRELUDE: &str = include_str!("../../../lua/prelude.lua");
const CALL: &str = include_str!("../../../lua/call.lua");
const EPILOGUE: &str = include_str!("../../../lua/epilogue.lua");

/// What a script that decides one call is told.
const ALONE: &str = "\
local key, arg = KEYS[1], ARGV[1]
local op, given, clock, cost, moment, from = struct.unpack('>I1I1I7I4I7', arg)
";

/// What one that decides several calls is told of all of them.
const SHARED: &str = "local op, given, clock, from = struct.unpack('>I1I1I7', ARGV[1])\n";

/// The slow paths of `lua/sliding.lua`, and the line there that they replace.
const SEGMENTS: &str = include_str!("../../../lua/segments.lua");
const SEGMENTS_HERE: &str = "  -- lua/segments.lua stands here.\n";

/// Divides what an algorithm does once for a limit from what it does for each call.
const EACH_CALL: &str = "-- Each call.\n";

/// In the order of the list in `lua/all.lua`.
const BODIES: [(&str, &str); 4] = [
    ("sliding", include_str!("../../../lua/sliding.lua")),
    ("fixed", include_str!("../../../lua/fixed.lua")),
    ("sliding_counter", include_str!("../../../lua/sliding_counter.lua")),
    ("bucket", include_str!("../../../lua/bucket.lua")),
];

/// Where the script of an algorithm is in [`BODIES`].
const fn index(algorithm: Algorithm) -> usize {
    match algorithm {
        Algorithm::Sliding => 0,
        Algorithm::Fixed => 1,
        Algorithm::SlidingCounter => 2,
        Algorithm::TokenBucket | Algorithm::LeakyBucket => 3,
    }
}

impl Script {
    /// The script that decides one limit.
    pub(super) fn of(algorithm: Algorithm) -> &'static Self {
        static SCRIPTS: Lazy<[Script; 4]> = Lazy::new(|| {
            BODIES.map(|(_, body)| {
                let (limit, call) = parts(body);
                Script::new([ALONE, PRELUDE, limit, CALL, &call, EPILOGUE].concat())
            })
        });
        &SCRIPTS[index(algorithm)]
    }

    /// The script that decides several limits together.
    pub(super) fn all() -> &'static Self {
        static SCRIPT: Lazy<Script> =
            Lazy::new(|| Script::over_functions(include_str!("../../../lua/all.lua")));
        &SCRIPT
    }

    /// The script that decides many calls, each by itself.
    pub(super) fn batch() -> &'static Self {
        static SCRIPT: Lazy<Script> =
            Lazy::new(|| Script::over_functions(include_str!("../../../lua/batch.lua")));
        &SCRIPT
    }

    /// The script that removes the state of a sliding log.
    pub(super) fn reset() -> &'static Self {
        static SCRIPT: Lazy<Script> =
            Lazy::new(|| Script::new(include_str!("../../../lua/reset.lua").to_owned()));
        &SCRIPT
    }

    /// A script behind those of the algorithms, each a function.
    fn over_functions(text: &str) -> Self {
        let functions = BODIES.map(|(name, body)| {
            let (limit, call) = parts(body);
            let decide = [CALL, &call, EPILOGUE].concat();
            format!(
                "local function {name}(arg)\nlocal from = 2\n{limit}\
                 return function(key, op, cost, moment)\n{decide}end\nend\n"
            )
        });
        Self::new([SHARED, PRELUDE, &functions.concat(), text].concat())
    }

    fn new(text: String) -> Self {
        let hash = redis::Script::new(&text).get_hash().to_owned();
        Self { text, hash }
    }

    /// The call that the server knows by hash, if it has seen the text.
    pub(super) fn by_hash(&self, keys: &[&[u8]], arguments: &[Vec<u8>]) -> Cmd {
        command("EVALSHA", &self.hash, keys, arguments)
    }

    /// The same call with the text, which the server then knows.
    pub(super) fn by_text(&self, keys: &[&[u8]], arguments: &[Vec<u8>]) -> Cmd {
        command("EVAL", &self.text, keys, arguments)
    }
}

fn command(name: &str, script: &str, keys: &[&[u8]], arguments: &[Vec<u8>]) -> Cmd {
    let mut command = Cmd::new();
    command.arg(name).arg(script).arg(keys.len()).arg(keys).arg(arguments);
    command
}

/// Asks whether a server would decide: one that replicates another, or has no memory left, refuses to write
/// a key.
pub(super) fn probe(key: &[u8]) -> Cmd {
    const WRITE: &str =
        "redis.call('SET', KEYS[1], '', 'PX', 1000) return redis.call('DEL', KEYS[1])";
    let mut command = redis::cmd("EVAL");
    command.arg(WRITE).arg(1).arg(key);
    command
}

/// Asks whether a node of a cluster runs scripts, whatever slots it serves.
pub(super) fn probe_of_node() -> Cmd {
    let mut command = redis::cmd("EVAL");
    command.arg("return 1").arg(0);
    command
}

/// What an algorithm does once for a limit, and for each call.
fn parts(body: &'static str) -> (&'static str, String) {
    let (limit, call) = body.split_once(EACH_CALL).expect("an algorithm has two parts");
    (limit, call.replace(SEGMENTS_HERE, SEGMENTS))
}

/// An operation, as scripts get it.
#[derive(Clone, Copy)]
pub(super) struct Code {
    number: u8,
    /// The time that the operation is about, or 0.
    moment: u64,
}

impl From<Op> for Code {
    fn from(op: Op) -> Self {
        let (number, moment) = match op {
            Op::Decide => (0, 0),
            Op::Peek => (1, 0),
            Op::Refund => (2, 0),
            Op::Return { at } => (5, at),
        };
        Self { number, moment }
    }
}

impl From<BucketOp> for Code {
    fn from(op: BucketOp) -> Self {
        let (number, moment) = match op {
            BucketOp::Reserve { wait } => (3, wait),
            BucketOp::Cancel { moment } => (4, moment),
        };
        Self { number, moment }
    }
}

/// What every script is told first, as `lua/prelude.lua` says.
pub(super) fn head(op: impl Into<Code>, clock: Option<u64>) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    out.push(op.into().number);
    out.push(u8::from(clock.is_some()));
    put_7(&mut out, clock.unwrap_or(0));
    out
}

/// The argument of a script that decides one call.
pub(super) fn alone(op: impl Into<Code>, terms: &Terms, clock: Option<u64>, cost: u32) -> Vec<u8> {
    let op = op.into();
    let mut out = head(op, clock);
    out.extend(cost.to_be_bytes());
    put_7(&mut out, op.moment);
    put_terms(&mut out, terms);
    out
}

/// A limit among several: its algorithm, and how it counts.
pub(super) fn among_several(terms: &Terms) -> Vec<u8> {
    let mut out = Vec::with_capacity(32);
    out.push(index(terms.algorithm()) as u8 + 1);
    put_terms(&mut out, terms);
    out
}

/// An entry of `lua/batch.lua`: so many calls of a limit, by its index.
pub(super) fn put_entry(out: &mut Vec<u8>, limit: usize, cost: u32, count: u32) {
    out.push(limit as u8 + 1);
    out.extend(cost.to_be_bytes());
    out.extend(count.to_be_bytes());
}

/// How a limit counts, as its algorithm unpacks it.
fn put_terms(out: &mut Vec<u8>, terms: &Terms) {
    if terms.algorithm().is_bucket() {
        out.extend((terms.capacity() + terms.reserved()).to_be_bytes());
        put_7(out, terms.rate().token);
        // At most the threshold, which is a u32.
        out.extend((terms.rate().drain as u32).to_be_bytes());
        if terms.reserved() > 0 {
            out.extend(terms.reserved().to_be_bytes());
            put_7(out, terms.lease_us());
        }
        return;
    }
    out.extend(terms.threshold().to_be_bytes());
    put_7(out, terms.period_us());
    match terms.algorithm() {
        Algorithm::Fixed => {
            let shift = terms.shift_us();
            out.push(u8::from(shift.is_some()));
            put_7(out, shift.unwrap_or(0));
        }
        Algorithm::SlidingCounter => {
            put_7(out, terms.scale().grain);
            put_7(out, terms.scale().span);
        }
        Algorithm::Sliding | Algorithm::TokenBucket | Algorithm::LeakyBucket => {}
    }
}

/// How long the reply of one limit is.
pub(super) const REPLY: usize = 30;

/// The reply of `lua/epilogue.lua`; `None` if it is not one.
pub(super) fn decode_reply(reply: &[u8]) -> Option<Outcome> {
    let (clock, reply) = reply.split_first_chunk()?;
    let (allowed, reply) = reply.split_first()?;
    let (remaining, reply) = reply.split_first_chunk()?;
    let (retry, reply) = reply.split_first_chunk()?;
    let (reset, slack) = reply.split_first_chunk()?;
    (slack.len() == 4).then_some(())?;
    Some(Outcome {
        clock: get_7(*clock),
        allowed: *allowed == 1,
        remaining: u32::from_be_bytes(*remaining),
        retry_us: get_7(*retry),
        reset_us: get_7(*reset),
    })
}

/// By how much the wait until the reset was rounded up, in units of a bucket; or [`LEASED`].
pub(super) fn decode_slack(reply: &[u8]) -> Option<u32> {
    reply.last_chunk().map(|slack| u32::from_be_bytes(*slack))
}

/// The slack of a wait until leased units have drained, however many calls were before.
pub(super) const LEASED: u32 = u32::MAX;

/// What the error of one entry means.
pub(super) fn error_of(message: &str, key: &[u8]) -> StoreError {
    // As Redis writes errors: the code, a space, the rest. Before Redis 7 the place in the script may
    // stand in front.
    let is_code =
        |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_uppercase());
    let split = message.trim_start_matches('-').split_once(' ');
    let (code, rest) = split.filter(|(code, _)| is_code(code)).unwrap_or(("ERR", message));
    super::failure::server_error(code, rest, &[key])
}

fn put_7(out: &mut Vec<u8>, number: u64) {
    out.extend(&number.to_be_bytes()[1..]);
}

fn get_7(bytes: [u8; 7]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}
