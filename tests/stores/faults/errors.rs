//! Errors of the server and of settings: each names what is wrong and what to write, and no password. Also what others
//! do to the data of Redis.

use ratelimit_runtime::BuildError;

use super::*;

/// The scripts of single limits, of several limits and of batches report a right that only a script needs.
#[tokio::test]
async fn every_script_reports_a_missing_right() {
    let server = Server::start();
    // The name of a user can be the code of another error.
    let url = server.url.replace("redis://", "redis://OOM:any@");
    let limits = [DAILY, Limit::fixed("rights", 40, MINUTE)];
    let all = limits.each_ref().map(|limit| Part::new(limit, &1, 1));
    for denied in ["-get", "-getrange", "-setrange", "-time"] {
        server.command::<()>(&format!("ACL SETUSER OOM reset on nopass ~rl:* +@all {denied}"));
        let limiter = denying_builder(&url).build().expect("valid");
        let several = limiter.check_all(&all).await;
        // Concurrent calls share scripts.
        let calls = (0..32).map(|call| limiter.check(&limits[call % 2], call as u64, 1));
        let mut results = calls.collect::<JoinSet<_>>().join_all().await;
        results.retain(Result::is_err);
        assert!(results.len() >= 16, "{denied}: {} errors", results.len());
        for error in results.into_iter().chain([several]).map(store_error) {
            assert_advises(&error, "NOPERM", "allow this user");
            assert_advises(&error, "NOPERM", "Clock::Client");
        }
    }
}

#[tokio::test]
async fn errors_of_the_server_contain_advice() {
    let (server, limiter) = Server::with_limiter();
    let check = || limiter.check(&DAILY, (), 1);
    check().await.expect("admitted");
    for ([command, fault, end], code, advice) in [
        (["CONFIG SET maxmemory", "1", "0"], "OOM", "maxmemory"),
        (["CONFIG SET min-replicas-to-write", "1", "0"], "NOREPLICAS", "min-replicas-to-write"),
        (["REPLICAOF", "127.0.0.1 1", "NO ONE"], "READONLY", "primary"),
    ] {
        server.command::<()>(&format!("{command} {fault}"));
        assert_advises(&store_error(check().await), code, advice);
        server.command::<()>(&format!("{command} {end}"));
    }
    // Redis receives no requests until it answers a probe.
    wait_until_admitted(&limiter, 5).await;

    server.command::<()>("CONFIG SET lua-time-limit 1");
    let (mut first, mut second) = (server.connection(), server.connection());
    let endless = std::thread::spawn(move || {
        let mut script = redis::cmd("EVAL");
        let script = script.arg("while true do end").arg(0);
        script.exec(&mut first).expect_err("the script is killed");
    });
    // The server reports BUSY once the script has run for `lua-time-limit`.
    let busy = loop {
        match check().await {
            Ok(_) => sleep(Duration::from_millis(1)).await,
            undecided => break store_error(undecided),
        }
    };
    assert_advises(&busy, "BUSY", "SCRIPT KILL");
    redis::cmd("SCRIPT").arg("KILL").exec(&mut second).expect("SCRIPT KILL");
    endless.join().expect("no panic");
    check().await.expect("admitted");
}

/// Returns the error of an invalid URL. It has no password.
fn url_error(url: &str) -> String {
    let error = RateLimiter::builder().redis(url).build().err();
    let Some(error @ BuildError::InvalidUrl { .. }) = error else { panic!("{url}: {error:?}") };
    assert!(!format!("{error}{error:?}").contains("hunter2"), "{error:?}");
    error.to_string()
}

#[test]
fn errors_of_invalid_settings_name_the_setting_and_no_password() {
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
        let error = url_error(url);
        assert!(error.contains("redis://"), "{error}");
    }
    let builder = RateLimiter::builder;
    let secret = builder().redis("redis://u:hunter2@localhost").root_certificates("hunter2");
    let secret = secret.client_certificate("hunter2", "hunter2");
    assert!(!format!("{secret:?}").contains("hunter2"));
    for (builder, error) in [
        (builder().redis("redis://localhost").key_prefix("{shop}"), BuildError::BracesInPrefix),
        (builder().max_pending(0), BuildError::ZeroPending),
        (builder().deadline(Duration::ZERO), BuildError::ZeroDeadline),
        (builder().max_keys(0), BuildError::ZeroKeys),
    ] {
        assert_eq!(builder.build().err(), Some(error));
    }
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
        let error = url_error(url);
        assert!(error.contains(advice), "{url}: {error}");
    }
}

#[test]
fn urls_as_other_clients_write_them_are_accepted() {
    let mut urls = Vec::new();
    for scheme in ["redis", "valkey", "rediss", "valkeys", "REDIS"] {
        for url in ["://host", "://host:6380/3", "://:p+s:w@host/", "+cluster://one,other:6380/3"] {
            urls.push(format!("{scheme}{url}"));
        }
        for separator in ['+', '-'] {
            urls.push(format!(" {scheme}{separator}sentinel://one,[::1]:26380/service/3\n"));
            urls.push(format!("{scheme}{separator}cluster://user:word@one,other/"));
        }
    }
    for scheme in ["unix", "redis+unix", "valkey+unix"] {
        urls.push(format!("{scheme}:///run/redis.sock?db=1&user=ann&pass=word"));
    }
    for url in urls {
        assert!(RateLimiter::builder().redis(&*url).build().is_ok(), "{url}");
    }
}

// What others do to the data of Redis: they flush scripts, delete keys, and write foreign values.

#[tokio::test]
async fn a_deleted_key_starts_from_zero() {
    let server = Server::start();
    let limiter = server.builder().cache_rejections(false).build().expect("valid");
    for limit in limits("deleted", 10, 7 * DAY) {
        assert!(limiter.check(&limit, 1, 10).await.is_ok());
        assert!(limiter.check(&limit, 1, 1).await.is_err());
        server.command::<()>(&format!("DEL rl:{}:7d:deleted{{1}}", limit.algorithm()));
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
        let dump = redis::cmd("DUMP").arg(&key).to_owned();
        let scripts = || server.script_calls() + server.stat("cmdstat_eval:calls=");
        let mut value = || dump.query::<Vec<u8>>(&mut connection).expect("DUMP");
        // A value of another type, and strings that are shorter than a state, as long, and longer.
        for length in [0, 1, 12, 16, 26, 35, 100] {
            server.command::<()>(&match length {
                0 => format!("HSET {key} field value"),
                _ => format!("SET {key} {}", "x".repeat(length)),
            });
            let (before, run) = (value(), scripts());
            let alone = store_error(limiter.check(limit, 1, 1).await);
            for error in [alone, store_error(limiter.check_all(&parts).await)] {
                let StoreError::ForeignKey { key: named, .. } = &error else { panic!("{error:?}") };
                assert_eq!(**named, *key);
                assert!(error.to_string().contains(&key), "{error}");
            }
            // Redis may have executed the script of a failed request, so none is repeated. The first ones load scripts.
            assert!(length == 0 || scripts() - run == 2);
            limiter.block(limit, 1, MINUTE).await.expect_err("not the state of a limit");
            limiter.unblock(limit, 1).await.expect_err("not the state of a limit");
            assert_eq!(value(), before);
            // The other keys are not charged.
            assert_eq!(server.ttls(), [(key.clone(), -1)]);
        }
        limiter.reset(limit, 1).await.expect("a reply");
        limiter.check(limit, 1, 1).await.expect("admitted");
        limiter.reset(limit, 1).await.expect("a reply");
    }
    limiter.check_all(&parts).await.expect("admitted");
}
