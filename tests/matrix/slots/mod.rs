//! Calls in flight under faults: processes with many tasks each, whose calls end in every way, while one fault begins
//! and ends. The table of the rows is in the guide `in_flight.md`.
//!
//! Each call writes when it certainly held its units: it reads the clock, and then asks its permit whether the units
//! are lost. So a slow machine makes a call look shorter, never longer, and calls that overlap in what is written have
//! overlapped.

mod faults;
mod fleet;
mod member;
mod played;

use std::fmt::Write as _;
use std::time::Duration;

use ratelimit_runtime::Limit;

use self::faults::{
    cut, failed_over, killed, migrated, node_lost, replies_lost, replies_lost_beside_a_rate,
    restarted, stopped,
};
pub(crate) use self::member::member;
use self::played::Played;

const MOST: u64 = 3;
const KEYS: u64 = 2;
const TASKS: u64 = 64;
const DEADLINE: Duration = Duration::from_millis(500);

const HOLDS: [Duration; 4] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(3),
    Duration::from_secs(5),
];
const LONGEST_HOLD: Duration = HOLDS[3];

const WAIT: Duration = Duration::from_secs(2);

/// How much later than the end of a hold the slots of the dead may be in use again, on a busy machine.
const BOUND: Duration = Duration::from_secs(1);

/// The work of a long call: it outlives the faults and all holds.
const LONG: Duration = Duration::from_secs(6);

/// The work of other calls is shorter than this.
const SHORT_MILLIS: u64 = 60;

const BEFORE: Duration = Duration::from_millis(1_500);

/// The time in which the slots of the dead are in use again.
const AFTER: Duration = Duration::from_millis(2_500);

const SLOTS: Limit = Limit::in_flight("slots", MOST);

/// Rates beside the slots: one that rejects calls, and one that counts all of them.
const PACE: Limit = Limit::sliding("pace", 15, Duration::from_secs(1));
const TOTAL: Limit = Limit::fixed("total", 1_000_000, Duration::from_secs(3600));

pub(crate) struct Row {
    pub(crate) name: &'static str,
    run: fn() -> Played,
}

pub(crate) const ROWS: [Row; 9] = [
    Row { name: "slots: process killed", run: killed },
    Row { name: "slots: process stopped (SIGSTOP)", run: stopped },
    Row { name: "slots: network cut", run: cut },
    Row { name: "slots: replies lost", run: replies_lost },
    Row { name: "slots: replies lost, beside rates", run: replies_lost_beside_a_rate },
    Row { name: "slots: server restarted without its memory", run: restarted },
    Row { name: "slots: primary lost (Sentinel)", run: failed_over },
    Row { name: "slots: node lost (cluster)", run: node_lost },
    Row { name: "slots: hash slot moved (cluster)", run: migrated },
];

/// Runs rows, and prints what they have played.
pub(crate) fn run(rows: &[&Row]) {
    let mut table = String::from(
        "| fault | calls before, during and after | slots lost by calls | most units at a time, of 3 |\n\
         | --- | --- | --- | --- |\n",
    );
    for Row { name, run } in rows {
        let played = run();
        played.assert_promises(name);
        let [before, during, after] = played.calls();
        let most = (0..KEYS).map(|key| played.most(key, 0)).max().unwrap_or(0);
        let lost = played.history.lost;
        writeln!(table, "| {name} | {before}, {during}, {after} | {lost} | {most} |")
            .expect("a text");
        println!("test matrix::{name} ... ok");
    }
    println!("\n{table}");
}
