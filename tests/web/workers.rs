//! Limiters of actix-web servers with several workers.

use std::net::SocketAddr;
use std::sync::mpsc;

use actix_web::{App, HttpServer, web};
use ratelimit_runtime::web::actix::RateLimits;
use ratelimit_runtime::{Limit, RateLimiter};
use support::http::get;
use support::log::Log;
use tracing::Dispatch;

use crate::MINUTE;

const WORKERS: usize = 4;

/// Starts a server whose factories call `build`. Returns its address, and the events of `build`.
fn serve(build: impl Fn() -> RateLimiter + Clone + Send + 'static) -> (SocketAddr, String) {
    let log = Log::default();
    let format = tracing_subscriber::fmt().with_writer(log.writer()).with_ansi(false);
    let events = Dispatch::new(format.finish());
    let (tell, address) = mpsc::channel();
    let (started, starts) = mpsc::channel();
    std::thread::spawn(move || {
        let server = HttpServer::new(move || {
            let limiter = tracing::dispatcher::with_default(&events, &build);
            started.send(()).expect("the test waits for it");
            let limits = RateLimits::new().limit(Limit::fixed("workers", 5, MINUTE), |_| ());
            let hello = web::get().to(async || "hello");
            App::new().wrap(limits.limiter(limiter)).route("/", hello)
        });
        let server = server.workers(WORKERS).disable_signals().bind("127.0.0.1:0");
        let server = server.expect("a free port");
        tell.send(server.addrs()[0]).expect("the test waits for it");
        actix_web::rt::System::new().block_on(server.run()).expect("it is served");
    });
    for _ in 0..WORKERS {
        starts.recv().expect("a worker");
    }
    (address.recv().expect("an address"), log.text())
}

#[test]
fn warns_once_of_a_limiter_in_the_factory_of_an_app() {
    let (_, events) = serve(RateLimiter::embedded);
    let [event] = events.lines().collect::<Vec<_>>()[..] else { panic!("{events}") };
    assert!(event.contains("WARN") && event.contains("before `HttpServer::new`"), "{event}");
    let (_, events) = serve(|| RateLimiter::builder().max_keys(9).build().expect("valid"));
    let [event] = events.lines().collect::<Vec<_>>()[..] else { panic!("{events}") };
    assert!(event.contains("tests/web/workers.rs"), "{event}");
}

#[test]
fn workers_share_a_limiter_from_outside_of_the_factory() {
    let limiter = RateLimiter::embedded();
    let (address, events) = serve(move || limiter.clone());
    let admitted = (0..20).filter(|_| get(address, "/", &[]).status == 200).count();
    assert_eq!((admitted, &*events), (5, ""));
}
