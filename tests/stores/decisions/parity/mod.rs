//! Random traces: the reference model, the embedded store and Redis make the same decisions, with the same
//! `remaining`, `retry_after` and `reset_after`.

mod trace;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use ratelimit_runtime::__private::return_units;
use ratelimit_runtime::{
    Algorithm, Clock, Decision, Limit, RateLimiter, Rejection, Rule, RuleSet, VirtualClock,
};
use support::model::{ExpectedDecision, Model};
use support::operations::{OperationKind, assert_plays};
use support::server::Server;

use self::trace::{AlignedLimit, KEYS, Step, Trace, step, trace};
use crate::decision;
use crate::traces::{play_traces, test_each_algorithm};

/// The model and the two stores that play a trace.
struct Parity {
    /// For each key, a model for each align.
    models: Vec<BTreeMap<Option<i64>, Model>>,
    /// A store for each key, so that no key is evicted for another.
    embedded: Vec<RateLimiter>,
    redis: RateLimiter,
    clock: VirtualClock,
    names: Vec<String>,
}

impl Parity {
    fn new(server: &Server, trace: &Trace) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let clock = VirtualClock::at(Duration::from_secs(1_800_000_000));
        let shared = || Clock::Virtual(clock.clone());
        let embedded = || RateLimiter::builder().clock(shared()).build().expect("valid settings");
        let name = |_| format!("{}", NEXT.fetch_add(1, Ordering::Relaxed));
        Self {
            models: vec![
                trace
                    .limits
                    .iter()
                    .map(|it| (it.align, Model::new(&it.limit, it.align)))
                    .collect();
                KEYS
            ],
            embedded: (0..KEYS).map(|_| embedded()).collect(),
            redis: server.builder().clock(shared()).build().expect("valid settings"),
            names: (0..KEYS).map(name).collect(),
            clock,
        }
    }

    /// Plays the trace, and returns the number of compared decisions.
    async fn run(mut self, trace: &Trace) -> Result<u64, TestCaseError> {
        let AlignedLimit { mut limit, mut align } = trace.limits[0];
        // The limit of the calls; rules can change its amounts to those of `limit`.
        let mut called = limit;
        let (mut decisions, mut retry) = (0, None);
        for (index, step) in trace.steps.iter().enumerate() {
            let clock = self.clock.now().as_micros() as u64;
            match *step {
                Step::Wait { eighths, micros } => {
                    retry = None;
                    let time = eighths * limit.period().as_micros() as i64 / 8 + micros;
                    self.wait(trace, align, clock, time).await;
                }
                Step::Idle { years } => {
                    retry = None;
                    self.travel(clock, years * 31_557_600_000_000);
                }
                Step::Retry { early } => {
                    let Some((key, cost, wait)) = retry.take() else {
                        continue;
                    };
                    // A virtual clock does not pass this time.
                    if self.clock.now() + wait > Duration::from_micros(1 << 52) {
                        continue;
                    }
                    self.clock.advance(wait - Duration::from_micros(early.into()));
                    let (model, store, redis) = self.check(&limit, &called, align, key, cost).await;
                    compare(index, step, model, store, redis)?;
                    prop_assert_eq!(model.allowed, !early, "step {}: the wait is not tight", index);
                    decisions += 1;
                }
                Step::Change(index) => {
                    AlignedLimit { limit, align } = trace.limits[index];
                    called = limit;
                    self.set_rules(&RuleSet::new());
                    retry = None;
                }
                Step::Rule { amounts, for_keys } => {
                    retry = None;
                    if trace.limits[amounts].align == align {
                        limit = trace.limits[amounts].limit;
                        self.set_rules(&self.rules(&limit, for_keys));
                    }
                }
                Step::Reset { key } => {
                    self.model(key, align).reset();
                    self.embedded[key].reset(&called, &self.names[key]).await.expect("embedded");
                    self.redis.reset(&called, &self.names[key]).await.expect("Redis");
                    retry = None;
                }
                Step::Check { cost, .. } | Step::Peek { cost, .. } if cost > limit.capacity() => {
                    self.assert_exceeds(index, &called, cost).await?;
                }
                Step::Check { key, cost } => {
                    let (model, store, redis) = self.check(&limit, &called, align, key, cost).await;
                    compare(index, step, model, store, redis)?;
                    retry = (!model.allowed).then_some((key, cost, model.retry_after));
                    decisions += 1;
                }
                Step::Burst { cost, .. } if cost > limit.capacity() => {}
                Step::Burst { key, cost, count } => {
                    let (models, store, redis) =
                        self.burst([&limit, &called], align, key, cost, count).await;
                    for ((model, store), redis) in models.into_iter().zip(store).zip(redis) {
                        compare(index, step, model, store, redis)?;
                    }
                    retry = None;
                    decisions += count as u64;
                }
                Step::Peek { key, cost } => {
                    let name = &self.names[key].clone();
                    let model = self.model(key, align).peek(&limit, clock, cost);
                    let store = decision(self.embedded[key].peek(&called, name, cost).await);
                    let redis = decision(self.redis.peek(&called, name, cost).await);
                    compare(index, step, model, store, redis)?;
                    decisions += 1;
                }
                Step::Refund { key, cost } => {
                    let name = &self.names[key].clone();
                    let model = self.model(key, align).refund(&limit, clock, cost);
                    let store = self.embedded[key].credit(&called, name, cost).await;
                    let redis = self.redis.credit(&called, name, cost).await;
                    compare(index, step, model, store.expect("embedded"), redis.expect("Redis"))?;
                    retry = None;
                    decisions += 1;
                }
                Step::Return { key, cost, eighths, micros } => {
                    let ago = limit.period().as_micros() as u64 * eighths / 8 + micros;
                    let at = clock.saturating_sub(ago);
                    // Half of the returns name a moment at which something was charged.
                    let charged = self.model(key, align).charged_at();
                    let chosen =
                        charged.get((cost as usize + micros as usize) % charged.len().max(1));
                    let at = chosen.copied().filter(|_| eighths % 2 == 0).unwrap_or(at);
                    let (model, store, redis) = self.return_at(&limit, align, key, cost, at).await;
                    compare(index, step, model, store, redis)?;
                    retry = None;
                    decisions += 1;
                }
            }
        }
        Ok(decisions)
    }

    /// Moves the clock, within the years 1970 to 2096: a virtual clock ends in 2112. A retry can have moved it further;
    /// a clock that then came back would find counts that a store has reclaimed.
    fn travel(&self, clock: u64, micros: i64) {
        let end = clock.max(4_000_000_000_000_000);
        let moved = clock.saturating_add_signed(micros).min(end);
        self.clock.set(Duration::from_micros(moved));
    }

    /// Moves the clock. Before it goes back, resets the counts with another align: the store may have reclaimed those
    /// that have ended, and the model would find them again.
    async fn wait(&mut self, trace: &Trace, align: Option<i64>, clock: u64, micros: i64) {
        for other in trace.limits.iter().filter(|other| micros < 0 && other.align != align) {
            for key in 0..self.names.len() {
                self.model(key, other.align).reset();
                let (limit, name) = (&other.limit, &self.names[key]);
                self.embedded[key].reset(limit, name).await.expect("embedded");
                self.redis.reset(limit, name).await.expect("Redis");
            }
        }
        self.travel(clock, micros);
    }

    fn model(&mut self, key: usize, align: Option<i64>) -> &mut Model {
        self.models[key].get_mut(&align).expect("a model for each align")
    }

    fn set_rules(&self, rules: &RuleSet) {
        for limiter in self.embedded.iter().chain([&self.redis]) {
            limiter.set_rules(rules.clone()).expect("valid rules");
        }
    }

    /// Returns rules with the amounts of `limit`.
    fn rules(&self, limit: &Limit, for_keys: bool) -> RuleSet {
        let rule = Rule::new().threshold(limit.threshold()).burst(limit.capacity());
        let mut rules = RuleSet::new();
        if for_keys {
            for name in &self.names {
                rules.set_key("parity", name, rule).expect("valid");
            }
        } else {
            rules.set("parity", rule).expect("valid");
        }
        rules
    }

    async fn assert_exceeds(
        &self,
        index: usize,
        called: &Limit,
        cost: u64,
    ) -> Result<(), TestCaseError> {
        let rejected = self.redis.check(called, &self.names[0], cost).await;
        let exceeds = matches!(rejected, Err(Rejection::CostExceedsCapacity { .. }));
        prop_assert!(exceeds, "step {}: {:?}", index, rejected);
        Ok(())
    }

    /// Returns units that were charged at `at`.
    async fn return_at(
        &mut self,
        limit: &Limit,
        align: Option<i64>,
        key: usize,
        cost: u64,
        at: u64,
    ) -> (ExpectedDecision, Decision, Decision) {
        let (clock, name) = (self.clock.now().as_micros() as u64, self.names[key].clone());
        let model = self.model(key, align).return_units(limit, clock, cost, at);
        let store = return_units(&self.embedded[key], limit, &name, cost, at).await;
        let redis = return_units(&self.redis, limit, &name, cost, at).await;
        (model, store.expect("embedded"), redis.expect("Redis"))
    }

    async fn check(
        &mut self,
        limit: &Limit,
        called: &Limit,
        align: Option<i64>,
        key: usize,
        cost: u64,
    ) -> (ExpectedDecision, Decision, Decision) {
        let clock = self.clock.now().as_micros() as u64;
        let model = self.model(key, align).check(limit, clock, cost);
        let name = &self.names[key].clone();
        (
            model,
            decision(self.embedded[key].check(called, name, cost).await),
            decision(self.redis.check(called, name, cost).await),
        )
    }

    /// Makes equal calls, one after the other in the model and the embedded store and concurrently on Redis.
    /// Sorts the decisions of Redis in the order in which Redis made them.
    async fn burst(
        &mut self,
        [limit, called]: [&Limit; 2],
        align: Option<i64>,
        key: usize,
        cost: u64,
        count: usize,
    ) -> (Vec<ExpectedDecision>, Vec<Decision>, Vec<Decision>) {
        let clock = self.clock.now().as_micros() as u64;
        let name = &self.names[key].clone();
        let (mut models, mut store, mut redis) = (Vec::new(), Vec::new(), Vec::new());
        let calls: Vec<_> =
            (0..count).map(|_| tokio::spawn(self.redis.check(called, name, cost))).collect();
        for call in calls {
            models.push(self.model(key, align).check(limit, clock, cost));
            store.push(decision(self.embedded[key].check(called, name, cost).await));
            redis.push(decision(call.await.expect("no panic")));
        }
        redis.sort_by_key(|it| (!it.allowed, u64::MAX - it.remaining, it.reset_after));
        (models, store, redis)
    }
}

fn compare(
    index: usize,
    step: &Step,
    model: ExpectedDecision,
    embedded: Decision,
    redis: Decision,
) -> Result<(), TestCaseError> {
    prop_assert_eq!(model, embedded.into(), "embedded, step {}: {:?}", index, step);
    prop_assert_eq!(model, redis.into(), "Redis, step {}: {:?}", index, step);
    Ok(())
}

#[test]
fn plays_calls_and_what_operators_do() {
    assert_plays(&step(), Step::kinds, |kind| {
        use OperationKind::*;
        match kind {
            Check | Burst | Return | Refund | Peek | Reset | Change | Rule | Advance | Idle
            | Step | Retry => true,
            Acquire | Wait | Drop | Pause | Lease | Settle | Debt | Keep | Block | Unblock
            | Free | Several | Evict | LostReply | Crash | MoveSlot => false,
        }
    });
}

/// Plays random traces of an algorithm.
fn compare_traces(algorithm: Algorithm) {
    play_traces(algorithm, &trace(algorithm), &async |server, trace| {
        Parity::new(server, trace).run(trace).await
    });
}

test_each_algorithm!(compare_traces);
