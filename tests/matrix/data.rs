//! Scripts and keys that are lost, and a server without memory.

use std::thread::sleep;
use std::time::{Duration, Instant};

use support::history::machine_time;
use support::server::Server;

use super::fleet::{Fleet, Report};
use super::{BEFORE, FAULT};

pub(crate) fn flushed() -> Report {
    let server = Server::start();
    let fleet = Fleet::start(&server.url);
    let mut connection = server.connection();
    let start = Instant::now();
    while start.elapsed() < BEFORE + FAULT {
        redis::cmd("SCRIPT").arg("FLUSH").exec(&mut connection).expect("SCRIPT FLUSH");
        sleep(Duration::from_millis(3));
    }
    fleet.finish(Duration::from_millis(2_500))
}

pub(crate) fn emptied() -> Report {
    let server = Server::start();
    let fleet = Fleet::start(&server.url);
    let mut connection = server.connection();
    sleep(BEFORE);
    let begin = machine_time();
    redis::cmd("FLUSHALL").exec(&mut connection).expect("FLUSHALL");
    let emptied = Some((begin, machine_time()));
    Report { emptied, ..fleet.finish(Duration::from_millis(3_500)) }
}

pub(crate) fn full() -> Report {
    let server = Server::start();
    let fleet = Fleet::start(&server.url);
    let mut connection = server.connection();
    let mut limit = |bytes: &str| {
        let mut set = redis::cmd("CONFIG");
        set.arg("SET").arg("maxmemory").arg(bytes).exec(&mut connection).expect("CONFIG SET");
    };
    sleep(BEFORE);
    // Less than an empty server uses.
    limit("1");
    sleep(FAULT);
    limit("0");
    fleet.finish(Duration::from_millis(3_500))
}
