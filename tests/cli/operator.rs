//! The commands of an operator, on a Redis that a service uses. `tests/night` plays their guide, and tests what that
//! shows.

use std::time::Duration;

use ratelimit_runtime::{Builder, Limit, RateLimiter, Rejection, Rules, rate_limit};
use redis::Commands;
use support::example::{error_output, output};
use support::limits::HOUR;
use support::server::Server;

use crate::ratelimit;

#[rate_limit(name = "api", period = "1m", threshold = 5, key = tenant)]
pub(crate) async fn call(tenant: &str) -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(name = "paid", period = "1m", threshold = 5, key = (tenant, hashed(token)))]
async fn paid(tenant: u64, token: &str) -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(name = "plan", period = "1h", threshold = threshold, algo = "token_bucket", key = tenant)]
async fn by_plan(tenant: &str, threshold: u64) -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit("30000000000/month", name = "budget", key = tenant, cost = tokens)]
async fn complete(tenant: &str, tokens: u64) -> Result<(), Rejection> {
    Ok(())
}

const BY_HAND: Limit = Limit::fixed("by hand", 1, HOUR);
const LEASED: Limit = Limit::sliding("leased by hand", 3, HOUR).lease(2);

pub(crate) fn service(server: &Server) -> Builder {
    let builder = RateLimiter::builder().redis(&*server.url).rules(Rules::redis());
    builder.deadline(Duration::from_secs(30))
}

fn operate(server: &Server, command: &[&str]) -> std::process::Command {
    let mut operate = ratelimit(command);
    operate.env("RATELIMIT_REDIS_URL", &server.url);
    operate
}

fn run(server: &Server, command: &[&str]) -> String {
    output(operate(server, command))
}

#[track_caller]
fn assert_fails(server: &Server, command: &[&str], words: &[&str]) {
    let error = error_output(operate(server, command));
    assert!(words.iter().all(|words| error.contains(words)), "{command:?}: {error}");
}

/// Waits until the output of a command contains a text, which the processes announce.
pub(crate) async fn until_shown(server: &Server, command: &[&str], text: &str) {
    while !run(server, command).contains(text) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Starts a service, and waits until it has announced its limit.
pub(crate) async fn announced(server: &Server) -> RateLimiter {
    let service = service(server).build().expect("valid");
    service.ping().await.expect("ready");
    service.scope(call("acme")).await.expect("admitted");
    until_shown(server, &["list"], "limit api: ").await;
    service
}

/// Writes what a process of another program has announced.
pub(crate) fn announce(server: &Server, process: &str) {
    let mut connection = server.connection();
    let () = connection.set("rl:{rules}:process:~", process).expect("written");
    let () = connection.zadd("rl:{rules}:processes", "~", u64::MAX).expect("written");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_names_a_credential_by_its_hash() {
    const SECRET: &str = "0123456789abcdef";
    let server = Server::start();
    let service = service(&server).key_secret(SECRET).build().expect("valid");
    service.scope(paid(3, "sk_live")).await.expect("admitted");
    until_shown(&server, &["list"], "limit paid: ").await;
    let command = ["block", "paid", "(3:hashed(sk_live))", "1h"];
    assert_fails(&server, &command, &["RATELIMIT_KEY_SECRET"]);
    let mut block = operate(&server, &command);
    block.env("RATELIMIT_KEY_SECRET", SECRET);
    assert_eq!(output(block), "blocked for 1h\n");
    let blocked = service.scope(paid(3, "sk_live")).await;
    assert!(matches!(blocked, Err(Rejection::Blocked { .. })), "{blocked:?}");
    service.scope(paid(3, "another")).await.expect("open");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_changes_the_limits_of_a_service() {
    let server = Server::start();
    let run = |command: &[&str]| run(&server, command);
    let alone = "no process has announced itself under the key prefix `rl`";
    for command in [&["set", "api", "blocked"][..], &["unset", "api"], &["restore", "rules.json"]] {
        assert_fails(&server, command, &[alone, "add `--yes`"]);
    }
    assert_eq!(run(&["get", "api"]), "no rule\n");
    let written = run(&["set", "api", "blocked", "--yes"]);
    assert!(written.contains("no process has announced its limits yet"), "{written}");
    let service = service(&server).build().expect("valid");
    service.ping().await.expect("ready");
    let blocked = service.scope(call("acme")).await;
    assert!(matches!(blocked, Err(Rejection::Blocked { .. })), "{blocked:?}");

    // The service announces its limit once it was called.
    until_shown(&server, &["list"], "limit api: 5 per 1m, sliding, ").await;
    assert_eq!(run(&["get", "api"]), "blocked = true\n");
    assert_eq!(run(&["unset", "api", "--yes"]), "in force in 1 process\n");
    assert_eq!(run(&["set", "api", "acme", "threshold = 2"]), "in force in 1 process\n");
    assert!(service.rules().key_rule("api", "acme").is_some(), "the tool has waited");
    for expected in [true, true, false] {
        assert_eq!(service.scope(call("acme")).await.is_ok(), expected);
    }
    let left = run(&["peek", "api", "acme"]);
    assert!(left.contains("api: 0 of 2 left") && left.contains("admitted in"), "{left}");
    service.scope(call("(x:y)")).await.expect("admitted");
    assert_eq!(run(&["top", "api"]), "100.0 %  2 of 2  acme\n 20.0 %  1 of 5  %28x%3Ay%29\n");
    assert_eq!(run(&["reset", "api", "acme", "--yes"]), "removed\n");
    assert!(run(&["peek", "api/1m", "acme"]).contains("api: 2 of 2 left"));
    assert_eq!(run(&["block", "api", "acme", "1h30m"]), "blocked for 1h30m\n");
    assert_eq!(run(&["unblock", "api", "acme", "--yes"]), "unblocked\n");

    let until = "blocked = true, until = 2030-01-01T00:00:00Z";
    for (command, words) in [
        (&["set", "api", "treshold = 5"][..], "unknown field `treshold`, expected one of `thresh"),
        (&["peek", "apy", "acme"], "no process of the fleet has a limit `apy`"),
        (&["unset", "api", "--yes"], "there was no rule of `api`"),
        (&["set", "api", until, "--for", "2h"], "write `until` or `--for`, not both"),
    ] {
        assert_fails(&server, command, &[words]);
    }

    // A file in TOML replaces all rules; one that does not fit changes none.
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, text).expect("written");
        file.to_str().expect("UTF-8").to_owned()
    };
    let rules = file("rules.toml", "[api]\nthreshold = 7\n");
    assert_eq!(run(&["restore", &*rules, "--yes"]), "in force in 1 process\n");
    for (name, text, words) in [
        ("wrong.json", "{\"api\":5}", "nothing was written, because of"),
        ("misfit.toml", "api = { burst = 5 }", "`burst` is the capacity of a bucket"),
    ] {
        assert_fails(&server, &["restore", &*file(name, text)], &[words]);
    }
    assert_eq!(run(&["get", "api", "acme"]), "no rule\n");

    let mut by_option = ratelimit(&["get", "api", "--redis", &server.url]);
    by_option.env("RATELIMIT_REDIS_URL", "redis://127.0.0.1:1");
    assert_eq!(output(by_option), "threshold = 7\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_names_the_key_prefix_of_the_services() {
    let server = Server::start();
    let service = service(&server).key_prefix("shop").build().expect("valid");
    service.ping().await.expect("ready");
    service.scope(call("acme")).await.expect("admitted");
    until_shown(&server, &["--prefix", "shop", "list"], "limit api: ").await;
    let set = run(&server, &["set", "api", "blocked", "--prefix", "shop"]);
    assert_eq!(set, "in force in 1 process\n");
    let mut by_environment = operate(&server, &["get", "api"]);
    by_environment.env("RATELIMIT_KEY_PREFIX", "shop");
    assert_eq!(output(by_environment), "blocked = true\n");

    let list = operate(&server, &["--prefix", "shpo", "list"]).output().expect("it runs");
    let note = String::from_utf8(list.stderr).expect("UTF-8");
    assert!(note.contains("under the key prefix `shpo`") && note.contains("`--prefix`"), "{note}");
    for command in [&["set", "api", "exempt"][..], &["peek", "api", "acme"]] {
        let command = [&["--prefix", "shpo"][..], command].concat();
        assert_fails(&server, &command, &["under the key prefix `shpo`"]);
    }
}

/// Limits without the attribute, those whose amounts the code computes, a budget above 32 bits, and blocked keys.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_finds_out_who_is_limited() {
    let server = Server::start();
    let run = |command: &[&str]| run(&server, command);
    let service = service(&server).log_keys(true).build().expect("valid");
    service.ping().await.expect("ready");
    for _ in 0..40 {
        service.scope(by_plan("acme", 50)).await.expect("admitted");
    }
    service.scope(complete("shop", 12_345_678_901)).await.expect("admitted");
    for _ in 0..4 {
        let _ = service.check(&BY_HAND, "acme", 1).await;
        let _ = service.check(&BY_HAND, "bob", 1).await;
    }
    while service.check(&LEASED, "acme", 1).await.is_ok() {}
    service.block(&BY_HAND, "bob", HOUR).await.expect("blocked");
    let _ = service.check(&BY_HAND, "bob", 1).await;
    // Each process announces its limits at once, and the keys that it rejects every ten seconds.
    until_shown(&server, &["top"], "       4  by hand  bob  in ").await;
    until_shown(&server, &["list"], "limit plan").await;
    until_shown(&server, &["list"], "limit budget").await;
    let top = run(&["top"]);
    assert!(top.contains("\n       3  by hand  acme  in ") && top.contains("s ago\n"), "{top}");

    let list = run(&["list"]);
    for line in [
        "limit by hand: 1 per 1h, fixed, checked by hand\n",
        "limit plan: computed, ",
        "limit budget: 30000000000 per month, fixed",
    ] {
        assert!(list.contains(line), "{list}");
    }
    assert_eq!(run(&["top", "budget"]), " 41.1 %  12345678901 of 30000000000  shop\n");
    run(&["set", "budget", "shop", "threshold = 40_000_000_000"]);
    let peeked = run(&["peek", "budget", "shop"]);
    assert!(peeked.contains("budget: 27654321099 of 40000000000 left"), "{peeked}");
    // Of 50, which only the code of the service knows.
    let peeked = run(&["peek", "plan", "acme"]);
    assert!(peeked.starts_with("plan: 40 in use\nall is left in "), "{peeked}");
    assert_eq!(run(&["top", "plan"]), "      40  acme\n");
    run(&["set", "by hand", "acme", "threshold = 3"]);
    let found = run(&["find", "acme"]);
    for line in [
        "by hand (fixed, 1h): 2 of 3 left\n",
        "leased by hand (sliding, 1h): 0 of 3 left\n",
        "plan (token_bucket, 1h): 40 in use\n",
        "rule by hand: threshold = 3\n",
    ] {
        assert!(found.contains(line), "{found}");
    }
    let found = run(&["find", "bob"]);
    assert!(found.starts_with("by hand (fixed, 1h): 1 in use\nblocked for "), "{found}");
    let found = run(&["find", "carol"]);
    assert_eq!(found, "no limit of the fleet has a count or a rule of this key\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_that_does_not_fit_is_not_written() {
    let server = Server::start();
    let run = |command: &[&str]| run(&server, command);
    let service = announced(&server).await;
    service.scope(by_plan("acme", 5)).await.expect("admitted");
    until_shown(&server, &["list"], "limit plan").await;
    for (command, words) in [
        (&["set", "api", "threshold = 9, burst = 20"][..], "`burst` is the capacity of a bucket"),
        (&["set", "api/1m", "acme", "burst = 20"], "`burst` is the capacity of a bucket"),
        (&["set", "plan", "threshold = 1, burst = 4_000_000_000"], "more than 100 years to fill"),
        (&["set", "api", "threshold = 0"], "an amount must be at least 1"),
    ] {
        assert_fails(&server, command, &[words]);
        assert!(run(&["log"]).is_empty(), "nothing was written");
    }
    // The code computes the rate, so this burst can fill in time.
    run(&["set", "plan", "burst = 4_000_000"]);
    // A rule for a limit that no process has announced is written.
    let output = operate(&server, &["set", "apy", "threshold = 9"]).output().expect("it runs");
    let error = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(output.status.success() && error.contains("has announced a limit `apy`"), "{error}");

    announce(&server, r#"{"id":"stuck-1","rules":"1-x","limits":[]}"#);
    let stuck = ["written, but 1 of 2 processes have not announced", "in 15s: stuck-1."];
    assert_fails(&server, &["set", "api", "threshold = 9"], &stuck);
    assert_eq!(run(&["get", "api"]), "threshold = 9\n");
    assert!(run(&["list"]).contains("process stuck-1: 0 limits, with older rules\n"));
}

/// Whoever can write into Redis chooses these texts, and clients choose keys.
#[test]
fn no_text_of_redis_controls_the_terminal_of_an_operator() {
    let server = Server::start();
    let mut connection = server.connection();
    let limit = r#"{"name":"api\u001b[31m","threshold":1,"period":"1m"}"#;
    let limit = format!(r#"{{"limit":{limit},"place":"\u001b]0;x","is_computed":false}}"#);
    let rejected = r#"{"limit":"api\u001b[1m","period":1,"key":"\u001b[2J","is_shadow":true"#;
    let rejected = format!(r#"{rejected},"rejected":{0},"since":0,"last":{0}}}"#, u64::MAX / 2);
    let process =
        format!(r#"{{"id":"~\u001b[2J","rules":"","limits":[{limit}],"rejected":[{rejected}]}}"#);
    announce(&server, &process);
    let rules = r#"{"api\u001b[1m":{"keys":{"a\u001b[1m":"blocked"}}}"#;
    let hash = [("version", "1-\u{1b}"), ("rules", rules)];
    let () = connection.hset_multiple("rl:{rules}", &hash).expect("written");
    let change = "1 {\"by\":\"\\u001b[1m\",\"version\":\"1\",\"what\":[\"\\u202e\"]}";
    let () = connection.lpush("rl:{rules}:changes", change).expect("written");
    let () = connection.set_ex("rl:sliding:1m:api\u{1b}[31m{\u{1b}[2J}", "", 60).expect("set");
    let shown = |text: String| {
        let is_shown =
            |shown: char| shown == '\n' || " µ".contains(shown) || shown.is_ascii_graphic();
        assert!(!text.is_empty() && text.chars().all(is_shown), "{text:?}");
    };
    for command in [&["list"][..], &["log"], &["top"], &["find", "\u{1b}[2J"], &["doctor"]] {
        for command in [command, &[command, &["--json"]].concat()] {
            let output = operate(&server, command).output().expect("it runs");
            shown(String::from_utf8(output.stdout).expect("UTF-8"));
        }
    }
    shown(error_output(operate(&server, &["peek", "\u{1b}[2J", "acme"])));
    let top = run(&server, &["top", "api\u{1b}[31m"]);
    assert!(top.contains("%1B[2J"), "{top:?}");
    shown(top);
    let () = connection.hset("rl:{rules}", "rules", r#"{"\u001b[1m":5}"#).expect("written");
    shown(error_output(operate(&server, &["list"])));
    let wrong = operate(&server, &["change\u{1b}[2J"]).output().expect("it runs");
    shown(String::from_utf8(wrong.stderr).expect("UTF-8"));
}
