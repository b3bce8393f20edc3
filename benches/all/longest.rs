//! Measures how long a script blocks the server on a long sliding log: while the log grows, for each operation,
//! and while it expires.

use std::time::Duration;

use ratelimit_runtime::{Clock, Limit, RateLimiter, VirtualClock};
use redis::Connection;
use support::server::Server;
use tokio::runtime::Runtime;

use crate::Scale;
use crate::table::{Better, Block, Column, Kind, Row, Table};

/// The number of pending calls: so few that each call has a script and a record of its own.
const PENDING: u32 = 4;

const PERIOD: Duration = Duration::from_secs(86_400);

/// The number of calls in a round that appends: they fill several segments.
const GROWTH: u32 = 10_000;

/// The time between two records.
const APART: Duration = Duration::from_micros(100);

pub(crate) fn measure(scale: &Scale) -> Vec<Block> {
    let (records, calls) = (scale.most_records, if scale.quick { 100 } else { 1_000 });
    let rounds = scale.rounds as u32;
    let log = Log::new();
    let mut rows = Vec::new();
    // Takes the minimum of several rounds, which contains the least work of other programs.
    let mut row = |name: &str, rounds: u32, work: &dyn Fn()| {
        let least = (0..rounds).map(|_| log.slowest(work)).reduce(|one, other| {
            let [median, longest] = [0, 1].map(|index: usize| one[index].min(other[index]));
            [median, longest]
        });
        rows.push(Row::of(name, least.expect("a round")));
    };
    let half = u32::MAX - records / 2;

    log.calls(records - rounds * GROWTH, u32::MAX, 1, APART);
    row("the log grows", rounds, &|| log.calls(GROWTH, u32::MAX, 1, APART));
    row("rejected: a cost that half of the log blocks", rounds, &|| {
        log.calls(calls, u32::MAX, half, Duration::ZERO);
    });
    row("rejected: the threshold lowered to half of the log", rounds, &|| {
        log.calls(calls, records / 2, 1, Duration::ZERO);
    });
    row("admitted: the threshold raised again", rounds, &|| log.calls(calls, u32::MAX, 1, APART));
    log.clock.set(log.start + PERIOD);
    row("one entry leaves with each call", rounds, &|| log.calls(GROWTH, u32::MAX, 1, APART));
    row("a thousandth of the log leaves with each call", rounds, &|| {
        log.calls(40, u32::MAX, 1, APART * (records / 1_000));
    });
    // Saves the state, so that another operation and a reset can start from it.
    log.send(&["COPY", KEY, "kept"]);
    log.clock.advance(PERIOD * 3);
    row("all of the log has left", 1, &|| log.calls(1, u32::MAX, 1, APART));
    log.send(&["RENAME", "kept", KEY]);
    row("reset", 1, &|| {
        let reset = log.limiter.reset(&limit(1), "key");
        log.runtime.block_on(reset).expect("Redis answers");
    });

    let columns = ["median", "longest"].map(|name| Column::new(name, Kind::Beside)).into();
    vec![Block::table(
        "longest",
        Table {
            title: "Scripts on a sliding log of ten million entries",
            unit: "microseconds of the server in one command",
            better: Better::Less,
            by: "calls",
            columns,
            rows,
            chart: None,
        },
    )]
}

fn limit(threshold: u32) -> Limit {
    Limit::sliding("longest", threshold, PERIOD)
}

/// An entry of `SLOWLOG`: number, time, microseconds, command, and client.
type Slow = (u64, u64, f64, Vec<Vec<u8>>, String, String);

/// The key of the log in Redis.
const KEY: &str = "rl:sliding:1d:longest{key}";

/// One log on one server.
struct Log {
    server: Server,
    limiter: RateLimiter,
    clock: VirtualClock,
    start: Duration,
    runtime: Runtime,
}

impl Log {
    fn new() -> Self {
        let (server, clock) = (Server::start(), VirtualClock::new());
        let virtual_clock = Clock::Virtual(clock.clone());
        let limiter = server.builder().clock(virtual_clock).cache_rejections(false).build();
        let (limiter, start) = (limiter.expect("valid"), clock.now());
        let runtime = Runtime::new().expect("a runtime");
        Self { server, limiter, clock, start, runtime }
    }

    fn calls(&self, calls: u32, threshold: u32, cost: u32, apart: Duration) {
        self.runtime.block_on(async {
            let tasks: Vec<_> = (0..PENDING.min(calls))
                .map(|task| {
                    let (limiter, clock) = (self.limiter.clone(), self.clock.clone());
                    tokio::spawn(async move {
                        for _ in (task..calls).step_by(PENDING as usize) {
                            let _ = limiter.check(&limit(threshold), "key", cost).await;
                            clock.advance(apart);
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.expect("no panic");
            }
        });
    }

    /// Returns the median and the longest time of the commands that the server runs during `work`.
    fn slowest(&self, work: &dyn Fn()) -> [f64; 2] {
        self.send(&["CONFIG", "SET", "slowlog-max-len", "100000"]);
        self.send(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
        self.send(&["SLOWLOG", "RESET"]);
        work();
        self.send(&["CONFIG", "SET", "slowlog-log-slower-than", "-1"]);
        let mut log = redis::cmd("SLOWLOG");
        log.arg("GET").arg(-1);
        let log: Vec<Slow> = log.query(&mut self.connection()).expect("SLOWLOG");
        // `SLOWLOG` also contains the commands that scripts call. Scripts here have one key.
        let of_ours = log.iter().filter(|entry| match &*entry.3[0] {
            b"EVALSHA" | b"EVAL" => true,
            b"UNLINK" => entry.3.len() > 2,
            _ => false,
        });
        let mut times: Vec<f64> = of_ours.map(|entry| entry.2).collect();
        times.sort_by(f64::total_cmp);
        [times[times.len() / 2], times[times.len() - 1]]
    }

    fn send(&self, command: &[&str]) {
        redis::cmd(command[0]).arg(&command[1..]).exec(&mut self.connection()).expect(command[0]);
    }

    fn connection(&self) -> Connection {
        self.server.connection()
    }
}
