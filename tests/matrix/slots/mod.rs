//! Calls in flight under faults: processes with many tasks each, whose calls end in every way, while one fault begins
//! and ends. The table of the rows is in the guide `in_flight.md`.
//!
//! Each call writes when it certainly held its units: it reads the clock, and then asks its permit whether the units
//! are lost. So a slow machine makes a call look shorter, never longer, and calls that overlap in what is written have
//! overlapped.

mod fleet;
mod member;

use std::fmt::Write as _;
use std::thread::sleep;
use std::time::Duration;

use ratelimit_runtime::Limit;
use support::cluster::Cluster;
use support::limits::{HOUR, SECOND};
use support::proxy::{Network, Proxy};
use support::sentinel::Sentinels;
use support::server::{Server, is_replicated};

use self::fleet::{Forgot, Played, SlotFleet};
pub(crate) use self::member::member;
use crate::between;

const MOST: u64 = 3;
const KEYS: u64 = 2;
const TASKS: u64 = 64;
const DEADLINE: Duration = Duration::from_millis(500);

/// Processes 0 and 1 have the shortest holds, and meet the faults that one process meets.
const HOLDS: [Duration; 4] =
    [SECOND, Duration::from_secs(2), Duration::from_secs(3), Duration::from_secs(5)];
const LONGEST_HOLD: Duration = HOLDS[3];

const WAIT: Duration = Duration::from_secs(2);

/// How much later than the end of a hold the slots of the dead may be in use again, on a busy machine.
const BOUND: Duration = SECOND;

/// The work of a long call: it outlives the faults and all holds.
const LONG: Duration = Duration::from_secs(6);

const SHORT_MILLIS: u64 = 60;

const BEFORE: Duration = Duration::from_millis(1_500);

/// The time in which the slots of the dead are in use again.
const AFTER: Duration = Duration::from_millis(2_500);

const SLOTS: Limit = Limit::in_flight("slots", MOST);

/// Rates beside the slots: one that rejects calls, and one that counts all of them.
const PACE: Limit = Limit::sliding("pace", 15, SECOND);
const TOTAL: Limit = Limit::fixed("total", 1_000_000, HOUR);

/// A fault: its name, and what plays it.
type Row = (&'static str, fn() -> Played);

pub(crate) const ROWS: [Row; 9] = [
    ("slots: process killed", killed),
    ("slots: process stopped (SIGSTOP)", stopped),
    ("slots: network cut", || through_proxy(Network::Cut, false)),
    ("slots: replies lost", || through_proxy(Network::RepliesLost, false)),
    ("slots: replies lost, beside rates", || through_proxy(Network::RepliesLost, true)),
    ("slots: server restarted without its memory", restarted),
    ("slots: primary lost (Sentinel)", failed_over),
    ("slots: node lost (cluster)", node_lost),
    ("slots: hash slot moved (cluster)", migrated),
];

pub(crate) fn run(rows: &[&Row]) {
    let mut table = String::from(
        "| fault | calls before, during and after | slots lost by calls | most units at a time, of 3 |\n\
         | --- | --- | --- | --- |\n",
    );
    for (name, run) in rows {
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

/// The time without a server, and between the steps of a move.
const SHORT: Duration = Duration::from_millis(300);

/// Ends a fleet that has met a fault. The slots of the dead are free some time after it.
fn finish(url: &str, fleet: SlotFleet, fault: (u64, u64), free_after: Duration) -> Played {
    let history = fleet.finish(free_after + BOUND + AFTER);
    history.assert_nothing_is_left(url);
    Played { history, fault, forgot: None, free_after }
}

fn killed() -> Played {
    let server = Server::start();
    let mut fleet = SlotFleet::start(&server.url, 1);
    let fault = between(|| {
        fleet.signal(1, "-KILL");
        sleep(HOLDS[1]);
    });
    finish(&server.url, fleet, fault, Duration::ZERO)
}

fn stopped() -> Played {
    let server = Server::start();
    let mut fleet = SlotFleet::start(&server.url, 0);
    let fault = between(|| {
        fleet.signal(0, "-STOP");
        sleep(2 * HOLDS[0]);
    });
    fleet.signal(0, "-CONT");
    finish(&server.url, fleet, fault, Duration::ZERO)
}

/// The hold of process 0 ends long before the fault.
fn through_proxy(network: Network, is_rated: bool) -> Played {
    let server = Server::start();
    let proxy = Proxy::start(server.port(), Duration::ZERO);
    let url = |process| if process < 2 { proxy.url() } else { server.url.clone() };
    let fleet = SlotFleet::start_each(url, is_rated, 0);
    let fault = between(|| {
        proxy.set(network);
        sleep(2 * HOLDS[0]);
    });
    proxy.set(Network::Up);
    // What the last request without a reply has taken stays until its process states what it holds.
    finish(&server.url, fleet, fault, HOLDS[1])
}

fn restarted() -> Played {
    let mut server = Server::start();
    let (port, fleet) = (server.port(), SlotFleet::start(&server.url, 0));
    let mut at = (0, 0);
    let fault = between(|| {
        at = between(|| server.stop());
        sleep(SHORT);
        server = Server::start_on(port);
    });
    let forgot = Some(Forgot { at, remembers: None });
    Played { forgot, ..finish(&server.url, fleet, fault, LONGEST_HOLD) }
}

/// The replica can lack the last writes, so it knows as much as a server that has lost its memory, or more.
fn failed_over() -> Played {
    let mut sentinels = Sentinels::start();
    let url = sentinels.url("master0");
    let fleet = SlotFleet::start(&url, 3);
    sentinels.wait_for_replication();
    let before = sentinels.primary();
    let mut at = (0, 0);
    let fault = between(|| {
        at = between(|| sentinels.kill_primary());
        while sentinels.primary() == before {
            sleep(SHORT / 10);
        }
    });
    let forgot = Some(Forgot { at, remembers: None });
    Played { forgot, ..finish(&url, fleet, fault, LONGEST_HOLD) }
}

/// As [`failed_over`], for the first key only.
fn node_lost() -> Played {
    let mut cluster = Cluster::start(1);
    let replicas: Vec<_> = (0..cluster.len()).filter(|node| !cluster.is_primary(*node)).collect();
    let owner = cluster.owner(cluster.slot("{0}"));
    // The limiters find the cluster through a node that stays up.
    let url = format!("redis+cluster://127.0.0.1:{}", cluster.port(replicas[0]));
    let fleet = SlotFleet::start(&url, 3);
    while !is_replicated(&mut cluster.connection(owner)) {}
    let mut at = (0, 0);
    let fault = between(|| {
        at = between(|| cluster.kill(owner));
        while !replicas.iter().any(|node| cluster.is_primary(*node)) {
            sleep(SHORT / 10);
        }
    });
    let forgot = Some(Forgot { at, remembers: Some(1) });
    Played { forgot, ..finish(&url, fleet, fault, LONGEST_HOLD) }
}

fn migrated() -> Played {
    let cluster = Cluster::start(0);
    let (url, slot) = (cluster.url(), cluster.slot("{0}"));
    let fleet = SlotFleet::start(&url, 0);
    let fault = between(|| {
        for _ in 0..2 {
            cluster.move_slot(slot, SHORT);
        }
    });
    finish(&url, fleet, fault, Duration::ZERO)
}
