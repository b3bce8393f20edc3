//! The memory of calls that wait for Redis, each for a key of its own.
//!
//! This is the only test of the file, because it measures the memory of the process. To see the figures, run
//! `tests/run --test waiting_memory -- --nocapture`.

use ratelimit_runtime::Limit;
use support::limits::{MINUTE, SECOND};
use support::memory;
use support::server::Server;
use tokio::task::JoinSet;

/// The number of keys. Each has one call that waits.
const KEYS: u64 = 5_000;

#[tokio::test]
async fn a_waiting_call_takes_a_few_kilobytes() {
    let server = Server::start();
    let limiter = server.builder().deadline(5 * SECOND).build().expect("valid settings");
    let limit = Limit::sliding("waiting", 1, 10 * MINUTE);
    let waiting = limit.wait(20 * MINUTE);
    // One after the other, so that no memory of these calls is free for those that wait.
    for key in 0..KEYS {
        limiter.check(&limit, key, 1).await.expect("a new key");
    }
    let Some(before) = memory("VmRSS") else { return };
    let mut calls = JoinSet::new();
    for key in 0..KEYS {
        calls.spawn(limiter.check(&waiting, key, 1));
    }
    // Each line asks once, and then each second.
    tokio::time::sleep(5 * SECOND).await;
    assert!(calls.try_join_next().is_none(), "a call has ended");
    let each = memory("VmRSS").expect("as before").saturating_sub(before) / KEYS;
    calls.abort_all();
    println!("{each} bytes for a waiting call");
    assert!(each < 12_288, "{each} bytes for a waiting call");
}
