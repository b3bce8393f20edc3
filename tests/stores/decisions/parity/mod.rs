//! Random traces: the reference model, the embedded store and Redis make the same decisions, with the same
//! `remaining`, `retry_after` and `reset_after`.

mod trace;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use ratelimit_runtime::__private::return_units;
use ratelimit_runtime::{
    Algorithm, Decision, Limit, RateLimiter, Rejection, Rule, RuleSet, VirtualClock,
};
use support::clocks::embedded_on;
use support::model::{ExpectedDecision, Model};
use support::server::Server;

use self::trace::{AlignedLimit, Call, KEYS, Step, Trace, trace};
use crate::decision;
use crate::traces::{play_traces, test_each_algorithm};

type Decisions = (ExpectedDecision, Decision, Decision);

struct Parity<'a> {
    trace: &'a Trace,
    limit: Limit,
    align: Option<i64>,
    /// The limit of the calls; rules can change its amounts to those of `limit`.
    called: Limit,
    /// For each key, a model for each align.
    models: Vec<BTreeMap<Option<i64>, Model>>,
    /// A store for each key, so that no key is evicted for another.
    embedded: Vec<RateLimiter>,
    redis: RateLimiter,
    clock: VirtualClock,
    names: Vec<String>,
}

impl<'a> Parity<'a> {
    fn new(server: &Server, trace: &'a Trace) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let clock = VirtualClock::at(Duration::from_secs(1_800_000_000));
        let AlignedLimit { limit, align } = trace.limits[0];
        let models = trace.limits.iter().map(|it| (it.align, Model::new(&it.limit, it.align)));
        Self {
            trace,
            limit,
            align,
            called: limit,
            models: vec![models.collect(); KEYS],
            embedded: (0..KEYS).map(|_| embedded_on(&clock)).collect(),
            redis: server.limiter_on(&clock),
            names: (0..KEYS).map(|_| NEXT.fetch_add(1, Ordering::Relaxed).to_string()).collect(),
            clock,
        }
    }

    /// Plays the trace, and returns the number of compared decisions.
    async fn run(mut self) -> Result<u64, TestCaseError> {
        let (trace, mut compared) = (self.trace, 0);
        let mut retry: Option<(Call, Duration)> = None;
        for (index, step) in trace.steps.iter().enumerate() {
            let rejected = retry.take();
            let decisions = match *step {
                Step::Wait(eighths, micros) => {
                    let period = self.limit.period().as_micros() as i64;
                    self.wait(eighths * period / 8 + micros).await;
                    vec![]
                }
                Step::Idle(years) => {
                    self.travel(years * 31_557_600_000_000);
                    vec![]
                }
                Step::Retry(early) => match rejected {
                    // A virtual clock does not pass this time.
                    Some((call, wait))
                        if self.clock.now() + wait <= Duration::from_micros(1 << 52) =>
                    {
                        self.clock.advance(wait - Duration::from_micros(early.into()));
                        let decisions = self.check(call).await;
                        let is_tight = decisions.0.allowed != early;
                        prop_assert!(is_tight, "step {}: the wait is not tight", index);
                        vec![decisions]
                    }
                    _ => vec![],
                },
                Step::Change(amounts) => {
                    let AlignedLimit { limit, align } = trace.limits[amounts];
                    (self.limit, self.called, self.align) = (limit, limit, align);
                    self.set_rules(&RuleSet::new());
                    vec![]
                }
                Step::Rule(amounts, for_keys) => {
                    if trace.limits[amounts].align == self.align {
                        self.limit = trace.limits[amounts].limit;
                        self.set_rules(&self.rules(for_keys));
                    }
                    vec![]
                }
                Step::Reset(key) => {
                    self.reset(key, self.called, self.align).await;
                    vec![]
                }
                Step::Check(Call { key, cost }) | Step::Peek(Call { key, cost })
                    if cost > self.limit.capacity() =>
                {
                    let result = self.redis.check(&self.called, &self.names[key], cost).await;
                    let exceeds = matches!(result, Err(Rejection::CostExceedsCapacity { .. }));
                    prop_assert!(exceeds, "step {}: {:?}", index, result);
                    vec![]
                }
                Step::Check(call) => {
                    let decisions = self.check(call).await;
                    retry = (!decisions.0.allowed).then_some((call, decisions.0.retry_after));
                    vec![decisions]
                }
                Step::Burst(call, _) if call.cost > self.limit.capacity() => vec![],
                Step::Burst(call, count) => self.burst(call, count).await,
                Step::Peek(Call { key, cost }) => {
                    retry = rejected;
                    let (limit, now) = (self.limit, self.now());
                    let model = self.model(key).peek(&limit, now, cost);
                    let (called, name) = (&self.called, &self.names[key]);
                    let store = decision(self.embedded[key].peek(called, name, cost).await);
                    vec![(model, store, decision(self.redis.peek(called, name, cost).await))]
                }
                Step::Refund(Call { key, cost }) => {
                    let (limit, now) = (self.limit, self.now());
                    let model = self.model(key).refund(&limit, now, cost);
                    let (called, name) = (&self.called, &self.names[key]);
                    let store = self.embedded[key].credit(called, name, cost).await;
                    let redis = self.redis.credit(called, name, cost).await;
                    vec![(model, store.expect("embedded"), redis.expect("Redis"))]
                }
                Step::Return(call, eighths, micros) => {
                    vec![self.return_units(call, eighths, micros).await]
                }
            };
            for (model, store, redis) in &decisions {
                prop_assert_eq!(*model, (*store).into(), "embedded, step {}: {:?}", index, step);
                prop_assert_eq!(*model, (*redis).into(), "Redis, step {}: {:?}", index, step);
            }
            compared += decisions.len() as u64;
        }
        Ok(compared)
    }

    fn now(&self) -> u64 {
        self.clock.now().as_micros() as u64
    }

    /// Moves the clock, within the years 1970 to 2096: a virtual clock ends in 2112. A retry can have moved it further;
    /// a clock that then came back would find counts that a store has reclaimed.
    fn travel(&self, micros: i64) {
        let end = self.now().max(4_000_000_000_000_000);
        let moved = self.now().saturating_add_signed(micros).min(end);
        self.clock.set(Duration::from_micros(moved));
    }

    /// Moves the clock. Before it goes back, resets the counts with another align: the store may have reclaimed those
    /// that have ended, and the model would find them again.
    async fn wait(&mut self, micros: i64) {
        let (trace, align) = (self.trace, self.align);
        for other in trace.limits.iter().filter(|other| micros < 0 && other.align != align) {
            for key in 0..KEYS {
                self.reset(key, other.limit, other.align).await;
            }
        }
        self.travel(micros);
    }

    async fn reset(&mut self, key: usize, limit: Limit, align: Option<i64>) {
        self.models[key].get_mut(&align).expect("a model for each align").reset();
        self.embedded[key].reset(&limit, &self.names[key]).await.expect("embedded");
        self.redis.reset(&limit, &self.names[key]).await.expect("Redis");
    }

    fn model(&mut self, key: usize) -> &mut Model {
        self.models[key].get_mut(&self.align).expect("a model for each align")
    }

    fn set_rules(&self, rules: &RuleSet) {
        for limiter in self.embedded.iter().chain([&self.redis]) {
            limiter.set_rules(rules.clone()).expect("valid rules");
        }
    }

    /// Returns rules with the amounts of the limit in force.
    fn rules(&self, for_keys: bool) -> RuleSet {
        let rule = Rule::new().threshold(self.limit.threshold()).burst(self.limit.capacity());
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

    async fn check(&mut self, Call { key, cost }: Call) -> Decisions {
        let (limit, now) = (self.limit, self.now());
        let model = self.model(key).check(&limit, now, cost);
        let (called, name) = (&self.called, &self.names[key]);
        let store = decision(self.embedded[key].check(called, name, cost).await);
        (model, store, decision(self.redis.check(called, name, cost).await))
    }

    /// Makes equal calls and one of another key, one after the other in the model and the embedded store and
    /// concurrently on Redis.
    async fn burst(&mut self, Call { key, cost }: Call, count: usize) -> Vec<Decisions> {
        let name = &self.names[key];
        let calls = (0..count).map(|_| tokio::spawn(self.redis.check(&self.called, name, cost)));
        let calls: Vec<_> = calls.collect();
        let mut decisions = vec![self.check(Call { key: (key + 1) % KEYS, cost: 1 }).await];
        let mut redis = Vec::new();
        for call in calls {
            redis.push(decision(call.await.expect("no panic")));
        }
        // The order in which Redis made them.
        redis.sort_by_key(|it| (!it.allowed, u64::MAX - it.remaining, it.reset_after));
        let (limit, now) = (self.limit, self.now());
        for redis in redis {
            let model = self.model(key).check(&limit, now, cost);
            let (called, name) = (&self.called, &self.names[key]);
            let store = decision(self.embedded[key].check(called, name, cost).await);
            decisions.push((model, store, redis));
        }
        decisions
    }

    /// Returns units that were charged some eighths of a period and some microseconds ago.
    async fn return_units(
        &mut self,
        Call { key, cost }: Call,
        eighths: u64,
        micros: u64,
    ) -> Decisions {
        let (limit, now) = (self.limit, self.now());
        let ago = limit.period().as_micros() as u64 * eighths / 8 + micros;
        // Half of the returns name a moment at which something was charged.
        let charged = self.model(key).charged_at();
        let chosen = charged.get((cost as usize + micros as usize) % charged.len().max(1));
        let chosen = chosen.copied().filter(|_| eighths.is_multiple_of(2));
        let at = chosen.unwrap_or(now.saturating_sub(ago));
        let model = self.model(key).return_units(&limit, now, cost, at);
        let name = &self.names[key];
        let store = return_units(&self.embedded[key], &limit, name, cost, at).await;
        let redis = return_units(&self.redis, &limit, name, cost, at).await;
        (model, store.expect("embedded"), redis.expect("Redis"))
    }
}

fn compare_traces(algorithm: Algorithm) {
    play_traces(algorithm, &trace(algorithm), &async |server, trace| {
        Parity::new(server, trace).run().await
    });
}

test_each_algorithm!(compare_traces);
