//! A server that can be killed or stopped, and that loses no writes.

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use redis::Connection;
use redis_test::server::RedisServer;

/// A server that loses no writes when it is killed.
pub(crate) struct DurableServer {
    pub(crate) server: RedisServer,
    pub(crate) folder: tempfile::TempDir,
    pub(crate) port: u16,
}

impl DurableServer {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let port = support::port::free();
        let server = Self::spawn(port, folder.path());
        let durable = Self { server, folder, port };
        durable.connection();
        durable
    }

    pub(crate) fn spawn(port: u16, folder: &std::path::Path) -> RedisServer {
        let address = redis::ConnectionAddr::Tcp("127.0.0.1".to_owned(), port);
        let keep = ["--appendonly", "yes", "--appendfsync", "always", "--dir"];
        RedisServer::new_with_addr_tls_modules_and_spawner(
            address,
            None,
            None,
            false,
            None,
            &[],
            |command| command.args(keep).arg(folder).spawn().expect("redis-server"),
        )
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn connection(&self) -> Connection {
        let client = redis::Client::open(self.url()).expect("an address");
        loop {
            if let Ok(connection) = client.get_connection() {
                return connection;
            }
            sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn signal(&self, signal: &str) {
        let mut kill = Command::new("kill");
        kill.arg(signal).arg(self.server.process.id().to_string());
        assert!(kill.status().expect("kill").success());
    }
}
