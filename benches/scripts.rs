//! What a decision costs the Redis server, beside the textbook scripts in the same run.
//!
//! `cargo bench --bench scripts` starts a `redis-server`, and prints for each algorithm the server
//! time of an admitted and of a refused call (`INFO commandstats`, microseconds per `EVALSHA`), and
//! the memory of a key that admitted 100 and 10,000 calls (`MEMORY USAGE`). Ours and the textbook's
//! are measured in turn, several rounds each; medians are printed.

use std::time::Duration;

use ratelimit_runtime::{Algorithm, Limit, RateLimiter};
use redis::{Connection, Script};
use support::server::Server;
use tokio::runtime::Runtime;

const ROUNDS: usize = 7;
const CALLS: u32 = 20_000;
/// Calls under way at once: so few that each is a script of its own.
const IN_FLIGHT: u32 = 4;

/// Nothing is refused: more calls than this in a second are beyond one connection.
const FLOWING: (u32, Duration) = (1_000_000, Duration::from_secs(1));
/// All but the first hundred calls are refused.
const FULL: (u32, Duration) = (100, Duration::from_secs(86_400 * 365 * 20));

const PAIRS: [(Algorithm, &str, &str); 5] = [
    (Algorithm::Sliding, "sorted set", include_str!("textbook/sliding.lua")),
    (Algorithm::Fixed, "counter", include_str!("textbook/fixed.lua")),
    (Algorithm::SlidingCounter, "hash", include_str!("textbook/sliding_counter.lua")),
    (Algorithm::TokenBucket, "hash", include_str!("textbook/token_bucket.lua")),
    (Algorithm::LeakyBucket, "hash", include_str!("textbook/token_bucket.lua")),
];

struct Bench {
    server: Server,
    connection: Connection,
    limiter: RateLimiter,
    runtime: Runtime,
}

impl Bench {
    fn ours(&mut self, algorithm: Algorithm, (threshold, period): (u32, Duration), calls: u32) {
        let mut limit = Limit::new("bench", algorithm, threshold, period).expect("valid");
        if algorithm == Algorithm::LeakyBucket {
            limit = limit.burst(threshold);
        }
        self.runtime.block_on(async {
            let tasks: Vec<_> = (0..IN_FLIGHT.min(calls))
                .map(|task| {
                    let limiter = self.limiter.clone();
                    tokio::spawn(async move {
                        for _ in (task..calls).step_by(IN_FLIGHT as usize) {
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

    fn textbook(&mut self, script: &str, (threshold, period): (u32, Duration), calls: u32) {
        let hash = Script::new(script).get_hash().to_owned();
        redis::cmd("SCRIPT").arg("LOAD").arg(script).exec(&mut self.connection).expect("LOAD");
        for first in (0..calls).step_by(IN_FLIGHT as usize) {
            let mut flight = redis::pipe();
            for call in first..calls.min(first + IN_FLIGHT) {
                flight.cmd("EVALSHA").arg(&hash).arg(1).arg("textbook:bench:key");
                flight.arg(threshold).arg(period.as_micros() as u64).arg(call);
            }
            flight.exec(&mut self.connection).expect("the script runs");
        }
    }

    fn run(&mut self, what: &Measured, limit: (u32, Duration), calls: u32) {
        match *what {
            Measured::Ours(algorithm) => self.ours(algorithm, limit, calls),
            Measured::Textbook(script) => self.textbook(script, limit, calls),
        }
    }

    /// Microseconds of the server per call, once `warm_up` calls have been made.
    fn server_time(&mut self, what: &Measured, limit: (u32, Duration), warm_up: u32) -> f64 {
        self.command("FLUSHALL");
        self.run(what, limit, warm_up);
        redis::cmd("CONFIG").arg("RESETSTAT").exec(&mut self.connection).expect("RESETSTAT");
        self.run(what, limit, CALLS);
        let stats: String =
            redis::cmd("INFO").arg("commandstats").query(&mut self.connection).expect("INFO");
        let evalsha = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:"));
        let per_call = evalsha.and_then(|line| line.split("usec_per_call=").nth(1));
        per_call
            .and_then(|text| text.split(',').next())
            .expect("a figure")
            .parse()
            .expect("a figure")
    }

    /// Bytes of a key that admitted `calls` calls.
    fn memory(&mut self, what: &Measured, calls: u32) -> u64 {
        self.command("FLUSHALL");
        self.run(what, (calls, FULL.1), calls);
        let key: String = redis::cmd("RANDOMKEY").query(&mut self.connection).expect("a key");
        redis::cmd("MEMORY")
            .arg(&["USAGE", &key, "SAMPLES", "0"])
            .query(&mut self.connection)
            .expect("MEMORY USAGE")
    }

    fn command(&mut self, name: &str) {
        redis::cmd(name).exec(&mut self.connection).expect(name);
    }
}

enum Measured {
    Ours(Algorithm),
    Textbook(&'static str),
}

fn main() {
    let server = Server::start();
    let mut bench = Bench {
        connection: server.connection(),
        limiter: server.builder().build().expect("valid"),
        runtime: Runtime::new().expect("a runtime"),
        server,
    };
    let version: String =
        redis::cmd("INFO").arg("server").query(&mut bench.connection).expect("INFO");
    let version = version.lines().find(|line| line.starts_with("redis_version")).unwrap_or("");
    println!("{} at {}, {ROUNDS} rounds of {CALLS} calls\n", version.trim(), bench.server.url);
    println!(
        "| algorithm | beside | admitted, µs | refused, µs | bytes at 100 | bytes at 10,000 |"
    );
    println!("| --- | --- | --- | --- | --- | --- |");
    for (algorithm, shape, script) in PAIRS {
        let pair = [Measured::Ours(algorithm), Measured::Textbook(script)];
        let time = |bench: &mut Bench, limit, warm_up| {
            let mut rounds = [const { Vec::new() }; 2];
            for _ in 0..ROUNDS {
                for (what, rounds) in pair.iter().zip(&mut rounds) {
                    rounds.push(bench.server_time(what, limit, warm_up));
                }
            }
            rounds.map(median)
        };
        let [admitted, textbook_admitted] = time(&mut bench, FLOWING, 10);
        let [refused, textbook_refused] = time(&mut bench, FULL, 101);
        let [hundred, textbook_hundred] = [&pair[0], &pair[1]].map(|what| bench.memory(what, 100));
        let [many, textbook_many] = [&pair[0], &pair[1]].map(|what| bench.memory(what, 10_000));
        println!(
            "| {algorithm} | {shape} | {admitted:.2} / {textbook_admitted:.2} = **{:.2}** \
             | {refused:.2} / {textbook_refused:.2} = **{:.2}** \
             | {hundred} / {textbook_hundred} = **{:.2}** | {many} / {textbook_many} = **{:.2}** |",
            admitted / textbook_admitted,
            refused / textbook_refused,
            hundred as f64 / textbook_hundred as f64,
            many as f64 / textbook_many as f64,
        );
    }
}

fn median(mut rounds: Vec<f64>) -> f64 {
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}
