//! The faults. Processes 0 and 1 have the shortest holds, and meet the faults that one process meets.

use std::thread::sleep;
use std::time::Duration;

use support::cluster::Cluster;
use support::proxy::{Network, Proxy};
use support::sentinel::Sentinels;
use support::server::{Server, is_replicated};

use super::fleet::{SlotFleet, between};
use super::played::{Forgot, Played};
use super::{AFTER, BEFORE, BOUND, HOLDS, LONGEST_HOLD};

/// The time without a server, and between the steps of a move.
const SHORT: Duration = Duration::from_millis(300);

pub(super) fn killed() -> Played {
    let server = Server::start();
    let mut fleet = SlotFleet::start(&server.url);
    sleep(BEFORE);
    fleet.wait_for_long_call(1);
    let fault = between(|| {
        fleet.signal(1, "-KILL");
        sleep(HOLDS[1]);
    });
    finish(&server, fleet, fault, Duration::ZERO)
}

pub(super) fn stopped() -> Played {
    let server = Server::start();
    let mut fleet = SlotFleet::start(&server.url);
    sleep(BEFORE);
    fleet.wait_for_long_call(0);
    let fault = between(|| {
        fleet.signal(0, "-STOP");
        sleep(2 * HOLDS[0]);
    });
    fleet.signal(0, "-CONT");
    finish(&server, fleet, fault, Duration::ZERO)
}

/// The hold of process 0 ends long before the fault.
pub(super) fn cut() -> Played {
    through_proxy(Network::Cut, false)
}

pub(super) fn replies_lost() -> Played {
    through_proxy(Network::RepliesLost, false)
}

pub(super) fn replies_lost_beside_a_rate() -> Played {
    through_proxy(Network::RepliesLost, true)
}

fn through_proxy(network: Network, is_rated: bool) -> Played {
    let server = Server::start();
    let proxy = Proxy::start(server.port(), Duration::ZERO);
    let url = |process| {
        let port = if process < 2 { proxy.port } else { server.port() };
        format!("redis://127.0.0.1:{port}")
    };
    let fleet = SlotFleet::start_each(url, is_rated);
    sleep(BEFORE);
    fleet.wait_for_long_call(0);
    let fault = between(|| {
        proxy.set(network);
        sleep(2 * HOLDS[0]);
    });
    proxy.set(Network::Up);
    // What the last request without a reply has taken stays until its process states what it holds.
    finish(&server, fleet, fault, HOLDS[1])
}

pub(super) fn restarted() -> Played {
    let mut server = Server::start();
    let (port, fleet) = (server.port(), SlotFleet::start(&server.url));
    sleep(BEFORE);
    fleet.wait_for_long_call(0);
    let mut forgot = (0, 0);
    let fault = between(|| {
        forgot = between(|| server.stop());
        sleep(SHORT);
        server = Server::start_on(port);
    });
    let played = finish(&server, fleet, fault, LONGEST_HOLD);
    Played { forgot: Some(Forgot { at: forgot, remembers: None }), ..played }
}

/// The replica can lack the last writes, so it knows as much as a server that has lost its memory, or more.
pub(super) fn failed_over() -> Played {
    let mut sentinels = Sentinels::start();
    let url = sentinels.url("master0");
    let fleet = SlotFleet::start(&url);
    sleep(BEFORE);
    fleet.wait_for_long_call(3);
    sentinels.wait_for_replication();
    let before = sentinels.primary();
    let mut forgot = (0, 0);
    let fault = between(|| {
        forgot = between(|| sentinels.kill_primary());
        while sentinels.primary() == before {
            sleep(SHORT / 10);
        }
    });
    let history = fleet.finish(LONGEST_HOLD + BOUND + AFTER);
    history.assert_nothing_is_left(&url);
    let forgot = Some(Forgot { at: forgot, remembers: None });
    Played { history, fault, forgot, free_after: LONGEST_HOLD }
}

/// As [`failed_over`], for the first key only.
pub(super) fn node_lost() -> Played {
    let mut cluster = Cluster::start(1);
    let replicas: Vec<_> = (0..cluster.len()).filter(|node| !cluster.is_primary(*node)).collect();
    let owner = cluster.owner(cluster.slot("{0}"));
    // The limiters find the cluster through a node that stays up.
    let url = format!("redis+cluster://127.0.0.1:{}", cluster.port(replicas[0]));
    let fleet = SlotFleet::start(&url);
    sleep(BEFORE);
    fleet.wait_for_long_call(3);
    while !is_replicated(&mut cluster.connection(owner)) {}
    let mut forgot = (0, 0);
    let fault = between(|| {
        forgot = between(|| cluster.kill(owner));
        while !replicas.iter().any(|node| cluster.is_primary(*node)) {
            sleep(SHORT / 10);
        }
    });
    let history = fleet.finish(LONGEST_HOLD + BOUND + AFTER);
    history.assert_nothing_is_left(&url);
    let forgot = Some(Forgot { at: forgot, remembers: Some(1) });
    Played { history, fault, forgot, free_after: LONGEST_HOLD }
}

/// The hash slot of the first key moves twice.
pub(super) fn migrated() -> Played {
    let cluster = Cluster::start(0);
    let (url, slot) = (cluster.url(), cluster.slot("{0}"));
    let fleet = SlotFleet::start(&url);
    sleep(BEFORE);
    let fault = between(|| {
        for _ in 0..2 {
            cluster.move_slot(slot, SHORT);
        }
    });
    let history = fleet.finish(BOUND + AFTER);
    history.assert_nothing_is_left(&url);
    Played { history, fault, forgot: None, free_after: Duration::ZERO }
}

/// Ends a fleet on one server.
fn finish(server: &Server, fleet: SlotFleet, fault: (u64, u64), free_after: Duration) -> Played {
    let history = fleet.finish(free_after + BOUND + AFTER);
    history.assert_nothing_is_left(&server.url);
    server.assert_all_keys_expire();
    Played { history, fault, forgot: None, free_after }
}
