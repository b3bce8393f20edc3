//! Sources of rules that stand still: rules are followed again once the source is as it was.

use std::fs;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use futures::future::poll_immediate;
use ratelimit_runtime::{Limit, RateLimiter, Rule, Rules};
use redis::Commands;
use support::server::Server;
use tokio::task::yield_now;

const API: Limit = Limit::sliding("api", 10, Duration::from_secs(60));
const PATIENCE: Duration = Duration::from_secs(30);

fn capacity(limiter: &RateLimiter) -> u64 {
    support::poll_once(limiter.peek(&API, (), 1)).expect("a decision").limit
}

#[test]
fn a_pipe_in_place_of_the_rules_file_does_not_stop_rules() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, new) = (folder.path().join("rules.toml"), folder.path().join("new"));
    let write = |threshold: u64| {
        fs::write(&new, format!("[api]\nthreshold = {threshold}\n")).expect("written");
        fs::rename(&new, &path).expect("renamed");
    };
    write(20);
    let limiter = RateLimiter::builder().rules(Rules::file(&path)).build().expect("valid");
    assert_eq!(capacity(&limiter), 20);
    assert!(Command::new("mkfifo").arg(&new).status().expect("mkfifo").success());
    fs::rename(&new, &path).expect("renamed");
    // The feed has looked at the pipe.
    sleep(Duration::from_secs(2));
    assert_eq!(capacity(&limiter), 20);
    write(30);
    let start = Instant::now();
    while capacity(&limiter) != 30 {
        assert!(start.elapsed() < PATIENCE, "the rules stand still");
        sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_ping_that_is_not_polled_does_not_stop_rules() {
    let server = Server::start();
    let mut connection = server.connection();
    // Until the rules were read once, each ping waits for them.
    let () = connection.set("rl:{rules}", "foreign").expect("SET");
    let limiter = server.builder().rules(Rules::redis()).build().expect("valid");
    let stuck = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("one");
    let mut pings = Vec::new();
    stuck.block_on(async {
        for number in 0..100 {
            let mut ping = Box::pin(limiter.ping());
            // Each is polled a little more often than the last one, so some have come to the rules.
            for _ in 0..number {
                if poll_immediate(ping.as_mut()).await.is_some() {
                    break;
                }
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
    let start = Instant::now();
    while limiter.rules().is_empty() {
        assert!(start.elapsed() < PATIENCE, "the rules stand still");
        sleep(Duration::from_millis(20));
    }
    running.block_on(limiter.ping()).expect("the rules were read");
}
