//! The tool of an operator, on a Redis that a service uses.

use std::time::Duration;

use ratelimit_runtime::{RateLimiter, Rejection, Rules, rate_limit};
use support::server::Server;

use super::{error_output, example, output};

#[rate_limit(name = "api", period = "1m", threshold = 5, key = tenant)]
async fn call(tenant: &str) -> Result<(), Rejection> {
    Ok(())
}

/// Runs a command of the tool.
fn operate(server: &Server, command: &[&str]) -> std::process::Command {
    let mut tool = example("operate");
    tool.arg(&server.url).args(command).env("USER", "alice").env_remove("RUST_BACKTRACE");
    tool
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_changes_the_limits_of_a_service() {
    let server = Server::start();
    let run = |command: &[&str]| output(operate(&server, command));
    assert!(run(&["set", "api", "closed"]).contains("in force everywhere"));
    let service = RateLimiter::builder().redis(&*server.url).rules(Rules::redis());
    let service = service.deadline(Duration::from_secs(30)).build().expect("valid");
    service.ping().await.expect("ready");
    let closed = service.scope(call("acme")).await;
    assert!(matches!(closed, Err(Rejection::Closed { .. })), "{closed:?}");

    // The service announces its limit once it was called.
    while !run(&["list"]).contains("limit api: 5 per 60s, sliding, ") {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(run(&["get", "api"]), "closed = true\n");
    run(&["unset", "api"]);
    run(&["set", "api", "acme", "threshold = 2"]);
    assert!(run(&["list"]).contains("rule api acme: threshold = 2\n"));
    while service.rules().key_rule("api", "acme").is_none() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for expected in [true, true, false] {
        assert_eq!(service.scope(call("acme")).await.is_ok(), expected);
    }
    let left = run(&["peek", "api", "acme"]);
    assert!(left.contains("api: 0 of 2 left") && left.contains("admitted in"), "{left}");
    service.scope(call("(x:y)")).await.expect("admitted");
    assert_eq!(run(&["top", "api"]), "100.0 %  2 of 2  acme\n 20.0 %  1 of 5  %28x%3Ay%29\n");
    assert_eq!(run(&["reset", "api", "acme"]), "removed\n");
    assert!(run(&["peek", "api/1m", "acme"]).contains("api: 2 of 2 left"));
    assert_eq!(run(&["close", "api", "acme", "1h30m"]), "closed for 5400s\n");
    assert_eq!(run(&["open", "api", "acme"]), "opened\n");
    let log = run(&["log"]);
    let changes: Vec<_> = log.lines().map(|line| line.split_once(", ").expect("who").1).collect();
    assert_eq!(
        changes,
        [
            "alice: `api` of `acme`: none becomes `threshold = 2`",
            "alice: `api`: `closed = true` becomes none",
            "alice: `api`: none becomes `closed = true`",
        ]
    );

    for (command, words) in [
        (&["set", "api", "treshold = 5"][..], "the rule of `api`: unknown field `treshold`"),
        (&["peek", "apy", "acme"], "no process of the fleet has a limit `apy`"),
        (&["unset", "api"], "there was no rule"),
        (&["change"], "usage: operate URL COMMAND"),
    ] {
        let error = error_output(operate(&server, command));
        assert!(error.contains(words), "{error}");
    }
}

/// Whoever can write into Redis chooses these texts, and clients choose keys.
#[test]
fn no_text_of_redis_controls_the_terminal_of_an_operator() {
    use redis::Commands;

    let server = Server::start();
    let mut connection = server.connection();
    let limit = r#"{"name":"api\u001b[31m","threshold":1,"period":"1m"}"#;
    let limit = format!(r#"{{"limit":{limit},"place":"\u001b]0;x","is_computed":false}}"#);
    let process = format!(r#"{{"id":"~\u001b[2J","rules":"","limits":[{limit}]}}"#);
    let () = connection.set("rl:{rules}:process:~", process).expect("written");
    let () = connection.zadd("rl:{rules}:processes", "~", u64::MAX).expect("written");
    let rules = r#"{"api\u001b[1m":{"keys":{"a\u001b[1m":"closed"}}}"#;
    let hash = [("version", "1-\u{1b}"), ("rules", rules)];
    let () = connection.hset_multiple("rl:{rules}", &hash).expect("written");
    let change = "1 {\"by\":\"\\u001b[1m\",\"version\":\"1\",\"what\":[\"\\u202e\"]}";
    let () = connection.lpush("rl:{rules}:changes", change).expect("written");
    let () = connection.set_ex("rl:sliding:1m:api\u{1b}[31m{\u{1b}[2J}", "", 60).expect("set");
    let shown = |text: String| {
        let is_shown = |shown: char| shown == '\n' || shown == ' ' || shown.is_ascii_graphic();
        assert!(!text.is_empty() && text.chars().all(is_shown), "{text:?}");
    };
    shown(output(operate(&server, &["list"])));
    shown(output(operate(&server, &["log"])));
    shown(error_output(operate(&server, &["peek", "\u{1b}[2J", "acme"])));
    let top = output(operate(&server, &["top", "api\u{1b}[31m"]));
    assert!(top.contains("%1B[2J"), "{top:?}");
    shown(top);
    let () = connection.hset("rl:{rules}", "rules", r#"{"\u001b[1m":5}"#).expect("written");
    shown(error_output(operate(&server, &["list"])));
}
