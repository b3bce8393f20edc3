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

/// The limits of the entries, as the script receives them.
#[derive(Clone, Copy)]
enum Terms {
    /// A bucket of 1,000 a minute.
    Bucket,
    /// A sliding window of 120 an hour.
    Sliding,
}

impl Terms {
    /// Packs the index of the algorithm in the script, and its arguments.
    fn packed(self) -> Vec<u8> {
        match self {
            // The capacity in tokens, the units of a token, and the units that drain per microsecond.
            Self::Bucket => packed(4, &[1_000, 60_000, 1]),
            // The threshold and the period.
            Self::Sliding => packed(1, &[120, 3_600_000_000]),
        }
    }

    /// Returns the word in the names of the keys.
    fn word(self) -> &'static str {
        match self {
            Self::Bucket => "token_bucket",
            Self::Sliding => "sliding",
        }
    }
}

/// Packs a byte, and numbers of 7 bytes each.
fn packed(first: u8, numbers: &[u64]) -> Vec<u8> {
    let numbers = numbers.iter().flat_map(|number| number.to_be_bytes()[1..].to_vec());
    std::iter::once(first).chain(numbers).collect()
}

const WRITE: &str =
    "for entry = 1, #KEYS do redis.call('SETRANGE', KEYS[entry], '7', '01234567890123') end";

pub(crate) fn measure(scale: &Scale) -> Vec<Block> {
    let server = Server::start();
    let mut connection = server.connection();
    let batch = script_text("batch").expect("a script");
    let texts = [
        ("nothing", Terms::Bucket, "return 1".to_owned()),
        (
            "`MGET` of all keys",
            Terms::Bucket,
            "return #redis.call('MGET', unpack(KEYS))".to_owned(),
        ),
        ("`SETRANGE` of each key", Terms::Bucket, WRITE.to_owned()),
        ("all of this", Terms::Bucket, format!("redis.call('MGET', unpack(KEYS)) {WRITE}")),
        ("64 buckets decided", Terms::Bucket, batch.clone()),
        ("64 sliding windows decided", Terms::Sliding, batch),
    ];
    let scripts: Vec<Parts> = texts
        .into_iter()
        .map(|(name, terms, text)| {
            let hash = redis::cmd("SCRIPT").arg("LOAD").arg(text).query(&mut connection);
            let key = |index| format!("rl:{}:1m:bench{{user:{index}}}", terms.word());
            let keys = (0..KEYS).map(key).collect();
            Parts { name, terms, hash: hash.expect("a script"), keys }
        })
        .collect();
    let calls = if scale.quick { 50 } else { 1_400 };
    for script in &scripts[scripts.len() - 2..] {
        for some in script.keys.chunks(ENTRIES) {
            let some: Vec<&str> = some.iter().map(String::as_str).collect();
            // So many that no ring grows while it is measured.
            script.call(&some, 65).exec(&mut connection).expect("decided");
        }
    }
    let took = in_turns(scale.rounds, &scripts, |script| {
        [micros(&server, &mut connection, script, calls)]
    });
    let rows = scripts.iter().zip(&took);
    let rows = rows.map(|(script, [micros])| Row::of(script.name, [*micros]));
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

/// A script that is measured.
struct Parts {
    name: &'static str,
    terms: Terms,
    hash: String,
    keys: Vec<String>,
}

impl Parts {
    /// Returns a call with an entry for each key, which has `count` calls of one unit.
    fn call(&self, keys: &[&str], count: u32) -> Cmd {
        // The first limit, the cost, and no birth: the calls need no receipt.
        let entry = [&packed(1, &[1, 0])[..], &count.to_be_bytes()].concat();
        let mut call = redis::cmd("EVALSHA");
        call.arg(&self.hash).arg(keys.len()).arg(keys);
        call.arg(entry.repeat(keys.len())).arg("").arg(self.terms.packed());
        call
    }
}

/// Returns the time that the server spends on an entry of a script.
fn micros(server: &Server, connection: &mut Connection, script: &Parts, calls: usize) -> f64 {
    let picked = keys::uniform(KEYS, calls * ENTRIES);
    let before = (server.script_micros(), server.script_calls());
    for some in picked.chunks(ENTRIES) {
        let some: Vec<&str> = some.iter().map(|id| &*script.keys[*id as usize]).collect();
        script.call(&some, 1).exec(connection).expect("it runs");
    }
    let scripts = server.script_calls() - before.1;
    (server.script_micros() - before.0) / scripts as f64 / ENTRIES as f64
}
