//! Sliding logs of many records: in Redis a state and segments, in the embedded store pages.

use std::time::Duration;

use ratelimit_runtime::__private::return_units;
use ratelimit_runtime::{Clock, Decision, Limit, RateLimiter, VirtualClock};
use redis::{Commands, Connection};
use support::model::{Expected, Model};
use support::server::Server;
use tokio::task::JoinSet;

use crate::decision;

const HOUR: Duration = Duration::from_secs(3600);
const SEGMENT: u32 = 4_096;

fn limit(threshold: u32) -> Limit {
    Limit::sliding("long", threshold, HOUR)
}

/// Both stores, on one clock.
struct Both {
    redis: RateLimiter,
    embedded: RateLimiter,
    clock: VirtualClock,
}

#[derive(Clone, Copy, Debug)]
enum Ask {
    Check(u32),
    Peek(u32),
    Refund(u32),
    Return(u32, Duration),
}

impl Both {
    fn on(server: &Server) -> Self {
        let clock = VirtualClock::new();
        let redis = server.builder().cache_rejections(false).clock(Clock::Virtual(clock.clone()));
        let embedded = RateLimiter::builder().clock(Clock::Virtual(clock.clone()));
        let (redis, embedded) = (redis.build().expect("valid"), embedded.build().expect("valid"));
        Self { redis, embedded, clock }
    }

    /// The answers of Redis and of the embedded store.
    async fn ask(&self, limit: &Limit, ask: Ask) -> [Decision; 2] {
        let mut answers = Vec::new();
        for limiter in [&self.redis, &self.embedded] {
            answers.push(match ask {
                Ask::Check(cost) => decision(limiter.check(limit, "key", cost).await),
                Ask::Peek(cost) => decision(limiter.peek(limit, "key", cost).await),
                Ask::Refund(cost) => limiter.refund(limit, "key", cost).await.expect("answers"),
                Ask::Return(cost, ago) => {
                    let at = (self.clock.now() - ago).as_micros() as u64;
                    return_units(limiter, limit, "key", cost, at).await.expect("answers")
                }
            });
        }
        [answers[0], answers[1]]
    }

    /// Asks both, which have to agree.
    async fn agree(&self, limit: &Limit, ask: Ask) -> Decision {
        let [redis, embedded] = self.ask(limit, ask).await;
        let facts = |it: Decision| (it.allowed, it.remaining, it.retry_after, it.reset_after);
        assert_eq!(facts(redis), facts(embedded), "{ask:?} under {limit:?}");
        redis
    }

    /// Charges single units, some time apart.
    async fn fill(&self, limit: &Limit, calls: u32, apart: Duration) {
        for _ in 0..calls {
            assert!(self.agree(limit, Ask::Check(1)).await.allowed);
            self.clock.advance(apart);
        }
    }

    async fn reset(&self, limit: &Limit) {
        for limiter in [&self.redis, &self.embedded] {
            limiter.reset(limit, "key").await.expect("answers");
        }
    }
}

fn keys(connection: &mut Connection) -> Vec<String> {
    let mut keys: Vec<String> = connection.keys("*").expect("KEYS");
    keys.sort();
    keys
}

/// Each key is small, and lives no longer than it is of use.
fn assert_sound(connection: &mut Connection) {
    for key in keys(connection) {
        let (length, life): (usize, i64) =
            (connection.strlen(&key).expect("STRLEN"), connection.pttl(&key).expect("PTTL"));
        assert!(length <= 64 << 10, "{key}: {length} bytes");
        // A minute more for a clock that is not the server's, and an eighth.
        assert!((1..=3_660 * 1_125 + 100).contains(&life), "{key}: {life} ms");
    }
}

#[tokio::test]
async fn stores_agree_on_long_logs() {
    let server = Server::start();
    let both = Both::on(&server);
    let mut connection = server.connection();
    let second = Duration::from_secs(1);
    let wide = limit(20_000);

    // Growth; a cost that waits for a record in the middle, at each end of blocks and segments.
    both.fill(&wide, 3 * SEGMENT + 100, Duration::from_millis(100)).await;
    assert_eq!(keys(&mut connection).len(), 4);
    assert_sound(&mut connection);
    let used = 20_000 - both.agree(&wide, Ask::Peek(0)).await.remaining;
    assert_eq!(used, 3 * SEGMENT + 100);
    let free = 20_000 - used;
    for behind in [1, 2, 63, 64, 65, 128, 4_000, 4_095, 4_096, 4_097, 8_192, 12_288, 12_289, used] {
        let refused = both.agree(&wide, Ask::Check(free + behind)).await;
        assert!(!refused.allowed);
    }

    // Another threshold below what is used, and above it again.
    for threshold in [1, 64, 4_096, 5_000, 12_000, 12_388, 12_389, 40_000] {
        for cost in [1, threshold.min(100), threshold] {
            both.agree(&limit(threshold), Ask::Peek(cost)).await;
        }
    }

    // A few leave, then more than a block, then more than a segment.
    both.clock.advance(HOUR - second * 1_238);
    for wait in [1, 1, 2, 3, 10, 100, 100, 500] {
        both.clock.advance(second * wait);
        both.agree(&wide, Ask::Check(free)).await;
        both.agree(&wide, Ask::Check(1)).await;
    }
    assert_sound(&mut connection);
    assert_eq!(keys(&mut connection).len(), 3, "what has left is removed");

    // Units that are given back, of both ends.
    for cost in [1, 2, 65, 3_000] {
        both.agree(&wide, Ask::Refund(cost)).await;
        both.agree(&wide, Ask::Return(cost, second)).await;
        both.agree(&wide, Ask::Check(20_000)).await;
        both.fill(&wide, 70, second / 100).await;
    }
    both.agree(&wide, Ask::Return(1, HOUR)).await;
    assert_sound(&mut connection);

    // All at once, and a log that begins anew.
    both.clock.advance(HOUR * 2);
    both.agree(&wide, Ask::Check(3)).await;
    both.fill(&wide, 100, second).await;
    both.reset(&wide).await;
    both.fill(&wide, 2 * SEGMENT, second / 100).await;
    both.agree(&wide, Ask::Refund(SEGMENT)).await;
    both.agree(&wide, Ask::Refund(20_000)).await;
    assert_eq!(keys(&mut connection), [""; 0]);
}

/// A window that slides over a log of the same length for long: rings wrap, segments come and go.
#[tokio::test]
async fn stores_agree_while_a_long_log_slides() {
    let server = Server::start();
    let both = Both::on(&server);
    let mut connection = server.connection();
    let limit = limit(5_000);
    let apart = HOUR / 5_000;
    both.fill(&limit, 15_000, apart).await;
    // Some records of other costs, and none for some time.
    for round in 1..2_000_u32 {
        both.agree(&limit, Ask::Check(1 + round * 7 % 13)).await;
        both.clock.advance(apart * (round % 3 * 7));
    }
    assert_sound(&mut connection);
    assert!(keys(&mut connection).len() <= 3);
}

/// The model keeps each record, and is slow: it is asked when a log is long.
#[tokio::test]
async fn stores_agree_with_the_model_on_long_logs() {
    let server = Server::start();
    let both = Both::on(&server);
    let mut connection = server.connection();
    let limits = [9_500, 9_000, 4_100, 100, 20_000].map(limit);
    let mut model = Model::new(&limits[0], None);
    for index in 0..2 * SEGMENT + 700 {
        let cost = 1 + index / 63 % 2 * (index % 2);
        let clock = both.clock.now().as_micros() as u64;
        model.charge(&limits[4], clock, cost);
        assert!(both.agree(&limits[4], Ask::Check(cost)).await.allowed);
        both.clock.advance(HOUR / 10_000);
    }
    // Any numbers, the same ones each time.
    let mut random = 7_u32;
    let mut next = |below: u32| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 8) % below
    };
    for step in 0..60 {
        let limit = &limits[next(5) as usize];
        let cost = [1, 2, 64, 500, 4_000][next(5) as usize].min(limit.threshold());
        let ago = HOUR / 8 * next(10);
        let ask = match next(8) {
            0..=3 => Ask::Check(cost),
            4..=5 => Ask::Peek(cost),
            6 => Ask::Refund(cost / 2),
            _ => Ask::Return(cost / 2, ago),
        };
        let got = both.agree(limit, ask).await;
        let clock = both.clock.now().as_micros() as u64;
        let expected = match ask {
            Ask::Check(cost) => model.check(limit, clock, cost),
            Ask::Peek(cost) => model.peek(limit, clock, cost),
            Ask::Refund(cost) => model.refund(limit, clock, cost),
            Ask::Return(cost, ago) => {
                model.give_back(limit, clock, cost, clock - ago.as_micros() as u64)
            }
        };
        let got = Expected {
            allowed: got.allowed,
            remaining: got.remaining,
            retry_after: got.retry_after,
            reset_after: got.reset_after,
        };
        assert_eq!(got, expected, "step {step}: {ask:?} under {limit:?}");
        both.clock.advance(HOUR / 10_000 * [0, 1, 2, 70, 500][next(5) as usize]);
    }
    assert_sound(&mut connection);
}

/// A log of so many records, and more units.
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
                // Other costs than those of the other tasks, as equal calls are one record.
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

/// What a call costs the server does not depend on how long the log is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_on_a_long_log_takes_many_commands() {
    let server = Server::start();
    let Both { redis: limiter, clock, .. } = Both::on(&server);
    let mut connection = server.connection();
    let (key, most) = ("key", u32::MAX);
    charge(&limiter, &clock, Some(key), 100_000).await;
    let used = most - decision(limiter.peek(&limit(most), key, 0).await).remaining;
    let start = clock.now();
    for (what, threshold, cost, later) in [
        ("a refusal", most, most - used / 2, 0),
        ("a lowered threshold", 10, 1, 0),
        ("a raised threshold", used, used / 3, 0),
        ("an append", most, 1, 0),
        ("half of it leaves", most, 1, 3_600_500_000),
        ("all of it leaves", most, 1, 7_300_000_000),
    ] {
        clock.set(start + Duration::from_micros(later));
        let limit = limit(threshold);
        decision(limiter.peek(&limit, key, 0).await);
        redis::cmd("CONFIG").arg("RESETSTAT").exec(&mut connection).expect("RESETSTAT");
        decision(limiter.check(&limit, key, cost).await);
        let stats: String =
            redis::cmd("INFO").arg("commandstats").query(&mut connection).expect("INFO");
        let calls = stats.lines().filter_map(|line| line.split_once("calls=")?.1.split(',').next());
        let calls: u32 = calls.map(|calls| calls.parse::<u32>().expect("a count")).sum();
        assert!(calls <= 60, "{what}: {calls} commands\n{stats}");
        assert_sound(&mut connection);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_leaves_no_segment_behind() {
    let server = Server::start();
    let Both { redis: limiter, clock, .. } = Both::on(&server);
    let mut connection = server.connection();
    for (key, segments) in [(Some("key"), 40), (Some(""), 2), (None, 2)] {
        charge(&limiter, &clock, key, segments * SEGMENT + 100).await;
        let there = keys(&mut connection);
        assert_eq!(there.len() as u32, segments + 1, "{there:?}");
        // Where rights are by prefix, these keys are in it.
        assert!(there.iter().all(|key| key.starts_with("ratelimit:sliding:1h:long")), "{there:?}");
        assert_sound(&mut connection);
        match key {
            Some(key) => limiter.reset(&limit(1), key).await.expect("answers"),
            None => limiter.reset(&limit(1), ()).await.expect("answers"),
        }
        assert_eq!(keys(&mut connection), [""; 0], "after the reset of {key:?}");
    }
}

/// A segment that Redis evicted counts by its sum, until the next begins to leave the window.
#[tokio::test]
async fn an_evicted_segment_admits_nothing_too_early() {
    let server = Server::start();
    let both = Both::on(&server);
    let mut connection = server.connection();
    let limit = limit(14_000);
    let second = Duration::from_secs(1);
    for evicted in 1..=3 {
        both.reset(&limit).await;
        both.fill(&limit, 3 * SEGMENT + 100, second / 10).await;
        let segment = keys(&mut connection)[evicted].clone();
        let _: () = connection.del(&segment).expect("DEL");
        let mut strict = 0;
        for step in 0..600 {
            let [redis, embedded] = both.ask(&limit, Ask::Peek(3_000)).await;
            assert!(redis.remaining <= embedded.remaining, "{step}: {redis:?} {embedded:?}");
            strict += u32::from(redis.remaining < embedded.remaining);
            if !redis.allowed {
                // Tight, as far as is known.
                let now = both.clock.now();
                both.clock.set(now + redis.retry_after);
                assert!(both.ask(&limit, Ask::Peek(3_000)).await[0].allowed);
                both.clock.set(now + redis.retry_after - Duration::from_micros(1));
                assert!(!both.ask(&limit, Ask::Peek(3_000)).await[0].allowed);
                both.clock.set(now);
            }
            // The state is written as well, by both alike.
            if redis.remaining > 0 && step % 7 == 0 {
                assert!(both.ask(&limit, Ask::Check(1)).await[0].allowed);
            }
            both.clock.advance(second * 10);
        }
        assert!(strict > 10, "nothing was evicted");
        both.clock.advance(HOUR);
        both.agree(&limit, Ask::Check(14_000)).await;
        assert_sound(&mut connection);
    }
}
