//! Faults of Redis and of the network, under load from several processes.
//!
//! A fleet calls one limit while a fault begins and ends. With `on_error = deny`, the fleet must not admit more than
//! the threshold, each call has to end in time, and decisions have to resume without help. The program prints the
//! table of "Running it in production".
//!
//! Without arguments or with the names of faults, this program is the test. With the argument `process`, it is one
//! process of the fleet.

mod data;
mod durable_server;
mod fleet;
mod hostile;
mod network;
mod servers;

use std::fmt::Write as _;
use std::time::Duration;

use ratelimit_runtime::Limit;

use self::data::{emptied, flushed, full};
use self::fleet::{Report, member};
use self::hostile::{hostile, long_keys};
use self::network::{cut, paused, replies_lost, starved};
use self::servers::{failed_over, killed, node_lost, resharded, stopped};

const THRESHOLD: u32 = 12_000;
const DEADLINE: Duration = Duration::from_millis(100);
const LIMIT: Limit = Limit::sliding("matrix", THRESHOLD, Duration::from_secs(3600));
const KEY: &str = "ratelimit:sliding:1h:matrix{key}";

/// The time before the fault.
const BEFORE: Duration = Duration::from_millis(500);

/// The length of the fault.
const FAULT: Duration = Duration::from_secs(1);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [process, url] if process == "process" => member(url, false),
        [process, url, _] if process == "process" => member(url, true),
        filters => test(filters),
    }
}

/// A fault.
struct Fault {
    name: &'static str,
    /// The largest cost that may be admitted.
    most: u32,
    /// Whether the fault loses no reply, so that the admitted cost reaches the threshold.
    exact: bool,
    /// Runs a fleet under the fault.
    run: fn() -> Report,
}

const FAULTS: [Fault; 14] = [
    Fault { name: "killed and started again", most: THRESHOLD, exact: false, run: killed },
    Fault { name: "stopped (SIGSTOP)", most: THRESHOLD, exact: false, run: stopped },
    Fault { name: "paused (CLIENT PAUSE)", most: THRESHOLD, exact: false, run: paused },
    Fault { name: "network cut", most: THRESHOLD, exact: false, run: cut },
    Fault { name: "replies lost", most: THRESHOLD, exact: false, run: replies_lost },
    Fault { name: "SCRIPT FLUSH, again and again", most: THRESHOLD, exact: true, run: flushed },
    // The deleted count starts from zero.
    Fault { name: "FLUSHALL, once", most: 2 * THRESHOLD, exact: true, run: emptied },
    Fault { name: "out of memory", most: THRESHOLD, exact: true, run: full },
    Fault { name: "hostile writer", most: THRESHOLD, exact: true, run: hostile },
    // Replication is asynchronous, so a replica can lack some counts.
    Fault {
        name: "primary lost (Sentinel)",
        most: MOST_AFTER_FAILOVER,
        exact: false,
        run: failed_over,
    },
    Fault { name: "node lost (cluster)", most: MOST_AFTER_FAILOVER, exact: false, run: node_lost },
    Fault { name: "slot moved (cluster)", most: THRESHOLD, exact: true, run: resharded },
    Fault { name: "keys of 2 MB by a client", most: THRESHOLD, exact: true, run: long_keys },
    Fault { name: "starved processes", most: THRESHOLD, exact: true, run: starved },
];

/// A fiftieth above the threshold: calls that a lost primary had admitted before its replica received them.
const MOST_AFTER_FAILOVER: u32 = THRESHOLD + THRESHOLD / 50;

/// Runs the faults whose names contain one of the words, as `cargo test -- <word>` does. Without a word it runs
/// all of them.
fn test(arguments: &[String]) {
    // A number belongs to `--test-threads`.
    let is_word = |word: &&String| !word.starts_with('-') && word.parse::<u32>().is_err();
    let words: Vec<_> = arguments.iter().filter(is_word).collect();
    let is_selected = |fault: &&Fault| {
        words.is_empty() || words.iter().any(|word| fault.name.contains(word.as_str()))
    };
    let faults: Vec<_> = FAULTS.iter().filter(is_selected).collect();
    println!("\nrunning {} tests", faults.len());
    let mut table = String::from(
        "| fault | admitted of 12,000 | calls | not decided | p50 | p99 | longest | back after |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for &&Fault { name, most, exact, run } in &faults {
        let report = run();
        let Report { admitted, calls, undecided, unanswered, p50, p99, longest, back } = report;
        assert!(admitted <= most, "{name}: {admitted} admitted");
        // A call without a reply may have been charged. A busy machine can cause such calls under any
        // fault: for example, a cluster node that syncs its configuration to disk, as it does whenever a hash slot
        // moves, sends no replies meanwhile.
        assert!(
            !exact || admitted + unanswered >= THRESHOLD,
            "{name}: only {admitted} admitted, {unanswered} unanswered"
        );
        // No call hangs. The table shows how long the calls take.
        assert!(longest < DEADLINE * 10, "{name}: a call took {longest:?}");
        let back = back.map_or("never away".to_owned(), |back| format!("{} ms", back.as_millis()));
        let (p50, p99) = (p50.as_micros(), p99.as_secs_f64() * 1_000.0);
        let longest = longest.as_millis();
        let row = writeln!(
            table,
            "| {name} | {admitted} | {calls} | {undecided} | {p50} µs | {p99:.1} ms | {longest} ms | {back} |"
        );
        row.expect("a text");
        if exact && unanswered > 0 {
            // These calls count for "back after" as well.
            println!("{name}: the machine was busy, {unanswered} calls got no reply in time");
        }
        println!("test matrix::{name} ... ok");
    }
    println!("\n{table}\ntest result: ok. {} passed; 0 failed; 0 ignored\n", faults.len());
}
