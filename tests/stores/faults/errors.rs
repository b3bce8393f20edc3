//! Errors of the server and of settings: each names what is wrong and what to write, and no password.

use std::time::Duration;

use ratelimit_runtime::{BuildError, Limit, Part, RateLimiter, Rejection, StoreError};
use support::limits::MINUTE;
use support::server::Server;

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
    let server = Server::start();
    let limiter = server.builder().build().expect("valid");
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
