//! The faults, each under a fleet that calls.

use std::path::Path;
use std::process::Command;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use ratelimit_runtime::{Limit, RateLimiter};
use redis::{Client, ConnectionAddr};
use redis_test::server::RedisServer;
use support::cluster::Cluster;
use support::history::machine_time;
use support::port;
use support::proxy::{Network, Proxy};
use support::sentinel::Sentinels;
use support::server::{Server, is_replicated};

use super::DEADLINE;
use super::fleet::{Fleet, Report};

const KEY: &str = "rl:sliding:1h:matrix{key}";

const BEFORE: Duration = Duration::from_millis(500);

const FAULT: Duration = Duration::from_secs(1);

/// How long the fleet calls after most faults.
const AFTER: Duration = Duration::from_millis(2_500);
const LONG_AFTER: Duration = Duration::from_millis(3_500);

/// Plays a fault of one server, and its end.
fn on_server(fault: impl FnOnce(&Server, &Fleet), after: Duration) -> Report {
    let server = Server::start();
    let fleet = Fleet::start(&server.url);
    sleep(BEFORE);
    fault(&server, &fleet);
    fleet.finish(after)
}

pub(crate) fn paused() -> Report {
    let pause = |server: &Server, _: &Fleet| {
        let mut pause = redis::cmd("CLIENT");
        pause.arg("PAUSE").arg(FAULT.as_millis() as u64);
        pause.exec(&mut server.connection()).expect("CLIENT PAUSE");
        sleep(FAULT);
    };
    on_server(pause, AFTER)
}

pub(crate) fn starved() -> Report {
    on_server(|_, fleet| fleet.starve(FAULT), AFTER)
}

pub(crate) fn flushed() -> Report {
    let flush = |server: &Server, _: &Fleet| {
        let (start, mut connection) = (Instant::now(), server.connection());
        while start.elapsed() < FAULT {
            redis::cmd("SCRIPT").arg("FLUSH").exec(&mut connection).expect("SCRIPT FLUSH");
            sleep(Duration::from_millis(3));
        }
    };
    on_server(flush, AFTER)
}

pub(crate) fn emptied() -> Report {
    let mut emptied = None;
    let empty = |server: &Server, _: &Fleet| {
        let (mut connection, begin) = (server.connection(), machine_time());
        redis::cmd("FLUSHALL").exec(&mut connection).expect("FLUSHALL");
        emptied = Some((begin, machine_time()));
    };
    let report = on_server(empty, LONG_AFTER);
    Report { emptied, ..report }
}

pub(crate) fn full() -> Report {
    let fill = |server: &Server, _: &Fleet| {
        let limit = |bytes: &str| {
            let mut set = redis::cmd("CONFIG");
            set.arg("SET").arg("maxmemory").arg(bytes);
            set.exec(&mut server.connection()).expect("CONFIG SET");
        };
        // Less than an empty server uses.
        limit("1");
        sleep(FAULT);
        limit("0");
    };
    on_server(fill, LONG_AFTER)
}

/// Processes that read rules from Redis, and a writer that has the rights for rules.
pub(crate) fn hostile() -> Report {
    let server = Server::start();
    let fleet = Fleet::start_with_rules(&server.url);
    let mut connection = server.connection();
    let large = "x".repeat(20_000_000);
    sleep(BEFORE);
    let rules = "rl:{rules}";
    for field in ["rules", "version"] {
        redis::cmd("HSET").arg(rules).arg(field).arg(&large).exec(&mut connection).expect("HSET");
    }
    let start = Instant::now();
    for round in 0.. {
        if start.elapsed() >= FAULT {
            break;
        }
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
pub(crate) fn long_keys() -> Report {
    on_server(
        |server, _| {
            let url = server.url.clone();
            thread::spawn(move || send_long_keys(&url)).join().expect("no panic");
        },
        AFTER,
    )
}

fn send_long_keys(url: &str) {
    const NAMES: Limit = Limit::sliding("names", 5, Duration::from_secs(3600));
    let limiter = RateLimiter::builder().redis(url).deadline(DEADLINE).build().expect("valid");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let start = Instant::now();
        while start.elapsed() < FAULT {
            // As many requests at once as a client has connections.
            let calls = (0..16).map(|call| {
                let key = format!("{call} {:?} {}", start.elapsed(), "n".repeat(2 << 20));
                limiter.check(&NAMES, key, 1)
            });
            futures::future::join_all(calls).await;
        }
    });
}

pub(crate) fn cut() -> Report {
    through_proxy(Network::Cut)
}

pub(crate) fn replies_lost() -> Report {
    through_proxy(Network::RepliesLost)
}

fn through_proxy(network: Network) -> Report {
    let server = Server::start();
    let proxy = Proxy::start(server.port(), Duration::ZERO);
    let fleet = Fleet::start(&format!("redis://127.0.0.1:{}", proxy.port));
    sleep(BEFORE);
    proxy.set(network);
    sleep(FAULT);
    proxy.set(Network::Up);
    fleet.finish(AFTER)
}

/// Starts a server that loses no writes when it is killed.
fn start_durable(port: u16, folder: &Path) -> RedisServer {
    let address = ConnectionAddr::Tcp("127.0.0.1".to_owned(), port);
    let keep = ["--appendonly", "yes", "--appendfsync", "always", "--dir"];
    let spawn =
        |command: &mut Command| command.args(keep).arg(folder).spawn().expect("redis-server");
    let start = RedisServer::new_with_addr_tls_modules_and_spawner;
    let server = start(address, None, None, false, None, &[], spawn);
    let client = Client::open(server.connection_info()).expect("an address");
    while client.get_connection().is_err() {
        sleep(Duration::from_millis(5));
    }
    server
}

pub(crate) fn killed() -> Report {
    let (folder, port) = (tempfile::tempdir().expect("a folder"), port::free());
    let mut server = start_durable(port, folder.path());
    let fleet = Fleet::start(&format!("redis://127.0.0.1:{port}"));
    sleep(BEFORE);
    server.stop();
    sleep(FAULT);
    let _server = start_durable(port, folder.path());
    fleet.finish(AFTER)
}

pub(crate) fn stopped() -> Report {
    let (folder, port) = (tempfile::tempdir().expect("a folder"), port::free());
    let server = start_durable(port, folder.path());
    let fleet = Fleet::start(&format!("redis://127.0.0.1:{port}"));
    let signal = |signal: &str| {
        let status = Command::new("kill").args([signal, &server.process.id().to_string()]).status();
        assert!(status.is_ok_and(|status| status.success()), "{signal}");
    };
    sleep(BEFORE);
    signal("-STOP");
    sleep(FAULT);
    signal("-CONT");
    fleet.finish(AFTER)
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
    for _ in 0..2 {
        cluster.move_slot(slot, Duration::from_millis(150));
    }
    fleet.finish(LONG_AFTER)
}
