//! Rules whose names no limit has are reported once, a minute after they came, with the nearest name.

use std::fs;
use std::time::{Duration, Instant};

use ratelimit_runtime::{RateLimiter, Rejection, Rules, rate_limit};
use redis::Commands;
use support::log::Log;
use support::server::Server;

const RULES: &str = r#"{
    "search/1m": { "threshold": 5 },
    "serach": { "threshold": 5 },
    "search/1h": { "threshold": 5 },
    "elsewhere": { "threshold": 5 },
    "unlike": { "shadow": true }
}"#;

#[rate_limit(name = "search", period = "1m", threshold = 10)]
async fn search() -> Result<(), Rejection> {
    Ok(())
}

/// What another process has announced.
fn announce(server: &Server) {
    let limit = r#"{"name":"elsewhere","threshold":1,"period":"1m"}"#;
    let limit = format!(r#"{{"limit":{limit},"place":"lib.rs:1:1","is_computed":false}}"#);
    let process = format!(r#"{{"id":"~other","rules":"","limits":[{limit}]}}"#);
    let mut connection = server.connection();
    let _: () = connection.set("ratelimit:{rules}:process:~other", process).expect("written");
    let _: () =
        connection.zadd("ratelimit:{rules}:processes", "~other", u64::MAX).expect("written");
}

#[tokio::test]
async fn rules_of_no_limit_are_reported_once() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(log.writer()).finish();
    tracing::subscriber::set_global_default(subscriber).expect("the only test");
    let server = Server::start();
    let path = std::env::temp_dir().join(format!("unseen-{}.json", std::process::id()));
    fs::write(&path, RULES).expect("written");
    let by_file = RateLimiter::builder().rules(Rules::file(&path)).build().expect("valid");
    let by_redis = server.builder().rules(Rules::redis()).build().expect("valid");
    let mut shared = by_redis.shared_rules().await.expect("read");
    shared.rules = ratelimit_runtime::RuleSet::from_json(RULES).expect("valid");
    by_redis.share_rules(shared, "alice").await.expect("written");
    announce(&server);
    let started = Instant::now();
    let reports = || -> Vec<String> {
        let lines = log.text();
        let lines = lines.lines().filter(|line| line.contains("the name of this rule"));
        lines.map(|line| line.split_once(": ").expect("a target").1.to_owned()).collect()
    };
    while reports().len() < 7 && started.elapsed() < Duration::from_secs(90) {
        for limiter in [&by_file, &by_redis] {
            limiter.scope(search()).await.ok();
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    assert!(started.elapsed() >= Duration::from_secs(59), "before all limits were called");
    tokio::time::sleep(Duration::from_secs(2)).await;
    fs::remove_file(path).expect("removed");
    let reports = reports();
    let reported = |words: &str, rule: &str, nearest: &str| {
        let end = format!("the name of this rule rule=\"{rule}\"{nearest}");
        let has = |line: &&String| line.starts_with(words) && line.ends_with(&end);
        assert_eq!(reports.iter().filter(has).count(), 1, "{words} {rule} {nearest}: {reports:#?}");
    };
    for words in ["no call of this process", "no annotated limit of the running processes"] {
        reported(words, "serach", " nearest=\"search\"");
        reported(words, "search/1h", " nearest=\"search\"");
        reported(words, "unlike", "");
    }
    reported("no call of this process", "elsewhere", "");
    assert_eq!(reports.len(), 7, "{reports:#?}");
}
