//! Servers that end, stop, restart or lose their place: one server, a primary with a replica, a cluster.

use std::thread::sleep;
use std::time::Duration;

use support::cluster::Cluster;
use support::sentinel::Sentinels;
use support::server::is_replicated;

use super::durable_server::DurableServer;
use super::fleet::{Fleet, Report};
use super::{BEFORE, FAULT, KEY};

pub(crate) fn killed() -> Report {
    let mut durable = DurableServer::start();
    let fleet = Fleet::start(&durable.url());
    sleep(BEFORE);
    durable.server.stop();
    sleep(FAULT);
    durable.server = DurableServer::spawn(durable.port, durable.folder.path());
    durable.connection();
    fleet.finish(Duration::from_millis(2_500))
}

pub(crate) fn stopped() -> Report {
    let durable = DurableServer::start();
    let fleet = Fleet::start(&durable.url());
    sleep(BEFORE);
    durable.signal("-STOP");
    sleep(FAULT);
    durable.signal("-CONT");
    fleet.finish(Duration::from_millis(2_500))
}

pub(crate) fn failed_over() -> Report {
    let mut sentinels = Sentinels::start();
    let fleet = Fleet::start(&sentinels.url("master0"));
    sleep(BEFORE);
    // The replica has all writes up to this moment. Later ones can be lost.
    sentinels.wait_for_replication();
    sentinels.kill_primary();
    fleet.finish(Duration::from_secs(5))
}

pub(crate) fn node_lost() -> Report {
    let mut cluster = Cluster::start(1);
    let owner = cluster.owner(cluster.slot(KEY));
    // The limiter finds the cluster through a node that stays up.
    let seed = cluster.port((owner + 1) % cluster.len());
    let fleet = Fleet::start(&format!("redis+cluster://127.0.0.1:{seed}"));
    sleep(BEFORE);
    while !is_replicated(&mut cluster.connection(owner)) {}
    cluster.kill(owner);
    fleet.finish(Duration::from_secs(11))
}

pub(crate) fn resharded() -> Report {
    let cluster = Cluster::start(0);
    let slot = cluster.slot(KEY);
    let fleet = Fleet::start(&cluster.url());
    sleep(BEFORE);
    cluster.move_slot(slot, Duration::from_millis(150));
    cluster.move_slot(slot, Duration::from_millis(150));
    fleet.finish(Duration::from_millis(3_500))
}
