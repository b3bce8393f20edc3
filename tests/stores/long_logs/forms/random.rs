//! Random requests under thresholds that change between the forms.

use std::collections::BTreeSet;
use std::time::Duration;

use ratelimit_runtime::{Limit, Permit};
use redis::Connection;
use support::limits::{DAY, HOUR, SECOND};
use support::model::{ExpectedDecision, Model};
use support::server::Server;

use super::super::{Request, StorePair};
use super::{LARGE, LARGE_WIDE, LOG, MICROSECOND, SMALL, SMALL_WIDE, limit, version};

/// A charge that is not settled.
struct OpenCharge {
    limit: Limit,
    at: u64,
    cost: u32,
    permits: [Permit; 2],
}

/// The model and both stores.
pub(super) struct Forms {
    pub(super) stores: StorePair,
    pub(super) model: Model,
    pub(super) connection: Connection,
    random: u64,
    open: Vec<OpenCharge>,
    seen: BTreeSet<u8>,
}

impl Forms {
    pub(super) fn on(server: &Server, seed: u64) -> Self {
        let (stores, connection) = (StorePair::on(server), server.connection());
        stores.clock.set(Duration::from_secs(1_800_000_000));
        let model = Model::new(&limit(1, HOUR), None);
        Self { stores, model, connection, random: seed, open: Vec::new(), seen: BTreeSet::new() }
    }

    /// Returns a pseudorandom number, equal in each run.
    pub(super) fn next(&mut self, below: usize) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) as usize % below
    }

    pub(super) fn now(&self) -> u64 {
        self.stores.clock.now().as_micros() as u64
    }

    /// Sends a request to both stores, and compares their decisions with the decision of the model.
    pub(super) async fn compare(&mut self, limit: &Limit, request: Request) -> ExpectedDecision {
        let got = self.stores.compare(limit, request).await;
        let clock = self.now();
        let expected = match request {
            Request::Check(cost) => self.model.check(limit, clock, cost),
            Request::Peek(cost) => self.model.peek(limit, clock, cost),
            Request::Refund(cost) => self.model.refund(limit, clock, cost),
            Request::Return(cost, at) => self.model.return_units(limit, clock, cost, at),
        };
        assert_eq!(got, expected, "{request:?} under {limit:?}");
        got
    }

    pub(super) async fn acquire(&mut self, limit: &Limit, cost: u32) {
        let clock = self.now();
        let expected = self.model.check(limit, clock, cost);
        let (redis, embedded) = (&self.stores.redis, &self.stores.embedded);
        let redis = redis.acquire(limit, "key", cost).await;
        let embedded = embedded.acquire(limit, "key", cost).await;
        assert_eq!([redis.is_ok(), embedded.is_ok()], [expected.allowed; 2], "{cost} of {limit:?}");
        if let (Ok(redis), Ok(embedded)) = (redis, embedded)
            && let Some(at) = self.model.charged_at().last().copied()
        {
            self.open.push(OpenCharge { limit: *limit, at, cost, permits: [redis, embedded] });
        }
    }

    /// Settles one of the charges for fewer units.
    pub(super) async fn settle(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let which = self.next(self.open.len());
        let OpenCharge { limit, at, cost, permits } = self.open.swap_remove(which);
        let used = self.next(cost as usize) as u32;
        for permit in permits {
            permit.settle(used);
        }
        self.stores.redis.flush().await.expect("settled");
        self.model.lower(&limit, self.now(), cost - used, at);
    }

    pub(super) async fn step(&mut self, limit: &Limit) {
        let (threshold, period) = (limit.threshold() as usize, limit.period().as_micros() as u64);
        let costs = [0, 1, 1, 1, 1, 2, 7, 40, threshold / 3, threshold];
        let cost = costs[self.next(costs.len())].min(threshold) as u32;
        match self.next(20) {
            0..=8 => drop(self.compare(limit, Request::Check(cost)).await),
            9 => {
                for _ in 0..self.next(70) {
                    self.compare(limit, Request::Check(1)).await;
                }
            }
            10..=11 => drop(self.compare(limit, Request::Peek(cost)).await),
            12 => drop(self.compare(limit, Request::Refund(cost)).await),
            13..=14 => {
                let charged = self.model.charged_at();
                let at = charged.get(self.next(charged.len() + 1)).copied().unwrap_or(7);
                self.compare(limit, Request::Return(cost, at)).await;
            }
            15..=16 if cost > 0 => self.acquire(limit, cost).await,
            17 => self.settle().await,
            18 if self.next(10) == 0 => {
                self.stores.reset(limit).await;
                self.model.reset();
            }
            _ => {}
        }
        let left = self.compare(limit, Request::Peek(1)).await.remaining;
        if left == limit.threshold() {
            // The state that these charges belong to is gone.
            self.open.clear();
        }
        self.seen.extend(version(&mut self.connection));
        let micros = [0, 0, 0, 1, period / 1_000, period / 97, period / 8, period][self.next(8)];
        match self.next(40) {
            0 => self.stores.clock.set(Duration::from_micros(self.now() - micros / 9)),
            1 => self.stores.clock.advance(Duration::from_micros(micros * 3)),
            _ => self.stores.clock.advance(Duration::from_micros(micros)),
        }
    }
}

/// Plays random requests under thresholds that change between the forms.
async fn play(period: Duration, forms: &[u8]) {
    let server = Server::start();
    let thresholds = [1, 5, 9, 100, 120, 121, 300, 1_000, 1_024, 1_025, 5_000];
    let mut seen = BTreeSet::new();
    for seed in 0..6 {
        let mut test = Forms::on(&server, seed * 977 + period.as_secs());
        let mut threshold = thresholds[test.next(thresholds.len())];
        for _ in 0..250 {
            if test.next(12) == 0 {
                threshold = thresholds[test.next(thresholds.len())];
            }
            test.step(&limit(threshold, period)).await;
        }
        test.stores.reset(&limit(1, period)).await;
        seen.append(&mut test.seen);
    }
    assert_eq!(seen, forms.iter().copied().collect());
}

#[tokio::test]
async fn rings_of_a_second_agree_with_the_model() {
    play(SECOND, &[LOG, SMALL, LARGE]).await;
}

#[tokio::test]
async fn rings_of_an_hour_agree_with_the_model() {
    play(HOUR + SECOND, &[LOG, SMALL, LARGE]).await;
}

#[tokio::test]
async fn wide_rings_of_hours_agree_with_the_model() {
    play(HOUR + SECOND + MICROSECOND, &[LOG, SMALL_WIDE, LARGE_WIDE]).await;
}

#[tokio::test]
async fn wide_rings_of_days_agree_with_the_model() {
    play(12 * DAY, &[LOG, SMALL_WIDE, LARGE_WIDE]).await;
}

#[tokio::test]
async fn logs_of_weeks_agree_with_the_model() {
    play(12 * DAY + MICROSECOND, &[LOG]).await;
}
