//! Rules that a limiter reads from a file or from Redis, in real time.

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ratelimit_runtime::{
    BuildError, Limit, OnError, RateLimiter, Rejection, Rule, RuleSet, Rules, SharedRules,
    StoreError,
};
use redis::Commands;
use support::limits::MINUTE;
use support::proxy::{Network, Proxy};
use support::server::Server;

pub(super) const API: Limit = Limit::sliding("api", 10, MINUTE);

/// The promise: new rules are in force everywhere within two seconds.
pub(super) const IN_FORCE: Duration = Duration::from_secs(2);

/// What a busy test machine may take.
const TOLERATED: Duration = Duration::from_secs(10);

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("rules-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    /// Replaces a file by a new one, as an operator does.
    fn write(&self, name: &str, text: &str) -> PathBuf {
        let (path, new) = (self.0.join(name), self.0.join("new"));
        fs::write(&new, text).expect("written");
        fs::rename(new, &path).expect("renamed");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

async fn capacity(limiter: &RateLimiter, key: &str) -> u64 {
    limiter.peek(&API, key, 1).await.expect("a decision").limit
}

/// Waits until a key has this capacity. Returns how long that took.
#[track_caller]
pub(super) fn until_capacity(
    limiter: &RateLimiter,
    key: &str,
    expected: u64,
) -> impl Future<Output = Duration> {
    let started = Instant::now();
    async move {
        loop {
            let present = capacity(limiter, key).await;
            if present == expected {
                return started.elapsed();
            }
            let waited = started.elapsed();
            assert!(waited < 3 * TOLERATED, "{present} and not {expected} after {waited:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

pub(super) fn set(key: &str, threshold: u64) -> RuleSet {
    let mut rules = RuleSet::new();
    rules.set_key("api", key, Rule::new().threshold(threshold)).expect("valid");
    rules
}

#[tokio::test]
async fn a_changed_file_is_in_force_soon() {
    for (name, first, second) in [
        ("rules.toml", "[api]\nthreshold = 20", "[api.keys]\nacme = { threshold = 50 }"),
        (
            "rules.json",
            r#"{"api": {"threshold": 20}}"#,
            r#"{"api": {"keys": {"acme": {"threshold": 50}}}}"#,
        ),
    ] {
        let folder = Folder::new(name);
        let path = folder.write(name, first);
        let limiter = RateLimiter::builder().rules(Rules::file(&path)).build().expect("valid");
        assert_eq!(capacity(&limiter, "acme").await, 20);
        let error = limiter.set_rules(RuleSet::new()).expect_err("the file has the rules");
        assert!(error.to_string().contains("change them there"), "{error}");

        folder.write(name, second);
        assert!(until_capacity(&limiter, "acme", 50).await <= TOLERATED);
        assert_eq!(capacity(&limiter, "alice").await, 10);

        // A mistake changes nothing, and neither does a file that is gone.
        folder.write(name, "{ api");
        tokio::time::sleep(IN_FORCE).await;
        assert_eq!(capacity(&limiter, "acme").await, 50);
        fs::remove_file(&path).expect("removed");
        tokio::time::sleep(IN_FORCE).await;
        assert_eq!(capacity(&limiter, "acme").await, 50);
        folder.write(name, first);
        assert!(until_capacity(&limiter, "acme", 20).await <= TOLERATED);
    }
}

#[test]
fn a_wrong_file_fails_the_build() {
    let folder = Folder::new("wrong");
    let build = |path| RateLimiter::builder().rules(Rules::file(path)).build();
    let path =
        folder.write("rules.toml", "[api]\nthreshold = 20\n\n[api.keys]\nacme = \"bloked\"\n");
    let error = build(path.clone()).expect_err("a wrong word").to_string();
    for words in ["rules.toml", "line 5", "`acme` of `api`", "did you mean `blocked`?"] {
        assert!(error.contains(words), "{error}");
    }
    let error = build(folder.0.join("none.toml")).expect_err("no file").to_string();
    assert!(error.contains("none.toml") && error.contains("No such file"), "{error}");
    let error = RateLimiter::builder().rules(Rules::redis()).build().expect_err("no Redis");
    assert!(matches!(error, BuildError::RulesWithoutRedis));
}

#[tokio::test]
async fn shared_rules_are_in_force_everywhere_soon() {
    let server = Server::start();
    let limiter = || server.builder().rules(Rules::redis()).build().expect("valid");
    let limiters = [limiter(), limiter()];
    let operator = server.builder().build().expect("valid");
    let mut shared = operator.operator().shared_rules().await.expect("read");
    assert!(shared.rules.is_empty() && shared.version().is_empty());
    shared.rules = set("acme", 50);
    operator.operator().share_rules(shared.clone(), "alice").await.expect("written");
    for limiter in &limiters {
        assert!(until_capacity(limiter, "acme", 50).await <= TOLERATED);
    }
    let error = limiters[0].set_rules(RuleSet::new()).expect_err("Redis has the rules");
    assert!(error.to_string().contains("`share_rules`"), "{error}");

    // The value was read before the change, so writing it again would undo the change.
    let again = operator.operator().share_rules(shared, "bob").await;
    assert!(matches!(again, Err(StoreError::RulesChanged)));
    let mut shared = operator.operator().shared_rules().await.expect("read");
    assert!(shared.version().starts_with("1-"));
    shared.rules.set("api", Rule::new().blocked(true)).expect("valid");
    assert!(shared.rules.unset_key("api", "acme"));
    operator.operator().share_rules(shared, "bob").await.expect("written");
    let changes = operator.operator().rule_changes(10).await.expect("read");
    let written: Vec<_> =
        changes.iter().map(|change| (&change.by[..], change.what.clone())).collect();
    let lines = |lines: &[&str]| lines.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(
        written,
        [
            (
                "bob",
                lines(&[
                    "`api`: none becomes `blocked = true`",
                    "`api` of `acme`: `threshold = 50` becomes none",
                ])
            ),
            ("alice", lines(&["`api` of `acme`: none becomes `threshold = 50`"])),
        ]
    );
    assert!(changes[0].at.elapsed().expect("the past") < MINUTE);
    assert_eq!(operator.operator().rule_changes(1).await.expect("read").len(), 1);

    // A limiter that starts later has them once it is ready.
    let late = limiter();
    late.ping().await.expect("ready");
    let result = late.check(&API, "key", 1).await;
    assert!(matches!(result, Err(Rejection::Blocked { .. })), "{result:?}");
}

/// A command that a server has executed, with the beginnings of its arguments in fourth place.
type Logged = (i64, i64, i64, Vec<Vec<u8>>, Vec<u8>, Vec<u8>);

#[tokio::test]
async fn no_script_is_sent_with_its_comments() {
    let server = Server::start();
    let mut connection = server.connection();
    for (name, value) in [("slowlog-log-slower-than", 0), ("slowlog-max-len", 10_000)] {
        let mut config = redis::cmd("CONFIG");
        config.arg("SET").arg(name).arg(value).exec(&mut connection).expect("CONFIG");
    }
    let limiter = server.builder().rules(Rules::redis()).build().expect("valid");
    let mut shared = limiter.operator().shared_rules().await.expect("read");
    shared.rules = set("acme", 50);
    limiter.operator().share_rules(shared, "alice").await.expect("written");
    limiter.operator().rule_changes(10).await.expect("read");
    until_capacity(&limiter, "acme", 50).await;
    while limiter.operator().fleet().await.expect("read").is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut slowlog = redis::cmd("SLOWLOG");
    let log: Vec<Logged> = slowlog.arg("GET").arg(-1).query(&mut connection).expect("SLOWLOG");
    let sent = log.iter().filter(|(_, _, _, command, ..)| command[0].starts_with(b"EVAL"));
    let scripts: HashSet<_> = sent.map(|(_, _, _, command, ..)| &command[1]).collect();
    assert!(scripts.len() >= 6, "{} scripts", scripts.len());
    for script in scripts {
        let script = String::from_utf8_lossy(script);
        assert!(!script.contains("--"), "{script}");
    }
}

#[tokio::test]
async fn rules_stay_without_redis_and_with_malformed_ones() {
    let server = Server::start();
    let builder = server.builder().deadline(Duration::from_secs(1)).on_error(OnError::Local);
    let builder = builder.rules(Rules::redis());
    let limiter = builder.clone().build().expect("valid");
    let mut shared = limiter.operator().shared_rules().await.expect("read");
    shared.rules = set("acme", 50);
    limiter.operator().share_rules(shared, "alice").await.expect("written");
    until_capacity(&limiter, "acme", 50).await;
    let malformed = [("version", "9-x"), ("rules", "{\"api\": 5}")];
    let () = server.connection().hset_multiple("rl:{rules}", &malformed).expect("HSET");
    tokio::time::sleep(IN_FORCE).await;
    assert_eq!(capacity(&limiter, "acme").await, 50);
    let error = limiter.operator().shared_rules().await.expect_err("malformed").to_string();
    assert!(
        error.contains("the rules in Redis have a mistake") && error.contains("`api`"),
        "{error}"
    );

    let port = server.port();
    drop(server);
    tokio::time::sleep(IN_FORCE).await;
    assert_eq!(capacity(&limiter, "acme").await, 50);
    // A limiter that starts now obeys the code until Redis is back.
    let late = builder.build().expect("valid");
    assert_eq!(capacity(&late, "acme").await, 10);
    assert!(late.ping().await.is_err());
    let _restarted = Server::start_on(port);
    let mut shared = loop {
        match limiter.operator().shared_rules().await {
            Ok(shared) => break shared,
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    shared.rules = set("acme", 60);
    limiter.operator().share_rules(shared, "alice").await.expect("written");
    until_capacity(&late, "acme", 60).await;
    until_capacity(&limiter, "acme", 60).await;
}

/// Whoever can write the rules must not make each process read any number of bytes.
#[tokio::test]
async fn rules_of_any_size_are_not_read() {
    let server = Server::start();
    let limiter = server.builder().rules(Rules::redis()).build().expect("valid");
    let mut shared = limiter.operator().shared_rules().await.expect("read");
    shared.rules = set("acme", 50);
    limiter.operator().share_rules(shared.clone(), "alice").await.expect("written");
    until_capacity(&limiter, "acme", 50).await;
    let large = "x".repeat(20_000_000);
    let sent = || -> u64 {
        let mut connection = server.connection();
        let info: String = redis::cmd("INFO").arg("stats").query(&mut connection).expect("INFO");
        let line = info.lines().find_map(|line| line.strip_prefix("total_net_output_bytes:"));
        line.expect("a number").parse().expect("a number")
    };
    for field in ["rules", "version"] {
        let before = sent();
        let hash = [("version", "9-x"), ("rules", "{}"), (field, &large)];
        let () = server.connection().hset_multiple("rl:{rules}", &hash).expect("HSET");
        let () = server.connection().lpush("rl:{rules}:changes", &large).expect("LPUSH");
        tokio::time::sleep(IN_FORCE).await;
        let error = limiter.operator().shared_rules().await.expect_err("too large").to_string();
        assert!(error.contains("too large"), "{error}");
        let changes = limiter.operator().rule_changes(10).await.expect("read");
        assert_eq!(changes.len(), 1, "without those that are too large");
        assert_eq!(capacity(&limiter, "acme").await, 50);
        let sent = sent() - before;
        assert!(sent < 1_000_000, "{sent} bytes were read");
    }
    shared.rules.set(&"k".repeat(17 << 20), Rule::new().threshold(1)).expect("valid");
    let started = Instant::now();
    let result =
        limiter.operator().share_rules(shared, "alice").await.expect_err("too large").to_string();
    assert!(result.contains("too large"), "{result}");
    assert!(started.elapsed() < TOLERATED, "it waited for a reply to a request that was not sent");
}

#[tokio::test]
async fn the_embedded_store_shares_no_rules() {
    let limiter = RateLimiter::embedded();
    let error = limiter.operator().shared_rules().await.expect_err("no Redis");
    assert!(matches!(error, StoreError::NotShared));
    assert!(error.to_string().contains("`set_rules`"));
    let shared = limiter.operator().share_rules(SharedRules::default(), "alice").await;
    assert!(matches!(shared, Err(StoreError::NotShared)));
}

/// If the reply is lost, the version in Redis tells whether the rules were replaced.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_is_no_lost_change() {
    let server = Server::start();
    let proxy = Proxy::start(server.port(), Duration::ZERO);
    let builder = RateLimiter::builder().redis(format!("redis://127.0.0.1:{}", proxy.port));
    let limiter = builder.deadline(Duration::from_secs(10)).build().expect("valid");
    let mut shared = limiter.operator().shared_rules().await.expect("read");
    shared.rules = set("acme", 50);
    proxy.set(Network::RepliesLost);
    let write = tokio::spawn(limiter.operator().share_rules(shared, "alice"));
    let mut direct = server.connection();
    while !direct.exists("rl:{rules}").unwrap_or(false) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    proxy.set(Network::Cut);
    proxy.set(Network::Up);
    write.await.expect("no panic").expect("replaced");
    assert_eq!(limiter.operator().rule_changes(10).await.expect("read").len(), 1);
}
