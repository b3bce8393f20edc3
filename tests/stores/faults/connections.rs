//! Connections and the circuit breaker. They recover without the help of callers and their runtimes. What a server does
//! that does not reply, and several runtimes or none.

use std::sync::Arc;
use std::thread;
use std::time::Instant;

use futures::TryFutureExt;
use futures::executor::block_on;
use futures::future::join_all;
use ratelimit_runtime::Decision;
use support::wait::block_until;
use tokio::runtime::Runtime;

use super::*;

const DEADLINE: Duration = Duration::from_millis(100);

/// Returns whether the circuit breaker rejected the call.
fn is_open(result: &Result<Decision, Rejection>) -> bool {
    matches!(result, Err(Rejection::Unavailable { error: StoreError::CircuitOpen { .. }, .. }))
}

fn decide(runtime: &Runtime, limiter: &RateLimiter) -> Result<Decision, Rejection> {
    runtime.block_on(limiter.check(&HOURLY, (), 1))
}

/// Each of many runtimes keeps its connection, and one probe closes the breaker for all of them.
#[test]
fn the_breaker_closes_for_a_runtime_that_is_polled_only_during_calls() {
    for count in [1, 40] {
        let (_server, proxy, limiter) = through_network(Duration::ZERO, DEADLINE);
        let runtimes: Vec<_> = (0..count).map(|_| runtime()).collect();
        let all = |condition: fn(&Result<Decision, Rejection>) -> bool| {
            for runtime in &runtimes {
                block_until("a decision", || condition(&decide(runtime, &limiter)));
            }
        };
        (0..3).for_each(|_| all(Result::is_ok));
        let before = proxy.connections();
        assert!(before <= count + 5, "{before} connections for {count} runtimes");
        proxy.set(Network::Cut);
        all(is_open);
        let before = proxy.connections();
        proxy.set(Network::Up);
        all(Result::is_ok);
        let made = proxy.connections() - before;
        assert!(made <= count + 5, "{made} connections for {count} runtimes and the probe");
    }
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
    let (first, second) = (runtime(), runtime());
    block_until("a decision", || decide(&first, &limiter).is_ok());
    let both = || {
        decide(&first, &limiter).expect("a connection that replies is used");
        decide(&second, &limiter)
    };
    set_clients(2);
    block_until("a decision", || is_open(&both()));
    (0..100).for_each(|_| drop(both().expect_err("no connection")));
    set_clients(100);
    block_until("a decision", || decide(&second, &limiter).is_ok());
}

/// Replies come after the deadline, so no call waits for them once that is known.
#[test]
fn a_slow_server_is_asked_by_probes_alone() {
    let (_server, _proxy, limiter) = through_network(3 * DEADLINE / 2, DEADLINE);
    let runtime = Runtime::new().expect("a runtime");
    // The first call connects.
    for _ in 0..3 {
        assert!(decide(&runtime, &limiter).is_err());
        thread::sleep(4 * DEADLINE);
    }
    // Late replies arrive between the calls.
    let waits = |_: &u64| {
        thread::sleep(4 * DEADLINE);
        !is_open(&decide(&runtime, &limiter))
    };
    let timeouts = (0..10).filter(waits).count();
    assert!(timeouts <= 1, "{timeouts} calls have waited");
}

/// A blocked runtime sends no request before the deadline, so its calls time out. The server answers a probe.
#[test]
fn a_blocked_runtime_opens_no_breaker() {
    let (_server, _proxy, limiter) = through_network(Duration::from_millis(20), DEADLINE);
    let runtime = runtime();
    block_until("a decision", || decide(&runtime, &limiter).is_ok());
    for _ in 0..3 {
        runtime.block_on(async {
            let check = |key| Box::pin(limiter.check(&HOURLY, key, 1));
            let mut calls: Vec<_> = (0..5).map(check).collect();
            assert!(calls.iter_mut().all(|call| call.now_or_never().is_none()));
            thread::sleep(2 * DEADLINE);
            assert!(join_all(calls).await.iter().all(Result::is_err));
        });
        decide(&runtime, &limiter).expect("admitted");
    }
}

/// Callers that drop their calls before the deadline do not observe a timeout. The connection itself does.
#[tokio::test]
async fn a_dead_connection_is_replaced_though_callers_drop_their_calls_early() {
    let (_server, proxy, limiter) = through_network(Duration::ZERO, DEADLINE);
    while !is_admitted(&limiter).await {}
    proxy.set(Network::Blackhole);
    let patience = Duration::from_millis(80);
    assert!(timeout(patience, is_admitted(&limiter)).await.is_err());
    // A connection that has lost bytes stays dead. A new one works.
    proxy.set(Network::Up);
    let again = wait_until(async || timeout(patience, is_admitted(&limiter)).await == Ok(true));
    timeout(50 * DEADLINE, again).await.expect("a new connection");
}

/// The server replies after the callers have dropped their calls, but within the deadline.
#[tokio::test]
async fn a_connection_to_a_slow_server_is_kept() {
    let (_server, proxy, limiter) = through_network(2 * DEADLINE, 4 * DEADLINE);
    while !is_admitted(&limiter).await {}
    // If the first call has timed out, the thread connects as well.
    let mut before = 0;
    while before != proxy.connections() {
        before = proxy.connections();
        sleep(Duration::from_secs(1)).await;
    }
    for _ in 0..30 {
        let early = timeout(DEADLINE / 2, is_admitted(&limiter)).await;
        assert!(early.is_err(), "a reply before the end of the round trip: {early:?}");
    }
    assert!(is_admitted(&limiter).await);
    assert_eq!(proxy.connections(), before);
}

/// A login and a probe together take longer than a deadline.
#[tokio::test]
async fn a_breaker_closes_although_the_server_is_far() {
    let (_server, proxy, limiter) = through_network(3 * DEADLINE, 5 * DEADLINE);
    // An attempt to connect outlasts the call that started it. So no call starts its own.
    store_error(limiter.check(&HOURLY, (), 1).await);
    wait_until_admitted(&limiter, 5).await;
    let made = proxy.connections();
    assert!((1..=4).contains(&made), "{made}: one for the calls, the others for probes");
    proxy.set(Network::Cut);
    wait_until(async || !is_admitted(&limiter).await).await;
    sleep(10 * DEADLINE).await;
    proxy.set(Network::Up);
    wait_until_admitted(&limiter, 5).await;
}

/// Calls wait neither for the replies of batches that are pending, nor for leases that another call requests.
#[tokio::test]
async fn calls_with_a_distant_server_end_within_their_deadline() {
    let deadline = 15 * DEADLINE;
    let leased = Limit::sliding("leased", 1_000_000, HOUR).lease(50);
    for (limit, keys) in [(HOURLY, 300), (leased, 1)] {
        let (_server, _proxy, limiter) = through_network(8 * DEADLINE, deadline);
        let times = async |calls: usize, pause| {
            let mut tasks = JoinSet::new();
            for call in 0..calls {
                let (check, start) = (limiter.check(&limit, call % keys, 1), Instant::now());
                tasks.spawn(check.map_ok(move |_| start.elapsed()));
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

/// Its runtime is not polled meanwhile.
#[test]
fn a_connection_that_the_server_closed_is_replaced_before_the_next_call() {
    let (server, limiter) = Server::with_limiter();
    let runtime = runtime();
    for _ in 0..5 {
        decide(&runtime, &limiter).expect("admitted");
        thread::sleep(3 * DEADLINE / 2);
        // As the server does with idle connections if `timeout` is set.
        server.command::<()>("CLIENT KILL TYPE normal SKIPME yes");
        thread::sleep(DEADLINE / 2);
    }
    decide(&runtime, &limiter).expect("admitted");
}

/// The first call is polled while the limiter connects, and then kept. It owns nothing that other calls wait for.
#[tokio::test]
async fn a_call_that_is_not_polled_does_not_delay_a_reconnect() {
    let server = Server::start();
    let proxy = Proxy::start(server.port(), DEADLINE / 5);
    let limiter = denying_builder(&proxy.url()).deadline(DEADLINE).build().expect("valid");
    let mut calls = ["first", "kept"].map(|key| Box::pin(limiter.check(&HOURLY, key, 1)));
    assert!(calls.iter_mut().all(|call| call.now_or_never().is_none()));
    let [first, kept] = calls;
    first.await.expect("admitted");
    proxy.set(Network::Cut);
    while is_admitted(&limiter).await {}
    proxy.set(Network::Up);
    wait_until_admitted(&limiter, 5).await;
    drop(kept);
}

#[tokio::test]
async fn connections_to_a_replica_are_limited() {
    let ((server, limiter), primary) = (Server::with_limiter(), Server::start());
    assert!(is_admitted(&limiter).await);
    server.command::<()>(&format!("REPLICAOF 127.0.0.1 {}", primary.port()));
    let accepted = || server.stat("total_connections_received:");
    let before = accepted();
    let (start, mut calls) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(1) {
        store_error(limiter.check(&HOURLY, (), 1).await);
        calls += 1;
        yield_now().await;
    }
    let made = accepted() - before;
    assert!(made < 20, "{made} connections for {calls} calls in a second");
    server.command::<()>("REPLICAOF NO ONE");
    wait_until_admitted(&limiter, 5).await;
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
    wait_until(async || limiter.ping().await.is_ok()).await;
    server.command::<()>("REPLICAOF 127.0.0.1 1");
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
        let decision = runtime().block_on(limiter.check(&DAILY, (), 1)).expect("admitted");
        assert_eq!(decision.remaining, left);
        // The connection of this test remains.
        block_until("a decision", || {
            let clients = redis::cmd("CLIENT").arg("LIST").query::<String>(&mut connection);
            clients.expect("CLIENT LIST").lines().count() <= 1
        });
    }
}

// Several runtimes, or none: each has a connection of its own, and none depends on another.

/// A runtime that is no longer polled while it connects.
#[test]
fn an_idle_runtime_does_not_keep_others_from_connecting() {
    let server = Server::start();
    let limiter = server.builder().deadline(2 * DEADLINE).build().expect("valid");
    let mut connecting = Box::pin(limiter.check(&DAILY, (), 1));
    let stuck = runtime();
    stuck.block_on(async { assert!(connecting.as_mut().now_or_never().is_none()) });
    let running = Runtime::new().expect("a runtime");
    let decided = (0..20).any(|_| decide(&running, &limiter).is_ok());
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
    block_on(limiter.acquire(&DAILY, (), 10)).expect("admitted").settle(4);
    block_on(limiter.flush()).expect("settled");
    let decision = limiter.check_blocking(&DAILY, (), 1).expect("admitted");
    assert_eq!((decision.remaining, decision.source), (500 - 25, Source::Redis));
    assert_eq!(block_on(limiter.peek(&DAILY, (), 1)).expect("a peek").remaining, 500 - 25);
    assert_eq!(block_on(limiter.operator().usage(&DAILY, ())).expect("a reply").used, 25);
    block_on(limiter.scope(async { synchronous(1) })).expect("admitted");
    assert_eq!(block_on(limiter.block(&DAILY, (), MINUTE)), Ok(()));
    assert_eq!(block_on(limiter.unblock(&DAILY, ())), Ok(true));
    // Calls that are dropped keep nothing from ending.
    for _ in 0..20 {
        let _ = limiter.check(&DAILY, (), 1).now_or_never();
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
    let leased = Limit::sliding("leased", 500, DAY).lease(5);
    let server = Server::start();
    let limiter = server.builder().deadline(DEADLINE).build().expect("valid");
    runtime().block_on(async {
        // The server learns the scripts.
        for _ in 0..5 {
            join_all((0..30).map(|_| limiter.check(&DAILY, (), 1))).await;
        }
        // One call is sent alone, many are sent in batches.
        for (round, calls) in [1, 1, 1, 1, 30, 30].into_iter().enumerate() {
            let mut calls: JoinSet<_> = (0..calls).map(|_| limiter.check(&DAILY, (), 1)).collect();
            calls.spawn(limiter.check(&leased, (), 1));
            // The requests are sent, and the replies arrive while the runtime is blocked.
            for _ in 0..10 {
                yield_now().await;
            }
            thread::sleep(5 * DEADLINE);
            for result in calls.join_all().await {
                assert!(result.is_ok(), "in round {round}, Redis has replied in time: {result:?}");
            }
        }
    });
}

// A server that does not reply, restarts or is too busy: calls end in time, and decisions resume.

#[tokio::test]
async fn decisions_resume_after_the_server_restarts() {
    let (server, limiter) = Server::with_limiter();
    assert!(limiter.check(&DAILY, (), 1).await.is_ok());
    let port = server.port();
    drop(server);
    // The connection breaks, the next attempt to connect fails, a probe does not connect either, and the breaker opens.
    let (start, mut causes) = (Instant::now(), Vec::new());
    while start.elapsed() < 3 * DEADLINE {
        match store_error(limiter.check(&DAILY, (), 1).await) {
            StoreError::Connection { .. } if causes.is_empty() => {}
            StoreError::CircuitOpen { cause, .. } => causes.push(cause),
            error => panic!("{error:?}"),
        }
        sleep(Duration::from_millis(1)).await;
    }
    let is_broken = |cause: &Arc<StoreError>| matches!(**cause, StoreError::Connection { .. });
    assert!(!causes.is_empty() && causes.iter().all(is_broken), "{causes:?}");
    let _restarted = Server::start_on(port);
    wait_until_admitted(&limiter, 1).await;
    assert_eq!(limiter.check(&DAILY, (), 1).await.expect("admitted").remaining, 499);
}

/// A call without a reply ends at its deadline. If a probe has none either, the connection is replaced, although it has
/// reported no error.
#[tokio::test]
async fn a_connection_without_replies_is_replaced() {
    let deadline = 3 * DEADLINE / 2;
    let (_server, proxy, limiter) = through_network(Duration::ZERO, deadline);
    while !is_admitted(&limiter).await {}
    proxy.set(Network::Blackhole);
    let start = Instant::now();
    let error = store_error(limiter.check(&HOURLY, (), 1).await);
    assert!(matches!(error, StoreError::Timeout { .. }), "{error:?}");
    assert!(start.elapsed() >= deadline);
    while !is_open(&limiter.check(&HOURLY, (), 1).await) {}
    assert!(start.elapsed() < 4 * deadline, "{:?}", start.elapsed());
    proxy.set(Network::Up);
    wait_until_admitted(&limiter, 1).await;
    assert!(proxy.connections() >= 2);
}
