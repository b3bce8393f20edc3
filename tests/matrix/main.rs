//! Faults of Redis and of the network, under load from several processes.
//!
//! A fleet calls one limit while a fault begins and ends. With `on_error = deny`, the fleet must not admit more than
//! the judge allows, each call has to end in time, and decisions have to resume without help. The program prints the
//! table of "Running it in production".
//!
//! Without arguments or with the names of faults, this program is the test. With the argument `process`, it is one
//! process of the fleet; with `slots`, one of a fleet whose calls hold slots ([`slots`]).

mod fleet;
mod slots;

use std::fmt::Write as _;
use std::thread::sleep;
use std::time::{Duration, Instant};

use ratelimit_runtime::{Limit, RateLimiter};
use redis::Commands;
use support::cluster::Cluster;
use support::filter::Filter;
use support::history::machine_time;
use support::judge::{Exception, Judge};
use support::limits::HOUR;
use support::proxy::{Network, Proxy};
use support::sentinel::Sentinels;
use support::server::{Server, command, is_replicated};
use support::{port, runtime};

use self::fleet::{Fleet, Report, member, signal};

const THRESHOLD: u64 = 12_000;
const DEADLINE: Duration = Duration::from_millis(100);
const LIMIT: Limit = Limit::sliding("matrix", THRESHOLD, HOUR);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [process, url] if process == "process" => member(url, false),
        [process, url, _] if process == "process" => member(url, true),
        [slots, url, number, is_rated] if slots == "slots" => slots::member(url, number, is_rated),
        arguments => test(&Filter::new(arguments)),
    }
}

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
    ("network cut", Loses::Replies, || through_proxy(Network::Cut)),
    ("replies lost", Loses::Replies, || through_proxy(Network::RepliesLost)),
    ("SCRIPT FLUSH, again and again", Loses::Nothing, flushed),
    ("FLUSHALL, once", Loses::Nothing, emptied),
    ("out of memory", Loses::Nothing, full),
    ("hostile writer", Loses::Nothing, hostile),
    ("primary lost (Sentinel)", Loses::Writes, failed_over),
    ("node lost (cluster)", Loses::Writes, node_lost),
    ("slot moved (cluster)", Loses::Nothing, resharded),
    ("keys of 2 MB by a client", Loses::Nothing, long_keys),
    ("starved processes", Loses::Nothing, || on_server(|_, fleet| fleet.starve(FAULT), AFTER)),
];

fn test(filter: &Filter) {
    let faults: Vec<_> = FAULTS.iter().filter(|fault| filter.selects(fault.0)).collect();
    let rows: Vec<_> = slots::ROWS.iter().filter(|row| filter.selects(row.0)).collect();
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
        judge.excepted(first, Exception::Refund(unreplicated));
    }
    judge.admitted_all(counted.iter().copied());
    let breaches = judge.breaches();
    assert!(breaches.is_empty(), "{name}: {:?}", breaches.last());
    let left = THRESHOLD + unreplicated - counted.len() as u64;
    assert!(judge.objects_to_more(&LIMIT, left + 1), "{name}: the judge does not see all calls");
}

/// Returns the times before and after what is done.
fn between(done: impl FnOnce()) -> (u64, u64) {
    let begin = machine_time();
    done();
    (begin, machine_time())
}

// The faults, each under a fleet that calls.

const KEY: &str = "rl:sliding:1h:matrix{key}";

const BEFORE: Duration = Duration::from_millis(500);

const FAULT: Duration = Duration::from_secs(1);

/// How long the fleet calls after most faults.
const AFTER: Duration = Duration::from_millis(2_500);
const LONG_AFTER: Duration = Duration::from_millis(3_500);

fn on_server(fault: impl FnOnce(&Server, &Fleet), after: Duration) -> Report {
    let server = Server::start();
    let fleet = Fleet::start(&server.url);
    fault(&server, &fleet);
    fleet.finish(after)
}

fn paused() -> Report {
    let pause = |server: &Server, _: &Fleet| {
        server.command::<()>(&format!("CLIENT PAUSE {}", FAULT.as_millis()));
        sleep(FAULT);
    };
    on_server(pause, AFTER)
}

fn flushed() -> Report {
    let flush = |server: &Server, _: &Fleet| {
        let (start, mut connection) = (Instant::now(), server.connection());
        while start.elapsed() < FAULT {
            command::<()>(&mut connection, "SCRIPT FLUSH");
            sleep(Duration::from_millis(3));
        }
    };
    on_server(flush, AFTER)
}

fn emptied() -> Report {
    let mut emptied = None;
    let empty = |server: &Server, _: &Fleet| {
        emptied = Some(between(|| server.command("FLUSHALL")));
    };
    let report = on_server(empty, LONG_AFTER);
    Report { emptied, ..report }
}

fn full() -> Report {
    let fill = |server: &Server, _: &Fleet| {
        // Less than an empty server uses.
        server.command::<()>("CONFIG SET maxmemory 1");
        sleep(FAULT);
        server.command::<()>("CONFIG SET maxmemory 0");
    };
    on_server(fill, LONG_AFTER)
}

/// Processes that read rules from Redis, and a writer that has the rights for rules.
fn hostile() -> Report {
    let server = Server::start();
    let fleet = Fleet::start_with(&[&server.url, "rules"]);
    let mut connection = server.connection();
    let large = "x".repeat(20_000_000);
    let rules = "rl:{rules}";
    for field in ["rules", "version"] {
        connection.hset::<_, _, _, ()>(rules, field, &large).expect("HSET");
    }
    let start = Instant::now();
    for round in (0..).take_while(|_| start.elapsed() < FAULT) {
        let id = format!("~{round}");
        let mut writes = redis::pipe();
        writes.set(format!("{rules}:process:{id}"), "[".repeat(50_000));
        writes.zadd(format!("{rules}:processes"), &id, u64::MAX);
        writes.exec(&mut connection).expect("written");
        sleep(Duration::from_millis(3));
    }
    fleet.finish(AFTER)
}

/// Each request of a client has another key of 2 MB, the length of a body that frameworks accept.
fn long_keys() -> Report {
    const NAMES: Limit = Limit::sliding("names", 5, HOUR);
    let call = |server: &Server, _: &Fleet| {
        let limiter = RateLimiter::builder().redis(&*server.url).deadline(DEADLINE);
        let (limiter, runtime) = (limiter.build().expect("valid"), runtime());
        let start = Instant::now();
        while start.elapsed() < FAULT {
            // As many requests at once as a client has connections.
            let calls = (0..16).map(|call| {
                let key = format!("{call} {:?} {}", start.elapsed(), "n".repeat(2 << 20));
                limiter.check(&NAMES, key, 1)
            });
            runtime.block_on(futures::future::join_all(calls));
        }
    };
    on_server(call, AFTER)
}

fn through_proxy(network: Network) -> Report {
    let server = Server::start();
    let proxy = Proxy::start(server.port(), Duration::ZERO);
    let fleet = Fleet::start(&proxy.url());
    proxy.set(network);
    sleep(FAULT);
    proxy.set(Network::Up);
    fleet.finish(AFTER)
}

fn killed() -> Report {
    let (temporary, port) = (tempfile::tempdir().expect("a folder"), port::free());
    let folder = temporary.path().to_str().expect("UTF-8");
    // It loses no writes when it is killed.
    let durable = ["--appendonly", "yes", "--appendfsync", "always", "--dir", folder];
    let mut server = Server::start_with(port, &durable);
    let fleet = Fleet::start(&server.url);
    server.stop();
    sleep(FAULT);
    let _server = Server::start_with(port, &durable);
    fleet.finish(AFTER)
}

fn stopped() -> Report {
    let stop = |server: &Server, _: &Fleet| {
        signal(server.id(), "-STOP");
        sleep(FAULT);
        signal(server.id(), "-CONT");
    };
    on_server(stop, AFTER)
}

fn failed_over() -> Report {
    let mut sentinels = Sentinels::start();
    let fleet = Fleet::start(&sentinels.url("master0"));
    // The replica has all writes up to this moment. Later ones can be lost.
    sentinels.wait_for_replication();
    sentinels.kill_primary();
    fleet.finish(Duration::from_secs(5))
}

fn node_lost() -> Report {
    let mut cluster = Cluster::start(1);
    let owner = cluster.owner(cluster.slot(KEY));
    // The limiter finds the cluster through a node that stays up.
    let seed = cluster.port((owner + 1) % cluster.len());
    let fleet = Fleet::start(&format!("redis+cluster://127.0.0.1:{seed}"));
    while !is_replicated(&mut cluster.connection(owner)) {}
    cluster.kill(owner);
    fleet.finish(Duration::from_secs(11))
}

fn resharded() -> Report {
    let cluster = Cluster::start(0);
    let slot = cluster.slot(KEY);
    let fleet = Fleet::start(&cluster.url());
    for _ in 0..2 {
        cluster.move_slot(slot, Duration::from_millis(150));
    }
    fleet.finish(LONG_AFTER)
}
