//! Rules that a limiter reads from a file or from Redis, in real time, and what processes announce there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use futures::future::{join_all, poll_immediate};
use ratelimit_runtime::{BuildError, Rules, SharedRules};
use redis::Commands;
use tokio::task::yield_now;

use super::*;

const API: Limit = Limit::sliding("api", 10, MINUTE);

/// The promise: new rules are in force everywhere within two seconds.
const IN_FORCE: Duration = Duration::from_secs(2);

/// What a busy test machine may take.
const TOLERATED: Duration = Duration::from_secs(10);

/// Replaces a file by a new one, as an operator does.
fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let (path, new) = (folder.join(name), folder.join("new"));
    fs::write(&new, text).expect("written");
    fs::rename(new, &path).expect("renamed");
    path
}

async fn capacity(limiter: &RateLimiter, key: &str) -> u64 {
    limiter.peek(&API, key, 1).await.expect("a decision").limit
}

/// Waits until a key has this capacity.
async fn until_capacity(limiter: &RateLimiter, key: &str, expected: u64) {
    let reached = wait_until(async || capacity(limiter, key).await == expected);
    timeout(TOLERATED, reached).await.expect("the rule is in force");
}

/// Asserts that the rule of `acme` stays.
async fn assert_stays(limiter: &RateLimiter) {
    sleep(IN_FORCE).await;
    assert_eq!(capacity(limiter, "acme").await, 50);
}

/// Rules with one threshold for `acme`.
fn of_acme(threshold: u64) -> RuleSet {
    let mut rules = RuleSet::new();
    rules.set_key("api", "acme", Rule::new().threshold(threshold)).expect("valid");
    rules
}

/// Shares rules with one threshold for `acme`, and waits until they are in force.
async fn share(limiter: &RateLimiter, threshold: u64) -> SharedRules {
    let mut shared = limiter.operator().shared_rules().await.expect("read");
    shared.rules = of_acme(threshold);
    limiter.operator().share_rules(shared.clone(), "alice").await.expect("written");
    until_capacity(limiter, "acme", threshold).await;
    shared
}

#[tokio::test]
async fn a_changed_file_is_in_force_soon() {
    let json =
        [r#"{"api": {"threshold": 20}}"#, r#"{"api": {"keys": {"acme": {"threshold": 50}}}}"#];
    let toml = ["[api]\nthreshold = 20", "[api.keys]\nacme = { threshold = 50 }"];
    let cases = [("rules.toml", toml), ("rules.json", json)];
    // At the same time, because each waits for most of its time.
    join_all(cases.into_iter().map(async |(name, [first, second])| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = write(folder.path(), name, first);
        let limiter = RateLimiter::builder().rules(Rules::file(&path)).build().expect("valid");
        assert_eq!(capacity(&limiter, "acme").await, 20);
        let error = limiter.set_rules(RuleSet::new()).expect_err("the file has the rules");
        assert!(error.to_string().contains("change them there"), "{error}");

        write(folder.path(), name, second);
        until_capacity(&limiter, "acme", 50).await;
        assert_eq!(capacity(&limiter, "alice").await, 10);

        // A mistake changes nothing, and neither does a file that is gone, or a pipe in its place.
        write(folder.path(), name, "{ api");
        assert_stays(&limiter).await;
        fs::remove_file(&path).expect("removed");
        assert_stays(&limiter).await;
        assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo").success());
        assert_stays(&limiter).await;
        write(folder.path(), name, first);
        // The read of the pipe ends after its deadline.
        wait_until(async || capacity(&limiter, "acme").await == 20).await;
    }))
    .await;
}

#[test]
fn a_wrong_file_fails_the_build() {
    let folder = tempfile::tempdir().expect("a folder");
    let build = |path| RateLimiter::builder().rules(Rules::file(path)).build();
    let text = "[api]\nthreshold = 20\n\n[api.keys]\nacme = \"bloked\"\n";
    let path = write(folder.path(), "rules.toml", text);
    let error = build(path).expect_err("a wrong word").to_string();
    for words in ["rules.toml", "line 5", "api.keys.acme", "expected a table"] {
        assert!(error.contains(words), "{error}");
    }
    let error = build(folder.path().join("none.toml")).expect_err("no file").to_string();
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
    shared.rules = of_acme(50);
    operator.operator().share_rules(shared.clone(), "alice").await.expect("written");
    for limiter in &limiters {
        until_capacity(limiter, "acme", 50).await;
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
        changes.iter().map(|change| (&*change.by, change.what.join("; "))).collect();
    let of_bob =
        "`api`: none becomes `blocked = true`; `api` of `acme`: `threshold = 50` becomes none";
    let of_alice = "`api` of `acme`: none becomes `threshold = 50`";
    assert_eq!(written, [("bob", of_bob.to_owned()), ("alice", of_alice.to_owned())]);
    assert!(changes[0].at.elapsed().expect("the past") < MINUTE);
    assert_eq!(operator.operator().rule_changes(1).await.expect("read").len(), 1);

    wait_until(async || !operator.operator().fleet().await.expect("read").is_empty()).await;
    let ttls = server.ttls();
    let lasting: Vec<_> = ttls.iter().filter(|(_, ttl)| *ttl < 0).map(|(key, _)| key).collect();
    assert_eq!(lasting.len(), 2, "announcements have a TTL, and rules have none: {lasting:?}");

    // A limiter that starts later has them once it is ready.
    let late = limiter();
    late.ping().await.expect("ready");
    blocked(&late.check(&API, "key", 1).await);
}

#[tokio::test]
async fn rules_stay_without_redis_and_with_malformed_ones() {
    let server = Server::start();
    let builder = server.builder().deadline(Duration::from_secs(1)).on_error(OnError::Local);
    let builder = builder.rules(Rules::redis());
    let limiter = builder.clone().build().expect("valid");
    share(&limiter, 50).await;
    let malformed = [("version", "9-x"), ("rules", "{\"api\": 5}")];
    let () = server.connection().hset_multiple("rl:{rules}", &malformed).expect("HSET");
    assert_stays(&limiter).await;
    let error = limiter.operator().shared_rules().await.expect_err("malformed").to_string();
    assert!(error.contains("the rules in Redis have a mistake: api: "), "{error}");

    let port = server.port();
    drop(server);
    assert_stays(&limiter).await;
    // A limiter that starts now obeys the code until Redis is back.
    let late = builder.build().expect("valid");
    assert_eq!(capacity(&late, "acme").await, 10);
    assert!(late.ping().await.is_err());
    let _restarted = Server::start_on(port);
    wait_until(async || limiter.operator().shared_rules().await.is_ok()).await;
    share(&limiter, 60).await;
    until_capacity(&late, "acme", 60).await;
}

/// Whoever can write the rules must not make each process read any number of bytes.
#[tokio::test]
async fn rules_of_any_size_are_not_read() {
    let server = Server::start();
    let limiter = server.builder().rules(Rules::redis()).build().expect("valid");
    let mut shared = share(&limiter, 50).await;
    let large = "x".repeat(20_000_000);
    let sent = || server.stat("total_net_output_bytes:");
    for field in ["rules", "version"] {
        let before = sent();
        let hash = [("version", "9-x"), ("rules", "{}"), (field, &large)];
        let () = server.connection().hset_multiple("rl:{rules}", &hash).expect("HSET");
        let () = server.connection().lpush("rl:{rules}:changes", &large).expect("LPUSH");
        assert_stays(&limiter).await;
        let error = limiter.operator().shared_rules().await.expect_err("too large").to_string();
        assert!(error.contains("too large"), "{error}");
        let changes = limiter.operator().rule_changes(10).await.expect("read");
        assert_eq!(changes.len(), 1, "without those that are too large");
        let sent = sent() - before;
        assert!(sent < 1_000_000, "{sent} bytes were read");
    }
    shared.rules.set(&"k".repeat(17 << 20), Rule::new().threshold(1)).expect("valid");
    let shared = timeout(TOLERATED, limiter.operator().share_rules(shared, "alice")).await;
    let error = shared.expect("no wait for a reply to a request that was not sent");
    assert!(error.expect_err("too large").to_string().contains("too large"));
}

#[tokio::test]
async fn the_embedded_store_shares_no_rules() {
    let limiter = RateLimiter::embedded();
    let error = limiter.operator().shared_rules().await.expect_err("no Redis");
    assert!(error.to_string().contains("`set_rules`"));
    assert!(matches!(error, StoreError::NotShared));
    let shared = limiter.operator().share_rules(SharedRules::default(), "alice").await;
    assert!(matches!(shared, Err(StoreError::NotShared)));
}

/// If the reply is lost, the version in Redis tells whether the rules were replaced.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_is_no_lost_change() {
    let server = Server::start();
    let proxy = Proxy::start(server.port(), Duration::ZERO);
    let limiter = proxy.builder().deadline(Duration::from_secs(10)).build().expect("valid");
    let mut shared = limiter.operator().shared_rules().await.expect("read");
    shared.rules = of_acme(50);
    proxy.set(Network::RepliesLost);
    let write = tokio::spawn(limiter.operator().share_rules(shared, "alice"));
    let mut direct = server.connection();
    wait_until(async || direct.exists("rl:{rules}").unwrap_or(false)).await;
    proxy.set(Network::Cut);
    proxy.set(Network::Up);
    write.await.expect("no panic").expect("replaced");
    assert_eq!(limiter.operator().rule_changes(10).await.expect("read").len(), 1);
}

#[test]
fn a_ping_that_is_not_polled_does_not_stop_rules() {
    let server = Server::start();
    let mut connection = server.connection();
    // Until the rules were read once, each ping waits for them.
    let () = connection.set("rl:{rules}", "foreign").expect("SET");
    let limiter = server.builder().rules(Rules::redis()).build().expect("valid");
    let stuck = support::runtime();
    let mut pings = Vec::new();
    stuck.block_on(async {
        for number in 0..100 {
            let mut ping = Box::pin(limiter.ping());
            // Each is polled a little more often than the last one, so some have come to the rules.
            let mut polls = 0;
            while polls < number && poll_immediate(ping.as_mut()).await.is_none() {
                polls += 1;
                yield_now().await;
            }
            pings.push(ping);
        }
    });
    let () = connection.del("rl:{rules}").expect("DEL");
    let running = tokio::runtime::Runtime::new().expect("a runtime");
    running.block_on(async {
        let mut shared = limiter.operator().shared_rules().await.expect("read");
        shared.rules.set("api", Rule::new().threshold(3)).expect("a valid rule");
        limiter.operator().share_rules(shared, "alice").await.expect("written");
    });
    running.block_on(wait_until(async || !limiter.rules().is_empty()));
    running.block_on(limiter.ping()).expect("the rules were read");
}

/// Whoever can write into Redis can announce any keys.
#[tokio::test]
async fn rejected_keys_of_a_hostile_announcement_are_bounded() {
    let (server, limiter) = Server::with_limiter();
    let key = |key: &str, since: u64| {
        let limit = r#""limit":"api","period":60000000,"is_shadow":false,"last":5"#;
        format!(r#"{{{limit},"key":"{key}","rejected":{},"since":{since}}}"#, u64::MAX)
    };
    let mut keys = vec![key(&"k".repeat(5_000), 1), key("late", u64::MAX)];
    keys.extend((0..50).map(|number| key(&number.to_string(), 1)));
    let announcement =
        format!(r#"{{"id":"~","rules":"","limits":[],"rejected":[{}]}}"#, keys.join(","));
    let mut connection = server.connection();
    let () = connection.set("rl:{rules}:process:~", announcement).expect("written");
    let () = connection.zadd("rl:{rules}:processes", "~", u64::MAX).expect("written");
    let fleet = limiter.operator().fleet().await.expect("read");
    assert!((1..=20).contains(&fleet[0].rejected.len()), "{}", fleet[0].rejected.len());
    assert!(fleet[0].rejected.iter().all(|key| key.key.len() <= 1_000));
}

/// Tools read the keys of a limit page by page, and none of another limit.
#[tokio::test]
async fn the_keys_of_a_limit_are_read_page_by_page() {
    let (_server, limiter) = Server::with_limiter();
    let other = Limit::sliding("api.other", 10, MINUTE);
    join_all([
        limiter.check(&API, (), 1),
        limiter.check(&API, "", 1),
        limiter.check(&API, ("a", 7), 1),
        limiter.check(&API, "%2A", 1),
    ])
    .await;
    let mut expected = ["%", "", "(a:7)", "%252A"].map(String::from).to_vec();
    for key in 0..3_000 {
        limiter.check(&API, key, 1).await.expect("admitted");
        limiter.check(&other, key, 1).await.expect("admitted");
        expected.push(key.to_string());
    }
    let (mut found, mut pages, mut next) = (Vec::new(), 0, None);
    while pages == 0 || next.is_some() {
        let page = limiter.operator().keys(&API, next).await.expect("read");
        (pages, next) = (pages + 1, page.next);
        for key in page.keys {
            assert_eq!(limiter.peek(&API, &key, 1).await.expect("a decision").remaining, 9);
            found.push(key.to_string());
        }
    }
    assert!(pages > 3, "{pages} pages");
    found.sort();
    found.dedup();
    expected.sort();
    assert_eq!(found, expected);
}
