//! `haproxy` between a limiter and its server. It ends idle connections.

use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ratelimit_runtime::{Limit, Source};
use support::limits::{HOUR, SECOND};
use support::port;
use support::server::Server;
use tempfile::TempDir;
use tokio::time::sleep;

use crate::denying_builder;

/// The time without data after which `haproxy` ends a connection.
const IDLE: Duration = Duration::from_millis(500);

/// `haproxy` in TCP mode before a server. Stopped on drop.
struct HaProxy {
    child: Child,
    port: u16,
    _folder: TempDir,
}

impl HaProxy {
    fn start(server: &Server) -> Self {
        let (folder, port) = (tempfile::tempdir().expect("a folder"), port::free());
        let (path, idle) = (folder.path().join("configuration"), IDLE.as_millis());
        let configuration = format!(
            "defaults\n  mode tcp\n  timeout connect 1s\n  timeout client {idle}ms\n  timeout server {idle}ms\n\
             listen redis\n  bind 127.0.0.1:{port}\n  server one 127.0.0.1:{}\n",
            server.port()
        );
        std::fs::write(&path, configuration).expect("a file");
        let mut command = Command::new("haproxy");
        command.arg("-f").arg(&path).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("haproxy, which `tests/run` installs");
        let started = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(started.elapsed() < 10 * SECOND, "haproxy does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        Self { child, port, _folder: folder }
    }
}

impl Drop for HaProxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limiter_works_through_a_proxy_that_ends_idle_connections() {
    let server = Server::start();
    let proxy = HaProxy::start(&server);
    let limiter = denying_builder(&format!("redis://127.0.0.1:{}", proxy.port));
    let limiter = limiter.build().expect("valid");
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
