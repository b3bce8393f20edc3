//! The processes of traces: limiters that share a store. Each process has a virtual clock of its own.

use std::cell::RefCell;
use std::time::Duration;

use ratelimit_runtime::{Clock, OnError, RateLimiter, VirtualClock};
use redis::Commands;
use support::cluster::Cluster;
use support::proxy::{Network, Proxy};
use support::server::{Server, command};

pub(crate) const MOST_PROCESSES: usize = 8;

/// The time at which traces begin, and the time after which they begin there again, in the year 2100: a virtual clock
/// ends in 2112, and thousands of traces last for weeks.
const FIRST: Duration = Duration::from_secs(1_800_000_000);
const LAST: Duration = Duration::from_secs(4_102_444_800);

/// A process, and its clock. A process whose clock stands still does nothing any more, as one that was killed.
#[derive(Clone)]
pub(crate) struct Process {
    pub(crate) limiter: RateLimiter,
    pub(crate) clock: VirtualClock,
}

/// The processes that share a store, and the time of the traces. Each trace has a key of its own.
pub(crate) struct Fleet {
    pub(crate) processes: Vec<Process>,
    pub(crate) clock: VirtualClock,
    store: SharedStore,
}

enum SharedStore {
    Embedded,
    Server(Box<SharedServer>),
    Cluster(Cluster),
}

struct SharedServer {
    url: String,
    port: u16,
    connection: RefCell<redis::Connection>,
    /// The server that was started in the place of the first one.
    restarted: RefCell<Option<Server>>,
    /// The network of the first process.
    proxy: Proxy,
}

impl Fleet {
    pub(crate) fn embedded() -> Self {
        Self::start(SharedStore::Embedded, 1)
    }

    pub(crate) fn redis(server: &Server) -> Self {
        let connection = RefCell::new(server.connection());
        let proxy = Proxy::start(server.port(), Duration::ZERO);
        let (url, port, restarted) = (server.url.clone(), server.port(), RefCell::default());
        let server = Box::new(SharedServer { url, port, connection, restarted, proxy });
        Self::start(SharedStore::Server(server), MOST_PROCESSES)
    }

    pub(crate) fn cluster(cluster: Cluster) -> Self {
        Self::start(SharedStore::Cluster(cluster), 3)
    }

    fn start(store: SharedStore, processes: usize) -> Self {
        let clock = VirtualClock::at(FIRST);
        let mut fleet = Self { processes: Vec::new(), clock, store };
        fleet.processes = (0..processes).map(|number| fleet.process(number)).collect();
        fleet
    }

    pub(crate) fn process(&self, number: usize) -> Process {
        let builder = match &self.store {
            SharedStore::Embedded => RateLimiter::builder(),
            SharedStore::Server(server) if number == 0 => server.proxy.builder(),
            SharedStore::Server(server) => RateLimiter::builder().redis(&*server.url),
            SharedStore::Cluster(cluster) => RateLimiter::builder().redis(cluster.url()),
        };
        let clock = VirtualClock::at(self.clock.now());
        // A busy test machine must not take a grant from a call that it does not poll for a while.
        let builder = builder.deadline(Duration::from_secs(30)).on_error(OnError::Deny);
        let limiter = builder.clock(Clock::Virtual(clock.clone())).build().expect("valid settings");
        Process { limiter, clock }
    }

    pub(crate) fn is_embedded(&self) -> bool {
        matches!(self.store, SharedStore::Embedded)
    }

    pub(crate) fn now(&self) -> u64 {
        self.clock.now().as_micros() as u64
    }

    fn server(&self) -> Option<&SharedServer> {
        if let SharedStore::Server(server) = &self.store { Some(server) } else { None }
    }

    /// Lets time begin again before a trace, if it comes near its end.
    pub(crate) fn begin_again(&self) {
        if self.clock.now() > LAST {
            self.clock.set(FIRST);
        }
    }

    /// Lets the TTLs of all keys follow the clock, as those of a real server do: it deletes a key whose time has come.
    pub(crate) fn expire(&self, micros: u64) {
        let Some(server) = self.server() else { return };
        let mut server = server.connection.borrow_mut();
        let passed = i64::try_from(micros / 1_000).expect("a time");
        for key in server.keys::<_, Vec<Vec<u8>>>("*").expect("KEYS") {
            let ttl: i64 = server.pttl(&key).expect("PTTL");
            assert!(ttl != -1, "{} has no TTL", String::from_utf8_lossy(&key));
            let _: i64 = server.pexpire(&key, ttl - passed).expect("PEXPIRE");
        }
    }

    /// Removes the counts of a key, as a server that is full does. Returns whether there is a server.
    pub(crate) fn evict(&self, limit: &str, key: &str) -> bool {
        let Some(server) = self.server() else { return false };
        let mut server = server.connection.borrow_mut();
        let pattern = format!("*:{limit}{{{key}}}*");
        for name in server.keys::<_, Vec<Vec<u8>>>(pattern).expect("KEYS") {
            server.del::<_, ()>(name).expect("DEL");
        }
        true
    }

    /// Runs a command on the server. Returns whether there is one.
    pub(crate) fn command(&self, words: &str) -> bool {
        let server = self.server();
        server.inspect(|server| command(&mut server.connection.borrow_mut(), words)).is_some()
    }

    /// Ends the server, and starts another one in its place. Returns whether there is one.
    pub(crate) fn restart(&self) -> bool {
        let Some(SharedServer { port, connection, restarted, .. }) = self.server() else {
            return false;
        };
        // The server closes the connection instead of a reply.
        let _ = redis::cmd("SHUTDOWN").arg("NOSAVE").exec(&mut *connection.borrow_mut());
        let server = Server::start_on(*port);
        *connection.borrow_mut() = server.connection();
        *restarted.borrow_mut() = Some(server);
        true
    }

    /// Returns the network of the first process, if it can fail.
    pub(crate) fn network(&self) -> Option<&Proxy> {
        self.server().map(|server| &server.proxy)
    }

    /// Begins to move the hash slot of a key to another node. With `all`, the keys that are there stay on the old node;
    /// without, one of them is moved. Returns whether there is a cluster.
    pub(crate) fn begin_move(&self, key: &str, all: bool) -> bool {
        let SharedStore::Cluster(cluster) = &self.store else { return false };
        let tag = format!("{{{key}}}");
        let slot = cluster.slot(&tag);
        let mut keys = cluster.keys(cluster.owner(slot));
        keys.retain(|name| name.contains(&tag));
        let moved = keys.into_iter().min().filter(|_| !all).unwrap_or(format!("other{tag}"));
        cluster.begin_move(slot, &moved);
        true
    }

    pub(crate) fn finish_move(&self, key: &str) {
        if let SharedStore::Cluster(cluster) = &self.store {
            cluster.move_slot(cluster.slot(&format!("{{{key}}}")), Duration::ZERO);
        }
    }
}

/// Makes a network fail, until it is dropped.
pub(crate) struct Failing<'a>(&'a Proxy);

impl<'a> Failing<'a> {
    pub(crate) fn new(proxy: &'a Proxy, network: Network) -> Self {
        proxy.set(network);
        Self(proxy)
    }
}

impl Drop for Failing<'_> {
    fn drop(&mut self) {
        self.0.set(Network::Up);
    }
}
