//! What all commands share: JSON, exit codes, questions, colours, completions, and the README of the package.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

use ratelimit_runtime::RateLimiter;
use serde_json::{Value, json};
use support::example::{error_output, output};
use support::server::Server;

use crate::operator::{announced, call, service, until_shown};
use crate::ratelimit;

fn json(server: &Server, command: &[&str]) -> Value {
    let text = output(ratelimit(&[command, &["--redis", &server.url, "--json"]].concat()));
    assert_eq!(text.lines().count(), 1, "one line: {text}");
    serde_json::from_str(&text).expect("JSON")
}

fn status(mut command: Command) -> (i32, String) {
    let output = command.output().expect("it runs");
    let text = String::from_utf8(output.stderr).expect("UTF-8");
    (output.status.code().expect("it ends"), text)
}

/// Starts a service that announces the rejection of `acme`.
async fn limited(server: &Server) -> RateLimiter {
    let service = service(server).log_keys(true).build().expect("valid");
    service.ping().await.expect("ready");
    while service.scope(call("acme")).await.is_ok() {}
    until_shown(server, &["top"], "  api  acme  in ").await;
    service
}

#[tokio::test(flavor = "multi_thread")]
async fn each_command_prints_one_document_of_json() {
    let server = Server::start();
    let _service = limited(&server).await;
    let json = |command: &[&str]| json(&server, command);

    assert_eq!(json(&["set", "api", "acme", "threshold", "=", "9"]), json!({ "processes": 1 }));
    let list = json(&["list"]);
    assert_eq!(list["processes"][0]["rules"], "in_force", "{list}");
    let limit = ["limit", "threshold", "algorithm", "period_ms"].map(|it| &list["limits"][0][it]);
    assert_eq!(json!(limit), json!(["api", 5, "sliding", 60_000]));
    let rules = json!({ "api": { "keys": { "acme": { "threshold": 9 } } } });
    assert_eq!((&list["rules"], &list["rules_are_lost"]), (&rules, &json!(false)));
    assert_eq!(json(&["save"]), rules);
    let rule = json!({ "limit": "api", "key": "acme", "rule": { "threshold": 9 } });
    assert_eq!(json(&["get", "api", "acme"]), rule);
    let change = &json(&["log"])[0];
    assert_eq!(change["what"], json!(["`api` of `acme`: none becomes `threshold = 9`"]));
    assert!(change["by"] == "alice" && change["at_unix_ms"].as_u64().is_some(), "{change}");
    let top = &json(&["top"])[0];
    assert_eq!((&top["key"], &top["rejected"]), (&json!("acme"), &json!(1)), "{top}");
    assert_eq!(json(&["top", "api"]), json!([{ "used": 5, "capacity": 9, "key": "acme" }]));
    let found = json(&["find", "acme"]);
    assert_eq!(found["rules"], json!([rule]));
    let peeked = json(&["peek", "api", "acme"]);
    for count in [&found["counts"][0], &peeked] {
        assert_eq!((&count["used"], &count["remaining"]), (&json!(5), &json!(4)), "{count}");
        assert!(count["retry_after_ms"].is_null() && count["blocked_for_ms"].is_null(), "{count}");
    }
    assert_eq!(json(&["reset", "api", "acme", "--yes"]), json!({ "removed": true }));
    assert_eq!(json(&["block", "api", "acme", "2m"]), json!({ "blocked_for_ms": 120_000 }));
    assert_eq!(json(&["unblock", "api", "acme", "--yes"]), json!({ "unblocked": true }));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("rules.json");
    fs::write(&file, rules.to_string()).expect("written");
    let file = file.to_str().expect("UTF-8");
    assert_eq!(json(&["restore", file, "--yes"]), json!({ "processes": 1 }));
    assert_eq!(json(&["unset", "api", "acme", "--yes"]), json!({ "processes": 1 }));
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_prints_rejected_keys_and_changes_as_they_come() {
    let server = Server::start();
    let _service = limited(&server).await;
    let mut watch = ratelimit(&["watch", "--redis", &server.url]);
    let mut watch = watch.stdout(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(watch.stdout.take().expect("piped")).lines();
    let mut line = || lines.next().expect("a line").expect("UTF-8");
    assert!(line().starts_with("       1  api  acme  in "));
    output(ratelimit(&["set", "api", "blocked", "--redis", &server.url]));
    assert!(line().ends_with(" ago, alice: `api`: none becomes `blocked = true`"));
    watch.kill().expect("it runs");
    watch.wait().expect("it ends");
}

#[test]
fn wrong_usage_has_an_exit_code_of_its_own_and_says_what_to_write() {
    for (arguments, words) in [
        (&["list"][..], "`--redis redis://127.0.0.1:6379`, or set RATELIMIT_REDIS_URL"),
        (&["change"], "unrecognized subcommand 'change'"),
        (&["list", "--prefix"], "a value is required for '--prefix <PREFIX>'"),
        (&["block", "api", "acme", "soon"], "write a duration, such as 30s or 1h30m"),
        (&["set", "api"], "<[KEY] RULE>"),
        (&[], "Usage: ratelimit [OPTIONS] <COMMAND>"),
    ] {
        let (code, text) = status(ratelimit(arguments));
        assert!(code == 2 && text.contains(words), "{arguments:?}: {code}: {text}");
    }
    let help = output(ratelimit(&["--help"]));
    assert!(help.contains("0 done, 1 failed, 2 wrong usage, 3 `doctor` or `prove`"), "{help}");
    let (code, text) = status(ratelimit(&["list", "--redis", "redis://127.0.0.1:1"]));
    assert!(code == 1 && text.starts_with("Error: Redis does not reply: "), "{code}: {text}");
    let (code, text) = status(ratelimit(&["list", "--redis", "http://ann:secret@127.0.0.1"]));
    assert!(code == 1 && text.contains("Redis URL is invalid") && !text.contains("sec"), "{text}");
}

#[test]
fn completions_are_scripts_of_their_shells() {
    let script = output(ratelimit(&["completions", "bash"]));
    assert!(script.contains("unblock") && script.contains("--redis"), "{script}");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("ratelimit.bash");
    fs::write(&file, script).expect("written");
    assert!(Command::new("bash").arg("-n").arg(&file).status().expect("bash").success());
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        assert!(output(ratelimit(&["completions", shell])).contains("unblock"), "{shell}");
    }
}

/// Runs a command on a terminal, answers its question if it has one, and returns what the terminal shows.
fn on_a_terminal(command: &Command, answer: &str) -> String {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    let quoted = words.map(|word| format!("'{}'", word.to_str().expect("UTF-8")));
    let typed = quoted.collect::<Vec<_>>().join(" ");
    // It gives the command a terminal of its own.
    let mut script = Command::new("script");
    script.args(["-q", "-e", "-c", &typed, "/dev/null"]);
    script.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    for (name, _) in command.get_envs().filter(|(_, value)| value.is_none()) {
        script.env_remove(name);
    }
    script.env("TERM", "xterm").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut script = script.spawn().expect("util-linux");
    script.stdin.as_mut().expect("piped").write_all(answer.as_bytes()).expect("it reads");
    let mut shown = String::new();
    script.stdout.take().expect("piped").read_to_string(&mut shown).expect("UTF-8");
    script.wait().expect("it ends");
    shown
}

#[tokio::test(flavor = "multi_thread")]
async fn what_destroys_asks_on_a_terminal_and_needs_yes_without_one() {
    let server = Server::start();
    let _service = announced(&server).await;
    let on_server = |command: &[&str]| ratelimit(&[command, &["--redis", &server.url]].concat());
    output(on_server(&["set", "api", "acme", "threshold = 9"]));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("rules.json");
    fs::write(&file, "{}").expect("written");
    let restore = ["restore", file.to_str().expect("UTF-8")];

    let commands = ["reset", "unblock", "unset"].map(|command| [command, "api", "acme"]);
    for command in commands.iter().map(|command| &command[..]).chain([&restore[..]]) {
        let text = error_output(on_server(command));
        assert!(text.contains("without a terminal that answers, add `--yes`"), "{text}");
        let text = on_a_terminal(&on_server(command), "no\n");
        for words in ["Type yes to do it: ", "nothing was done"] {
            assert!(text.contains(words), "{text}");
        }
    }
    assert_eq!(output(on_server(&["get", "api", "acme"])), "threshold = 9\n");
    assert!(output(on_server(&["peek", "api", "acme"])).starts_with("api: 8 of 9 left\n"));
    let text = on_a_terminal(&on_server(&["reset", "api", "acme"]), "yes\n");
    assert!(text.contains("this removes the count of `acme` in `api`"), "{text}");
    assert!(text.ends_with("removed\r\n"), "{text}");
}

#[test]
fn there_are_colours_on_a_terminal_only() {
    let server = Server::start();
    let doctor = || ratelimit(&["doctor", "--redis", &server.url]);
    let ok = "\u{1b}[32mok  \u{1b}[0m  url";
    assert!(on_a_terminal(&doctor(), "").contains(ok));
    let mut plain = doctor();
    plain.env("NO_COLOR", "1");
    for text in [on_a_terminal(&plain, ""), output(doctor())] {
        assert!(text.starts_with("ok    url") && !text.contains('\u{1b}'), "{text:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_examples_of_the_readme_run() {
    let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/../ratelimit-cli/README.md");
    let readme = fs::read_to_string(readme).expect("the README");
    let (_, examples) = readme.split_once("```sh\nexport ").expect("the examples");
    let (examples, _) = examples.split_once("```").expect("their end");
    let lines: Vec<_> = examples.lines().filter(|line| line.starts_with("ratelimit ")).collect();
    assert_eq!(lines.len(), 10, "{lines:?}");

    let server = Server::start();
    let _service = announced(&server).await;
    let folder = tempfile::tempdir().expect("a folder");
    for line in lines {
        let program = ratelimit(&[]);
        let bin = std::path::Path::new(program.get_program()).parent().expect("a folder");
        let mut shell = Command::new("sh");
        shell.args(["-c", line]).current_dir(folder.path());
        shell.env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").expect("a path")));
        shell.env("RATELIMIT_REDIS_URL", &server.url).stdin(Stdio::null());
        // The latency of the machines of tests is not what this test is about.
        shell.env("RATELIMIT_DEADLINE", "30s");
        output(shell);
    }
}
