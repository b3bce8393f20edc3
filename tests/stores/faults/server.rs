//! Faults of Redis: flushed scripts, deleted keys, foreign keys, timeouts, restarts. Also the limits of
//! connections and requests, and invalid settings.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use ratelimit_runtime::{
    Algorithm, BuildError, Builder, Clock, Decision, Limit, OnError, Part, RateLimiter, Rejection,
    StoreError,
};
use redis::Commands;
use support::ALGORITHMS;
use support::proxy::{Network, Proxy};
use support::server::Server;

pub(crate) const DAILY: Limit = Limit::sliding("daily", 500, Duration::from_secs(86_400));

/// Returns the error of a call that was not decided.
pub(crate) fn store_error<T: std::fmt::Debug>(result: Result<T, Rejection>) -> StoreError {
    match result {
        Err(Rejection::Unavailable { error, .. }) => error,
        other => panic!("expected no decision, got {other:?}"),
    }
}

/// Returns a builder for limiters that reject calls which Redis does not decide.
pub(crate) fn denying_builder(url: &str) -> Builder {
    RateLimiter::builder().redis(url).on_error(OnError::Deny)
}

/// Returns the first decision after the server has recovered, within a second.
async fn first_decision(limiter: &RateLimiter) -> Decision {
    let start = Instant::now();
    loop {
        match limiter.check(&DAILY, (), 1).await {
            Ok(decision) => return decision,
            Err(error) => assert!(start.elapsed() < Duration::from_secs(1), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn calls_succeed_after_the_scripts_were_flushed() {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid");
    let mut connection = server.connection();
    for left in (495..500).rev() {
        let decision = limiter.check(&DAILY, (), 1).await.expect("admitted");
        assert_eq!(decision.remaining, left);
        redis::cmd("SCRIPT").arg("FLUSH").exec(&mut connection).expect("SCRIPT FLUSH");
    }
}

#[test]
fn script_flushes_during_calls_charge_no_call_twice() {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid");
    let (admitted, done) = (AtomicU32::new(0), AtomicBool::new(false));
    let mut connection = server.connection();
    std::thread::scope(|scope| {
        let flusher = scope.spawn(|| {
            let mut flushes = 0;
            while !done.load(Ordering::Relaxed) {
                redis::cmd("SCRIPT").arg("FLUSH").exec(&mut connection).expect("SCRIPT FLUSH");
                flushes += 1;
            }
            flushes
        });
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let calls: Vec<_> = (0..32)
            .map(|_| {
                let limiter = limiter.clone();
                runtime.spawn(async move {
                    let mut admitted = 0;
                    for _ in 0..40 {
                        match limiter.check(&DAILY, (), 1).await {
                            Ok(_) => admitted += 1,
                            Err(Rejection::Limited { .. }) => {}
                            Err(other) => panic!("{other:?}"),
                        }
                    }
                    admitted
                })
            })
            .collect();
        for call in calls {
            admitted.fetch_add(runtime.block_on(call).expect("no panic"), Ordering::Relaxed);
        }
        done.store(true, Ordering::Relaxed);
        assert!(flusher.join().expect("no panic") > 10);
    });
    assert_eq!(admitted.into_inner(), 500);
}

#[tokio::test]
async fn a_deleted_key_starts_from_zero() {
    let server = Server::start();
    let limiter = server.builder().cache_rejections(false).build().expect("valid");
    let mut connection = server.connection();
    let week = Duration::from_secs(7 * 86_400);
    for algorithm in [Algorithm::Sliding, Algorithm::Fixed, Algorithm::TokenBucket] {
        let limit = Limit::new("deleted", algorithm, 10, week).expect("valid");
        assert!(limiter.check(&limit, 1, 10).await.is_ok());
        assert!(limiter.check(&limit, 1, 1).await.is_err());
        let _: () = connection.del(format!("ratelimit:{algorithm}:7d:deleted{{1}}")).expect("DEL");
        assert_eq!(limiter.check(&limit, 1, 1).await.expect("admitted").remaining, 9);
    }
}

#[tokio::test]
async fn a_foreign_key_is_not_changed_and_the_error_names_it() {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid");
    let mut connection = server.connection();
    for algorithm in ALGORITHMS {
        let limit = Limit::new("foreign", algorithm, 10, Duration::from_secs(60)).expect("valid");
        let key = format!("ratelimit:{algorithm}:1m:foreign{{1}}");
        let _: () = connection.hset(&key, "field", "value").expect("HSET");
        let error = store_error(limiter.check(&limit, 1, 1).await);
        assert!(matches!(error, StoreError::ForeignKey { .. }), "{error:?}");
        assert!(error.to_string().contains(&key), "{error}");
        let value: String = connection.hget(&key, "field").expect("HGET");
        assert_eq!(value, "value");

        // Values that are shorter than a state, as long, and longer.
        for length in [1, 12, 16, 26, 35, 100] {
            let word = "x".repeat(length);
            let _: () = connection.set(&key, &word).expect("SET");
            let error = store_error(limiter.check(&limit, 1, 1).await);
            assert!(matches!(error, StoreError::ForeignKey { .. }), "{error:?}");
            assert_eq!(connection.get::<_, String>(&key).expect("GET"), word);
        }

        limiter.reset(&limit, 1).await.expect("a reply");
        assert!(limiter.check(&limit, 1, 1).await.is_ok());
    }
}

#[tokio::test]
async fn the_error_of_several_limits_names_only_the_foreign_key() {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid");
    let mut connection = server.connection();
    let limits: Vec<_> = ALGORITHMS
        .into_iter()
        .map(|algorithm| Limit::new("group", algorithm, 10, Duration::from_secs(60)))
        .map(|limit| limit.expect("valid"))
        .collect();
    for foreign in ALGORITHMS {
        let name = |algorithm: Algorithm| format!("ratelimit:{algorithm}:1m:group{{1}}");
        let parts: Vec<_> = limits.iter().map(|limit| Part::new(limit, &1, 1)).collect();
        let mut assert_foreign = async || {
            let error = store_error(limiter.check_all(&parts).await);
            let StoreError::ForeignKey { key, .. } = &error else { panic!("{error:?}") };
            assert_eq!(**key, *name(foreign));
            // The other keys are not charged.
            let keys: Vec<String> = connection.keys("*").expect("KEYS");
            assert_eq!(keys, [name(foreign)]);
        };
        let mut other = server.connection();
        // A value of another type, and a string that is not a state.
        let _: () = other.hset(name(foreign), "field", "value").expect("HSET");
        assert_foreign().await;
        let _: () = other.set(name(foreign), "x".repeat(32)).expect("SET");
        assert_foreign().await;
        let _: () = other.del(name(foreign)).expect("DEL");
    }
    let parts: Vec<_> = limits.iter().map(|limit| Part::new(limit, &1, 1)).collect();
    assert!(limiter.check_all(&parts).await.is_ok());
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
    let server = Server::start();
    let limiter = server.builder().build().expect("valid");
    assert!(limiter.check(&DAILY, (), 1).await.is_ok());
    let port = server.port();
    drop(server);
    // The connection breaks, the next attempt to connect fails, and the breaker opens.
    for number in 0..100 {
        match store_error(limiter.check(&DAILY, (), 1).await) {
            StoreError::Connection { .. } if number < 2 => {}
            StoreError::CircuitOpen { cause, .. } => {
                assert!(matches!(&*cause, StoreError::Connection { .. }), "{cause:?}");
            }
            error => panic!("{number}: {error:?}"),
        }
    }
    let _restarted = Server::start_on(port);
    assert_eq!(first_decision(&limiter).await.remaining, 499);
}

/// A connection attempt that takes longer than the deadline serves a later call.
#[tokio::test]
async fn a_connection_attempt_outlasts_the_call_that_started_it() {
    let server = Server::start();
    let slow = Proxy::start(server.port(), Duration::from_millis(300));
    let url = format!("redis://127.0.0.1:{}", slow.port);
    let deadline = Duration::from_millis(150);
    let limiter = denying_builder(&url).deadline(deadline).build().expect("valid");
    let error = store_error(limiter.check(&DAILY, (), 1).await);
    assert!(matches!(error, StoreError::Timeout { .. }), "{error:?}");
    // If each call started its own attempt, none would succeed within the deadline.
    while limiter.check(&DAILY, (), 1).await.is_err() {}
    assert_eq!(slow.connections(), 1);
}

/// After some timeouts, a connection is replaced, also if it has reported no error.
#[tokio::test]
async fn a_connection_without_replies_is_replaced() {
    let server = Server::start();
    let proxy = Proxy::start(server.port(), Duration::ZERO);
    let url = format!("redis://127.0.0.1:{}", proxy.port);
    let deadline = Duration::from_millis(150);
    let limiter = denying_builder(&url).deadline(deadline).build().expect("valid");
    while limiter.check(&DAILY, (), 1).await.is_err() {}
    proxy.set(Network::Blackhole);
    for _ in 0..3 {
        let error = store_error(limiter.check(&DAILY, (), 1).await);
        assert!(matches!(error, StoreError::Timeout { .. }), "{error:?}");
    }
    proxy.set(Network::Up);
    // The breaker is open: calls do not wait.
    let error = store_error(limiter.check(&DAILY, (), 1).await);
    assert!(matches!(error, StoreError::CircuitOpen { .. }), "{error:?}");
    first_decision(&limiter).await;
    assert!(proxy.connections() >= 2);
}

#[tokio::test]
async fn calls_above_max_in_flight_are_rejected_without_a_request() {
    let server = Server::start();
    let limiter = server.builder().max_in_flight(3).build().expect("valid");
    limiter.check(&DAILY, (), 1).await.expect("admitted");
    let mut calls: Vec<_> = (0..4).map(|_| Box::pin(limiter.check(&DAILY, (), 1))).collect();
    let mut context = Context::from_waker(Waker::noop());
    let polls: Vec<_> = calls.iter_mut().map(|call| call.as_mut().poll(&mut context)).collect();
    let [Poll::Pending, Poll::Pending, Poll::Pending, Poll::Ready(fourth)] = &polls[..] else {
        panic!("{polls:?}")
    };
    let error = store_error(fourth.clone());
    assert!(matches!(error, StoreError::Overloaded { max_in_flight: 3, .. }), "{error:?}");
    assert!(error.to_string().contains("max_in_flight"), "{error}");
    // Dropped calls are no longer in flight.
    drop(calls);
    assert!(limiter.check(&DAILY, (), 1).await.is_ok());
}

/// Some hosted services do not allow `TIME` in scripts.
#[tokio::test]
async fn the_error_of_a_server_without_time_suggests_the_client_clock() {
    let server = Server::start();
    let mut connection = server.connection();
    redis::cmd("ACL")
        .arg(&["SETUSER", "timeless", "on", "nopass", "~ratelimit:*", "+@all", "-time"])
        .exec(&mut connection)
        .expect("ACL SETUSER");
    let url = server.url.replace("redis://", "redis://timeless:any@");
    let limiter = denying_builder(&url).build().expect("valid");
    let error = store_error(limiter.check(&DAILY, (), 1).await);
    assert!(error.to_string().contains("Clock::Client"), "{error:?}");
    let limiter = denying_builder(&url).clock(Clock::Client).build().expect("valid");
    assert_eq!(limiter.check(&DAILY, (), 1).await.expect("admitted").remaining, 499);
}

/// The scripts read the time of the server with microseconds.
#[tokio::test]
async fn windows_can_be_shorter_than_a_second() {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid");
    let limit = Limit::sliding("short", 1, Duration::from_millis(900));
    assert!(limiter.check(&limit, (), 1).await.is_ok());
    tokio::time::sleep(Duration::from_millis(100)).await;
    let rejected = limiter.check(&limit, (), 1).await;
    let wait = rejected.expect_err("within the window").retry_after().expect("limited");
    assert!(wait <= Duration::from_millis(800), "{wait:?}");
}

/// Redis may have executed the script of a failed request.
#[tokio::test]
async fn a_request_is_not_repeated_after_an_error() {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid");
    let mut connection = server.connection();
    assert!(limiter.check(&DAILY, 1, 1).await.is_ok());
    let _: () = connection.hset("ratelimit:sliding:1d:daily{2}", "field", 1).expect("HSET");
    for _ in 0..5 {
        store_error(limiter.check(&DAILY, 2, 1).await);
    }
    let stats: String =
        redis::cmd("INFO").arg("commandstats").query(&mut connection).expect("INFO");
    let calls = |command: &str| {
        let line =
            stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        line.and_then(|line| line.split(',').next())
            .map_or(0, |count| count.parse().expect("a count"))
    };
    assert_eq!((calls("evalsha"), calls("eval")), (6, 1));
}

#[test]
fn errors_of_invalid_settings_name_the_setting_and_no_password() {
    let build = |url: &str| RateLimiter::builder().redis(url).build().err();
    for url in [
        "",
        "localhost",
        "http://localhost",
        "redis://user:hunter2@",
        "redis+sentinel://user:hunter2@localhost",
        "redis+sentinel://user:hunter2@/service",
        "redis+sentinel://localhost:port/service?sentinel_password=hunter2",
        "redis+cluster://user:hunter2@",
        "redis+cluster://user:hunter2@localhost,host:99999",
        "redis://user:ss#hunter2@localhost",
        "redis://user:ss?hunter2@localhost",
        "redis://user:hunter2@localhost?db=3",
        "redis+sentinel://localhost/service?password=hunter2",
        "redis+cluster://localhost?hunter2=1",
        "unix:///run/redis.sock?database=3",
    ] {
        let Some(error @ BuildError::InvalidUrl { .. }) = build(url) else {
            panic!("{url}: {:?}", build(url))
        };
        assert!(error.to_string().contains("redis://"), "{error}");
        assert!(!format!("{error}{error:?}").contains("hunter2"), "{error:?}");
    }
    let builder = RateLimiter::builder().redis("redis://u:hunter2@localhost");
    let builder = builder.client_certificate("hunter2", "hunter2").root_certificates("hunter2");
    assert!(!format!("{builder:?}").contains("hunter2"));
    let braces = RateLimiter::builder().redis("redis://localhost").key_prefix("{shop}").build();
    assert_eq!(braces.err(), Some(BuildError::BracesInPrefix));
    assert_eq!(
        RateLimiter::builder().max_in_flight(0).build().err(),
        Some(BuildError::ZeroInFlight)
    );
    let zero = RateLimiter::builder().deadline(Duration::ZERO).build();
    assert_eq!(zero.err(), Some(BuildError::ZeroDeadline));
    assert_eq!(RateLimiter::builder().max_keys(0).build().err(), Some(BuildError::ZeroKeys));
}
