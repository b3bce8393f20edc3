//! Decisions a second on Redis, beside one `EVALSHA` a decision on one multiplexed connection, and
//! beside a bare `INCR`, which is the least that any limiter on Redis can do.
//!
//! `cargo bench --bench redis` starts a `redis-server`, lets so many tasks decide on each in turn,
//! several rounds each, and prints medians.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ratelimit_runtime::{Limit, RateLimiter};
use redis::Script;
use redis::aio::MultiplexedConnection;
use support::server::Server;
use tokio::runtime::Runtime;

const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_millis(300);
const KEYS: usize = 10_000;

/// Nothing is refused.
const LIMIT: Limit = Limit::token_bucket("bench", 1_000_000, Duration::from_secs(1));

/// Nor here, where units are charged in advance.
const HOT: Limit = Limit::token_bucket("hot", 100_000_000, Duration::from_secs(1));
const LEASES: [u32; 2] = [50, 1_000];

#[derive(Clone)]
enum Who {
    Ours(RateLimiter, Limit),
    /// The textbook token bucket.
    Script(MultiplexedConnection, Arc<Script>),
    Count(MultiplexedConnection),
}

impl Who {
    async fn decide(&mut self, key: &str) {
        match self {
            Self::Ours(limiter, limit) => {
                limiter.check(limit, key, 1).await.expect("admitted");
            }
            Self::Script(connection, script) => {
                let mut call = script.key(key);
                call.arg(1_000_000).arg(1_000_000);
                let _: redis::Value = call.invoke_async(connection).await.expect("a reply");
            }
            Self::Count(connection) => {
                let mut count = redis::cmd("INCR");
                let key = format!("count:{key}");
                let _: i64 = count.arg(key).query_async(connection).await.expect("a count");
            }
        }
    }
}

fn main() {
    let server = Server::start();
    let runtime = Runtime::new().expect("a runtime");
    let client = redis::Client::open(&*server.url).expect("an address");
    let connect =
        || runtime.block_on(client.get_multiplexed_async_connection()).expect("the server answers");
    let limiter = RateLimiter::builder().redis(&*server.url).deadline(Duration::from_secs(10));
    let limiter = limiter.max_in_flight(100_000).build().expect("valid");
    let textbook = Script::new(include_str!("textbook/token_bucket.lua"));
    let whos = [
        Who::Ours(limiter.clone(), LIMIT),
        Who::Script(connect(), Arc::new(textbook)),
        Who::Count(connect()),
    ];
    println!("thousand decisions a second, and the 99th percentile in µs");
    println!(
        "tasks  keys       ours          EVALSHA       INCR          ours / EVALSHA  p99   ours / INCR"
    );
    let only: Option<usize> = std::env::args().nth(1).and_then(|tasks| tasks.parse().ok());
    for tasks in [1, 16, 256].into_iter().filter(|tasks| only.is_none_or(|only| only == *tasks)) {
        for (name, keys) in [("uniform", uniform()), ("zipf", zipf()), ("one", vec![0; 1 << 16])] {
            let keys: Arc<[usize]> = keys.into();
            let mut rounds = [const { Vec::new() }; 3];
            let (mut decisions, mut server_time) = (0.0, 0.0);
            for _ in 0..ROUNDS {
                for (who, rounds) in whos.iter().zip(&mut rounds) {
                    let before = server.script_micros();
                    let figures = round(&runtime, who, tasks, &keys);
                    if matches!(who, Who::Ours(..)) {
                        server_time += server.script_micros() - before;
                        decisions += figures.0 * ROUND.as_secs_f64();
                    }
                    rounds.push(figures);
                }
            }
            let [ours, script, count] = rounds.map(|mut rounds| {
                rounds.sort_by(|one, other| one.0.total_cmp(&other.0));
                let rate = rounds[ROUNDS / 2].0;
                rounds.sort_by(|one, other| one.1.total_cmp(&other.1));
                (rate, rounds[ROUNDS / 2].1)
            });
            println!(
                "{tasks:5}  {name:8} {:5.0} {:6.0}  {:5.0} {:6.0}  {:5.0} {:6.0}   {:14.2}  {:.2}  {:12.2}",
                ours.0 / 1e3,
                ours.1,
                script.0 / 1e3,
                script.1,
                count.0 / 1e3,
                count.1,
                ours.0 / script.0,
                ours.1 / script.1,
                ours.0 / count.0,
            );
            let micros = server_time / decisions;
            println!("{:15} {micros:.2} µs of the server for a decision of ours", "");
            if name == "one" {
                for lease in LEASES {
                    let who = Who::Ours(limiter.clone(), HOT.lease(lease));
                    leased(&runtime, &who, tasks, &keys, (lease, script.0));
                }
            }
        }
    }
}

/// The same with a lease, beside what one `EVALSHA` a decision does.
fn leased(
    runtime: &Runtime,
    who: &Who,
    tasks: usize,
    keys: &Arc<[usize]>,
    (lease, script): (u32, f64),
) {
    let mut rounds: Vec<_> = (0..ROUNDS).map(|_| round(runtime, who, tasks, keys)).collect();
    rounds.sort_by(|one, other| one.0.total_cmp(&other.0));
    let rate = rounds[ROUNDS / 2].0;
    rounds.sort_by(|one, other| one.1.total_cmp(&other.1));
    let (wait, times) = (rounds[ROUNDS / 2].1, rate / script);
    println!("{:15} {:5.0} {wait:6.1}  with lease = {lease}: {times:.1} × EVALSHA", "", rate / 1e3);
}

/// Decisions a second and the 99th percentile of a decision in µs.
fn round(runtime: &Runtime, who: &Who, tasks: usize, keys: &Arc<[usize]>) -> (f64, f64) {
    let next = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let mut waits = runtime.block_on(async {
        let tasks: Vec<_> = (0..tasks)
            .map(|_| {
                let (mut who, keys, next) = (who.clone(), Arc::clone(keys), Arc::clone(&next));
                tokio::spawn(async move {
                    let mut waits = Vec::new();
                    while start.elapsed() < ROUND {
                        let index = keys[next.fetch_add(1, Ordering::Relaxed) % keys.len()];
                        let key = format!("user:{index}");
                        let asked = Instant::now();
                        who.decide(&key).await;
                        waits.push(asked.elapsed().as_nanos() as u32);
                    }
                    waits
                })
            })
            .collect();
        let mut waits = Vec::new();
        for task in tasks {
            waits.extend(task.await.expect("no panic"));
        }
        waits
    });
    let rate = waits.len() as f64 / start.elapsed().as_secs_f64();
    waits.sort_unstable();
    (rate, f64::from(waits[waits.len() * 99 / 100]) / 1e3)
}

/// Knuth's MMIX generator: the same keys in every run.
fn random() -> impl FnMut() -> u64 {
    let mut state = 1_u64;
    move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 11
    }
}

fn uniform() -> Vec<usize> {
    let mut random = random();
    (0..1 << 16).map(|_| random() as usize % KEYS).collect()
}

/// Key `i` comes as often as 1/(i + 1).
fn zipf() -> Vec<usize> {
    let mut random = random();
    let sums: Vec<f64> = (1..=KEYS)
        .scan(0.0, |sum, rank| {
            *sum += 1.0 / rank as f64;
            Some(*sum)
        })
        .collect();
    let at = |number: u64| number as f64 / (1_u64 << 53) as f64 * sums[KEYS - 1];
    (0..1 << 16).map(|_| sums.partition_point(|sum| *sum < at(random()))).collect()
}
