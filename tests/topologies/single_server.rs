//! A single server: with TLS, with a user and a database, at a Unix socket, and behind a proxy.

use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use ratelimit_runtime::{BuildError, Limit, Source, StoreError};
use redis::{Commands, Connection, ConnectionAddr};
use redis_test::server::RedisServer;
use support::limits::HOUR;
use support::port;
use support::server::{Server, command, start_with_tls};
use support::tls::TlsServers;
use support::wait::block_until;
use tokio::process::Command;
use tokio::time::sleep;

use crate::{denying, denying_builder, error_of, first_decision, take, use_all_operations};

const LIMIT: Limit = Limit::sliding("secured", 10, HOUR);

#[tokio::test]
async fn tls_works_with_certificates() {
    let (server, url) = start_with_tls();
    let files = server.tls_paths.as_ref().expect("the server has TLS");
    let read = |path| std::fs::read(path).expect("a certificate");
    let (root, own, key) = (read(&files.ca_crt), read(&files.redis_crt), read(&files.redis_key));
    let with_root = denying_builder(&url).root_certificates(root);
    let limiter = with_root.clone().client_certificate(own, key).build().expect("valid");
    assert_eq!(first_decision(&limiter, &LIMIT, "key").await.remaining, 9);
    assert_eq!(take(&limiter, &LIMIT, "key").await, 8);
    let rejected = with_root.build().expect("valid").check(&LIMIT, "key", 1).await;
    assert!(rejected.is_err(), "the limiter has no client certificate");

    // Without the root certificate, the certificate of the server is not trusted.
    let error = error_of(&denying(&url), &LIMIT).await;
    let StoreError::Connection { message, .. } = &error else { panic!("{error:?}") };
    assert!(message.to_lowercase().contains("certificate"), "{message}");
}

#[tokio::test]
async fn tls_works_with_a_cluster() {
    let cluster = TlsServers::start_cluster(true);
    let url = format!("rediss+cluster://127.0.0.1:{}", cluster.port(0));
    let limiter = denying_builder(&url).root_certificates(cluster.root()).build().expect("valid");
    use_all_operations(&limiter).await;
}

#[tokio::test]
async fn tls_verifies_all_nodes_by_one_name() {
    let cluster = TlsServers::start_cluster(false);
    let url = format!("rediss+cluster://127.0.0.1:{}", cluster.port(0));
    let builder = || denying_builder(&url).root_certificates(cluster.root());
    let limiter = builder().server_name("localhost.example.com").build().expect("valid");
    for key in 0..30 {
        limiter.check(&LIMIT, key, 1).await.expect("admitted");
    }
    for limiter in [builder().server_name("other.example.com"), builder()] {
        let error = error_of(&limiter.build().expect("valid"), &LIMIT).await.to_string();
        assert!(error.contains("certificate"), "{error}");
    }
    let error = builder().server_name("no name").build().err();
    assert_eq!(error, Some(BuildError::InvalidServerName));
}

#[tokio::test]
async fn tls_works_with_sentinels() {
    let servers = TlsServers::start_primary();
    let url = format!("rediss+sentinel://127.0.0.1:{}/main", servers.port(1));
    let limiter = denying_builder(&url).root_certificates(servers.root()).build().expect("valid");
    assert_eq!(first_decision(&limiter, &LIMIT, "key").await.remaining, 9);
}

#[test]
fn invalid_certificates_are_an_error() {
    let builder = denying_builder("rediss://localhost");
    let error = builder.root_certificates("-----BEGIN CERTIFICATE-----\nx").build().err();
    let Some(error @ BuildError::InvalidCertificate { .. }) = error else { panic!("{error:?}") };
    assert!(error.to_string().contains("PEM"), "{error}");
}

/// Creates the user `ann`, and asserts that a limiter with this URL counts in this database.
async fn assert_counts_in(database: u8, url: &str, password: &str, connection: &mut Connection) {
    command::<()>(connection, &format!("ACL SETUSER ann on {password} ~* +@all"));
    assert_eq!(take(&denying(url), &LIMIT, "key").await, 9);
    command::<()>(connection, &format!("SELECT {database}"));
    let keys: Vec<String> = connection.keys("*").expect("KEYS");
    assert_eq!(keys, ["rl:sliding:1h:secured{key}"]);
}

#[tokio::test]
async fn the_url_selects_a_user_and_a_database() {
    let server = Server::start();
    let url = format!("redis://ann:p%40ss%3Aw%2Frd@127.0.0.1:{}/7", server.port());
    assert_counts_in(7, &url, ">p@ss:w/rd", &mut server.connection()).await;
    assert!(server.ttls().is_empty(), "nothing is in the first database");

    let error = error_of(&denying(&format!("{}/99", server.url)), &LIMIT).await;
    assert!(format!("{error:?}").contains("path of the Redis URL"), "{error:?}");
}

#[tokio::test]
async fn the_url_of_a_unix_socket_selects_a_user_and_a_database() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("redis.sock");
    let address = ConnectionAddr::Unix(path.clone());
    let _server = RedisServer::new_with_addr_and_modules(address, &[], false);
    let url = format!("unix://{}", path.display());
    assert_eq!(first_decision(&denying(&url), &LIMIT, "key").await.remaining, 9);
    let client = redis::Client::open(url).expect("a URL");
    let mut connection = client.get_connection().expect("a server");
    let url = format!("redis+unix://{}?db=2&user=ann&pass=p+s", path.display());
    assert_counts_in(2, &url, ">p+s", &mut connection).await;
}

/// The time without data after which `haproxy` ends a connection.
const IDLE: Duration = Duration::from_millis(500);

#[tokio::test(flavor = "multi_thread")]
async fn a_limiter_works_through_a_proxy_that_ends_idle_connections() {
    let (server, port) = (Server::start(), port::free());
    let (folder, idle) = (tempfile::tempdir().expect("a folder"), IDLE.as_millis());
    let configuration = format!(
        "defaults\n  mode tcp\n  timeout connect 1s\n  timeout client {idle}ms\n  timeout server {idle}ms\n\
         listen redis\n  bind 127.0.0.1:{port}\n  server one 127.0.0.1:{}\n",
        server.port()
    );
    let path = folder.path().join("configuration");
    std::fs::write(&path, configuration).expect("a file");
    let mut proxy = Command::new("haproxy");
    proxy.arg("-f").arg(&path).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let _proxy = proxy.spawn().expect("haproxy, which `tests/run` installs");
    block_until("haproxy listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    let limiter = denying(&format!("redis://127.0.0.1:{port}"));
    let limit = Limit::sliding("idle", 10, HOUR);
    // The first call decides, too: nothing fails while a limiter connects.
    limiter.acquire(&limit, "key", 3).await.expect("admitted").settle(1);
    limiter.flush().await.expect("none is lost");
    for left in (6..9).rev() {
        sleep(2 * IDLE).await;
        let decision = limiter.check(&limit, "key", 1).await.expect("admitted");
        assert_eq!((decision.source, decision.remaining), (Source::Redis, left));
    }
}
