//! Measures the cost of decisions, for this library and for other limiters: the one command behind
//! `BENCHMARKS.md`.
//!
//! `cargo bench --bench all` measures everything, and then writes the tables of `BENCHMARKS.md` and
//! `benches/results/`. `-- quick` is a small run that checks that the bench works, and writes into the target folder.
//! `-- redis scripts` measures only these parts, prints them, and writes nothing.

mod attribute;
mod budgets;
mod child;
mod cluster;
mod contender;
mod embedded;
mod figure;
mod fill;
mod fleet;
mod footprint;
mod in_flight;
mod keys;
mod layer;
mod machine;
mod memory;
mod peers;
mod publish;
mod redis;
mod scripts;
mod settling;
mod steady;
mod table;
mod together;
mod turns;
mod waiting;

use std::time::{Duration, Instant};

use ratelimit_runtime::{RateLimiter, set_global};

use crate::table::Block;

/// The extent of the measurements.
struct Scale {
    quick: bool,
    /// The number of measured rounds, after one round that is not measured.
    rounds: usize,
    /// The number of decisions in a round in this process.
    decisions: usize,
    /// The duration of a round on Redis.
    round: Duration,
    /// The largest power of ten that is measured.
    most_keys: u32,
}

impl Scale {
    fn new(quick: bool) -> Self {
        Self {
            quick,
            rounds: if quick { 1 } else { 5 },
            decisions: if quick { 1 << 15 } else { 1 << 20 },
            round: Duration::from_millis(if quick { 30 } else { 300 }),
            most_keys: if quick { 10_000 } else { 10_000_000 },
        }
    }
}

/// A threshold so high, and a period so long, that no call is rejected and almost no unit returns: one token refills
/// in 63 seconds. So no key expires before the end of the bench.
const FLOWING: u32 = 10_000_000;

/// The same as an amount.
const UNITS: u64 = FLOWING as u64;
const PERIOD: Duration = Duration::from_secs(7_300 * 86_400);

type Measure = fn(&Scale) -> Vec<Block>;

const PARTS: [(&str, Measure); 13] = [
    ("embedded", embedded::measure),
    ("steady", steady::measure),
    ("memory", memory::measure),
    ("attribute", attribute::measure),
    ("together", together::measure),
    ("layer", layer::measure),
    ("footprint", footprint::measure),
    ("redis", redis::measure),
    ("cluster", cluster::measure),
    ("scripts", scripts::measure),
    ("waiting", waiting::measure),
    ("settling", settling::measure),
    ("in-flight", in_flight::measure),
];

fn main() {
    // Cargo adds `--bench`.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    // Annotated functions decide in this process, for any value of `RATELIMIT_REDIS_URL`.
    assert!(set_global(RateLimiter::embedded()).is_ok(), "nothing was decided before");
    match words[..] {
        ["memory-of", name, most] => {
            return memory::child(name, most.parse().expect("a number"));
        }
        ["waiting-of", url, millis] => {
            return waiting::child(url, millis.parse().expect("a number"));
        }
        _ => {}
    }
    for word in &words {
        let known = *word == "quick" || PARTS.iter().any(|(name, _)| name == word);
        assert!(known, "no part `{word}`; there are {:?}, and `quick`", PARTS.map(|part| part.0));
    }
    let scale = Scale::new(words.contains(&"quick"));
    let only: Vec<&str> = words.into_iter().filter(|word| *word != "quick").collect();
    let mut blocks = machine::describe();
    for (name, measure) in PARTS {
        if only.is_empty() || only.contains(&name) {
            let start = Instant::now();
            let measured = measure(&scale);
            for block in &measured {
                println!("{}", block.text());
            }
            println!("{name}: {:.0} s\n", start.elapsed().as_secs_f64());
            blocks.extend(measured);
        }
    }
    if only.is_empty() {
        let budgets = budgets::reached(&blocks, scale.quick);
        println!("{}", budgets.text());
        blocks.push(budgets);
        publish::publish(&blocks, scale.quick);
    }
}
