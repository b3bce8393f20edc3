//! `haproxy` between a limiter and its server. It ends idle connections.

use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ratelimit_runtime::{Algorithm, Limit, Part, RateLimiter, Rejection, Source};
use support::ALGORITHMS;
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

/// Uses what a limiter can do with counts. The first call decides, too: nothing fails while a limiter connects.
async fn assert_serves(limiter: &RateLimiter) {
    for algorithm in ALGORITHMS {
        let limit = Limit::new("between", algorithm, 2, HOUR).expect("valid");
        let is_bucket = matches!(algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket);
        let limit = if is_bucket { limit.burst(2) } else { limit };
        for left in [1, 0] {
            let decision = limiter.check(&limit, "key", 1).await.expect("admitted");
            assert_eq!((decision.source, decision.remaining), (Source::Redis, left));
        }
        let rejection = limiter.check(&limit, "key", 1).await.expect_err("full");
        assert!(matches!(rejection, Rejection::Limited { .. }), "{rejection:?}");
        assert!(limiter.reset(&limit, "key").await.expect("a reply"), "{algorithm}");
        let permit = limiter.acquire(&limit, "key", 2).await.expect("admitted");
        permit.settle(1);
        limiter.flush().await.expect("none is lost");
        assert_eq!(limiter.peek(&limit, "key", 1).await.expect("a reply").remaining, 1);
    }
    let slots = Limit::in_flight("slots", 1).hold(30 * SECOND);
    let rate = Limit::sliding("rate", 10, HOUR);
    let both = [Part::new(&rate, &"key", 1), Part::new(&slots, &"key", 1)];
    let permits = limiter.acquire_all(&both).await.expect("admitted");
    let rejection = limiter.acquire_all(&both).await.expect_err("no slot");
    assert!(matches!(rejection, Rejection::Busy { .. }), "{rejection:?}");
    drop(permits);
    let waiting = slots.wait(5 * SECOND);
    drop(limiter.acquire(&waiting, "key", 1).await.expect("admitted"));
    let bucket = Limit::token_bucket("bucket", 5, SECOND).burst(1).wait(5 * SECOND);
    for _ in 0..3 {
        limiter.check(&bucket, "key", 1).await.expect("admitted after its wait");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limiter_works_through_a_proxy_that_ends_idle_connections() {
    let server = Server::start();
    let proxy = HaProxy::start(&server);
    let limiter = denying_builder(&format!("redis://127.0.0.1:{}", proxy.port));
    let limiter = limiter.build().expect("valid");
    assert_serves(&limiter).await;
    let limit = Limit::sliding("idle", 10, HOUR);
    for left in (7..10).rev() {
        sleep(2 * IDLE).await;
        let decision = limiter.check(&limit, "key", 1).await.expect("admitted");
        assert_eq!((decision.source, decision.remaining), (Source::Redis, left));
    }
}
