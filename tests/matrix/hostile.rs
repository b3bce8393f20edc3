//! Faults that a client or a writer of rules causes on purpose.

use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use ratelimit_runtime::{Limit, RateLimiter};
use support::server::Server;

use super::fleet::{Fleet, Report};
use super::{BEFORE, DEADLINE, FAULT};

/// A limit of names that clients choose.
const NAMES: Limit = Limit::sliding("names", 5, Duration::from_secs(3600));

/// The length of a body that frameworks accept.
const LONG: usize = 2 << 20;

/// Processes that read rules from Redis, and a writer that has the rights for rules.
pub(crate) fn hostile() -> Report {
    let server = Server::start();
    let fleet = Fleet::start_with_rules(&server.url);
    let mut connection = server.connection();
    let large = "x".repeat(20_000_000);
    sleep(BEFORE);
    let rules = "rl:{rules}";
    for field in ["rules", "version"] {
        redis::cmd("HSET").arg(rules).arg(field).arg(&large).exec(&mut connection).expect("HSET");
    }
    let start = Instant::now();
    for round in 0.. {
        if start.elapsed() >= FAULT {
            break;
        }
        let id = format!("~{round}");
        let mut writes = redis::pipe();
        writes.set(format!("{rules}:process:{id}"), "[".repeat(50_000));
        writes.zadd(format!("{rules}:processes"), &id, u64::MAX);
        writes.exec(&mut connection).expect("written");
        sleep(Duration::from_millis(3));
    }
    fleet.finish(Duration::from_millis(2_500))
}

/// Each request of a client has another key of 2 MB.
pub(crate) fn long_keys() -> Report {
    let server = Server::start();
    let fleet = Fleet::start(&server.url);
    sleep(BEFORE);
    let url = server.url.clone();
    thread::spawn(move || send_long_keys(&url)).join().expect("no panic");
    fleet.finish(Duration::from_millis(2_500))
}

fn send_long_keys(url: &str) {
    let limiter = RateLimiter::builder().redis(url).deadline(DEADLINE).build().expect("valid");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let start = Instant::now();
        while start.elapsed() < FAULT {
            // As many requests at once as a client has connections.
            let calls = (0..16).map(|call| {
                let key = format!("{call} {:?} {}", start.elapsed(), "n".repeat(LONG));
                limiter.check(&NAMES, key, 1)
            });
            futures::future::join_all(calls).await;
        }
    });
}
