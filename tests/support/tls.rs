//! Real servers with TLS: one, a cluster, and a primary with a Sentinel, on free ports, stopped on drop.

use std::fs;
use std::net::TcpStream;
use std::path::Path;

use redis::ConnectionAddr;
use redis_test::server::RedisServer;
use redis_test::utils::{TlsFilePaths, build_keys_and_certs_for_tls_ext};
use tempfile::TempDir;

use crate::cluster::join;
use crate::port;
use crate::server::spawn;
use crate::wait::block_until;

const HOST: &str = "127.0.0.1";

/// Servers with one certificate.
pub struct TlsServers {
    servers: Vec<RedisServer>,
    files: TlsFilePaths,
    folder: TempDir,
}

impl TlsServers {
    /// Prepares servers. Their certificate has their address; without `has_address`, the name
    /// `localhost.example.com`.
    fn new(has_address: bool) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let files = build_keys_and_certs_for_tls_ext(&folder, has_address);
        Self { servers: Vec::new(), files, folder }
    }

    pub fn start_cluster(has_address: bool) -> Self {
        let mut cluster = Self::new(has_address);
        for _ in 0..3 {
            cluster.start(None, &["--cluster-enabled", "yes", "--tls-cluster", "yes"]);
        }
        let root = cluster.files.ca_crt.to_str().expect("UTF-8");
        join(&cluster.servers, &["--tls", "--cacert", root, "--insecure"]);
        cluster
    }

    /// Starts a primary, and a Sentinel that knows it as `main`.
    pub fn start_primary() -> Self {
        let mut servers = Self::new(true);
        servers.start(None, &[]);
        let settings = servers.folder.path().join("sentinel.conf");
        let monitor = format!("sentinel monitor main {HOST} {} 1\n", servers.port(0));
        fs::write(&settings, monitor).expect("written");
        servers.start(Some(&settings), &["--sentinel", "--tls-replication", "yes"]);
        servers
    }

    fn start(&mut self, settings: Option<&Path>, arguments: &[&str]) {
        let port = port::free();
        let address = ConnectionAddr::TcpTls {
            host: HOST.to_owned(),
            port,
            insecure: false,
            tls_params: None,
        };
        self.servers.push(spawn(address, settings, Some(self.files.clone()), arguments));
        block_until("the server listens", || TcpStream::connect((HOST, port)).is_ok());
    }

    pub fn port(&self, server: usize) -> u16 {
        self.servers[server].host_and_port().expect("TCP").1
    }

    pub fn root(&self) -> Vec<u8> {
        fs::read(&self.files.ca_crt).expect("a certificate")
    }
}
