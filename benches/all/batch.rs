//! Measures where the time of a script that decides many calls goes: what the server spends on its keys, on the
//! commands, and on the rest.

use ratelimit_runtime::__private::script_text;
use redis::{Cmd, Connection};
use support::server::Server;

use crate::table::{Better, Block, Column, Kind, Row, Table};
use crate::turns::in_turns;
use crate::{Scale, keys};

/// The entries of a script.
const ENTRIES: usize = 64;

/// The keys from which the entries are taken.
const KEYS: u32 = 10_000;

/// A bucket of 1,000 a minute: `burst`, `token` and `drain`.
const TERMS: (u32, u64, u32) = (1_000, 60_000, 1);

const WRITE: &str =
    "for entry = 1, #KEYS do redis.call('SETRANGE', KEYS[entry], '7', '01234567890123') end";

pub(crate) fn measure(scale: &Scale) -> Vec<Block> {
    let server = Server::start();
    let mut connection = server.connection();
    let batch = script_text("batch").expect("a script");
    let texts = [
        ("nothing", "return 1".to_owned()),
        ("`MGET` of all keys", "return #redis.call('MGET', unpack(KEYS))".to_owned()),
        ("`SETRANGE` of each key", WRITE.to_owned()),
        ("all of this", format!("redis.call('MGET', unpack(KEYS)) {WRITE}")),
        ("64 buckets decided", batch.clone()),
    ];
    let scripts: Vec<(&str, String)> = texts
        .into_iter()
        .map(|(name, text)| {
            let hash = redis::cmd("SCRIPT").arg("LOAD").arg(text).query(&mut connection);
            (name, hash.expect("a script"))
        })
        .collect();
    let names: Vec<String> =
        (0..KEYS).map(|index| format!("ratelimit:token_bucket:1m:bench{{user:{index}}}")).collect();
    let decide = &scripts.last().expect("one").1;
    for some in names.chunks(ENTRIES) {
        let some: Vec<&str> = some.iter().map(String::as_str).collect();
        call(decide, &some).exec(&mut connection).expect("decided");
    }
    let calls = if scale.quick { 50 } else { 2_000 };
    let took = in_turns(scale.rounds, &scripts, |(_, hash)| {
        [micros(&server, &mut connection, hash, &names, calls)]
    });
    let rows = scripts.iter().zip(&took).map(|((name, _), [micros])| Row::of(*name, [*micros]));
    let table = Table {
        title: "Parts of a script that decides 64 calls",
        unit: "microseconds of the server for each entry",
        better: Better::Less,
        by: "script",
        columns: vec![Column::new("time", Kind::Beside)],
        rows: rows.collect(),
        chart: None,
    };
    vec![Block::table("batch", table)]
}

/// Returns the time that the server spends on an entry of a script.
fn micros(
    server: &Server,
    connection: &mut Connection,
    hash: &str,
    names: &[String],
    calls: usize,
) -> f64 {
    let picked = keys::uniform(KEYS, calls * ENTRIES);
    let before = (server.script_micros(), server.script_calls());
    for some in picked.chunks(ENTRIES) {
        let some: Vec<&str> = some.iter().map(|id| &*names[*id as usize]).collect();
        call(hash, &some).exec(connection).expect("it runs");
    }
    let scripts = server.script_calls() - before.1;
    (server.script_micros() - before.0) / f64::from(scripts) / ENTRIES as f64
}

/// Returns a call of a script with an entry for each key.
fn call(hash: &str, keys: &[&str]) -> Cmd {
    let (burst, token, drain) = TERMS;
    let entry = [&[1], &1_u32.to_be_bytes()[..], &1_u32.to_be_bytes()].concat();
    // The fourth of the algorithms in the script.
    let terms = [&[4], &burst.to_be_bytes()[..], &token.to_be_bytes()[1..], &drain.to_be_bytes()];
    let mut call = redis::cmd("EVALSHA");
    call.arg(hash).arg(keys.len()).arg(keys);
    call.arg(entry.repeat(keys.len())).arg("").arg(terms.concat());
    call
}
