//! What others do to the data of Redis: they flush scripts, delete keys, and write foreign values.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use ratelimit_runtime::{Algorithm, Limit, Part, Rejection, StoreError};
use redis::Commands;
use support::ALGORITHMS;
use support::server::Server;

use super::{DAILY, store_error};

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
        let _: () = connection.del(format!("rl:{algorithm}:7d:deleted{{1}}")).expect("DEL");
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
        let key = format!("rl:{algorithm}:1m:foreign{{1}}");
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
        let name = |algorithm: Algorithm| format!("rl:{algorithm}:1m:group{{1}}");
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

/// Redis may have executed the script of a failed request.
#[tokio::test]
async fn a_request_is_not_repeated_after_an_error() {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid");
    let mut connection = server.connection();
    assert!(limiter.check(&DAILY, 1, 1).await.is_ok());
    let mut calls = |command: &str| {
        let stats: String =
            redis::cmd("INFO").arg("commandstats").query(&mut connection).expect("INFO");
        let start = format!("cmdstat_{command}:calls=");
        let line = stats.lines().find_map(|line| line.strip_prefix(&start));
        line.and_then(|line| line.split(',').next())
            .map_or(0, |count| count.parse().expect("a count"))
    };
    let mut other = server.connection();
    let _: () = other.hset("rl:sliding:1d:daily{2}", "field", 1).expect("HSET");
    let before = calls("evalsha");
    for _ in 0..5 {
        store_error(limiter.check(&DAILY, 2, 1).await);
    }
    assert_eq!((calls("evalsha") - before, calls("eval")), (5, 1));
}
