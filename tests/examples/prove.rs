//! The example `prove`: its table, its keys, and its errors.

use std::io::Write;
use std::process::Stdio;

use support::server::Server;

use crate::{error_output, example, output};

/// Returns what the table says of a limiter: the calls in the fullest second, and those beyond the limit.
fn figures(text: &str, limiter: &str) -> [u32; 2] {
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{limiter}  ")));
    let line = line.unwrap_or_else(|| panic!("no line of `{limiter}` in {text}"));
    let mut numbers = line.split_whitespace().map(|word| word.parse().expect("a number"));
    [numbers.next().expect("the calls"), numbers.next().expect("those beyond")]
}

#[test]
fn prove_counts_no_call_beyond_the_limit_and_leaves_no_key() {
    let server = Server::start();
    let mut prove = example("prove");
    prove.args([&server.url, "--yes"]);
    let text = output(prove);
    for exact in ["the textbook script", "this library, each call to Redis", "this library"] {
        let [fullest, beyond] = figures(&text, exact);
        assert!(fullest <= 100 && beyond == 0, "{exact}: {text}");
    }
    // How many calls these admit depends on the time that they get.
    for inexact in ["INCR, EXPIRE", "a sorted set, three commands"] {
        let [fullest, beyond] = figures(&text, inexact);
        assert_eq!(beyond, fullest.saturating_sub(100), "{inexact}: {text}");
    }
    assert!(text.contains("Read the column `beyond`"), "{text}");
    assert!(!text.contains("Begin?") && text.contains("are removed"), "{text}");
    assert_eq!(server.ttls(), [], "{text}");
}

#[test]
fn prove_asks_before_it_writes() {
    let server = Server::start();
    let mut prove = example("prove");
    prove.arg(&server.url).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = prove.spawn().expect("it starts");
    process.stdin.take().expect("piped").write_all(b"no\n").expect("it reads");
    let output = process.wait_with_output().expect("it ends");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(output.status.success(), "{text}");
    assert!(text.contains("Begin? (y/n)") && text.ends_with("nothing was written\n"), "{text}");
    assert_eq!(server.script_calls(), 0);
    assert_eq!(server.ttls(), []);
}

#[test]
fn the_errors_of_prove_say_what_to_write() {
    let error = |arguments: &[&str]| {
        let mut prove = example("prove");
        error_output({
            prove.args(arguments);
            prove
        })
    };
    let text = error(&["--yes"]);
    assert!(text.contains("cargo run --release --example prove -- redis://"), "{text}");
    let text = error(&["http://ann:secret@127.0.0.1", "--yes"]);
    assert!(
        text.contains("cannot use `127.0.0.1`: write redis://host:port, without TLS"),
        "{text}"
    );
    assert!(!text.contains("secret"), "{text}");
    // No server listens on port 1.
    let text = error(&["redis://:secret@127.0.0.1:1", "--yes"]);
    assert!(text.contains("no Redis at 127.0.0.1:1. To start one: redis-server"), "{text}");
    assert!(!text.contains("secret"), "{text}");
}
