//! What goes to the scripts has the layout that they document, whatever the limit; and what comes
//! back is decoded or rejected, whatever it is.

#![cfg_attr(fuzzing, no_main)]
#![allow(dead_code, unused_imports, unused_macros, reason = "a target uses a part of the files")]

#[path = "../../ratelimit-runtime/src/algorithm/mod.rs"]
mod algorithm;
#[path = "../../ratelimit-runtime/src/store/redis/network/failure.rs"]
mod failure;
#[path = "../../ratelimit-runtime/src/key/mod.rs"]
mod key;
#[path = "../../ratelimit-runtime/src/limit/mod.rs"]
mod limit;
#[path = "../../ratelimit-runtime/src/one_or_many.rs"]
mod one_or_many;
#[path = "../../ratelimit-runtime/src/printing.rs"]
mod printing;
#[path = "../../ratelimit-runtime/src/store/redis/scripts/program.rs"]
mod program;
#[path = "../../ratelimit-runtime/src/reply/mod.rs"]
mod reply;
#[path = "../../ratelimit-runtime/src/store/request.rs"]
mod request;
#[path = "../../ratelimit-runtime/src/store/redis/scripts/script.rs"]
mod script;
#[path = "../../ratelimit-runtime/src/text/mod.rs"]
mod text;

/// The part of the room that these files use.
mod store {
    pub(crate) use crate::request::*;

    pub(crate) mod redis {
        pub(crate) mod network {
            pub(crate) use crate::failure;
        }
    }
}

use std::time::Duration;

use arbitrary::Arbitrary;
use ratelimit_fuzz::target;

use self::algorithm::{Charged, Correction, Op, Outcome, Receipt, Verdict};
use self::key::KeyId;
use self::limit::{Algorithm, Align, Limit, Terms};
use self::store::Charge;

/// The parts of a limit.
#[derive(Arbitrary, Debug)]
struct LimitInput {
    algorithm: u8,
    threshold: u64,
    period_us: u64,
    burst: Option<u64>,
    align: Option<i16>,
}

impl LimitInput {
    fn limit(&self) -> Option<Limit> {
        let algorithm = match self.algorithm % 5 {
            0 => Algorithm::Sliding,
            1 => Algorithm::Fixed,
            2 => Algorithm::SlidingCounter,
            3 => Algorithm::TokenBucket,
            _ => Algorithm::LeakyBucket,
        };
        let period = Duration::from_micros(self.period_us);
        let limit = Limit::new("replies", algorithm, self.threshold % AMOUNTS, period).ok()?;
        let limit = match self.burst {
            Some(burst) => limit.try_burst(burst % AMOUNTS).ok()?,
            None => limit,
        };
        let offset = |minutes: i16| Align::offset_minutes(i32::from(minutes) % (14 * 60));
        match self.align {
            Some(minutes) => limit.try_align(offset(minutes)).ok(),
            None => Some(limit),
        }
    }
}

#[derive(Arbitrary, Debug)]
enum OpInput {
    Take { birth: u64 },
    Peek,
    Measure,
    Newest(i64),
    At(u64, i64),
    By(u64, u64, i64),
}

impl OpInput {
    /// The operation, and its cost, birth and operand as scripts receive them.
    fn op(&self, cost: u64) -> (script::ScriptOp, [u64; 3]) {
        let correct = |charged, change: i64, birth, operand| {
            let change = change % AMOUNTS.cast_signed();
            let [cost, by, place, _] = script::numbers_of(Correction { charged, change });
            let numbers = [change as u64 & ((1 << 56) - 1), birth, operand];
            (("correct", [cost, by, place]), numbers)
        };
        match *self {
            Self::Take { birth } => (("take", [cost, time(birth), 0]), [cost, time(birth), 0]),
            Self::Peek => (("peek", [cost, 0, 0]), [cost, 0, 0]),
            Self::Measure => (("peek", [0, 0, 1]), [0, 0, 1]),
            Self::Newest(change) => correct(Charged::Newest, change, 0, 0),
            Self::At(at, change) => correct(Charged::At(time(at)), change, 0, time(at).max(1)),
            Self::By(birth, place, change) => {
                let (birth, place) = (time(birth), time(place));
                correct(Charged::By(Receipt { birth, place }), change, birth, place)
            }
        }
    }
}

/// Amounts are below this.
const AMOUNTS: u64 = 1_000_000_000_000_000;

/// A time that a limiter has: below 2⁵³.
fn time(number: u64) -> u64 {
    number >> 11
}

/// Takes a number of `bytes` bytes from the front.
fn take(text: &mut &[u8], bytes: usize) -> u64 {
    let (number, rest) = text.split_at(bytes);
    *text = rest;
    number.iter().fold(0, |all, byte| all << 8 | u64::from(*byte))
}

/// Checks the arguments against the layout that the scripts document.
fn check_arguments(terms: &Terms, input: &OpInput, clock: Option<u64>, cost: u64) {
    let (op, numbers) = input.op(cost);
    let charge = Charge {
        terms: *terms,
        key_id: KeyId::new(&terms.identity, 0),
        count_name: Vec::new(),
        cost,
        statement: None,
    };
    let alone = script::arguments_of_one(op, &charge, clock);
    let clock = clock.map(|clock| clock.to_be_bytes()[1..].to_vec());
    assert_eq!(alone.get(1), clock.as_ref());
    let mut rest = alone[0].strip_prefix(op.0.as_bytes()).expect("the word");
    assert_eq!(take(&mut rest, 1), 0);
    assert_eq!(numbers.map(|_| take(&mut rest, 7)), numbers);

    let named =
        script::arguments_of_each([(&charge, ())], |_, ()| {}, None).pop().expect("a limit");
    let (index, packed) = named.split_first().expect("an index");
    assert_eq!(rest, packed);
    if matches!(terms.identity.algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket) {
        assert_eq!(*index, 4);
        assert_eq!(take(&mut rest, 7), terms.capacity);
        let token = take(&mut rest, 7);
        assert_eq!(token, terms.rate.token);
        assert_eq!(take(&mut rest, 7), terms.rate.drain);
        assert!(terms.rate.drain > 0 && token > 0);
        assert!(u128::from(terms.capacity) * u128::from(token) <= 1 << 52);
    } else {
        assert_eq!(take(&mut rest, 7), terms.threshold);
        assert_eq!(take(&mut rest, 7), terms.period_us());
    }
    match terms.identity.algorithm {
        Algorithm::Sliding => assert_eq!(*index, 1),
        Algorithm::Fixed => {
            assert_eq!(*index, 2);
            assert_eq!(take(&mut rest, 7), terms.shift_us().unwrap_or((1 << 56) - 1));
            assert!(terms.shift_us().unwrap_or(0) < terms.period_us());
        }
        Algorithm::SlidingCounter => {
            assert_eq!(*index, 3);
            assert_eq!(take(&mut rest, 7), terms.scale.grain);
            let span = take(&mut rest, 7);
            assert_eq!(span, terms.scale.span);
            assert!(u128::from(terms.threshold) * u128::from(span) <= 1 << 52);
        }
        // The generated limits are rates.
        Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::InFlight => {}
    }
    assert!(rest.is_empty());
}

/// The reply of `lua/answer.lua`.
fn reply(outcome: &Outcome, slack: u64) -> Vec<u8> {
    let mut reply = outcome.clock.to_be_bytes()[1..].to_vec();
    reply.push(match outcome.verdict {
        Verdict::Rejected => 0,
        Verdict::Admitted => 1,
        Verdict::Blocked { also_limited } => 2 + u8::from(also_limited),
    });
    reply.extend(&outcome.remaining.to_be_bytes()[1..]);
    reply.extend(&outcome.retry_us.to_be_bytes()[1..]);
    reply.extend(&outcome.reset_us.to_be_bytes()[1..]);
    reply.extend(&slack.to_be_bytes()[1..]);
    reply
}

target!(|input: (LimitInput, OpInput, Option<u64>, u64, &[u8])| {
    let (limit, op, clock, cost, bytes) = input;
    if let Some(limit) = limit.limit() {
        check_arguments(limit.terms(), &op, clock.map(time), cost % AMOUNTS);
    }
    let mut rest = bytes;
    let decoded = script::take_outcome(&mut rest);
    let is_reply = bytes.len() >= script::REPLY && bytes[7] <= 3;
    assert_eq!(decoded.is_some(), is_reply);
    if let Some((outcome, slack)) = decoded {
        let mut again = reply(&outcome, slack);
        assert_eq!(again[7] == 1, bytes[7] == 1);
        again[7] = bytes[7];
        assert_eq!([&again, rest].concat(), bytes);
    }
});
