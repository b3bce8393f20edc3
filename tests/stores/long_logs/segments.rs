//! The segments of long logs in Redis: what a call on them costs, and what happens to them.

use std::time::Duration;

use ratelimit_runtime::{Limit, RateLimiter, VirtualClock};
use redis::{Commands, Connection};
use support::limits::HOUR;
use support::server::Server;
use tokio::task::JoinSet;

use super::{Request, SEGMENT, StorePair, assert_keys_are_bounded, keys, limit};
use crate::decision;

/// Fills a log with one entry for each call.
async fn charge(
    limiter: &RateLimiter,
    clock: &VirtualClock,
    key: Option<&'static str>,
    calls: u32,
) {
    let mut tasks = JoinSet::new();
    for task in 0..32 {
        let (limiter, clock, limit) = (limiter.clone(), clock.clone(), limit(u32::MAX));
        tasks.spawn(async move {
            for _ in 0..calls / 32 {
                // Each task has its own cost, because concurrent equal calls share an entry.
                let check = match key {
                    Some(key) => limiter.check(&limit, key, task + 1),
                    None => limiter.check(&limit, (), task + 1),
                };
                assert!(decision(check.await).allowed);
                clock.advance(Duration::from_micros(10));
            }
        });
    }
    tasks.join_all().await;
}

/// The work of a call does not depend on the length of the log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_on_a_long_log_takes_few_commands() {
    let server = Server::start();
    let StorePair { redis: limiter, clock, .. } = StorePair::on(&server);
    let mut connection = server.connection();
    let (key, most) = ("key", u32::MAX);
    charge(&limiter, &clock, Some(key), 100_000).await;
    let used = most - decision(limiter.peek(&limit(most), key, 0).await).remaining;
    let start = clock.now();
    for (operation, threshold, cost, later) in [
        ("a rejection", most, most - used / 2, 0),
        ("a lowered threshold", 10, 1, 0),
        ("a raised threshold", used, used / 3, 0),
        ("an append", most, 1, 0),
        ("half of the log leaves", most, 1, 3_600_500_000),
        ("the whole log leaves", most, 1, 7_300_000_000),
    ] {
        clock.set(start + Duration::from_micros(later));
        let limit = limit(threshold);
        decision(limiter.peek(&limit, key, 0).await);
        redis::cmd("CONFIG").arg("RESETSTAT").exec(&mut connection).expect("RESETSTAT");
        decision(limiter.check(&limit, key, cost).await);
        let calls = command_calls(&mut connection);
        assert!(calls <= 60, "{operation}: {calls} commands");
        assert_keys_are_bounded(&mut connection);
    }
}

/// Returns how many commands the server has run since its statistics were reset, also within scripts.
fn command_calls(connection: &mut Connection) -> u32 {
    let stats: String = redis::cmd("INFO").arg("commandstats").query(connection).expect("INFO");
    let calls = stats.lines().filter_map(|line| line.split_once("calls=")?.1.split(',').next());
    calls.map(|calls| calls.parse::<u32>().expect("a count")).sum()
}

/// The charge is at any place of the log, and all of its units are given back.
#[tokio::test]
async fn a_settlement_takes_few_commands() {
    let server = Server::start();
    let StorePair { redis: limiter, clock, .. } = StorePair::on(&server);
    let mut connection = server.connection();
    let limit = limit(u32::MAX);
    // Charges come in bursts, with long pauses between them.
    let mut permits = Vec::new();
    for call in 0..3 * SEGMENT + 1_500 {
        permits.push(Some(limiter.acquire(&limit, "key", 1).await.expect("admitted")));
        clock.advance(Duration::from_micros(if call % 1_000 == 0 { 100_000_000 } else { 500 }));
    }
    let newest = permits.len() - 1;
    let mut settled = 0;
    for place in [newest, newest - 1, newest - 70, newest - 1_400, newest - 1_501]
        .into_iter()
        .chain((1..newest - 1_600).step_by(397))
    {
        redis::cmd("CONFIG").arg("RESETSTAT").exec(&mut connection).expect("RESETSTAT");
        permits[place].take().expect("each place once").settle(0);
        limiter.flush().await.expect("settled");
        settled += 1;
        let calls = command_calls(&mut connection);
        assert!(calls <= 30, "{place}: {calls} commands");
        let left = limiter.peek(&limit, "key", 1).await.expect("a decision").remaining;
        assert_eq!(left, u32::MAX - (newest as u32 + 1 - settled), "{place}");
    }
}

/// A value that claims four billion segments, which it does not have.
#[tokio::test]
async fn a_reset_does_not_believe_a_foreign_value() {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid settings");
    let limit = Limit::sliding("foreign", 10, HOUR);
    limiter.check(&limit, "key", 1).await.expect("admitted");
    let mut connection = server.connection();
    let key = keys(&mut connection).remove(0);
    for length in [39, 10_000] {
        let mut value = vec![0_u8; length];
        value[0] = 130;
        value[29..39].fill(255);
        let _: () = connection.set(&key, value).expect("SET");
        redis::cmd("CONFIG").arg("RESETSTAT").exec(&mut connection).expect("RESETSTAT");
        assert!(limiter.reset(&limit, "key").await.expect("a reply"));
        let calls = command_calls(&mut connection);
        assert!(calls < 100, "{length} bytes: {calls} commands");
        assert_eq!(keys(&mut connection), [""; 0]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_deletes_all_segments() {
    let server = Server::start();
    let StorePair { redis: limiter, clock, .. } = StorePair::on(&server);
    let mut connection = server.connection();
    let cases = [(Some("key"), 40, false), (Some(""), 2, false), (None, 2, false), (None, 2, true)];
    for (key, segments, is_closed) in cases {
        charge(&limiter, &clock, key, segments * SEGMENT + 100).await;
        let keys_of_log = keys(&mut connection);
        assert_eq!(keys_of_log.len() as u32, segments + 1, "{keys_of_log:?}");
        // An ACL by prefix covers the segments.
        assert!(
            keys_of_log.iter().all(|key| key.starts_with("rl:sliding:1h:long")),
            "{keys_of_log:?}"
        );
        assert_keys_are_bounded(&mut connection);
        if is_closed {
            limiter.close(&limit(1), key, HOUR).await.expect("closed");
        }
        let was_there = limiter.reset(&limit(1), key).await.expect("a reply");
        assert!(was_there);
        assert_eq!(keys(&mut connection), [""; 0], "after the reset of {key:?}");
    }
}

/// The sum of a segment that Redis evicted counts until the next segment begins to leave the window.
#[tokio::test]
async fn an_evicted_segment_admits_no_call_early() {
    let server = Server::start();
    let stores = StorePair::on(&server);
    let mut connection = server.connection();
    let limit = limit(14_000);
    let second = Duration::from_secs(1);
    for evicted in 1..=3 {
        stores.reset(&limit).await;
        stores.fill(&limit, 3 * SEGMENT + 100, second / 10).await;
        let segment = keys(&mut connection)[evicted].clone();
        let _: () = connection.del(&segment).expect("DEL");
        let mut strict = 0;
        for step in 0..600 {
            let [redis, embedded] = stores.send(&limit, Request::Peek(3_000)).await;
            assert!(redis.remaining <= embedded.remaining, "{step}: {redis:?} {embedded:?}");
            strict += u32::from(redis.remaining < embedded.remaining);
            if !redis.allowed {
                // The wait is tight, given the entries that are left.
                let now = stores.clock.now();
                stores.clock.set(now + redis.retry_after);
                assert!(stores.send(&limit, Request::Peek(3_000)).await[0].allowed);
                stores.clock.set(now + redis.retry_after - Duration::from_micros(1));
                assert!(!stores.send(&limit, Request::Peek(3_000)).await[0].allowed);
                stores.clock.set(now);
            }
            // Some calls write the state.
            if redis.remaining > 0 && step % 7 == 0 {
                assert!(stores.send(&limit, Request::Check(1)).await[0].allowed);
            }
            stores.clock.advance(second * 10);
        }
        assert!(strict > 10, "the eviction had no effect");
        stores.clock.advance(HOUR);
        stores.compare(&limit, Request::Check(14_000)).await;
        assert_keys_are_bounded(&mut connection);
    }
}
