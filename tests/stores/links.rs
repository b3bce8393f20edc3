//! Connections and breakers, whatever the callers and their runtimes do: what has to happen does not wait
//! for a caller.

use std::time::{Duration, Instant};

use ratelimit_runtime::{Builder, Limit, OnError, RateLimiter, Rejection, StoreError};
use support::proxy::{Network, Proxy};
use support::server::Server;
use tokio::runtime::Runtime;

const HOURLY: Limit = Limit::sliding("links", 1_000_000, Duration::from_secs(3600));
const DEADLINE: Duration = Duration::from_millis(100);

fn through(proxy: &Proxy) -> Builder {
    let url = format!("redis://127.0.0.1:{}", proxy.port);
    RateLimiter::builder().redis(url).deadline(DEADLINE).on_error(OnError::Deny)
}

fn current_thread() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn is_open(answer: &Result<ratelimit_runtime::Decision, Rejection>) -> bool {
    matches!(answer, Err(Rejection::Unavailable { error: StoreError::CircuitOpen { .. }, .. }))
}

/// Connections that a server has accepted.
fn accepted(server: &Server) -> u32 {
    let info = redis::cmd("INFO").arg("stats").query(&mut server.connection());
    let stats: String = info.expect("INFO");
    let line = stats.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
    line.expect("a figure").parse().expect("a number")
}

/// Decides again and again until a call is admitted.
fn admitted_within(time: Duration, mut decide: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while start.elapsed() < time {
        if decide() {
            return true;
        }
    }
    false
}

#[test]
fn the_breaker_closes_for_a_runtime_that_is_driven_by_calls_alone() {
    let server = Server::start();
    let proxy = Proxy::start(server.port(), Duration::ZERO);
    let limiter = through(&proxy).build().expect("valid");
    let runtime = current_thread();
    let decide = || runtime.block_on(limiter.check(&HOURLY, (), 1));
    assert!(admitted_within(Duration::from_secs(5), || decide().is_ok()));
    proxy.set(Network::Cut);
    assert!(admitted_within(Duration::from_secs(5), || is_open(&decide())), "it never opened");
    proxy.set(Network::Up);
    assert!(admitted_within(Duration::from_secs(5), || decide().is_ok()), "it never closed");
}

#[test]
fn the_breaker_closes_for_a_task_that_awaits_nothing_but_decisions() {
    let server = Server::start();
    let proxy = Proxy::start(server.port(), Duration::ZERO);
    let limiter = through(&proxy).build().expect("valid");
    current_thread().block_on(async {
        while limiter.check(&HOURLY, (), 1).await.is_err() {}
        proxy.set(Network::Cut);
        while !is_open(&limiter.check(&HOURLY, (), 1).await) {}
        proxy.set(Network::Up);
        let start = Instant::now();
        while limiter.check(&HOURLY, (), 1).await.is_err() {
            assert!(start.elapsed() < Duration::from_secs(5), "it never closed");
        }
    });
}

/// A probe is answered once for all runtimes.
#[test]
fn the_breakers_of_all_runtimes_close() {
    let server = Server::start();
    let proxy = Proxy::start(server.port(), Duration::ZERO);
    let limiter = through(&proxy).build().expect("valid");
    let runtimes: Vec<_> = (0..5).map(|_| current_thread()).collect();
    let all = |wanted: fn(&Result<ratelimit_runtime::Decision, Rejection>) -> bool| {
        for runtime in &runtimes {
            let decide = || wanted(&runtime.block_on(limiter.check(&HOURLY, (), 1)));
            assert!(admitted_within(Duration::from_secs(5), decide));
        }
    };
    all(Result::is_ok);
    proxy.set(Network::Cut);
    all(is_open);
    let before = proxy.connections();
    proxy.set(Network::Up);
    all(Result::is_ok);
    let made = proxy.connections() - before;
    assert!(made <= 6, "{made} connections for 5 runtimes and the probe");
}

/// Callers with less patience than the deadline see nothing of a dead connection; the link itself does.
#[tokio::test]
async fn a_silent_connection_is_replaced_though_callers_give_up_early() {
    let server = Server::start();
    let proxy = Proxy::start(server.port(), Duration::ZERO);
    let limiter = through(&proxy).build().expect("valid");
    while limiter.check(&HOURLY, (), 1).await.is_err() {}
    proxy.set(Network::Silent);
    let patience = Duration::from_millis(80);
    assert!(tokio::time::timeout(patience, limiter.check(&HOURLY, (), 1)).await.is_err());
    // What is lost on a connection stays lost; a new one would be answered.
    proxy.set(Network::Up);
    let start = Instant::now();
    loop {
        let answer = tokio::time::timeout(patience, limiter.check(&HOURLY, (), 1)).await;
        if answer.is_ok_and(|answer| answer.is_ok()) {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(5), "never decided again");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A reply that this runtime has not read yet is no silence.
#[test]
fn a_runtime_that_stood_still_keeps_its_connection() {
    let server = Server::start();
    let proxy = Proxy::far(server.port(), Duration::from_millis(50));
    let limiter = through(&proxy).build().expect("valid");
    let runtime = current_thread();
    let decide = || runtime.block_on(limiter.check(&HOURLY, (), 1));
    assert!(admitted_within(Duration::from_secs(5), || decide().is_ok()));
    for _ in 0..3 {
        let patience = Duration::from_millis(20);
        let early = runtime.block_on(async {
            tokio::time::timeout(patience, limiter.check(&HOURLY, (), 1)).await
        });
        assert!(early.is_err(), "a round trip in less than it takes: {early:?}");
        std::thread::sleep(5 * DEADLINE);
        let decided = decide();
        assert!(decided.is_ok(), "{decided:?}");
    }
}

/// A server that answers, but too late for its callers, is not taken for a silent one.
#[tokio::test]
async fn a_slow_server_keeps_its_connection() {
    let server = Server::start();
    let proxy = Proxy::far(server.port(), Duration::from_millis(200));
    let limiter = through(&proxy).deadline(Duration::from_millis(400)).build().expect("valid");
    while limiter.check(&HOURLY, (), 1).await.is_err() {}
    let before = proxy.connections();
    for _ in 0..30 {
        let patience = Duration::from_millis(50);
        let early = tokio::time::timeout(patience, limiter.check(&HOURLY, (), 1)).await;
        assert!(early.is_err(), "a round trip in less than it takes: {early:?}");
    }
    limiter.check(&HOURLY, (), 1).await.expect("admitted");
    assert_eq!(proxy.connections(), before);
}

/// Calls that find scripts under way do not wait for these to come back first.
#[tokio::test]
async fn calls_keep_their_deadline_when_the_server_is_far_away() {
    let server = Server::start();
    let proxy = Proxy::far(server.port(), Duration::from_millis(800));
    let limiter = through(&proxy).deadline(Duration::from_millis(1_500)).build().expect("valid");
    let decided = async |calls: u64, pause| {
        let mut tasks = tokio::task::JoinSet::new();
        for call in 0..calls {
            let limiter = limiter.clone();
            tasks.spawn(async move { limiter.check(&HOURLY, call, 1).await.is_ok() });
            tokio::time::sleep(pause).await;
        }
        tasks.join_all().await.into_iter().filter(|decided| *decided).count()
    };
    // The server learns the scripts, which takes a second round trip.
    while decided(20, Duration::ZERO).await < 20 {}
    assert_eq!(decided(300, Duration::from_millis(2)).await, 300);
}

/// `timeout` of a server closes idle connections; so does `CLIENT KILL`.
fn close_all(server: &Server) {
    let mut connection = server.connection();
    let mut kill = redis::cmd("CLIENT");
    kill.arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"]);
    assert!(kill.query::<u32>(&mut connection).expect("CLIENT KILL") > 0);
}

#[tokio::test]
async fn a_connection_that_the_server_closed_is_replaced_before_a_call() {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid");
    for _ in 0..5 {
        limiter.check(&HOURLY, (), 1).await.expect("admitted");
        tokio::time::sleep(Duration::from_millis(150)).await;
        close_all(&server);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    limiter.check(&HOURLY, (), 1).await.expect("admitted");
}

#[test]
fn a_closed_connection_is_seen_by_a_runtime_that_stood_still() {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid");
    let runtime = current_thread();
    for _ in 0..5 {
        runtime.block_on(limiter.check(&HOURLY, (), 1)).expect("admitted");
        std::thread::sleep(Duration::from_millis(150));
        close_all(&server);
        std::thread::sleep(Duration::from_millis(50));
    }
    runtime.block_on(limiter.check(&HOURLY, (), 1)).expect("admitted");
}

#[tokio::test]
async fn a_replica_is_not_connected_to_again_and_again() {
    let (server, primary) = (Server::start(), Server::start());
    let mut connection = server.connection();
    let limiter = server.builder().build().expect("valid");
    limiter.check(&HOURLY, (), 1).await.expect("admitted");
    let mut replicate = redis::cmd("REPLICAOF");
    replicate.arg("127.0.0.1").arg(primary.port()).exec(&mut connection).expect("REPLICAOF");
    let before = accepted(&server);
    let (start, mut calls) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(1) {
        let refused = limiter.check(&HOURLY, (), 1).await;
        assert!(matches!(refused, Err(Rejection::Unavailable { .. })), "{refused:?}");
        calls += 1;
        tokio::task::yield_now().await;
    }
    let made = accepted(&server) - before;
    assert!(made < 20, "{made} connections for {calls} calls in a second");
    redis::cmd("REPLICAOF").arg("NO").arg("ONE").exec(&mut connection).expect("REPLICAOF");
    let start = Instant::now();
    while limiter.check(&HOURLY, (), 1).await.is_err() {
        assert!(start.elapsed() < Duration::from_secs(5), "never decided again");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_ping_says_whether_a_decision_would_be_made() {
    assert_eq!(RateLimiter::embedded().ping().await, Ok(()));
    let server = Server::start();
    let proxy = Proxy::start(server.port(), Duration::ZERO);
    let limiter = through(&proxy).build().expect("valid");
    while limiter.ping().await.is_err() {}
    assert!(server.lives().is_empty(), "it has written something");
    proxy.set(Network::Cut);
    assert!(limiter.ping().await.is_err());
    proxy.set(Network::Up);
    let start = Instant::now();
    while limiter.ping().await.is_err() {
        assert!(start.elapsed() < Duration::from_secs(5), "never again");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut connection = server.connection();
    redis::cmd("REPLICAOF").arg("127.0.0.1").arg(1).exec(&mut connection).expect("REPLICAOF");
    let error = limiter.ping().await.expect_err("a replica decides nothing");
    assert!(error.to_string().contains("this is a replica"), "{error}");
    let wrong = server.url.replace("redis://", "redis://nobody:wrong@");
    let wrong = RateLimiter::builder().redis(wrong).build().expect("valid");
    let error = wrong.ping().await.expect_err("no such user");
    assert!(error.to_string().contains("check the user and password"), "{error}");
}

/// A connection ends with the runtime that made it, though the limiter goes on.
#[test]
fn a_runtime_that_ends_takes_its_connection_along() {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid");
    for _ in 0..20 {
        let runtime = current_thread();
        runtime.block_on(limiter.check(&HOURLY, (), 1)).expect("admitted");
        drop(runtime);
        let start = Instant::now();
        // That of this test remains.
        while clients(&server) > 1 {
            assert!(start.elapsed() < Duration::from_secs(5), "a connection outlives its runtime");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Connections that a server has now.
fn clients(server: &Server) -> usize {
    let list = redis::cmd("CLIENT").arg("LIST").query::<String>(&mut server.connection());
    list.expect("CLIENT LIST").lines().count()
}
