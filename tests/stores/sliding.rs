//! Sliding windows beside an exact log of charges. Both stores make the same decisions. A unit never leaves the window
//! early; it leaves less than a tick late or, of a threshold above 1,000, up to a thousandth of a period late.

use std::time::Duration;

use ratelimit_runtime::{Clock, Limit, Permit, RateLimiter, VirtualClock};
use redis::{Commands, Connection};
use support::clocks::embedded_on;
use support::limits::{DAY, MINUTE};
use support::model::ExpectedDecision;
use support::server::Server;

use crate::decision;

/// The largest threshold under which each charge has its own time.
const EXACT: u64 = 1_000;

/// The bytes of a state with the most records, of 8 bytes or, once 2^32 units count, of 11.
const LONGEST: usize = 53 + 1_015 * 8;
const LONGEST_WIDE: usize = 53 + 1_015 * 11;

/// Both stores, on one clock, and the log.
struct Stores {
    redis: RateLimiter,
    embedded: RateLimiter,
    clock: VirtualClock,
    period: Duration,
    /// The time and the units of each charge.
    log: Vec<(Duration, u64)>,
    /// Whether charges may share records.
    is_coarse: bool,
}

/// A charge on both stores, and its index in the log.
struct Charge {
    permits: [Permit; 2],
    index: usize,
    cost: u64,
}

impl Stores {
    fn on(server: &Server, period: Duration) -> Self {
        let clock = VirtualClock::at(Duration::from_secs(1_800_000_000));
        let redis = server.builder().cache_rejections(false);
        let redis = redis.clock(Clock::Virtual(clock.clone())).build().expect("valid");
        let embedded = embedded_on(&clock);
        Self { redis, embedded, clock, period, log: Vec::new(), is_coarse: false }
    }

    fn limit(&self, threshold: u64) -> Limit {
        Limit::sliding("sliding", threshold, self.period)
    }

    /// Returns the units that count if each leaves the window this late.
    fn used(&self, late: Duration) -> u64 {
        let now = self.clock.now();
        let counts = |(at, _): &&(Duration, u64)| *at + self.period + late > now;
        self.log.iter().filter(counts).map(|(_, units)| units).sum()
    }

    /// The latest that a unit leaves the window.
    fn late(&self) -> Duration {
        let tick = (self.period.as_micros() as u64).div_ceil((1 << 32) - 2).next_power_of_two();
        let cell = if self.is_coarse { self.period / 1_000 } else { Duration::ZERO };
        Duration::from_micros(tick - 1) + cell
    }

    async fn remaining(&self, threshold: u64) -> u64 {
        let limit = self.limit(threshold);
        let redis = decision(self.redis.peek(&limit, "key", 1).await);
        let embedded = decision(self.embedded.peek(&limit, "key", 1).await);
        assert_eq!(ExpectedDecision::from(redis), embedded.into(), "{limit:?}");
        redis.remaining
    }

    /// Asserts that what counts is what the log says.
    async fn assert_agrees(&mut self, threshold: u64) {
        self.is_coarse |= threshold > EXACT;
        let left = |late| threshold.saturating_sub(self.used(late));
        let range = left(self.late())..=left(Duration::ZERO);
        let remaining = self.remaining(threshold).await;
        assert!(range.contains(&remaining), "{remaining} left of {threshold}, not {range:?}");
    }

    /// Charges a call on both stores.
    async fn acquire(&mut self, threshold: u64, cost: u64) -> Charge {
        self.is_coarse |= threshold > EXACT;
        let limit = self.limit(threshold);
        let acquire = async |limiter: &RateLimiter| {
            limiter.acquire(&limit, "key", cost).await.expect("admitted")
        };
        let permits = [acquire(&self.redis).await, acquire(&self.embedded).await];
        self.log.push((self.clock.now(), cost));
        Charge { permits, index: self.log.len() - 1, cost }
    }

    async fn settle(&mut self, charge: Charge, used: u64) {
        for permit in charge.permits {
            permit.settle(used);
        }
        self.redis.flush().await.expect("settled");
        if used > charge.cost {
            self.log.push((self.clock.now(), (used - charge.cost)));
        } else {
            self.log[charge.index].1 = used;
        }
    }
}

fn length(connection: &mut Connection) -> usize {
    let keys: Vec<String> = connection.keys("*").expect("KEYS");
    keys.iter().map(|key| connection.strlen::<_, usize>(key).expect("STRLEN")).sum()
}

/// Debts take a window of exact times beyond its records: then the records of each thousandth of a period are joined.
#[tokio::test]
async fn a_full_state_joins_its_records() {
    let server = Server::start();
    let mut connection = server.connection();
    let cases = [(MINUTE, 2, LONGEST), (DAY, 2, LONGEST), (DAY, 3_000_000_000, LONGEST_WIDE)];
    for (period, used, longest) in cases {
        let mut stores = Stores::on(&server, period);
        let mut charges = Vec::new();
        for _ in 0..EXACT {
            stores.clock.advance(period / 5_000);
            charges.push(stores.acquire(EXACT, 1).await);
        }
        for (number, charge) in charges.drain(..300).enumerate() {
            stores.clock.advance(period / 50_000);
            stores.is_coarse |= number > 10;
            stores.settle(charge, used).await;
            stores.assert_agrees(2_000_000_000).await;
        }
        // Each charge gets its own units back, although it shares a record.
        for (number, charge) in charges.into_iter().enumerate() {
            stores.settle(charge, (number % 2) as u64).await;
            if number % 10 == 0 {
                stores.assert_agrees(EXACT).await;
            }
        }
        let grown = length(&mut connection);
        assert!((longest / 2..=longest).contains(&grown), "{grown} bytes");
        for _ in 0..40 {
            stores.clock.advance(period / 30);
            stores.assert_agrees(EXACT).await;
        }
        // Once all has left, the next charge drops what the debts needed.
        drop(stores.acquire(100, 1).await);
        assert_eq!(length(&mut connection), 53);
        redis::cmd("FLUSHALL").exec(&mut connection).expect("FLUSHALL");
    }
}

#[tokio::test]
async fn two_weeks_of_a_call_a_minute_are_counted_by_a_thousandth_of_a_day() {
    let server = Server::start();
    let mut connection = server.connection();
    let mut stores = Stores::on(&server, DAY);
    for call in 0..14 * 1_440 {
        drop(stores.acquire(10_000, 1).await);
        stores.clock.advance(MINUTE);
        if call % 97 == 0 {
            stores.log.retain(|(at, _)| *at + 2 * DAY > stores.clock.now());
            stores.assert_agrees(10_000).await;
        }
    }
    assert!(length(&mut connection) <= LONGEST);
    server.assert_all_keys_expire();
}
