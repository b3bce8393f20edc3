//! The command `prove`: its table, its keys, the servers that it accepts, and its errors.

use std::process::Command;
use std::thread;

use redis::ConnectionAddr;
use redis_test::server::RedisServer;
use serde_json::Value;
use support::cluster::Cluster;
use support::example::{error_output, output};
use support::sentinel::Sentinels;
use support::server::{Server, start_with_tls};

use crate::{ratelimit, with_certificates};

fn prove(url: &str, arguments: &[&str]) -> Command {
    ratelimit(&[&["prove", "--redis", url], arguments].concat())
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
}

fn refused(url: &str) -> String {
    let text = error_output(prove(url, &[]));
    assert!(text.contains("without a terminal that answers, add `--yes`"), "{text}");
    text
}

#[test]
fn prove_counts_no_call_beyond_the_limit_and_leaves_no_key() {
    let (server, cluster, sentinels) = (Server::start(), Cluster::start(0), Sentinels::start());
    let urls = [server.url.clone(), cluster.url(), sentinels.url("master0/1")];
    // Each run takes half a minute.
    thread::scope(|scope| {
        for url in &urls {
            scope.spawn(|| assert_holds(&output(prove(url, &["--yes"]))));
        }
    });
    assert_eq!(server.ttls(), []);
    for node in 0..cluster.len() {
        assert_eq!(cluster.keys(node), [""; 0]);
    }
    let text = error_output(prove(&format!("redis://127.0.0.1:{}", cluster.port(0)), &[]));
    assert!(text.contains("a node of a cluster: begin the URL with redis+cluster://"), "{text}");
    let text = error_output(prove(&sentinels.url("other"), &[]));
    assert!(text.contains("do not know the service `other`"), "{text}");
}

#[test]
fn prove_works_with_tls_and_certificates_in_files() {
    let (server, url) = start_with_tls();
    let mut with_files = prove(&url, &["--yes", "--json"]);
    with_certificates(&mut with_files, &server);
    let table: Value = serde_json::from_str(&output(with_files)).expect("JSON");
    let limiters = table["limiters"].as_array().expect("limiters").iter();
    let ours = limiters.filter(|limiter| limiter["is_ours"] == true);
    let beyond: Vec<_> = ours.map(|limiter| &limiter["beyond"]).collect();
    assert!(table["threshold"] == 100 && beyond == [0, 0], "{table}");
    let text = error_output(prove(&url, &[]));
    for words in ["invalid peer certificate", "RATELIMIT_ROOT_CERTIFICATES"] {
        assert!(text.contains(words), "{text}");
    }
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
    let text = error_output(prove("http://ann:secret@127.0.0.1", &["--yes"]));
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
        let text = error_output(prove(url, &["--yes"]));
        assert!(text.contains(error) && !text.contains("secret"), "{text}");
        assert!(text.contains("To start a Redis: redis-server"), "{text}");
    }
}
