//! Sliding logs of many entries. Redis keeps them in segments, the embedded store in pages.

mod agreement;
mod forms;
mod segments;

use std::time::Duration;

use ratelimit_runtime::__private::return_units;
use ratelimit_runtime::{Clock, Decision, Limit, RateLimiter, VirtualClock};
use redis::{Commands, Connection};
use support::limits::HOUR;
use support::model::ExpectedDecision;
use support::server::Server;

use crate::decision;

const SEGMENT: u32 = 4_096;

fn limit(threshold: u32) -> Limit {
    Limit::sliding("long", threshold, HOUR)
}

/// Redis and the embedded store, on one clock.
struct StorePair {
    redis: RateLimiter,
    embedded: RateLimiter,
    clock: VirtualClock,
}

#[derive(Clone, Copy, Debug)]
enum Request {
    Check(u32),
    Peek(u32),
    Refund(u32),
    /// Units, and the time of their charge in microseconds.
    Return(u32, u64),
}

impl StorePair {
    fn on(server: &Server) -> Self {
        let clock = VirtualClock::new();
        let redis = server.builder().cache_rejections(false).clock(Clock::Virtual(clock.clone()));
        let embedded = RateLimiter::builder().clock(Clock::Virtual(clock.clone()));
        let (redis, embedded) = (redis.build().expect("valid"), embedded.build().expect("valid"));
        Self { redis, embedded, clock }
    }

    /// Sends a request to Redis and to the embedded store, and returns their decisions.
    async fn send(&self, limit: &Limit, request: Request) -> [Decision; 2] {
        let mut results = Vec::new();
        for limiter in [&self.redis, &self.embedded] {
            results.push(match request {
                Request::Check(cost) => decision(limiter.check(limit, "key", cost).await),
                Request::Peek(cost) => decision(limiter.peek(limit, "key", cost).await),
                Request::Refund(cost) => limiter.credit(limit, "key", cost).await.expect("a reply"),
                Request::Return(cost, at) => {
                    return_units(limiter, limit, "key", cost, at).await.expect("a reply")
                }
            });
        }
        [results[0], results[1]]
    }

    /// Sends a request to both stores, asserts that their decisions are equal, and returns the decision.
    async fn compare(&self, limit: &Limit, request: Request) -> ExpectedDecision {
        let [redis, embedded] = self.send(limit, request).await.map(ExpectedDecision::from);
        assert_eq!(redis, embedded, "{request:?} under {limit:?}");
        redis
    }

    /// Charges single units, with a pause after each.
    async fn fill(&self, limit: &Limit, calls: u32, apart: Duration) {
        for _ in 0..calls {
            assert!(self.compare(limit, Request::Check(1)).await.allowed);
            self.clock.advance(apart);
        }
    }

    async fn reset(&self, limit: &Limit) {
        for limiter in [&self.redis, &self.embedded] {
            limiter.reset(limit, "key").await.expect("a reply");
        }
    }
}

fn keys(connection: &mut Connection) -> Vec<String> {
    let mut keys: Vec<String> = connection.keys("*").expect("KEYS");
    keys.sort();
    keys
}

/// Asserts that each key is small, and that its TTL ends soon after the useful life of the key.
fn assert_keys_are_bounded(connection: &mut Connection) {
    for key in keys(connection) {
        let (length, ttl): (usize, i64) =
            (connection.strlen(&key).expect("STRLEN"), connection.pttl(&key).expect("PTTL"));
        assert!(length <= 64 << 10, "{key}: {length} bytes");
        // The period, a minute because the limiter sends its own clock, and an eighth.
        assert!((1..=3_660 * 1_125 + 100).contains(&ttl), "{key}: {ttl} ms");
    }
}
