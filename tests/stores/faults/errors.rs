//! Errors of the server and of settings: each names what is wrong and what to write, and no password. Also what others
//! do to the data of Redis.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ratelimit_runtime::{BuildError, Limit, Part, RateLimiter, Rejection, StoreError};
use redis::Commands;
use support::limits::{DAY, MINUTE, limits};
use support::server::Server;
use tokio::task::JoinSet;

use super::{DAILY, denying_builder, store_error, wait_briefly_until};

/// The scripts of single limits, of several limits and of batches report a right that only a script needs.
#[tokio::test]
async fn every_script_reports_a_missing_right() {
    let server = Server::start();
    let mut connection = server.connection();
    // The name of a user can be the code of another error.
    let url = server.url.replace("redis://", "redis://OOM:any@");
    for denied in ["-get", "-getrange", "-setrange", "-time"] {
        let mut user = redis::cmd("ACL");
        user.arg(&["SETUSER", "OOM", "reset", "on", "nopass", "~rl:*", "+@all", denied]);
        user.exec(&mut connection).expect("ACL SETUSER");
        let limiter =
            denying_builder(&url).deadline(Duration::from_secs(5)).build().expect("valid");
        let assert_advice = |error: &StoreError| {
            let StoreError::Server { code, .. } = error else { panic!("{denied}: {error:?}") };
            assert_eq!(&**code, "NOPERM", "{denied}: {error}");
            assert!(error.to_string().contains("allow this user"), "{denied}: {error}");
            assert!(error.to_string().contains("Clock::Client"), "{denied}: {error}");
        };
        let fixed = Limit::fixed("rights", 40, MINUTE);
        let of = |index: u8| if index.is_multiple_of(2) { &DAILY } else { &fixed };
        let all = [Part::new(&DAILY, &1, 1), Part::new(&fixed, &1, 1)];
        assert_advice(&store_error(limiter.check_all(&all).await));
        // Concurrent calls share scripts.
        let mut calls = tokio::task::JoinSet::new();
        for index in 0..32 {
            calls.spawn(limiter.check(of(index), index, 1));
        }
        let results = calls.join_all().await;
        let errors: Vec<_> = results.into_iter().filter(Result::is_err).map(store_error).collect();
        assert!(errors.len() >= 16, "{denied}: {} errors", errors.len());
        errors.iter().for_each(assert_advice);
    }
}

#[tokio::test]
async fn errors_of_the_server_contain_advice() {
    let (server, limiter) = Server::with_limiter();
    let mut connection = server.connection();
    let mut run = |words: &[&str]| {
        redis::cmd(words[0]).arg(&words[1..]).exec(&mut connection).expect("a reply");
    };
    let assert_error = async |code: &str, advice: &str| {
        let error = store_error(limiter.check(&DAILY, (), 1).await);
        let StoreError::Server { code: actual, .. } = &error else { panic!("{error:?}") };
        assert_eq!(&**actual, code, "{error}");
        assert!(error.to_string().contains(advice), "{error}");
    };
    assert!(limiter.check(&DAILY, (), 1).await.is_ok());

    run(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_error("OOM", "maxmemory").await;
    run(&["CONFIG", "SET", "maxmemory", "0"]);

    run(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    assert_error("NOREPLICAS", "min-replicas-to-write").await;
    run(&["CONFIG", "SET", "min-replicas-to-write", "0"]);

    run(&["REPLICAOF", "127.0.0.1", "1"]);
    assert_error("READONLY", "primary").await;
    run(&["REPLICAOF", "NO", "ONE"]);
    // Redis receives no requests until it answers a probe.
    wait_briefly_until(async || limiter.check(&DAILY, (), 1).await.is_ok()).await;

    run(&["CONFIG", "SET", "lua-time-limit", "1"]);
    let mut other = server.connection();
    let endless = std::thread::spawn(move || {
        let mut script = redis::cmd("EVAL");
        let script = script.arg("while true do end").arg(0);
        script.exec(&mut other).expect_err("the script is killed");
    });
    // The server reports BUSY once the script has run for `lua-time-limit`.
    let busy = loop {
        match limiter.check(&DAILY, (), 1).await {
            Ok(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            Err(Rejection::Unavailable { error, .. }) => break error,
            Err(other) => panic!("{other:?}"),
        }
    };
    assert!(matches!(&busy, StoreError::Server { code, .. } if &**code == "BUSY"), "{busy:?}");
    assert!(busy.to_string().contains("SCRIPT KILL"), "{busy}");
    run(&["SCRIPT", "KILL"]);
    endless.join().expect("no panic");
    assert!(limiter.check(&DAILY, (), 1).await.is_ok());
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
        "redis+cluster://user:hunter2@one,user:hunter2@other",
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
    assert_eq!(RateLimiter::builder().max_pending(0).build().err(), Some(BuildError::ZeroPending));
    let zero = RateLimiter::builder().deadline(Duration::ZERO).build();
    assert_eq!(zero.err(), Some(BuildError::ZeroDeadline));
    assert_eq!(RateLimiter::builder().max_keys(0).build().err(), Some(BuildError::ZeroKeys));
}

#[test]
fn the_error_of_a_url_that_is_not_understood_whole_says_what_to_write() {
    for (url, advice) in [
        ("redis://one,other", "redis+cluster://"),
        ("redis://one,other/3", "redis+sentinel://"),
        ("redis://host/-1", "negative"),
        ("redis://host/0/1", "Invalid database number"),
        ("redis+cluster://host/1/2", "Invalid database number"),
        ("redis+cluster://host/one", "Invalid database number"),
        ("redis+cluster://host/-1", "negative"),
        ("redis+cluster://one,,other", "no host"),
        ("redis+sentinel://host/service/1/2", "Invalid database number"),
        ("redis+sentinel://host/my%20service", "letters, digits"),
        ("redis+sentinel://user:1/word@host", "`%2F`"),
        ("redis+sentinel://host:/service", "[:port]"),
        ("redis+sentinel://host/service?sentinel_user=ann", "`user:password@`"),
        ("redis+sentinel://host/service?sentinel_password", "sentinel_password=…"),
        ("redis://ann@host", "`user:password@`"),
        ("redis://:one@:two@host", "`%40`"),
        ("redis://:pass\tword@host", "percent-encode"),
        ("redis://host#insecure", "root_certificates"),
        ("rediss+cluster://host#insecure", "root_certificates"),
        ("redis://host?protocol=resp3&protocol=resp2", "twice"),
        ("redis+unix:///run/redis.sock?database=1", "`?db=3&"),
        ("unix:///run/redis.sock?db=-1", "negative"),
        ("unix:///run/redis.sock?user=ann", "`user:password@`"),
        ("unix://ann:word@localhost/run/redis.sock", "`unix:///path"),
        ("rediss+unix:///run/redis.sock", "unix:///path"),
        ("redis+srv://host", "redis+cluster://"),
        ("redis:host", "redis://"),
    ] {
        let error = RateLimiter::builder().redis(url).build().err();
        let Some(error @ BuildError::InvalidUrl { .. }) = error else { panic!("{url}: {error:?}") };
        let error = error.to_string();
        assert!(error.contains(advice), "{url}: {error}");
    }
}

#[test]
fn urls_as_other_clients_write_them_are_accepted() {
    for scheme in ["redis", "valkey", "rediss", "valkeys", "REDIS"] {
        for url in ["://host", "://host:6380/3", "://:p+s:w@host/", "+cluster://one,other:6380/3"] {
            let url = format!("{scheme}{url}");
            assert!(RateLimiter::builder().redis(&*url).build().is_ok(), "{url}");
        }
        for separator in ['+', '-'] {
            let url = format!(" {scheme}{separator}sentinel://one,[::1]:26380/service/3\n");
            assert!(RateLimiter::builder().redis(&*url).build().is_ok(), "{url}");
            let url = format!("{scheme}{separator}cluster://user:word@one,other/");
            assert!(RateLimiter::builder().redis(&*url).build().is_ok(), "{url}");
        }
    }
    for scheme in ["unix", "redis+unix", "valkey+unix"] {
        let url = format!("{scheme}:///run/redis.sock?db=1&user=ann&pass=word");
        assert!(RateLimiter::builder().redis(&*url).build().is_ok(), "{url}");
    }
}

// What others do to the data of Redis: they flush scripts, delete keys, and write foreign values.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn script_flushes_during_calls_charge_no_call_twice() {
    let (server, limiter) = Server::with_limiter();
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
    let (server, limiter) = Server::with_limiter();
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
            limiter.block(limit, 1, MINUTE).await.expect_err("not the state of a limit");
            limiter.unblock(limit, 1).await.expect_err("not the state of a limit");
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
    let (server, limiter) = Server::with_limiter();
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
