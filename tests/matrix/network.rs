//! Faults of the network, and calls that the server or the machine delays.

use std::thread::sleep;
use std::time::Duration;

use support::proxy::{Network, Proxy};
use support::server::Server;

use super::fleet::{Fleet, Report};
use super::{BEFORE, FAULT};

pub(crate) fn paused() -> Report {
    let server = Server::start();
    let fleet = Fleet::start(&server.url);
    sleep(BEFORE);
    let mut pause = redis::cmd("CLIENT");
    pause.arg("PAUSE").arg(FAULT.as_millis() as u64);
    pause.exec(&mut server.connection()).expect("CLIENT PAUSE");
    sleep(FAULT);
    fleet.finish(Duration::from_millis(2_500))
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
    fleet.finish(Duration::from_millis(2_500))
}

pub(crate) fn starved() -> Report {
    let server = Server::start();
    let fleet = Fleet::start(&server.url);
    sleep(BEFORE);
    fleet.starve(FAULT);
    fleet.finish(Duration::from_millis(2_500))
}
