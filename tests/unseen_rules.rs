//! Rules whose names no limit has are reported once, a minute after they came, with the nearest name. One process of a
//! fleet reads what all have announced, and a hostile announcement harms none.

use std::fs;
use std::time::{Duration, Instant};

use ratelimit_runtime::{Limit, RateLimiter, Rejection, RuleSet, Rules, rate_limit};
use redis::Commands;
use support::log::Log;
use support::server::Server;

const RULES: &str = r#"{
    "search/1m": { "threshold": 5, "burst": 9 },
    "serach": { "threshold": 5 },
    "search/1h": { "threshold": 5 },
    "elsewhere": { "threshold": 5 },
    "unlike": { "shadow": true }
}"#;

#[rate_limit(name = "search", period = "1m", threshold = 10)]
async fn search() -> Result<(), Rejection> {
    Ok(())
}

/// What other processes have announced: the last of many has the limit `elsewhere`, and some are hostile.
fn announce(server: &Server) {
    let mut connection = server.connection();
    let mut add = |id: &str, set: &dyn Fn(&str) -> redis::Cmd| {
        set(&format!("rl:{{rules}}:process:{id}")).exec(&mut connection).expect("written");
        let () = connection.zadd("rl:{rules}:processes", id, 4_000_000_000_000_u64).expect("added");
    };
    let mut announce = |id: &str, names: &[String]| {
        let limit = |name| {
            let limit = format!(r#"{{"name":"{name}","threshold":1,"period":"1m"}}"#);
            format!(r#"{{"limit":{limit},"place":"lib.rs:1:1","is_computed":false}}"#)
        };
        let limits = names.iter().map(limit).collect::<Vec<_>>().join(",");
        let text = format!(r#"{{"id":"{id}","rules":"","limits":[{limits}]}}"#);
        add(id, &|key| redis::Cmd::set(key, &text));
    };
    for process in 0..120 {
        let names: Vec<_> = (0..100).map(|name| format!("made-{process}-{name}")).collect();
        announce(&format!("~{process:03}"), &names);
    }
    announce("~other", &["elsewhere".to_owned()]);
    add("~large", &|key| redis::Cmd::set(key, "x".repeat(20_000_000)));
    add("~bytes", &|key| redis::Cmd::set(key, b"\xff".as_slice()));
    add("~list", &|key| redis::Cmd::rpush(key, "x"));
}

#[tokio::test]
async fn rules_of_no_limit_are_reported_once() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(log.writer()).finish();
    tracing::subscriber::set_global_default(subscriber).expect("the only test");
    let server = Server::start();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("unseen.json");
    fs::write(&path, RULES).expect("written");
    let by_redis = || server.builder().rules(Rules::redis());
    let by_file = RateLimiter::builder().rules(Rules::file(&path));
    let limiters = [by_file, by_redis(), by_redis(), by_redis(), by_redis()];
    let limiters = limiters.map(|builder| builder.build().expect("valid"));
    let mut shared = limiters[1].operator().shared_rules().await.expect("read");
    shared.rules = RuleSet::from_json(RULES).expect("valid");
    limiters[1].operator().share_rules(shared, "alice").await.expect("written");
    announce(&server);
    let sent = server.stat("total_net_output_bytes:");
    let started = Instant::now();
    let reports = || -> Vec<String> {
        let lines = log.text();
        let lines = lines.lines().filter(|line| line.contains("the name of this rule"));
        lines.map(|line| line.split_once(": ").expect("a target").1.to_owned()).collect()
    };
    while reports().len() < 7 && started.elapsed() < Duration::from_secs(120) {
        for limiter in &limiters {
            limiter.scope(search()).await.ok();
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    assert!(started.elapsed() >= Duration::from_secs(59), "before all limits were called");
    // Each process looks at its own moment: all within two seconds, and later on a busy machine.
    tokio::time::sleep(started.elapsed() / 10).await;
    let reports = reports();
    let reported = |words: &str, rule: &str, nearest: &str| {
        let end = format!("the name of this rule rule=\"{rule}\"{nearest}");
        let has = |line: &&String| line.starts_with(words) && line.ends_with(&end);
        assert_eq!(reports.iter().filter(has).count(), 1, "{words} {rule} {nearest}: {reports:#?}");
    };
    for words in ["no call of this process", "no limit that the running processes have announced"] {
        reported(words, "serach", " nearest=\"search\"");
        reported(words, "search/1h", " nearest=\"search\"");
        reported(words, "unlike", "");
    }
    reported("no call of this process", "elsewhere", "");
    assert_eq!(reports.len(), 7, "{reports:#?}");
    let misfits = log.text().matches("a rule does not fit this limit: `burst` is").count();
    assert_eq!(misfits, 5, "once for each limiter");
    assert_eq!(server.stat("cmdstat_zrange:calls="), 1, "one limiter has read the announcements");
    let sent = server.stat("total_net_output_bytes:") - sent;
    assert!(sent < 4_000_000, "{sent} bytes: more than what is bounded");
    let name = Limit::kept_name("mine").expect("announcements take no names of this process");
    assert_eq!(name, "mine");
}
