//! A real Redis Cluster for a test: three primaries on free ports, stopped on drop.

use std::thread::sleep;
use std::time::Duration;

use redis::{Client, Commands, Connection};
use redis_test::cluster::{RedisCluster, RedisClusterConfiguration};

/// The nodes of a cluster.
pub struct Nodes {
    cluster: RedisCluster,
}

impl Nodes {
    /// Starts three primaries, each with so many replicas.
    pub fn start(replicas: u16) -> Self {
        let configuration = RedisClusterConfiguration {
            num_nodes: 3 * (1 + replicas),
            num_replicas: replicas,
            ..RedisClusterConfiguration::default()
        };
        Self { cluster: RedisCluster::new(configuration) }
    }

    /// A URL of one node: the others are found.
    pub fn url(&self) -> String {
        format!("redis+cluster://127.0.0.1:{}", self.port(0))
    }

    /// The port of a node.
    pub fn port(&self, node: usize) -> u16 {
        self.cluster.servers[node].host_and_port().expect("TCP").1
    }

    /// A connection to a node.
    pub fn connection(&self, node: usize) -> Connection {
        let info = self.cluster.servers[node].connection_info();
        Client::open(info).expect("an address").get_connection().expect("a node")
    }

    /// The name of a node in the cluster.
    pub fn id(&self, node: usize) -> String {
        redis::cmd("CLUSTER").arg("MYID").query(&mut self.connection(node)).expect("MYID")
    }

    /// The node that serves a slot.
    pub fn owner(&self, slot: u16) -> usize {
        let holds = |node: &usize| {
            let serves = self.served(*node);
            self.is_primary(*node) && serves.iter().any(|(from, to)| (*from..=*to).contains(&slot))
        };
        (0..self.cluster.servers.len()).find(holds).expect("somebody serves it")
    }

    /// Whether a node is a primary.
    pub fn is_primary(&self, node: usize) -> bool {
        let role: Vec<redis::Value> =
            redis::cmd("ROLE").query(&mut self.connection(node)).expect("ROLE");
        matches!(&role[0], redis::Value::BulkString(role) if role == b"master")
    }

    /// The ranges of slots of a node, as it sees them itself.
    fn served(&self, node: usize) -> Vec<(u16, u16)> {
        let id = self.id(node);
        let nodes: String =
            redis::cmd("CLUSTER").arg("NODES").query(&mut self.connection(node)).expect("NODES");
        let line = nodes.lines().find(|line| line.starts_with(&id)).expect("itself");
        let ranges = line.split(' ').skip(8).filter(|range| !range.starts_with('['));
        let ends = |range: &str| {
            let (from, to) = range.split_once('-').unwrap_or((range, range));
            (from.parse().expect("a slot"), to.parse().expect("a slot"))
        };
        ranges.map(ends).collect()
    }

    /// The slot of a key, as Redis sees it.
    pub fn slot(&self, key: &str) -> u16 {
        let mut ask = redis::cmd("CLUSTER");
        ask.arg("KEYSLOT").arg(key).query(&mut self.connection(0)).expect("KEYSLOT")
    }

    /// `CLUSTER SETSLOT` on a node.
    fn set_slot(&self, node: usize, slot: u16, state: &[&str]) {
        let mut set = redis::cmd("CLUSTER");
        set.arg("SETSLOT").arg(slot).arg(state).exec(&mut self.connection(node)).expect("SETSLOT");
    }

    /// The keys that a node holds.
    pub fn keys(&self, node: usize) -> Vec<String> {
        self.connection(node).keys("*").expect("KEYS")
    }

    /// How many nodes there are.
    pub fn len(&self) -> usize {
        self.cluster.servers.len()
    }

    /// Kills a node.
    pub fn kill(&mut self, node: usize) {
        self.cluster.servers[node].stop();
    }

    /// Begins to move a slot from its node to the next, and moves one of its keys.
    pub fn begin_move(&self, slot: u16, key: &str) {
        let from = self.owner(slot);
        let to = (from + 1) % 3;
        self.set_slot(to, slot, &["IMPORTING", &self.id(from)]);
        self.set_slot(from, slot, &["MIGRATING", &self.id(to)]);
        self.migrate(key, from, to);
    }

    fn migrate(&self, key: &str, from: usize, to: usize) {
        let mut migrate = redis::cmd("MIGRATE");
        migrate.arg("127.0.0.1").arg(self.port(to)).arg(key).arg(0).arg(5_000);
        migrate.exec(&mut self.connection(from)).expect("MIGRATE");
    }

    /// Moves a slot with its keys from its node to the next, with a pause between the steps.
    pub fn move_slot(&self, slot: u16, pause: Duration) {
        let from = self.owner(slot);
        let to = (from + 1) % 3;
        self.set_slot(to, slot, &["IMPORTING", &self.id(from)]);
        self.set_slot(from, slot, &["MIGRATING", &self.id(to)]);
        sleep(pause);
        loop {
            let mut keys = redis::cmd("CLUSTER");
            keys.arg("GETKEYSINSLOT").arg(slot).arg(1);
            let keys: Vec<String> = keys.query(&mut self.connection(from)).expect("keys");
            let Some(key) = keys.first() else { break };
            self.migrate(key, from, to);
            sleep(pause);
        }
        let id = self.id(to);
        for node in [to, from, 3 - to - from] {
            self.set_slot(node, slot, &["NODE", &id]);
            sleep(pause / 2);
        }
    }
}
