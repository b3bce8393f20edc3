//! The faults. Processes 0 and 1 have the shortest holds, and meet the faults that one process meets.

use std::thread::sleep;
use std::time::Duration;

use support::cluster::Cluster;
use support::proxy::{Network, Proxy};
use support::sentinel::Sentinels;
use support::server::{Server, is_replicated};

use super::fleet::{SlotFleet, between};
use super::played::{Forgot, Played};
use super::{AFTER, BOUND, HOLDS, LONGEST_HOLD};

/// The time without a server, and between the steps of a move.
const SHORT: Duration = Duration::from_millis(300);

/// Ends a fleet that has met a fault. The slots of the dead are free some time after it.
fn finish(url: &str, fleet: SlotFleet, fault: (u64, u64), free_after: Duration) -> Played {
    let history = fleet.finish(free_after + BOUND + AFTER);
    history.assert_nothing_is_left(url);
    Played { history, fault, forgot: None, free_after }
}

pub(super) fn killed() -> Played {
    let server = Server::start();
    let mut fleet = SlotFleet::start(&server.url, 1);
    let fault = between(|| {
        fleet.signal(1, "-KILL");
        sleep(HOLDS[1]);
    });
    finish(&server.url, fleet, fault, Duration::ZERO)
}

pub(super) fn stopped() -> Played {
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
    let fleet = SlotFleet::start_each(url, is_rated, 0);
    let fault = between(|| {
        proxy.set(network);
        sleep(2 * HOLDS[0]);
    });
    proxy.set(Network::Up);
    // What the last request without a reply has taken stays until its process states what it holds.
    finish(&server.url, fleet, fault, HOLDS[1])
}

pub(super) fn restarted() -> Played {
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
pub(super) fn failed_over() -> Played {
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
pub(super) fn node_lost() -> Played {
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

/// The hash slot of the first key moves twice.
pub(super) fn migrated() -> Played {
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
