//! The scripts of `lua/`, what they take and what they reply.

use once_cell::sync::Lazy;
use redis::Cmd;

use crate::algorithm::{Op, Outcome};
use crate::limit::{Algorithm, Limit};

/// A script, with the prelude in front of it and the epilogue behind.
pub(super) struct Script {
    text: &'static str,
    hash: String,
}

macro_rules! script {
    ($file:literal) => {
        Lazy::new(|| {
            let text = concat!(
                include_str!("../../../lua/prelude.lua"),
                include_str!(concat!("../../../lua/", $file)),
                include_str!("../../../lua/epilogue.lua"),
            );
            Script { text, hash: redis::Script::new(text).get_hash().to_owned() }
        })
    };
}

impl Script {
    pub(super) fn of(algorithm: Algorithm) -> &'static Self {
        static SLIDING: Lazy<Script> = script!("sliding.lua");
        static FIXED: Lazy<Script> = script!("fixed.lua");
        static SLIDING_COUNTER: Lazy<Script> = script!("sliding_counter.lua");
        static BUCKET: Lazy<Script> = script!("bucket.lua");
        match algorithm {
            Algorithm::Sliding => &SLIDING,
            Algorithm::Fixed => &FIXED,
            Algorithm::SlidingCounter => &SLIDING_COUNTER,
            Algorithm::TokenBucket | Algorithm::LeakyBucket => &BUCKET,
        }
    }

    /// The call that the server knows by hash, if it has seen the text.
    pub(super) fn by_hash(&self, key: &[u8], arguments: &[u8]) -> Cmd {
        command("EVALSHA", self.hash.as_bytes(), key, arguments)
    }

    /// The same call with the text, which the server then knows.
    pub(super) fn by_text(&self, key: &[u8], arguments: &[u8]) -> Cmd {
        command("EVAL", self.text.as_bytes(), key, arguments)
    }
}

fn command(name: &str, script: &[u8], key: &[u8], arguments: &[u8]) -> Cmd {
    let mut command = Cmd::new();
    command.arg(name).arg(script).arg(1).arg(key).arg(arguments);
    command
}

/// The packed argument that `lua/prelude.lua` and the script after it describe.
pub(super) fn arguments(op: Op, limit: &Limit, clock: Option<u64>, cost: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(40);
    out.push(match op {
        Op::Decide => 0,
        Op::Peek => 1,
        Op::Refund => 2,
    });
    out.push(u8::from(clock.is_some()));
    put_7(&mut out, clock.unwrap_or(0));
    out.extend(cost.to_be_bytes());
    out.extend(limit.threshold().to_be_bytes());
    put_7(&mut out, limit.period_us());
    match limit.algorithm() {
        Algorithm::Sliding => {}
        Algorithm::Fixed => {
            let shift = limit.shift_us();
            out.push(u8::from(shift.is_some()));
            put_7(&mut out, shift.unwrap_or(0));
        }
        Algorithm::SlidingCounter => {
            put_7(&mut out, limit.grain.grain);
            put_7(&mut out, limit.grain.span);
        }
        Algorithm::TokenBucket | Algorithm::LeakyBucket => {
            out.extend(limit.capacity().to_be_bytes());
            put_7(&mut out, limit.rate.token);
            // At most the threshold, which is a u32.
            out.extend((limit.rate.drain as u32).to_be_bytes());
        }
    }
    out
}

/// The reply of `lua/epilogue.lua`; `None` if it is not one.
pub(super) fn decode_reply(reply: &[u8]) -> Option<Outcome> {
    let (allowed, reply) = reply.split_first()?;
    let (remaining, reply) = reply.split_first_chunk()?;
    let (retry, reset) = reply.split_first_chunk()?;
    Some(Outcome {
        allowed: *allowed == 1,
        remaining: u32::from_be_bytes(*remaining),
        retry_us: get_7(*retry),
        reset_us: get_7(reset.try_into().ok()?),
    })
}

fn put_7(out: &mut Vec<u8>, number: u64) {
    out.extend(&number.to_be_bytes()[1..]);
}

fn get_7(bytes: [u8; 7]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}
