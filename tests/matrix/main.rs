//! Faults of Redis and of the network, under load from several processes.
//!
//! A fleet calls one limit while a fault begins and ends. With `on_error = deny`, the fleet must not admit more than
//! the judge allows, each call has to end in time, and decisions have to resume without help. The program prints the
//! table of "Running it in production".
//!
//! Without arguments or with the names of faults, this program is the test. With the argument `process`, it is one
//! process of the fleet; with `slots`, one of a fleet whose calls hold slots ([`slots`]).

mod faults;
mod fleet;
mod process;
mod slots;

use std::fmt::Write as _;
use std::time::Duration;

use ratelimit_runtime::Limit;
use support::filter::Filter;
use support::judge::{Exception, Judge};

use self::faults::{
    cut, emptied, failed_over, flushed, full, hostile, killed, long_keys, node_lost, paused,
    replies_lost, resharded, starved, stopped,
};
use self::fleet::{Report, member};

const THRESHOLD: u64 = 12_000;
const DEADLINE: Duration = Duration::from_millis(100);
const LIMIT: Limit = Limit::sliding("matrix", THRESHOLD, Duration::from_secs(3600));

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [process, url] if process == "process" => member(url, false),
        [process, url, _] if process == "process" => member(url, true),
        [slots, url, number, is_rated] if slots == "slots" => slots::member(url, number, is_rated),
        arguments => test(&Filter::new(arguments)),
    }
}

/// What a fault can lose.
#[derive(Clone, Copy, PartialEq)]
enum Loses {
    /// So the admitted cost reaches the threshold.
    Nothing,
    Replies,
    /// A replica that takes over has not received the last writes of its primary.
    Writes,
}

/// A fault: its name, what it can lose, and what runs a fleet under it.
type Fault = (&'static str, Loses, fn() -> Report);

const FAULTS: [Fault; 14] = [
    ("killed and started again", Loses::Replies, killed),
    ("stopped (SIGSTOP)", Loses::Replies, stopped),
    ("paused (CLIENT PAUSE)", Loses::Replies, paused),
    ("network cut", Loses::Replies, cut),
    ("replies lost", Loses::Replies, replies_lost),
    ("SCRIPT FLUSH, again and again", Loses::Nothing, flushed),
    ("FLUSHALL, once", Loses::Nothing, emptied),
    ("out of memory", Loses::Nothing, full),
    ("hostile writer", Loses::Nothing, hostile),
    ("primary lost (Sentinel)", Loses::Writes, failed_over),
    ("node lost (cluster)", Loses::Writes, node_lost),
    ("slot moved (cluster)", Loses::Nothing, resharded),
    ("keys of 2 MB by a client", Loses::Nothing, long_keys),
    ("starved processes", Loses::Nothing, starved),
];

fn test(filter: &Filter) {
    let faults: Vec<_> = FAULTS.iter().filter(|fault| filter.selects(fault.0)).collect();
    let rows: Vec<_> = slots::ROWS.iter().filter(|row| filter.selects(row.name)).collect();
    let count = faults.len() + rows.len();
    println!("\nrunning {count} tests");
    if !faults.is_empty() {
        test_rates(&faults);
    }
    if !rows.is_empty() {
        slots::run(&rows);
    }
    println!("\ntest result: ok. {count} passed; 0 failed; 0 ignored\n");
}

fn test_rates(faults: &[&Fault]) {
    let mut table = String::from(
        "| fault | admitted of 12,000 | calls | not decided | p50 | p99 | longest | back after |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for &&(name, loses, run) in faults {
        let report = run();
        judge(name, &report, if loses == Loses::Writes { THRESHOLD / 50 } else { 0 });
        let admitted = report.admitted.len() as u64;
        let Report { calls, undecided, unanswered, p50, p99, longest, back, .. } = report;
        // A call without a reply may have been charged. A busy machine can cause such calls under any
        // fault: for example, a cluster node that syncs its configuration to disk, as it does whenever a hash slot
        // moves, sends no replies meanwhile.
        let is_exact = loses == Loses::Nothing;
        assert!(
            !is_exact || admitted + unanswered >= THRESHOLD,
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
        if is_exact && unanswered > 0 {
            // These calls count for "back after" as well.
            println!("{name}: the machine was busy, {unanswered} calls got no reply in time");
        }
        println!("test matrix::{name} ... ok");
    }
    println!("\n{table}");
}

/// Asserts that the judge does not object to the admitted calls, and that it objects to one more than the threshold.
fn judge(name: &str, report: &Report, unreplicated: u64) {
    let mut judge = Judge::new(&LIMIT, None);
    // A call that was being decided when the count was lost may belong to the lost count.
    let is_lost = |starts: (u64, u64)| report.emptied.is_some_and(|(_, end)| starts.0 <= end);
    let (lost, counted): (Vec<_>, Vec<_>) =
        report.admitted.iter().partition(|call| is_lost(call.starts));
    judge.admitted_all(lost);
    if let Some((at, _)) = report.emptied {
        judge.excepted(at, Exception::Lost);
    }
    if unreplicated > 0 {
        let first = counted.iter().map(|call| call.starts.0).min().unwrap_or(0);
        judge.excepted(first, Exception::Refund { units: unreplicated });
    }
    judge.admitted_all(counted.iter().copied());
    let breaches = judge.breaches();
    assert!(breaches.is_empty(), "{name}: {:?}", breaches.last());
    let left = THRESHOLD + unreplicated - counted.len() as u64;
    assert!(judge.objects_to_more(&LIMIT, left + 1), "{name}: the judge does not see all calls");
}
