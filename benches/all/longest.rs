//! Measures how long a script blocks the server on a sliding window with the most records: for usual calls, for calls
//! that walk over many records, and for the call that joins them.

use std::time::Duration;

use ratelimit_runtime::{Clock, Limit, RateLimiter, VirtualClock};
use redis::Connection;
use support::server::Server;
use tokio::runtime::Runtime;

use crate::Scale;
use crate::table::{Better, Block, Column, Kind, Row, Table};

/// The number of pending calls: so few that each call has a script of its own.
const PENDING: u32 = 4;

const PERIOD: Duration = Duration::from_secs(86_400);

/// The units of a period.
const UNITS: u32 = 10_000_000;

/// Calls whose times differ by more than this share no record.
const CELL: Duration = Duration::from_millis(86_400);

pub(crate) fn measure(scale: &Scale) -> Vec<Block> {
    let (rounds, calls) = (scale.rounds as u32, if scale.quick { 100 } else { 1_000 });
    let window = Window::new();
    let mut rows = Vec::new();
    // Takes the minimum of several rounds, which contains the least work of other programs.
    let mut row = |name: &str, rounds: u32, work: &dyn Fn()| {
        let least = (0..rounds).map(|_| window.slowest(work)).reduce(|one, other| {
            let [median, longest] = [0, 1].map(|index: usize| one[index].min(other[index]));
            [median, longest]
        });
        rows.push(Row::of(name, least.expect("a round")));
    };
    let millisecond = Duration::from_millis(1);

    window.calls(2_000, UNITS, UNITS / 1_100, CELL);
    row("a call shares the newest record", rounds, &|| window.calls(calls, UNITS, 1, millisecond));
    row("a record leaves with each call", rounds, &|| window.calls(calls, UNITS, 1, CELL));
    row("rejected", rounds, &|| window.calls(calls, 1, 1, Duration::ZERO));
    window.calls(2_000, UNITS, UNITS / 1_100, CELL);
    row("rejected: a cost that half of the records block", rounds, &|| {
        window.calls(calls, UNITS, UNITS * 6 / 10, Duration::ZERO);
    });
    row("half of the records have left", 1, &|| {
        window.clock.advance(PERIOD / 2);
        window.calls(1, UNITS, 1, CELL);
    });
    // A thousand times of a few seconds; then the calls in parts of their own take the last of the records.
    window.clock.advance(2 * PERIOD);
    window.calls(1_000, 1_000, 1, millisecond);
    row("1,016 records are joined", 1, &|| window.calls(16, UNITS, 1, CELL));

    let columns = ["median", "longest"].map(|name| Column::new(name, Kind::Beside)).into();
    vec![Block::table(
        "longest",
        Table {
            title: "Scripts on a sliding window of ten million units a day",
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
    Limit::sliding("longest", threshold.into(), PERIOD)
}

/// An entry of `SLOWLOG`: number, time, microseconds, command, and client.
type Slow = (u64, u64, f64, Vec<Vec<u8>>, String, String);

/// One sliding window on one server.
struct Window {
    server: Server,
    limiter: RateLimiter,
    clock: VirtualClock,
    runtime: Runtime,
}

impl Window {
    fn new() -> Self {
        let (server, clock) = (Server::start(), VirtualClock::new());
        let virtual_clock = Clock::Virtual(clock.clone());
        let limiter = server.builder().clock(virtual_clock).cache_rejections(false).build();
        let runtime = Runtime::new().expect("a runtime");
        Self { server, limiter: limiter.expect("valid"), clock, runtime }
    }

    fn calls(&self, calls: u32, threshold: u32, cost: u32, apart: Duration) {
        self.runtime.block_on(async {
            let tasks: Vec<_> = (0..PENDING.min(calls))
                .map(|task| {
                    let (limiter, clock) = (self.limiter.clone(), self.clock.clone());
                    tokio::spawn(async move {
                        for _ in (task..calls).step_by(PENDING as usize) {
                            let _ = limiter.check(&limit(threshold), "key", cost.into()).await;
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
        let of_ours = log.iter().filter(|entry| matches!(&*entry.3[0], b"EVALSHA" | b"EVAL"));
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
