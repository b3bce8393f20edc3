//! The example `prove`: its table, its keys, the servers that it accepts, and its errors.

use std::io::Write;
use std::process::{Command, Stdio};
use std::thread;

use redis::ConnectionAddr;
use redis_test::server::RedisServer;
use support::cluster::Cluster;
use support::sentinel::Sentinels;
use support::server::{Server, start_with_tls};

use crate::{error_output, example, output};

fn prove(arguments: &[&str]) -> Command {
    let mut prove = example("prove");
    prove.args(arguments);
    prove
}

/// Returns what the table says of a limiter: the calls in the fullest second, and those beyond the limit.
fn figures(text: &str, limiter: &str) -> [u64; 2] {
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{limiter}  ")));
    let line = line.unwrap_or_else(|| panic!("no line of `{limiter}` in {text}"));
    let mut numbers = line.split_whitespace().map(|word| word.parse().expect("a number"));
    [numbers.next().expect("the calls"), numbers.next().expect("those beyond")]
}

fn assert_holds(text: &str) {
    for exact in ["the textbook script", "this library, each call to Redis", "this library"] {
        let [fullest, beyond] = figures(text, exact);
        assert!((1..=100).contains(&fullest) && beyond == 0, "{exact}: {text}");
    }
    // How many calls these admit depends on the time that they get.
    for inexact in ["INCR, EXPIRE", "a sorted set, three commands"] {
        let [fullest, beyond] = figures(text, inexact);
        assert_eq!(beyond, fullest.saturating_sub(100), "{inexact}: {text}");
    }
    assert!(text.contains("Read the column `beyond`"), "{text}");
    assert!(!text.contains("Begin?") && text.contains("are removed"), "{text}");
}

/// Answers that the program must not begin, and returns its output.
fn refused(url: &str) -> String {
    let mut prove = prove(&[url]);
    let mut process =
        prove.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    process.stdin.take().expect("piped").write_all(b"no\n").expect("it reads");
    let output = process.wait_with_output().expect("it ends");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(output.status.success(), "{text}");
    assert!(text.contains("Begin? (y/n)") && text.ends_with("nothing was written\n"), "{text}");
    text
}

#[test]
fn prove_counts_no_call_beyond_the_limit_and_leaves_no_key() {
    let (server, cluster, sentinels) = (Server::start(), Cluster::start(0), Sentinels::start());
    let urls = [server.url.clone(), cluster.url(), sentinels.url("master0/1")];
    // Each run takes half a minute.
    thread::scope(|scope| {
        for url in &urls {
            scope.spawn(|| assert_holds(&output(prove(&[url, "--yes"]))));
        }
    });
    assert_eq!(server.ttls(), []);
    for node in 0..cluster.len() {
        assert_eq!(cluster.keys(node), [""; 0]);
    }
    let text = error_output(prove(&[&format!("redis://127.0.0.1:{}", cluster.port(0))]));
    assert!(text.contains("a node of a cluster: begin the URL with redis+cluster://"), "{text}");
    let text = error_output(prove(&[&sentinels.url("other")]));
    assert!(text.contains("do not know the service `other`"), "{text}");
}

#[test]
fn prove_works_with_tls_and_certificates_in_files() {
    let (server, url) = start_with_tls(true);
    let files = server.tls_paths.as_ref().expect("the server has TLS");
    let paths = [&files.ca_crt, &files.redis_crt, &files.redis_key];
    let [root, own, key] = paths.map(|path| path.to_str().expect("UTF-8"));
    let options = ["--cacert", root, "--cert", own, "--key", key];
    assert_holds(&output(prove(&[&[&*url, "--yes"], &options[..]].concat())));
    let text = error_output(prove(&[&url]));
    assert!(text.contains("invalid peer certificate") && text.contains("--cacert FILE"), "{text}");
}

#[test]
fn prove_asks_before_it_writes() {
    let server = Server::start();
    refused(&server.url);
    refused(&server.url.replace("redis:", "valkey:"));
    assert_eq!(server.script_calls(), 0);
    assert_eq!(server.ttls(), []);

    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("redis.sock");
    let socket = ConnectionAddr::Unix(path.clone());
    let _server = RedisServer::new_with_addr_and_modules(socket, &[], false);
    while !path.exists() {
        thread::yield_now();
    }
    let text = refused(&format!("unix://{}", path.display()));
    assert!(text.contains(&format!("64 clients will call {}", path.display())), "{text}");
}

#[test]
fn the_errors_of_prove_say_what_to_write() {
    let text = error_output(prove(&["http://ann:secret@127.0.0.1", "--yes"]));
    assert!(text.contains("the Redis URL is invalid") && !text.contains("secret"), "{text}");
    for form in
        ["redis://host:port", "unix:///path", "redis+cluster://", "redis+sentinel://", "rediss"]
    {
        assert!(text.contains(form), "{form}: {text}");
    }
    // No server listens on port 1.
    for (url, error) in [
        ("redis://:secret@127.0.0.1:1", "cannot connect to 127.0.0.1:1: "),
        ("redis+cluster://:secret@127.0.0.1:1", "cannot connect to the cluster at 127.0.0.1:1: "),
        ("redis+sentinel://:secret@127.0.0.1:1/shop", "no Sentinel replies at 127.0.0.1:1: "),
    ] {
        let text = error_output(prove(&[url, "--yes"]));
        assert!(text.contains(error) && !text.contains("secret"), "{text}");
        assert!(text.contains("To start a Redis: redis-server"), "{text}");
    }
    for (arguments, error) in [
        (&["--yes"][..], "cargo run --release --example prove -- redis://"),
        (&["rediss://127.0.0.1", "--cert", "/no/file"], "cannot read /no/file"),
        (&["rediss://127.0.0.1", "--cert", "/dev/null"], "--cert and --key need each other"),
    ] {
        let text = error_output(prove(arguments));
        assert!(text.contains(error), "{text}");
    }
}
