//! A real Redis Cluster for a test: three primaries and their replicas, on free ports, stopped on drop.
//! Nodes are named by their index.

use std::collections::HashSet;
use std::env;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use redis::{Client, Commands, Connection, ConnectionAddr, FromRedisValue};
use redis_test::cluster::{RedisCluster, RedisClusterConfiguration};
use redis_test::server::RedisServer;

use crate::port;
use crate::server::{command, spawn};
use crate::wait::block_until;

pub struct Cluster {
    cluster: RedisCluster,
}

impl Cluster {
    pub fn start(replicas: u16) -> Self {
        let num_nodes = 3 * (1 + replicas);
        let configuration = RedisClusterConfiguration {
            num_nodes,
            num_replicas: replicas,
            ports: (0..num_nodes).map(|_| port::free()).collect(),
            ..RedisClusterConfiguration::default()
        };
        Self { cluster: RedisCluster::new(configuration) }
    }

    /// Starts three primaries on one port of three addresses of this machine, with two databases if the servers can.
    pub fn start_on_addresses() -> Self {
        let port = port::free();
        let databases: &[_] = if has_databases() { &["--cluster-databases", "2"] } else { &[] };
        let start = |host: String| {
            let announced = ["--cluster-enabled", "yes", "--cluster-announce-ip", &host];
            let arguments = [&announced, databases].concat();
            spawn(ConnectionAddr::Tcp(host.clone(), port), None, None, &arguments)
        };
        let servers: Vec<_> = (1..=3).map(|node| start(format!("127.0.0.{node}"))).collect();
        join(&servers, &[]);
        Self { cluster: RedisCluster { servers, folders: Vec::new(), tls_paths: None } }
    }

    /// Lets the nodes announce a name in place of their addresses, or `?` if it is empty. Returns whether these servers
    /// can; Redis 7 can.
    pub fn announce(&self, name: &str) -> bool {
        let set = |setting: &str, value: &str| {
            let set = redis::cmd("CONFIG").arg(&["SET", setting, value]).to_owned();
            (0..self.len()).all(|node| set.exec(&mut self.connection(node)).is_ok())
        };
        let announces = set("cluster-announce-hostname", name)
            && set("cluster-preferred-endpoint-type", "hostname");
        let knows_names = |node| {
            let slots: redis::Value = self.ask(node, "CLUSTER SLOTS");
            format!("{slots:?}").matches(name).count() >= self.len()
        };
        if announces {
            block_until("the nodes know the names", || (0..self.len()).all(knows_names));
        }
        announces
    }

    /// Returns the URL of one node, from which a client finds the others.
    pub fn url(&self) -> String {
        format!("redis+cluster://127.0.0.1:{}", self.port(0))
    }

    pub fn port(&self, node: usize) -> u16 {
        self.address(node).1
    }

    fn address(&self, node: usize) -> (&str, u16) {
        self.cluster.servers[node].host_and_port().expect("TCP")
    }

    pub fn connection(&self, node: usize) -> Connection {
        let info = self.cluster.servers[node].connection_info();
        Client::open(info).expect("an address").get_connection().expect("a node")
    }

    fn ask<T: FromRedisValue>(&self, node: usize, words: &str) -> T {
        command(&mut self.connection(node), words)
    }

    fn id(&self, node: usize) -> String {
        self.ask(node, "CLUSTER MYID")
    }

    /// Returns what a node knows of the others, a line for each.
    fn nodes(&self, node: usize) -> String {
        self.ask(node, "CLUSTER NODES")
    }

    /// Returns the primary that serves a hash slot.
    pub fn owner(&self, slot: u16) -> usize {
        let mut nodes = 0..self.len();
        nodes.find(|node| self.serves(*node, slot)).expect("a primary serves each slot")
    }

    /// Returns whether a node serves a hash slot as its primary, as it reports. At the end of a move in one step, no
    /// node does for a moment.
    fn serves(&self, node: usize, slot: u16) -> bool {
        let (id, nodes) = (self.id(node), self.nodes(node));
        let line = nodes.lines().find(|line| line.starts_with(&id)).expect("the line of the node");
        let has_slot = |range: &str| {
            let (from, to) = range.split_once('-').unwrap_or((range, range));
            let end = |text: &str| text.parse::<u16>().expect("a slot");
            (end(from)..=end(to)).contains(&slot)
        };
        let mut ranges = line.split(' ').skip(8).filter(|range| !range.starts_with('['));
        self.is_primary(node) && ranges.any(has_slot)
    }

    pub fn is_primary(&self, node: usize) -> bool {
        let role: Vec<redis::Value> = self.ask(node, "ROLE");
        matches!(&role[0], redis::Value::BulkString(role) if role == b"master")
    }

    /// Returns the hash slot of a key, as Redis computes it.
    pub fn slot(&self, key: &str) -> u16 {
        let keyslot = redis::cmd("CLUSTER").arg(&["KEYSLOT", key]).to_owned();
        keyslot.query(&mut self.connection(0)).expect("KEYSLOT")
    }

    fn set_slot(&self, node: usize, slot: u16, state: &str) {
        self.ask::<()>(node, &format!("CLUSTER SETSLOT {slot} {state}"));
    }

    pub fn keys(&self, node: usize) -> Vec<String> {
        self.connection(node).keys("*").expect("KEYS")
    }

    pub fn len(&self) -> usize {
        self.cluster.servers.len()
    }

    pub fn kill(&mut self, node: usize) {
        self.cluster.servers[node].stop();
    }

    /// Returns the configuration epochs of all nodes with their identifiers, as a node knows them.
    fn epochs(&self, node: usize) -> Vec<(String, String)> {
        let nodes = self.nodes(node);
        let epoch = |line: &str| {
            let mut words = line.split(' ');
            let id = words.next().expect("an identifier").to_owned();
            (id, words.nth(5).expect("an epoch").to_owned())
        };
        let mut epochs: Vec<_> = nodes.lines().map(epoch).collect();
        epochs.sort_unstable();
        epochs
    }

    /// Marks a hash slot as moving from its node to the next. Returns both nodes.
    ///
    /// First waits until the primaries know each other's configuration epochs. The new owner takes the slot at an epoch
    /// above all that it knows. If the old owner has a later one, its last message about the slot makes the new owner
    /// delete the keys, and then no node serves the slot.
    fn mark_moving(&self, slot: u16) -> (usize, usize) {
        let agree = || {
            let epochs = self.epochs(0);
            let distinct: HashSet<_> = epochs.iter().map(|(_, epoch)| epoch).collect();
            distinct.len() == 3 && (1..3).all(|node| self.epochs(node) == epochs)
        };
        block_until("the epochs agree", agree);
        let from = self.owner(slot);
        let to = (from + 1) % 3;
        self.set_slot(to, slot, &format!("IMPORTING {}", self.id(from)));
        self.set_slot(from, slot, &format!("MIGRATING {}", self.id(to)));
        (from, to)
    }

    /// Begins to move a hash slot from its node to the next, moves one of its keys, and leaves the rest there.
    pub fn begin_move(&self, slot: u16, key: &str) {
        let (from, to) = self.mark_moving(slot);
        self.migrate(key, from, to);
    }

    fn migrate(&self, key: &str, from: usize, to: usize) {
        let mut migrate = redis::cmd("MIGRATE");
        let (host, port) = self.address(to);
        migrate.arg(host).arg(port).arg(key).arg(0).arg(5_000);
        migrate.exec(&mut self.connection(from)).expect("MIGRATE");
    }

    /// Moves a hash slot from its node to the next in one step, as Redis 8.4 and Valkey 9.0 can. Returns whether these
    /// servers can.
    pub fn move_slot_at_once(&self, slot: u16) -> bool {
        let from = self.owner(slot);
        let to = (from + 1) % 3;
        let mut import = redis::cmd("CLUSTER");
        import.arg("MIGRATION").arg("IMPORT").arg(slot).arg(slot);
        let mut send = redis::cmd("CLUSTER");
        send.arg(&["MIGRATESLOTS", "SLOTSRANGE"]).arg(slot).arg(slot).arg("NODE").arg(self.id(to));
        let begins = import.exec(&mut self.connection(to)).is_ok()
            || send.exec(&mut self.connection(from)).is_ok();
        if begins {
            block_until("the slot has moved", || self.serves(to, slot));
        }
        begins
    }

    /// Moves a hash slot with its keys from its node to the next, with a pause between the steps.
    pub fn move_slot(&self, slot: u16, pause: Duration) {
        let (from, to) = self.mark_moving(slot);
        sleep(pause);
        loop {
            let keys: Vec<String> = self.ask(from, &format!("CLUSTER GETKEYSINSLOT {slot} 1"));
            let Some(key) = keys.first() else { break };
            self.migrate(key, from, to);
            sleep(pause);
        }
        let owner = format!("NODE {}", self.id(to));
        for node in [to, from, 3 - to - from] {
            self.set_slot(node, slot, &owner);
            sleep(pause / 2);
        }
    }
}

/// Joins servers to a cluster by `redis-cli` with these options, and waits until each knows that the cluster is up.
pub(crate) fn join(servers: &[RedisServer], options: &[&str]) {
    let addresses: Vec<_> = servers.iter().map(|server| server.client_addr().to_string()).collect();
    let run = |words: &[&str]| {
        Command::new("redis-cli").args(options).args(words).output().expect("redis-cli")
    };
    let nodes: Vec<_> = addresses.iter().map(|address| &**address).collect();
    let create = [&["--cluster", "create"], &nodes[..], &["--cluster-yes"]].concat();
    block_until("nodes reply", || run(&create).status.success());
    let is_up = |address: &&str| {
        let (host, port) = address.split_once(':').expect("a port");
        let state = run(&["-h", host, "-p", port, "CLUSTER", "INFO"]).stdout;
        String::from_utf8(state).expect("UTF-8").contains("cluster_state:ok")
    };
    block_until("the cluster is up", || nodes.iter().all(is_up));
}

/// Returns whether the servers have databases in a cluster: Valkey 9 has them.
fn has_databases() -> bool {
    let server = env::var("REDISRS_SERVER_BIN").unwrap_or_else(|_| "redis-server".to_owned());
    let version = Command::new(server).arg("--version").output().expect("redis-server").stdout;
    let version = String::from_utf8(version).expect("UTF-8");
    let version =
        version.strip_prefix("Valkey server v=").and_then(|version| version.split('.').next());
    version.is_some_and(|version| version.parse::<u64>().expect("a number") >= 9)
}
