//! Connections and the circuit breaker. They recover without the help of callers and their runtimes. What a server does
//! that does not reply, and several runtimes or none.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use futures::executor::block_on;
use futures::future::{join_all, poll_immediate};
use ratelimit_runtime::{
    Decision, Limit, OnError, RateLimiter, Rejection, Source, StoreError, rate_limit,
};
use support::limits::{DAY, HOUR};
use support::proxy::{Network, Proxy};
use support::runtime;
use support::server::Server;
use support::wait::block_until;
use tokio::runtime::Runtime;
use tokio::time::{sleep, timeout};

use super::{DAILY, HOURLY, denying_builder, store_error, through_network, wait_briefly_until};
use crate::wait_until;

const DEADLINE: Duration = Duration::from_millis(100);

/// The number of connections that a server has accepted.
const ACCEPTED: &str = "total_connections_received:";

/// Returns whether the circuit breaker rejected the call.
fn is_open(result: &Result<Decision, Rejection>) -> bool {
    matches!(result, Err(Rejection::Unavailable { error: StoreError::CircuitOpen { .. }, .. }))
}

/// Returns how many connections runtimes make after an outage. They are polled only during calls.
fn connections_after_an_outage(runtimes: usize) -> u32 {
    let (_server, proxy, limiter) = through_network(Duration::ZERO, DEADLINE);
    let runtimes: Vec<_> = (0..runtimes).map(|_| support::runtime()).collect();
    let all = |condition: fn(&Result<Decision, Rejection>) -> bool| {
        for runtime in &runtimes {
            block_until("a decision", || {
                condition(&runtime.block_on(limiter.check(&HOURLY, (), 1)))
            });
        }
    };
    all(Result::is_ok);
    proxy.set(Network::Cut);
    all(is_open);
    let before = proxy.connections();
    proxy.set(Network::Up);
    all(Result::is_ok);
    proxy.connections() - before
}

#[test]
fn the_breaker_closes_for_a_runtime_that_is_polled_only_during_calls() {
    connections_after_an_outage(1);
}

#[test]
fn one_probe_closes_the_breaker_for_all_runtimes() {
    let made = connections_after_an_outage(5);
    assert!(made <= 6, "{made} connections for 5 runtimes and the probe");
}

/// The server accepts no more clients, so a second runtime does not connect, and the probes do not either.
#[test]
fn a_runtime_that_does_not_connect_stops_no_other() {
    let server = Server::start();
    let mut connection = server.connection();
    let mut set_clients = |most: u64| {
        let mut set = redis::cmd("CONFIG");
        set.arg("SET").arg("maxclients").arg(most).exec(&mut connection).expect("CONFIG SET");
    };
    let limiter = server.builder().deadline(DEADLINE).build().expect("valid");
    let (first, second) = (support::runtime(), support::runtime());
    let decide = |runtime: &Runtime| runtime.block_on(limiter.check(&HOURLY, (), 1));
    block_until("a decision", || decide(&first).is_ok());
    set_clients(2);
    block_until("a decision", || {
        decide(&first).expect("a connection that replies is used");
        is_open(&decide(&second))
    });
    for _ in 0..100 {
        decide(&first).expect("a connection that replies is used");
        decide(&second).expect_err("no connection");
    }
    set_clients(100);
    block_until("a decision", || decide(&second).is_ok());
}

/// Replies come after the deadline, so no call waits for them once that is known.
#[test]
fn a_slow_server_is_asked_by_probes_alone() {
    let (_server, _proxy, limiter) = through_network(3 * DEADLINE / 2, DEADLINE);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let decide = || runtime.block_on(limiter.check(&HOURLY, (), 1));
    // The first call connects.
    for _ in 0..3 {
        assert!(decide().is_err());
        std::thread::sleep(4 * DEADLINE);
    }
    // Late replies arrive between the calls.
    let timeouts = (0..10).filter(|_| {
        std::thread::sleep(4 * DEADLINE);
        !is_open(&decide())
    });
    let timeouts = timeouts.count();
    assert!(timeouts <= 1, "{timeouts} calls have waited");
}

/// A blocked runtime sends no request before the deadline, so its calls time out. The server answers a probe.
#[test]
fn a_blocked_runtime_opens_no_breaker() {
    let (_server, _proxy, limiter) = through_network(Duration::from_millis(20), DEADLINE);
    let runtime = support::runtime();
    let decide = || runtime.block_on(limiter.check(&HOURLY, (), 1));
    block_until("a decision", || decide().is_ok());
    for _ in 0..3 {
        runtime.block_on(async {
            let mut calls: Vec<_> =
                (0..5).map(|key| Box::pin(limiter.check(&HOURLY, key, 1))).collect();
            for call in &mut calls {
                assert!(poll_immediate(call).await.is_none());
            }
            std::thread::sleep(2 * DEADLINE);
            for call in calls {
                call.await.expect_err("no reply");
            }
        });
        let decided = decide();
        assert!(decided.is_ok(), "{decided:?}");
    }
}

/// Callers that drop their calls before the deadline do not observe a timeout. The connection itself does.
#[tokio::test]
async fn a_dead_connection_is_replaced_though_callers_drop_their_calls_early() {
    let (_server, proxy, limiter) = through_network(Duration::ZERO, DEADLINE);
    while limiter.check(&HOURLY, (), 1).await.is_err() {}
    proxy.set(Network::Blackhole);
    let patience = Duration::from_millis(80);
    assert!(timeout(patience, limiter.check(&HOURLY, (), 1)).await.is_err());
    // A connection that has lost bytes stays dead. A new one works.
    proxy.set(Network::Up);
    let check = async || timeout(patience, limiter.check(&HOURLY, (), 1)).await;
    wait_briefly_until(async || check().await.is_ok_and(|result| result.is_ok())).await;
}

/// The server replies after the callers have dropped their calls, but within the deadline.
#[tokio::test]
async fn a_connection_to_a_slow_server_is_kept() {
    let (_server, proxy, limiter) = through_network(2 * DEADLINE, 4 * DEADLINE);
    while limiter.check(&HOURLY, (), 1).await.is_err() {}
    // If the first call has timed out, the thread connects as well.
    let mut before = proxy.connections();
    loop {
        sleep(Duration::from_secs(1)).await;
        let now = proxy.connections();
        if now == before {
            break;
        }
        before = now;
    }
    for _ in 0..30 {
        let patience = Duration::from_millis(50);
        let early = timeout(patience, limiter.check(&HOURLY, (), 1)).await;
        assert!(early.is_err(), "a reply before the end of the round trip: {early:?}");
    }
    limiter.check(&HOURLY, (), 1).await.expect("admitted");
    assert_eq!(proxy.connections(), before);
}

/// A login and a probe together take longer than a deadline.
#[tokio::test]
async fn a_breaker_closes_although_the_server_is_far() {
    let (_server, proxy, limiter) = through_network(3 * DEADLINE, 5 * DEADLINE);
    let is_admitted = async || limiter.check(&HOURLY, (), 1).await.is_ok();
    wait_briefly_until(is_admitted).await;
    proxy.set(Network::Cut);
    wait_briefly_until(async || !is_admitted().await).await;
    sleep(10 * DEADLINE).await;
    proxy.set(Network::Up);
    wait_briefly_until(is_admitted).await;
}

/// Calls wait neither for the replies of batches that are pending, nor for leases that another call requests.
#[tokio::test]
async fn calls_with_a_distant_server_end_within_their_deadline() {
    let deadline = 15 * DEADLINE;
    let leased = Limit::sliding("leased", 1_000_000, HOUR).lease(50);
    for (limit, keys) in [(HOURLY, 300), (leased, 1)] {
        let (_server, _proxy, limiter) = through_network(8 * DEADLINE, deadline);
        let times = async |calls: usize, pause| {
            let mut tasks = tokio::task::JoinSet::new();
            for call in 0..calls {
                let limiter = limiter.clone();
                tasks.spawn(async move {
                    let start = Instant::now();
                    limiter.check(&limit, call % keys, 1).await.map(|_| start.elapsed())
                });
                sleep(pause).await;
            }
            tasks.join_all().await.into_iter().collect::<Result<Vec<_>, _>>()
        };
        // The first calls load the scripts, which takes a second round trip.
        while times(20, Duration::ZERO).await.is_err() {}
        let times = times(300, Duration::from_millis(2)).await.expect("all are decided");
        assert!(times.iter().all(|time| *time <= deadline), "{:?}", times.iter().max());
    }
}

/// Whether its runtime is polled meanwhile or not.
#[test]
fn a_connection_that_the_server_closed_is_replaced_before_the_next_call() {
    let (server, limiter) = Server::with_limiter();
    let runtime = support::runtime();
    for is_polled in [true, false] {
        let pause = |time| {
            if is_polled {
                runtime.block_on(async { sleep(time).await });
            } else {
                std::thread::sleep(time);
            }
        };
        for _ in 0..5 {
            runtime.block_on(limiter.check(&HOURLY, (), 1)).expect("admitted");
            pause(3 * DEADLINE / 2);
            // As the server does with idle connections if `timeout` is set.
            let mut kill = redis::cmd("CLIENT");
            kill.arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"]);
            assert!(kill.query::<u64>(&mut server.connection()).expect("CLIENT KILL") > 0);
            pause(DEADLINE / 2);
        }
        runtime.block_on(limiter.check(&HOURLY, (), 1)).expect("admitted");
    }
}

/// The first call is polled while the limiter connects, and then kept. It owns nothing that other calls wait for.
#[tokio::test]
async fn a_call_that_is_not_polled_does_not_delay_a_reconnect() {
    let server = Server::start();
    let proxy = Proxy::start(server.port(), Duration::from_millis(20));
    let limiter = denying_builder(&proxy.url()).deadline(DEADLINE).build().expect("valid");
    let mut first = Box::pin(limiter.check(&HOURLY, "first", 1));
    let mut kept = Box::pin(limiter.check(&HOURLY, "kept", 1));
    assert!(poll_immediate(&mut first).await.is_none());
    assert!(poll_immediate(&mut kept).await.is_none());
    assert!(first.await.is_ok());
    proxy.set(Network::Cut);
    while limiter.check(&HOURLY, (), 1).await.is_ok() {}
    proxy.set(Network::Up);
    wait_briefly_until(async || limiter.check(&HOURLY, (), 1).await.is_ok()).await;
    drop(kept);
}

#[tokio::test]
async fn connections_to_a_replica_are_limited() {
    let (server, primary) = (Server::start(), Server::start());
    let mut connection = server.connection();
    let limiter = server.builder().build().expect("valid");
    limiter.check(&HOURLY, (), 1).await.expect("admitted");
    let mut replicate = redis::cmd("REPLICAOF");
    replicate.arg("127.0.0.1").arg(primary.port()).exec(&mut connection).expect("REPLICAOF");
    let before = server.stat(ACCEPTED);
    let (start, mut calls) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(1) {
        let rejected = limiter.check(&HOURLY, (), 1).await;
        assert!(matches!(rejected, Err(Rejection::Unavailable { .. })), "{rejected:?}");
        calls += 1;
        tokio::task::yield_now().await;
    }
    let made = server.stat(ACCEPTED) - before;
    assert!(made < 20, "{made} connections for {calls} calls in a second");
    redis::cmd("REPLICAOF").arg("NO").arg("ONE").exec(&mut connection).expect("REPLICAOF");
    wait_briefly_until(async || limiter.check(&HOURLY, (), 1).await.is_ok()).await;
}

#[tokio::test]
async fn a_ping_reports_whether_the_store_can_decide() {
    assert_eq!(RateLimiter::embedded().ping().await, Ok(()));
    let (server, proxy, limiter) = through_network(Duration::ZERO, DEADLINE);
    while limiter.ping().await.is_err() {}
    assert!(server.ttls().is_empty(), "a ping writes nothing");
    proxy.set(Network::Cut);
    assert!(limiter.ping().await.is_err());
    proxy.set(Network::Up);
    wait_briefly_until(async || limiter.ping().await.is_ok()).await;
    let mut connection = server.connection();
    redis::cmd("REPLICAOF").arg("127.0.0.1").arg(1).exec(&mut connection).expect("REPLICAOF");
    let error = limiter.ping().await.expect_err("a replica cannot decide");
    assert!(error.to_string().contains("this is a replica"), "{error}");
    let wrong = server.url.replace("redis://", "redis://nobody:wrong-word@");
    let wrong = RateLimiter::builder().redis(wrong).build().expect("valid");
    let error = wrong.ping().await.expect_err("the password is wrong");
    assert!(error.to_string().contains("check the user and password"), "{error}");
    assert!(!format!("{error} {error:?} {wrong:?}").contains("wrong-word"), "{error:?}");
}

/// The limiter outlives the runtime.
#[test]
fn a_connection_closes_with_the_runtime_that_opened_it() {
    let (server, limiter) = Server::with_limiter();
    let mut connection = server.connection();
    for left in (480..500).rev() {
        let runtime = support::runtime();
        let decision = runtime.block_on(limiter.check(&DAILY, (), 1)).expect("admitted");
        assert_eq!(decision.remaining, left);
        drop(runtime);
        // The connection of this test remains.
        block_until("a decision", || {
            let clients = redis::cmd("CLIENT").arg("LIST").query::<String>(&mut connection);
            clients.expect("CLIENT LIST").lines().count() <= 1
        });
    }
}

/// Each worker of a web server can have its own runtime.
#[test]
fn each_of_many_runtimes_keeps_its_connection() {
    let (server, limiter) = Server::with_limiter();
    let runtimes: Vec<_> = (0..40).map(|_| support::runtime()).collect();
    for _ in 0..3 {
        for runtime in &runtimes {
            runtime.block_on(limiter.check(&DAILY, (), 1)).expect("admitted");
        }
    }
    let made = server.stat(ACCEPTED);
    assert!(made <= 40 + 5, "{made} connections for 40 runtimes");
}

// Several runtimes, or none: each has a connection of its own, and none depends on another.

/// A runtime that is no longer polled while it connects.
#[test]
fn an_idle_runtime_does_not_keep_others_from_connecting() {
    let server = Server::start();
    let limiter = server.builder().deadline(Duration::from_millis(200)).build().expect("valid");
    let stuck = runtime();
    let mut connecting = Box::pin(limiter.check(&DAILY, (), 1));
    stuck.block_on(async { assert!(futures::poll!(connecting.as_mut()).is_pending()) });
    let running = tokio::runtime::Runtime::new().expect("a runtime");
    let decided = (0..20).any(|_| running.block_on(limiter.check(&DAILY, (), 1)).is_ok());
    assert!(decided, "no decision in 20 attempts");
}

#[rate_limit(period = "1h", threshold = 1, scope = "global", on_error = "deny", key = id)]
fn synchronous(id: u8) -> Result<u8, Rejection> {
    Ok(id)
}

/// Another executor polls the futures, and threads without one call.
#[test]
fn calls_are_decided_without_a_runtime() {
    let (_server, limiter) = Server::with_limiter();
    block_on(limiter.ping()).expect("a reply");
    let checks = join_all((0..20).map(|_| limiter.check(&DAILY, (), 1)));
    assert!(block_on(checks).iter().all(Result::is_ok));
    let permit = block_on(limiter.acquire(&DAILY, (), 10)).expect("admitted");
    permit.settle(4);
    block_on(limiter.flush()).expect("settled");
    let decision = limiter.check_blocking(&DAILY, (), 1).expect("admitted");
    assert_eq!((decision.remaining, decision.source), (500 - 25, Source::Redis));
    let peeked = block_on(limiter.peek(&DAILY, (), 1)).expect("a peek");
    assert_eq!(peeked.remaining, 500 - 25);
    let usage = block_on(limiter.operator().usage(&DAILY, ())).expect("a reply");
    assert_eq!(usage.used, 25);
    block_on(limiter.scope(async { synchronous(1) })).expect("admitted");
    // Calls that are dropped keep nothing from ending.
    for _ in 0..20 {
        let mut check = pin!(limiter.check(&DAILY, (), 1));
        let _ = check.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }
    block_on(limiter.shutdown()).expect("all is given back");
}

/// In async code, a thread that is blocked does not keep its own request from being sent.
#[tokio::test]
async fn a_runtime_of_one_thread_is_blocked_and_not_stuck() {
    let (_server, limiter) = Server::with_limiter();
    limiter.check(&DAILY, (), 1).await.expect("admitted");
    for left in (490..499).rev() {
        assert_eq!(limiter.check_blocking(&DAILY, (), 1).expect("admitted").remaining, left);
    }
    // More calls than a task of tokio may make without a pause.
    for _ in 0..300 {
        limiter.check_blocking(&DAILY, (), 1).expect("admitted");
    }
    let calls = limiter.scope(async { [synchronous(1), synchronous(1)] }).await;
    assert!(matches!(calls, [Ok(1), Err(Rejection::Limited { .. })]), "{calls:?}");
    let down = RateLimiter::builder().redis("redis://127.0.0.1:1").build().expect("valid");
    for on_error in [OnError::Deny, OnError::Local, OnError::Allow] {
        let result = down.check_blocking(&DAILY.on_error(on_error), (), 1);
        assert_eq!(result.is_ok(), on_error != OnError::Deny, "{result:?}");
    }
}

/// Code of the application that blocks its runtime for longer than the deadline.
#[test]
fn a_reply_that_has_arrived_decides_although_the_runtime_was_blocked() {
    const DEADLINE: Duration = Duration::from_millis(100);
    const LEASED: Limit = Limit::sliding("leased", 500, DAY).lease(5);
    let server = Server::start();
    let limiter = server.builder().deadline(DEADLINE).build().expect("valid");
    let runtime = runtime();
    runtime.block_on(async {
        // The server learns the scripts.
        for _ in 0..5 {
            join_all((0..30).map(|_| limiter.check(&DAILY, (), 1))).await;
        }
        // One call is sent alone, many are sent in batches.
        for (round, calls) in [1, 1, 1, 1, 30, 30].into_iter().enumerate() {
            let calls = (0..calls).map(|_| tokio::spawn(limiter.check(&DAILY, (), 1)));
            let mut calls: Vec<_> = calls.collect();
            calls.push(tokio::spawn(limiter.check(&LEASED, (), 1)));
            // The requests are sent, and the replies arrive while the runtime is blocked.
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            std::thread::sleep(5 * DEADLINE);
            for call in calls {
                let result = call.await.expect("no panic");
                assert!(result.is_ok(), "in round {round}, Redis has replied in time: {result:?}");
            }
        }
    });
}

// A server that does not reply, restarts or is too busy: calls end in time, and decisions resume.

async fn wait_until_decided(limiter: &RateLimiter) {
    let decided = wait_until(async || limiter.check(&DAILY, (), 1).await.is_ok());
    timeout(Duration::from_secs(1), decided).await.expect("a decision within a second");
}

#[tokio::test]
async fn a_call_without_a_reply_ends_at_the_deadline() {
    let server = Server::start();
    let limiter = server.builder().deadline(Duration::from_millis(80)).build().expect("valid");
    // The first call connects. On a busy machine this can take longer than the deadline.
    while limiter.check(&DAILY, (), 1).await.is_err() {}
    let mut connection = server.connection();
    redis::cmd("CLIENT").arg("PAUSE").arg(2_000).exec(&mut connection).expect("CLIENT PAUSE");
    let start = Instant::now();
    let error = store_error(limiter.check(&DAILY, (), 1).await);
    assert!(matches!(error, StoreError::Timeout { .. }), "{error:?}");
    assert!(start.elapsed() >= Duration::from_millis(80));
    redis::cmd("CLIENT").arg("UNPAUSE").exec(&mut connection).expect("CLIENT UNPAUSE");
    while limiter.check(&DAILY, (), 1).await.is_err() {}
}

#[tokio::test]
async fn decisions_resume_after_the_server_restarts() {
    let (server, limiter) = Server::with_limiter();
    assert!(limiter.check(&DAILY, (), 1).await.is_ok());
    let port = server.port();
    drop(server);
    // The connection breaks, the next attempt to connect fails, a probe does not connect either, and the breaker opens.
    let (start, mut is_open) = (Instant::now(), false);
    while start.elapsed() < Duration::from_millis(300) {
        match store_error(limiter.check(&DAILY, (), 1).await) {
            StoreError::Connection { .. } if !is_open => {}
            StoreError::CircuitOpen { cause, .. } => {
                assert!(matches!(&*cause, StoreError::Connection { .. }), "{cause:?}");
                is_open = true;
            }
            error => panic!("{error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(is_open);
    let _restarted = Server::start_on(port);
    wait_until_decided(&limiter).await;
    assert_eq!(limiter.check(&DAILY, (), 1).await.expect("admitted").remaining, 498);
}

/// A connection attempt that takes longer than the deadline serves a later call.
#[tokio::test]
async fn a_connection_attempt_outlasts_the_call_that_started_it() {
    let server = Server::start();
    let slow = Proxy::start(server.port(), Duration::from_millis(300));
    let deadline = Duration::from_millis(150);
    let limiter = denying_builder(&slow.url()).deadline(deadline).build().expect("valid");
    let error = store_error(limiter.check(&DAILY, (), 1).await);
    assert!(matches!(error, StoreError::Timeout { .. }), "{error:?}");
    // If each call started its own attempt, none would succeed within the deadline.
    while limiter.check(&DAILY, (), 1).await.is_err() {}
    let connections = slow.connections();
    assert!(
        (1..=4).contains(&connections),
        "{connections}: one for the calls, the others for probes"
    );
}

/// After a timeout that a probe confirms, a connection is replaced, also if it has reported no error.
#[tokio::test]
async fn a_connection_without_replies_is_replaced() {
    let deadline = Duration::from_millis(150);
    let (_server, proxy, limiter) = through_network(Duration::ZERO, deadline);
    while limiter.check(&DAILY, (), 1).await.is_err() {}
    proxy.set(Network::Blackhole);
    let error = store_error(limiter.check(&DAILY, (), 1).await);
    assert!(matches!(error, StoreError::Timeout { .. }), "{error:?}");
    let start = Instant::now();
    while !matches!(store_error(limiter.check(&DAILY, (), 1).await), StoreError::CircuitOpen { .. })
    {
    }
    assert!(start.elapsed() < 3 * deadline, "{:?}", start.elapsed());
    proxy.set(Network::Up);
    wait_until_decided(&limiter).await;
    assert!(proxy.connections() >= 2);
}

#[tokio::test]
async fn calls_above_max_pending_are_rejected_without_a_request() {
    let server = Server::start();
    let limiter = server.builder().max_pending(3).build().expect("valid");
    limiter.check(&DAILY, (), 1).await.expect("admitted");
    let mut calls: Vec<_> = (0..4).map(|_| Box::pin(limiter.check(&DAILY, (), 1))).collect();
    let mut context = Context::from_waker(Waker::noop());
    let polls: Vec<_> = calls.iter_mut().map(|call| call.as_mut().poll(&mut context)).collect();
    let [Poll::Pending, Poll::Pending, Poll::Pending, Poll::Ready(fourth)] = &polls[..] else {
        panic!("{polls:?}")
    };
    let error = store_error(fourth.clone());
    assert!(matches!(error, StoreError::Overloaded { max_pending: 3, .. }), "{error:?}");
    assert!(error.to_string().contains("max_pending"), "{error}");
    // Dropped calls are no longer pending.
    drop(calls);
    assert!(limiter.check(&DAILY, (), 1).await.is_ok());
}
