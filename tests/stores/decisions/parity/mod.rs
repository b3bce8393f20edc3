//! Random traces: the reference model, the embedded store and Redis make the same decisions, with the same
//! `remaining`, `retry_after` and `reset_after`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use ratelimit_runtime::__private::return_units;
use ratelimit_runtime::{
    Algorithm, Align, Clock, Decision, Limit, RateLimiter, Rejection, Rule, RuleSet, VirtualClock,
};
use support::model::{ExpectedDecision, Model};
use support::operations::{OperationKind, assert_plays};
use support::server::Server;

use crate::decision;
use crate::traces::{play_traces, test_each_algorithm};

/// The steps of a trace.
const STEPS: std::ops::Range<usize> = 1..700;
const KEYS: usize = 2;

#[derive(Clone, Copy, Debug)]
enum Step {
    Check {
        key: usize,
        cost: u32,
    },
    /// Makes `count` equal calls at the same time: on Redis, most of them share scripts.
    Burst {
        key: usize,
        cost: u32,
        count: usize,
    },
    Peek {
        key: usize,
        cost: u32,
    },
    Refund {
        key: usize,
        cost: u32,
    },
    /// Returns units that were charged some eighths of a period and some microseconds ago.
    Return {
        key: usize,
        cost: u32,
        eighths: u64,
        micros: u64,
    },
    Reset {
        key: usize,
    },
    /// Moves the clock by eighths of a period and microseconds, backwards if they are negative.
    Wait {
        eighths: i64,
        micros: i64,
    },
    /// Moves the clock by years.
    Idle {
        years: i64,
    },
    /// Waits for the `retry_after` of the last rejection, or a microsecond less, and repeats the call.
    Retry {
        early: bool,
    },
    /// Applies another threshold, burst and align to the steps after this one.
    Change(usize),
    /// Applies another threshold and burst by a rule for the limit or for each key, and not by the limit of the calls.
    Rule {
        amounts: usize,
        for_keys: bool,
    },
}

impl Step {
    fn kinds(&self) -> &'static [OperationKind] {
        use OperationKind as K;
        match self {
            Self::Check { .. } => &[K::Check],
            Self::Burst { .. } => &[K::Burst],
            Self::Peek { .. } => &[K::Peek],
            Self::Refund { .. } => &[K::Refund],
            Self::Return { .. } => &[K::Return],
            Self::Reset { .. } => &[K::Reset],
            Self::Wait { .. } => &[K::Advance, K::Step],
            Self::Idle { .. } => &[K::Idle],
            Self::Retry { .. } => &[K::Retry],
            Self::Change(_) => &[K::Change],
            Self::Rule { .. } => &[K::Rule],
        }
    }
}

/// A limit, and the offset of its aligned windows from UTC in minutes.
#[derive(Clone, Copy)]
struct AlignedLimit {
    limit: Limit,
    align: Option<i64>,
}

#[derive(Clone)]
struct Trace {
    /// Limits of one algorithm and period. Those of one align share a count.
    limits: Vec<AlignedLimit>,
    steps: Vec<Step>,
}

fn period() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(7),
        Just(1_000),
        Just(1_000_000),
        Just(60_000_000),
        Just(3_599_999_999),
        Just(30 * 86_400_000_000),
        1_u64..10_000_000,
    ]
}

fn threshold() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 1_u32..12, 2 => 50_u32..2_000, 1 => Just(999), 1 => Just(1_000_000)]
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..KEYS;
    let cost = prop_oneof![6 => Just(1_u32), 1 => Just(0_u32), 2 => 1_u32..12, 1 => 1_u32..2_000];
    let keyed = (key.clone(), cost);
    let eighths = prop_oneof![6 => Just(0_i64), 3 => 1_i64..8, 2 => Just(8_i64), 1 => -8_i64..17];
    let micros = prop_oneof![3 => Just(0_i64), 1 => -1_i64..10];
    prop_oneof![
        10 => keyed.clone().prop_map(|(key, cost)| Step::Check { key, cost }),
        1 => (keyed.clone(), 2_usize..40).prop_map(|((key, cost), count)| {
            Step::Burst { key, cost, count }
        }),
        1 => keyed.clone().prop_map(|(key, cost)| Step::Peek { key, cost }),
        1 => keyed.clone().prop_map(|(key, cost)| Step::Refund { key, cost }),
        2 => (keyed, 0_u64..17, 0_u64..3).prop_map(|((key, cost), eighths, micros)| {
            Step::Return { key, cost, eighths, micros }
        }),
        6 => (eighths, micros).prop_map(|(eighths, micros)| Step::Wait { eighths, micros }),
        1 => (1_i64..11).prop_map(|years| Step::Idle { years }),
        3 => any::<bool>().prop_map(|early| Step::Retry { early }),
        1 => (0_usize..3).prop_map(Step::Change),
        1 => (0_usize..3, any::<bool>()).prop_map(|(amounts, for_keys)| {
            Step::Rule { amounts, for_keys }
        }),
        1 => key.prop_map(|key| Step::Reset { key }),
    ]
}

/// The parts of a trace are independent of each other, so proptest can shrink a failing trace part by part.
fn trace(algorithm: Algorithm) -> impl Strategy<Value = Trace> {
    let offset = prop_oneof![Just(0), Just(480), -14_i32 * 60..=14 * 60].prop_map(Some);
    let aligns = prop_oneof![
        Just(vec![None; 3]),
        offset.clone().prop_map(|align| vec![align; 3]),
        prop::collection::vec(prop_oneof![Just(None), offset], 3),
    ];
    let days = prop_oneof![Just(900_000_000_u64), Just(86_400_000_000), Just(7 * 86_400_000_000)];
    let sizes = prop::collection::vec((threshold(), prop::option::of(1_u32..50)), 3);
    let steps = prop::collection::vec(step(), STEPS);
    (period(), days, aligns, sizes, steps).prop_map(
        move |(period, days, mut aligns, sizes, steps)| {
            if algorithm != Algorithm::Fixed {
                aligns.fill(None);
            }
            let exact = sizes.iter().all(|(threshold, burst)| {
                let capacity = u128::from(burst.map_or(*threshold, |burst| burst.max(*threshold)));
                capacity * u128::from(period) <= 1 << 52
            });
            let period = match aligns.iter().any(Option::is_some) {
                true => days,
                // The model counts exactly. `very_fine_rates_are_rounded_down` tests rates that are too fine.
                false if !exact => 60_000_000,
                false => period,
            };
            let limits =
                sizes.into_iter().zip(aligns).map(|((threshold, burst), align)| AlignedLimit {
                    limit: limit(algorithm, threshold, period, align, burst),
                    align: align.map(i64::from),
                });
            Trace { limits: limits.collect(), steps }
        },
    )
}

/// Prints each step on a line.
impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for AlignedLimit { limit, align } in &self.limits {
            let (threshold, period, capacity) =
                (limit.threshold(), limit.period(), limit.capacity());
            writeln!(f, "{threshold} per {period:?}, capacity {capacity}, align {align:?}")?;
        }
        self.steps.iter().enumerate().try_for_each(|(index, step)| writeln!(f, "{index} {step:?}"))
    }
}

fn limit(
    algorithm: Algorithm,
    threshold: u32,
    period: u64,
    align: Option<i32>,
    burst: Option<u32>,
) -> Limit {
    let mut limit =
        Limit::new("parity", algorithm, threshold, Duration::from_micros(period)).expect("valid");
    if let Some(minutes) = align {
        limit = limit.align(Align::offset_minutes(minutes));
    }
    if let (Algorithm::TokenBucket | Algorithm::LeakyBucket, Some(burst)) = (algorithm, burst) {
        limit = limit.burst(burst);
    }
    limit
}

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
                    let period = limit.period().as_micros() as i64;
                    self.travel(clock, eighths * period / 8 + micros);
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

    /// Moves the clock, within the years 1970 to 2096: a virtual clock ends in 2112.
    fn travel(&self, clock: u64, micros: i64) {
        let moved = clock.saturating_add_signed(micros).min(4_000_000_000_000_000);
        self.clock.set(Duration::from_micros(moved));
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
        cost: u32,
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
        cost: u32,
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
        cost: u32,
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
        cost: u32,
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
        redis.sort_by_key(|it| (!it.allowed, u32::MAX - it.remaining, it.reset_after));
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
            Acquire | Wait | Drop | Pause | Lease | Settle | Debt | Keep | Close | Open | Free
            | Several | Evict | LostReply | Crash | MoveSlot => false,
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
