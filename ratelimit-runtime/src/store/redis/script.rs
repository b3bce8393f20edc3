//! The scripts that the store calls: what they take, and what they reply. Their texts are in
//! [`program`](super::program).

use once_cell::sync::Lazy;
use redis::Cmd;

use super::program::{self, Form};
use crate::algorithm::{BucketOp, Op, Outcome};
use crate::limit::Terms;
use crate::reply::StoreError;

/// A script, as the server gets it.
pub(super) struct Script {
    text: String,
    hash: String,
}

impl Script {
    /// The script that decides one call of a limit.
    pub(super) fn of(terms: &Terms) -> &'static Self {
        static SCRIPTS: Lazy<[Script; Form::EACH.len()]> =
            Lazy::new(|| Form::EACH.map(|form| Script::new(form.script())));
        &SCRIPTS[Form::of(terms).index()]
    }

    /// The script that decides several limits together.
    pub(super) fn all() -> &'static Self {
        static SCRIPT: Lazy<Script> = Lazy::new(|| Script::new(program::all()));
        &SCRIPT
    }

    /// The script that decides many calls, each by itself.
    pub(super) fn batch() -> &'static Self {
        static SCRIPT: Lazy<Script> = Lazy::new(|| Script::new(program::batch()));
        &SCRIPT
    }

    /// The script that removes the state of a sliding log.
    pub(super) fn reset() -> &'static Self {
        static SCRIPT: Lazy<Script> = Lazy::new(|| Script::new(program::reset()));
        &SCRIPT
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

/// An operation, as scripts get it.
#[derive(Clone, Copy)]
pub(super) struct Code {
    /// What the scripts compare `op` with.
    word: &'static str,
    /// The time that the operation is about, or 0.
    moment: u64,
}

#[cfg(test)]
impl Code {
    pub(super) fn word(self) -> &'static str {
        self.word
    }
}

impl From<Op> for Code {
    fn from(op: Op) -> Self {
        let (word, moment) = match op {
            Op::Decide => ("decide", 0),
            Op::Peek => ("peek", 0),
            Op::Refund => ("refund", 0),
            Op::Return { at } => ("return", at),
        };
        Self { word, moment }
    }
}

impl From<BucketOp> for Code {
    fn from(op: BucketOp) -> Self {
        let (word, moment) = match op {
            BucketOp::Reserve { wait } => ("reserve", wait),
            BucketOp::Cancel { moment } => ("cancel", moment),
        };
        Self { word, moment }
    }
}

/// The arguments of the script that decides one call.
pub(super) fn alone(
    op: impl Into<Code>,
    terms: &Terms,
    clock: Option<u64>,
    cost: u32,
) -> Vec<Vec<u8>> {
    let Code { word, moment } = op.into();
    let mut call = Vec::with_capacity(64);
    put_word(&mut call, word);
    call.extend(cost.to_be_bytes());
    put_7(&mut call, moment);
    Form::of(terms).put_terms(&mut call, terms);
    let mut arguments = vec![call];
    arguments.extend(clock.map(packed_clock));
    arguments
}

/// The arguments of `lua/all.lua`: the limits, and their costs.
pub(super) fn together<'a>(
    op: Op,
    parts: impl Iterator<Item = (&'a Terms, u32)>,
    clock: Option<u64>,
) -> Vec<Vec<u8>> {
    let mut head = Vec::with_capacity(64);
    put_word(&mut head, Code::from(op).word);
    let mut arguments = vec![Vec::new(), clock.map_or_else(Vec::new, packed_clock)];
    for (limit, cost) in parts {
        head.extend(cost.to_be_bytes());
        arguments.push(among_several(limit));
    }
    arguments[0] = head;
    arguments
}

/// The arguments of `lua/batch.lua`: the entries, as [`put_entry`] makes them, and their limits.
pub(super) fn in_batch(entries: Vec<u8>, limits: &[&Terms], clock: Option<u64>) -> Vec<Vec<u8>> {
    let clock = clock.map_or_else(Vec::new, packed_clock);
    [entries, clock].into_iter().chain(limits.iter().map(|terms| among_several(terms))).collect()
}

/// An entry of `lua/batch.lua`: so many calls of a limit, by its index.
pub(super) fn put_entry(out: &mut Vec<u8>, limit: usize, cost: u32, count: u32) {
    out.push(limit as u8 + 1);
    out.extend(cost.to_be_bytes());
    out.extend(count.to_be_bytes());
}

/// A limit, as `lua/several.lua` unpacks it.
fn among_several(terms: &Terms) -> Vec<u8> {
    let form = Form::of(terms);
    let mut out = Vec::with_capacity(32);
    out.push(form.index() as u8 + 1);
    form.put_terms(&mut out, terms);
    out
}

/// How long the reply of one limit is.
pub(super) const REPLY: usize = 30;

/// The reply of `lua/answer.lua`; `None` if it is not one.
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

/// A word, and the zero byte that ends it.
fn put_word(out: &mut Vec<u8>, word: &str) {
    out.extend(word.as_bytes());
    out.push(0);
}

fn packed_clock(clock: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(7);
    put_7(&mut out, clock);
    out
}

fn put_7(out: &mut Vec<u8>, number: u64) {
    out.extend(&number.to_be_bytes()[1..]);
}

fn get_7(bytes: [u8; 7]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}
