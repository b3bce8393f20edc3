//! What others do to the data of Redis: they flush scripts, delete keys, and write foreign values.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ratelimit_runtime::{Part, Rejection, StoreError};
use redis::Commands;
use support::limits::{DAY, MINUTE, limits};
use support::server::Server;
use tokio::task::JoinSet;

use super::{DAILY, store_error};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn script_flushes_during_calls_charge_no_call_twice() {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid");
    let mut connection = server.connection();
    let done = Arc::new(AtomicBool::new(false));
    let is_done = Arc::clone(&done);
    let flusher = std::thread::spawn(move || {
        let mut flushes = 0;
        while !is_done.load(Ordering::Relaxed) {
            redis::cmd("SCRIPT").arg("FLUSH").exec(&mut connection).expect("SCRIPT FLUSH");
            flushes += 1;
        }
        flushes
    });
    let mut calls = JoinSet::new();
    for _ in 0..32 {
        let limiter = limiter.clone();
        calls.spawn(async move {
            let mut admitted = 0_u64;
            for _ in 0..40 {
                match limiter.check(&DAILY, (), 1).await {
                    Ok(_) => admitted += 1,
                    Err(Rejection::Limited { .. }) => {}
                    Err(other) => panic!("{other:?}"),
                }
            }
            admitted
        });
    }
    let admitted: u64 = calls.join_all().await.into_iter().sum();
    done.store(true, Ordering::Relaxed);
    assert!(flusher.join().expect("no panic") > 10);
    assert_eq!(admitted, 500);
}

#[tokio::test]
async fn a_deleted_key_starts_from_zero() {
    let server = Server::start();
    let limiter = server.builder().cache_rejections(false).build().expect("valid");
    let mut connection = server.connection();
    for limit in limits("deleted", 10, 7 * DAY) {
        assert!(limiter.check(&limit, 1, 10).await.is_ok());
        assert!(limiter.check(&limit, 1, 1).await.is_err());
        let key = format!("rl:{}:7d:deleted{{1}}", limit.algorithm());
        let _: () = connection.del(key).expect("DEL");
        assert_eq!(limiter.check(&limit, 1, 1).await.expect("admitted").remaining, 9);
    }
}

#[tokio::test]
async fn a_foreign_key_is_not_changed_and_the_error_names_it() {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid");
    let mut connection = server.connection();
    let limits: Vec<_> = limits("foreign", 10, MINUTE).collect();
    let parts: Vec<_> = limits.iter().map(|limit| Part::new(limit, &1, 1)).collect();
    for limit in &limits {
        let key = format!("rl:{}:1m:foreign{{1}}", limit.algorithm());
        // A value of another type, and strings that are shorter than a state, as long, and longer.
        for length in [0, 1, 12, 16, 26, 35, 100] {
            let word = "x".repeat(length);
            let _: () = match length {
                0 => connection.hset(&key, "field", &word).expect("HSET"),
                _ => redis::cmd("SET").arg(&key).arg(&word).query(&mut connection).expect("SET"),
            };
            let alone = store_error(limiter.check(limit, 1, 1).await);
            for error in [alone, store_error(limiter.check_all(&parts).await)] {
                let StoreError::ForeignKey { key: named, .. } = &error else { panic!("{error:?}") };
                assert_eq!(**named, *key);
                assert!(error.to_string().contains(&key), "{error}");
            }
            let value: String = match length {
                0 => connection.hget(&key, "field").expect("HGET"),
                _ => connection.get(&key).expect("GET"),
            };
            assert_eq!(value, word);
            // The other keys are not charged.
            assert_eq!(connection.keys::<_, Vec<String>>("*").expect("KEYS"), [&*key]);
        }
        limiter.reset(limit, 1).await.expect("a reply");
        limiter.check(limit, 1, 1).await.expect("admitted");
        limiter.reset(limit, 1).await.expect("a reply");
    }
    limiter.check_all(&parts).await.expect("admitted");
}

/// Redis may have executed the script of a failed request.
#[tokio::test]
async fn a_request_is_not_repeated_after_an_error() {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid");
    assert!(limiter.check(&DAILY, 1, 1).await.is_ok());
    let mut other = server.connection();
    let _: () = other.hset("rl:sliding:1d:daily{2}", "field", 1).expect("HSET");
    let before = server.script_calls();
    for _ in 0..5 {
        store_error(limiter.check(&DAILY, 2, 1).await);
    }
    let texts = server.stat("cmdstat_eval:calls=");
    assert_eq!((server.script_calls() - before, texts), (5, 1));
}
