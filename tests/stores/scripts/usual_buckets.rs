//! `lua/usual.lua` does for buckets in their usual state what `lua/bucket.lua` does for any.

use proptest::prelude::*;
use ratelimit_runtime::__private::script_text;
use redis::{Commands, Connection};
use support::operations::{OperationKind, assert_plays};
use support::server::Server;

/// The arguments of a bucket.
#[derive(Clone, Copy, Debug)]
struct Terms {
    burst: u64,
    token: u64,
    drain: u64,
}

/// Equal calls at a time.
#[derive(Clone, Debug)]
struct Step {
    /// Microseconds since the step before.
    later: i64,
    terms: Terms,
    cost: u64,
    count: u64,
}

/// The numbers of a reply: clock, verdict, remaining, retry, reset and slack.
type Reply = [u64; 6];

/// Takes a number from the front of a packed reply.
fn take(packed: &mut &[u8], width: usize) -> u64 {
    let (bytes, rest) = packed.split_at(width);
    *packed = rest;
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn take_reply(packed: &mut &[u8]) -> Reply {
    [7, 1, 7, 7, 7, 7].map(|width| take(packed, width))
}

/// Decides equal calls by one script, as concurrent calls are decided. Returns the replies to the last admitted call
/// and to the rejected calls, and the clock.
fn by_batch(
    connection: &mut Connection,
    step: &Step,
    clock: Option<u64>,
) -> ([Option<Reply>; 2], u64) {
    let Step { terms: Terms { burst, token, drain }, cost, count, .. } = *step;
    let entry = |cost: u64, count: u64| {
        [&[1], &cost.to_be_bytes()[1..], &[0; 7], &count.to_be_bytes()[4..]].concat()
    };
    let clock = clock.map_or_else(Vec::new, |clock| clock.to_be_bytes()[1..].to_vec());
    // The fourth of the algorithms in the script.
    let numbers = [burst, token, drain];
    let terms = numbers.iter().flat_map(|number| number.to_be_bytes()[1..].to_vec());
    let terms: Vec<u8> = [4].into_iter().chain(terms).collect();
    // A second entry, so that the script reads the values of all keys at once.
    let mut eval = redis::cmd("EVAL");
    eval.arg(script_text("batch")).arg(2).arg("batch").arg("other");
    eval.arg([entry(cost, count), entry(1, 1)].concat()).arg(clock).arg(terms);
    let replies: Vec<Vec<u8>> = eval.query(connection).expect("a list");
    assert_eq!(replies.len(), 1, "an entry failed");
    let packed = &mut &replies[0][..];
    let clock = take(packed, 7);
    let replies = match packed.split_off_first().expect("a kind") {
        1 if count == 1 => {
            let reply = take_reply(packed);
            if reply[1] == 1 { [Some(reply), None] } else { [None, Some(reply)] }
        }
        1 => {
            let admitted = take(packed, 4);
            [admitted > 0, admitted < count].map(|is_there| is_there.then(|| take_reply(packed)))
        }
        kind => {
            assert_eq!(*kind, 2);
            let (admitted, level) = (take(packed, 4), take(packed, 7));
            let (drain, capacity) = (drain, burst * token);
            let (left, reset) = (capacity.saturating_sub(level) / token, level.div_ceil(drain));
            let slack = reset * drain - level;
            let retry = (level + cost * token).saturating_sub(capacity).div_ceil(drain);
            [
                (admitted > 0).then_some([clock, 1, left, 0, reset, slack]),
                (admitted < count).then_some([clock, 0, left, retry, reset, slack]),
            ]
        }
    };
    (replies, clock)
}

/// Decides the calls one after the other, by the script of one call.
fn one_by_one(connection: &mut Connection, step: &Step, clock: u64) -> [Option<Reply>; 2] {
    let Step { terms: Terms { burst, token, drain }, cost, count, .. } = step;
    let mut replies = [None, None];
    for _ in 0..*count {
        let mut eval = redis::cmd("EVAL");
        eval.arg(script_text("bucket")).arg(1).arg("single").arg(format!("clock={clock}"));
        eval.arg(format!("cost={cost}")).arg(format!("burst={burst}"));
        eval.arg(format!("token={token}")).arg(format!("drain={drain}"));
        let reply: Vec<String> = eval.query(connection).expect("a list");
        let number = |text: &String| text.split_once('=').expect("a name").1.parse().expect(text);
        let reply: Vec<u64> = reply.iter().map(number).collect();
        let reply: Reply = reply.try_into().expect("six numbers");
        replies[usize::from(reply[1] == 0)] = Some(reply);
    }
    replies
}

fn step() -> impl Strategy<Value = Step> {
    let amounts = prop_oneof![
        8 => Just(Terms { burst: 7, token: 1_000_003, drain: 7 }),
        1 => Just(Terms { burst: 9, token: 1_000_003, drain: 7 }),
        1 => Just(Terms { burst: 7, token: 60_000_000, drain: 11 }),
        1 => Just(Terms { burst: 1_000_000, token: 1 << 31, drain: 1 }),
    ];
    let later = prop_oneof![
        6 => 0..400_000_i64,
        2 => Just(0),
        1 => -50_000..0_i64,
        1 => 0..100_000_000_i64,
    ];
    (later, amounts, prop_oneof![4 => Just(1_u64), 1 => 0..8_u64], 1..5_u64)
        .prop_map(|(later, terms, cost, count)| Step { later, terms, cost, count })
}

#[test]
fn plays_calls_that_share_a_script() {
    assert_plays(
        &step(),
        |_| {
            use OperationKind::*;
            &[Check, Burst, Change, Advance, Step]
        },
        |kind| {
            use OperationKind::*;
            match kind {
                Check | Burst | Change | Advance | Step => true,
                Acquire | Wait | Drop | Pause | Lease | Return | Settle | Debt | Keep | Refund
                | Peek | Reset | Block | Unblock | Rule | Free | Several | Idle | Retry | Evict
                | LostReply | Crash | MoveSlot => false,
            }
        },
    );
}

#[test]
fn a_batch_decides_buckets_as_the_script_of_one_call_does() {
    let server = Server::start();
    let cases = ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() };
    proptest!(cases, |(steps in prop::collection::vec(step(), 1..40), is_sent: bool)| {
        let mut connection = server.connection();
        redis::cmd("FLUSHALL").exec(&mut connection).expect("FLUSHALL");
        let mut clock = 1_700_000_000_000_000_u64;
        for step in &steps {
            clock = clock.saturating_add_signed(step.later);
            // Without a clock that is sent, the calls come at the time of the server.
            let (batch, at) = by_batch(&mut connection, step, is_sent.then_some(clock));
            prop_assert_eq!(batch, one_by_one(&mut connection, step, at), "{:?}", step);
            let value = |connection: &mut Connection, key| {
                let value: Option<Vec<u8>> = connection.get(key).expect("a string");
                // Without the end of the TTL: one for several calls is later than one for the first of them.
                value.map(|value| (value[0], value[5..].to_vec()))
            };
            prop_assert_eq!(value(&mut connection, "batch"), value(&mut connection, "single"));
        }
        server.assert_all_keys_expire();
    });
}
