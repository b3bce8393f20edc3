//! A real primary with real Sentinels for a test, on free ports, stopped on drop.

use std::collections::HashMap;
use std::thread::sleep;
use std::time::Duration;

use redis::{Client, Connection};
use redis_test::sentinel::RedisSentinelCluster;
use redis_test::server::RedisServer;

use crate::server::{command, is_replicated};

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
            // A Sentinel starts within some milliseconds, and only a reply shows that it has started.
            let mut connection = loop {
                match client.get_connection() {
                    Ok(connection) => break connection,
                    Err(_) => sleep(Duration::from_millis(10)),
                }
            };
            for setting in ["down-after-milliseconds 500", "failover-timeout 2000"] {
                command::<()>(&mut connection, &format!("SENTINEL SET master0 {setting}"));
            }
            connections.push(connection);
        }
        for connection in &mut connections {
            while !knows_all(connection) {
                sleep(Duration::from_millis(50));
            }
        }
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
        while failover.exec(&mut self.sentinel()).is_err() {
            sleep(Duration::from_millis(50));
        }
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
