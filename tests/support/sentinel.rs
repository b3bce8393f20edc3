//! A real primary with real Sentinels for a test, on free ports, stopped on drop.

use std::collections::HashMap;

use redis::{Client, Connection};
use redis_test::sentinel::RedisSentinelCluster;
use redis_test::server::RedisServer;

use crate::server::{command, is_replicated};
use crate::wait::block_until;

pub struct Sentinels {
    cluster: RedisSentinelCluster,
}

impl Sentinels {
    /// Starts the servers, with Sentinels that detect a failure within half a second, and know each other and the
    /// replica: otherwise, they would never agree on a new primary.
    pub fn start() -> Self {
        let sentinels = Self { cluster: RedisSentinelCluster::new(1, 1, 3) };
        let mut connections = Vec::new();
        for sentinel in &sentinels.cluster.sentinel_servers {
            let client = Client::open(sentinel.connection_info()).expect("an address");
            block_until("a Sentinel replies", || client.get_connection().is_ok());
            let mut connection = client.get_connection().expect("a Sentinel");
            for setting in ["down-after-milliseconds 500", "failover-timeout 2000"] {
                command::<()>(&mut connection, &format!("SENTINEL SET master0 {setting}"));
            }
            connections.push(connection);
        }
        block_until("the Sentinels know each other", || connections.iter_mut().all(knows_all));
        sentinels
    }

    /// Returns the URL of a service. The Sentinels know the service `master0`.
    pub fn url(&self, service: &str) -> String {
        let servers = self.cluster.sentinel_servers.iter();
        let ports = servers.filter_map(|server| server.host_and_port());
        let hosts: Vec<_> = ports.map(|(host, port)| format!("{host}:{port}")).collect();
        format!("redis+sentinel://{}/{service}", hosts.join(","))
    }

    fn sentinel(&self) -> Connection {
        let sentinel = self.cluster.sentinel_servers[0].connection_info();
        Client::open(sentinel).expect("an address").get_connection().expect("a Sentinel")
    }

    /// Returns the address of the primary, as a Sentinel reports it.
    pub fn primary(&self) -> (String, u16) {
        command(&mut self.sentinel(), "SENTINEL GET-MASTER-ADDR-BY-NAME master0")
    }

    /// Returns the address of the replica, as a Sentinel reports it.
    pub fn replica(&self) -> (String, u16) {
        let replicas: Vec<HashMap<String, String>> =
            command(&mut self.sentinel(), "SENTINEL REPLICAS master0");
        let port = replicas[0]["port"].parse().expect("a port");
        (replicas[0]["ip"].clone(), port)
    }

    pub fn wait_for_replication(&self) {
        let client = Client::open(self.primary()).expect("an address");
        while !is_replicated(&mut client.get_connection().expect("the primary")) {}
    }

    pub fn fail_over(&self) {
        let failover = redis::cmd("SENTINEL").arg(&["FAILOVER", "master0"]).to_owned();
        // A Sentinel rejects the command until it knows the replica.
        block_until("the Sentinel knows the replica", || {
            failover.exec(&mut self.sentinel()).is_ok()
        });
    }

    pub fn kill_primary(&mut self) {
        let (_, port) = self.primary();
        let is_primary =
            |server: &RedisServer| server.host_and_port().is_some_and(|(_, other)| port == other);
        let server = self.cluster.servers.iter_mut().find(|server| is_primary(server));
        server.expect("the primary").stop();
    }
}

/// Returns whether a Sentinel knows the two others and the replica.
fn knows_all(sentinel: &mut Connection) -> bool {
    let mut known = |whom: &str| -> usize {
        command::<Vec<redis::Value>>(sentinel, &format!("SENTINEL {whom} master0")).len()
    };
    known("SENTINELS") == 2 && known("REPLICAS") == 1
}
