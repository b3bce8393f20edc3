//! Measures the time that the Redis server spends in the script of a decision, and the memory of a key, by
//! algorithm, beside the script of tutorials for it.

use std::time::Duration;

use ratelimit_runtime::{Algorithm, Limit, RateLimiter};
use redis::{Connection, Script};
use support::server::Server;
use tokio::runtime::Runtime;

use crate::Scale;
use crate::figure::grouped;
use crate::table::{Better, Block, Column, Kind, Row, Table};
use crate::turns::in_turns;

/// The number of pending calls: so few that each call has a script of its own.
const PENDING: u32 = 4;

/// A threshold that no test reaches: one connection cannot send as many calls in a second.
const FLOWING: (u32, Duration) = (1_000_000, Duration::from_secs(1));
/// A limit that admits all calls of a connection, and whose units return at the rate of the calls.
const TURNING: (u32, Duration) = (100, Duration::from_millis(2));
/// A period in which no unit returns while a row is measured, and with which a sliding window can still be a ring.
const LASTING: Duration = Duration::from_secs(86_400 * 12);
/// The period of the keys whose memory is measured.
const HOUR: Duration = Duration::from_secs(3_600);

const PAIRS: [(Algorithm, &str, &str); 5] = [
    (Algorithm::Sliding, "sorted set", include_str!("../textbook/sliding.lua")),
    (Algorithm::Fixed, "counter", include_str!("../textbook/fixed.lua")),
    (Algorithm::SlidingCounter, "hash", include_str!("../textbook/sliding_counter.lua")),
    (Algorithm::TokenBucket, "hash", include_str!("../textbook/token_bucket.lua")),
    (Algorithm::LeakyBucket, "hash", include_str!("../textbook/token_bucket.lua")),
];

#[derive(Clone, Copy)]
enum Measured {
    Ours(Algorithm),
    Textbook(&'static str),
}

pub(crate) fn measure(scale: &Scale) -> Vec<Block> {
    let bench = Bench::new();
    let calls = if scale.quick { 1_000 } else { 20_000 };
    let (mut times, mut bytes) = (Vec::new(), Vec::new());
    for (algorithm, shape, script) in PAIRS {
        let pair = [Measured::Ours(algorithm), Measured::Textbook(script)];
        let loads = [
            ("admitted", FLOWING, 10),
            ("admitted, threshold 100", TURNING, 200),
            ("rejected", (100, LASTING), 101),
        ];
        for (name, limit, before) in loads {
            let took = in_turns(scale.rounds, &pair, |what| {
                bench.forget();
                bench.run(*what, limit, before);
                [bench.server_time(*what, limit, calls)]
            });
            let label = format!("{algorithm} beside a {shape}, {name}");
            times.push(Row::of(label, took.iter().map(|[micros]| *micros)));
        }
        for calls in if scale.quick { &[100][..] } else { &[100, 10_000] } {
            let label = format!("{algorithm} beside a {shape}, {} calls", grouped((*calls).into()));
            bytes.push(Row::of(
                label,
                pair.map(|what| {
                    bench.forget();
                    bench.run(what, (*calls, HOUR), *calls);
                    bench.memory()
                }),
            ));
        }
    }
    let columns = vec![Column::new("ours", Kind::Ours), Column::new("textbook", Kind::Peer)];
    vec![
        Block::table(
            "scripts-time",
            Table {
                title: "Time of the server in a script",
                unit: "microseconds of one decision",
                better: Better::Less,
                by: "algorithm",
                columns: columns.clone(),
                rows: times,
            },
        ),
        Block::table(
            "scripts-memory",
            Table {
                title: "Memory of a key in Redis",
                unit: "bytes, name included",
                better: Better::Less,
                by: "algorithm",
                columns,
                rows: bytes,
            },
        ),
    ]
}

/// One server, and the limiter that calls it.
struct Bench {
    server: Server,
    limiter: RateLimiter,
    runtime: Runtime,
}

impl Bench {
    fn new() -> Self {
        let server = Server::start();
        // Without the cache of rejections, so that Redis decides each rejected call.
        let limiter = server.builder().cache_rejections(false).build().expect("valid");
        Self { limiter, runtime: Runtime::new().expect("a runtime"), server }
    }

    fn forget(&self) {
        redis::cmd("FLUSHALL").exec(&mut self.connection()).expect("FLUSHALL");
    }

    fn run(&self, what: Measured, limit: (u32, Duration), calls: u32) {
        match what {
            Measured::Ours(algorithm) => self.ours(algorithm, limit, calls),
            Measured::Textbook(script) => self.textbook(script, limit, calls),
        }
    }

    /// Returns the time that the server spends in the script of one call, in microseconds.
    fn server_time(&self, what: Measured, limit: (u32, Duration), calls: u32) -> f64 {
        let before = (self.server.script_micros(), self.server.script_calls());
        self.run(what, limit, calls);
        let scripts = self.server.script_calls() - before.1;
        (self.server.script_micros() - before.0) / scripts as f64
    }

    /// Returns the bytes of all keys: a long sliding log has several.
    fn memory(&self) -> f64 {
        let mut connection = self.connection();
        let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).expect("keys");
        let bytes = keys.iter().map(|key| {
            let mut usage = redis::cmd("MEMORY");
            usage.arg(&["USAGE", key, "SAMPLES", "0"]);
            usage.query::<u64>(&mut connection).expect("MEMORY USAGE")
        });
        bytes.sum::<u64>() as f64
    }

    fn ours(&self, algorithm: Algorithm, (threshold, period): (u32, Duration), calls: u32) {
        let mut limit = Limit::new("bench", algorithm, threshold.into(), period).expect("valid");
        if algorithm == Algorithm::LeakyBucket {
            limit = limit.burst(threshold.into());
        }
        self.runtime.block_on(async {
            let tasks: Vec<_> = (0..PENDING.min(calls))
                .map(|task| {
                    let limiter = self.limiter.clone();
                    tokio::spawn(async move {
                        for _ in (task..calls).step_by(PENDING as usize) {
                            let _ = limiter.check(&limit, "key", 1).await;
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.expect("no panic");
            }
        });
    }

    fn textbook(&self, script: &str, (threshold, period): (u32, Duration), calls: u32) {
        let mut connection = self.connection();
        let hash = Script::new(script).get_hash().to_owned();
        redis::cmd("SCRIPT").arg("LOAD").arg(script).exec(&mut connection).expect("LOAD");
        for first in (0..calls).step_by(PENDING as usize) {
            let mut flight = redis::pipe();
            for call in first..calls.min(first + PENDING) {
                flight.cmd("EVALSHA").arg(&hash).arg(1).arg("textbook:bench:key");
                flight.arg(threshold).arg(period.as_micros() as u64).arg(call);
            }
            flight.exec(&mut connection).expect("the script runs");
        }
    }

    fn connection(&self) -> Connection {
        self.server.connection()
    }
}
