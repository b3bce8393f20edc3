//! Measures how long a process takes until its first decision: in processes that do nothing else.

use std::time::Instant;

use ratelimit_runtime::{Limit, RateLimiter};
use redis::Script;
use support::server::Server;
use tokio::runtime::Runtime;

use crate::peers::keyed;
use crate::table::{Better, Block, Column, Kind, Row, Table};
use crate::turns::in_turns;
use crate::{FLOWING, PERIOD, Scale, UNITS, child};

const HERE: [&str; 2] = ["ours", "governor"];
const ON_REDIS: [&str; 2] = ["ours on Redis", "`EVALSHA`"];

pub(crate) fn measure(scale: &Scale) -> Vec<Block> {
    let server = Server::start();
    let rows = |all: &[&str; 2], places: [&str; 2]| {
        let took =
            in_turns(if scale.quick { 1 } else { 21 }, all, |who| measured(who, &server.url));
        places
            .into_iter()
            .enumerate()
            .map(|(at, place)| {
                let micros = took.iter().map(|micros| micros[at]);
                Row::of(place, micros.collect::<Vec<_>>())
            })
            .collect::<Vec<_>>()
    };
    let mut all = rows(&HERE, ["in the process, the first", "in the process, the second"]);
    all.extend(rows(&ON_REDIS, ["on Redis, the first", "on Redis, the second"]));
    let columns = [("ours", Kind::Ours), ("governor, or `EVALSHA`", Kind::Peer)];
    let table = Table {
        title: "The first decision of a process",
        unit: "microseconds, with what it creates and connects",
        better: Better::Less,
        by: "decision",
        columns: columns.map(|(name, kind)| Column::new(name, kind)).into(),
        rows: all,
        chart: None,
    };
    vec![Block::table("start", table)]
}

/// Returns the microseconds of the first and the second decision of a process.
fn measured(who: &str, url: &str) -> [f64; 2] {
    let output = child::program().args(["start-of", who, url]).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let mut micros = text.split_whitespace().map(|micros| micros.parse().expect("a number"));
    [(); 2].map(|()| micros.next().expect("two numbers"))
}

/// Prints the microseconds of the first and the second decision of this process.
pub(crate) fn child(who: &str, url: &str) {
    let start = Instant::now();
    let decide: Box<dyn Fn()> = match who {
        "ours on Redis" => {
            let runtime = Runtime::new().expect("a runtime");
            let limiter = RateLimiter::builder().redis(url).build().expect("valid");
            let limit = Limit::token_bucket("bench", UNITS, PERIOD);
            Box::new(move || {
                runtime.block_on(limiter.check(&limit, "key", 1)).expect("admitted");
            })
        }
        "`EVALSHA`" => {
            let runtime = Runtime::new().expect("a runtime");
            let client = redis::Client::open(url).expect("an address");
            let connection = runtime.block_on(client.get_multiplexed_async_connection());
            let connection = connection.expect("it runs");
            let script = Script::new(include_str!("../textbook/token_bucket.lua"));
            Box::new(move || {
                let mut call = script.key("key");
                call.arg(FLOWING).arg(PERIOD.as_micros() as u64);
                let mut connection = connection.clone();
                let call = call.invoke_async(&mut connection);
                let (admitted, ..): (bool, u32, u64) = runtime.block_on(call).expect("it runs");
                assert!(admitted, "refused");
            })
        }
        here => {
            let limiter = keyed(here, FLOWING);
            Box::new(move || assert!(limiter.admits(&"key".to_owned()), "refused"))
        }
    };
    decide();
    let first = start.elapsed();
    let again = Instant::now();
    decide();
    let second = again.elapsed();
    println!("{} {}", first.as_secs_f64() * 1e6, second.as_secs_f64() * 1e6);
}
