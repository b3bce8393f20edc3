//! Random traces of charges that are settled: the reference model, the embedded store and Redis make the same
//! decisions.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use ratelimit_runtime::{Algorithm, Decision, Limit, Permit, RateLimiter, Rejection, VirtualClock};
use support::clocks::embedded_on;
use support::limits::is_bucket;
use support::model::ExpectedDecision;
use support::server::Server;
use support::settled::{ModelReceipt, SettledModel};

use crate::decision;
use crate::traces::{play_traces, test_each_algorithm};

/// A bucket gives back exactly what the model says to this many charges.
const EXACT: usize = 15;

#[derive(Clone, Copy, Debug)]
enum Step {
    Acquire(u64),
    /// A call whose charge cannot be settled.
    Check(u64),
    /// Settles one of the open permits: its index, and the units that its call has used.
    Settle(usize, u64),
    Drop(usize),
    Peek(u64),
    /// Blocks the key by eighths of a period and microseconds.
    Block(u64, u64),
    Unblock,
    /// Gives units back to the newest charges, whoever made them. The model does not know that.
    Refund(u64),
    Reset,
    /// Moves the clock by eighths of a period and microseconds.
    Wait(u64, u64),
    /// Waits for the `retry_after` of the last rejection, or a microsecond less, and repeats the call.
    Retry(bool),
    /// Applies another threshold to the steps after this one.
    Change(usize),
}

#[derive(Clone, Debug)]
struct Trace {
    limits: Vec<Limit>,
    steps: Vec<Step>,
}

fn step() -> impl Strategy<Value = Step> {
    let cost = || prop_oneof![3 => 1_u64..4, 3 => 1_u64..12, 1 => Just(0_u64), 1 => 1_u64..2_000];
    let used = prop_oneof![3 => Just(0_u64), 6 => 0_u64..12, 1 => 0_u64..3_000];
    let eighths = prop_oneof![6 => Just(0_u64), 3 => 1_u64..8, 1 => Just(8_u64), 1 => 0_u64..17];
    prop_oneof![
        8 => cost().prop_map(Step::Acquire),
        2 => cost().prop_map(Step::Check),
        8 => (any::<usize>(), used).prop_map(|(which, used)| Step::Settle(which, used)),
        1 => any::<usize>().prop_map(Step::Drop),
        1 => cost().prop_map(Step::Peek),
        1 => (0_u64..12, 0_u64..10).prop_map(|(eighths, micros)| Step::Block(eighths, micros)),
        1 => Just(Step::Unblock),
        1 => cost().prop_map(Step::Refund),
        1 => Just(Step::Reset),
        6 => (eighths, 0_u64..10).prop_map(|(eighths, micros)| Step::Wait(eighths, micros)),
        3 => any::<bool>().prop_map(Step::Retry),
        1 => (0_usize..2).prop_map(Step::Change),
    ]
}

fn trace(algorithm: Algorithm) -> impl Strategy<Value = Trace> {
    // The last one is nearly the longest that a sliding window counts exactly.
    let period = prop_oneof![
        Just(1_000_u64),
        Just(1_000_000),
        Just(60_000_000),
        16_u64..10_000_000,
        Just(4_294_967_000)
    ];
    // A sliding window of a longer period or a larger threshold is less exact: see `sliding.rs`.
    let threshold = || prop_oneof![3 => 4_u64..30, 1 => 50_u64..1_000];
    let limit = move |(threshold, burst): (u64, Option<u64>), period| {
        let period = Duration::from_micros(period);
        let limit = support::limits::limit("settled", algorithm, threshold, period);
        match burst {
            Some(burst) if is_bucket(algorithm) => limit.burst(burst),
            _ => limit,
        }
    };
    let sizes = prop::collection::vec((threshold(), prop::option::of(1_u64..60)), 2);
    (period, sizes, prop::collection::vec(step(), 1..450)).prop_map(
        move |(period, sizes, steps)| Trace {
            limits: sizes.into_iter().map(|size| limit(size, period)).collect(),
            steps,
        },
    )
}

/// A charge that is not settled, in the model and in both stores.
struct OpenCharge {
    /// The limit of the call.
    limit: Limit,
    receipt: ModelReceipt,
    embedded: Permit,
    redis: Permit,
}

struct Settling {
    model: SettledModel,
    embedded: RateLimiter,
    redis: RateLimiter,
    clock: VirtualClock,
    key: String,
    open: Vec<OpenCharge>,
    /// Whether the stores still count exactly what the model counts.
    is_exact: bool,
    has_one_rate: bool,
    /// Whether units were refunded since the last reset. Then only the stores are compared.
    was_refunded: bool,
}

impl Settling {
    fn new(server: &Server) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let clock = VirtualClock::at(Duration::from_secs(1_800_000_000));
        Self {
            model: SettledModel::default(),
            embedded: embedded_on(&clock),
            redis: server.limiter_on(&clock),
            key: NEXT.fetch_add(1, Ordering::Relaxed).to_string(),
            open: Vec::new(),
            is_exact: true,
            has_one_rate: true,
            was_refunded: false,
            clock,
        }
    }

    fn now(&self) -> u64 {
        self.clock.now().as_micros() as u64
    }

    /// Plays the trace, and returns the number of compared decisions.
    async fn run(mut self, trace: &Trace) -> Result<u64, TestCaseError> {
        let (mut limit, mut rejected, mut decisions) = (trace.limits[0], None, 0);
        for (index, step) in trace.steps.iter().enumerate() {
            let retry = rejected.take();
            let peeked = match *step {
                Step::Acquire(cost) | Step::Check(cost) | Step::Peek(cost)
                    if cost > limit.capacity() =>
                {
                    continue;
                }
                Step::Settle(..) | Step::Drop(_) if self.open.is_empty() => continue,
                Step::Acquire(cost) | Step::Check(cost) => {
                    let settles = matches!(step, Step::Acquire(_));
                    rejected = self.acquire(index, &limit, cost, settles).await?;
                    decisions += 1;
                    continue;
                }
                Step::Drop(which) => {
                    drop(self.open.swap_remove(which % self.open.len()));
                    continue;
                }
                Step::Wait(eighths, micros) => {
                    self.clock.advance(eighths_of(&limit, eighths, micros));
                    continue;
                }
                Step::Change(index) => {
                    // Another rate rounds the level of a bucket up.
                    self.has_one_rate &= !is_bucket(limit.algorithm());
                    self.is_exact &= self.has_one_rate;
                    limit = trace.limits[index];
                    continue;
                }
                Step::Peek(cost) => cost,
                Step::Retry(early) => {
                    let Some((cost, wait)) = retry else { continue };
                    self.clock.advance(wait - Duration::from_micros(early.into()));
                    if self.is_exact {
                        let expected = self.model.peek(&limit, self.now(), cost);
                        prop_assert_eq!(expected.allowed, !early, "step {}", index);
                    }
                    cost
                }
                _ => {
                    self.correct(index, &limit, step).await?;
                    1
                }
            };
            self.peek(index, &limit, peeked).await?;
            decisions += 1;
        }
        Ok(decisions)
    }

    /// Plays a step that corrects the count or blocks the key.
    async fn correct(
        &mut self,
        index: usize,
        limit: &Limit,
        step: &Step,
    ) -> Result<(), TestCaseError> {
        let (now, key, stores) = (self.now(), &self.key, [&self.embedded, &self.redis]);
        match *step {
            Step::Settle(which, used) => {
                let open = self.open.swap_remove(which % self.open.len());
                let OpenCharge { limit: charged_by, receipt, embedded, redis } = open;
                self.is_exact &= !is_bucket(limit.algorithm()) || self.model.charges() <= EXACT;
                self.model.settle(&charged_by, now, receipt, used);
                embedded.settle(used);
                redis.settle(used);
                self.redis.flush().await.expect("Redis");
            }
            Step::Block(eighths, micros) => {
                let time = eighths_of(limit, eighths, micros);
                self.model.block(now, time.as_micros() as u64);
                for limiter in stores {
                    limiter.block(limit, key, time).await.expect("blocked");
                }
            }
            Step::Unblock => {
                let was_blocked = self.model.unblock(now);
                for limiter in stores {
                    let opened = limiter.unblock(limit, key).await.expect("unblocked");
                    prop_assert_eq!(opened, was_blocked, "step {}", index);
                }
            }
            Step::Refund(cost) => {
                (self.was_refunded, self.is_exact) = (true, false);
                for limiter in stores {
                    limiter.credit(limit, key, cost).await.expect("refunded");
                }
            }
            Step::Reset => {
                self.model.reset();
                (self.is_exact, self.was_refunded) = (self.has_one_rate, false);
                for limiter in stores {
                    limiter.reset(limit, key).await.expect("reset");
                }
            }
            _ => unreachable!("{step:?} corrects nothing"),
        }
        Ok(())
    }

    /// Compares the decisions about a call. Returns its cost and wait if it is rejected.
    async fn acquire(
        &mut self,
        index: usize,
        limit: &Limit,
        cost: u64,
        settles: bool,
    ) -> Result<Option<(u64, Duration)>, TestCaseError> {
        let (now, key) = (self.now(), &self.key);
        let embedded = settleable(self.embedded.acquire(limit, key, cost).await);
        let redis = if settles {
            settleable(self.redis.acquire(limit, key, cost).await)
        } else {
            self.redis.check(limit, key, cost).await.map(|decision| (decision, None))
        };
        for result in [&embedded, &redis] {
            let is_blocked = matches!(result, Err(Rejection::Blocked { .. }));
            prop_assert_eq!(is_blocked, self.model.is_blocked(now), "step {}", index);
        }
        let ((decided, embedded), (redis_decided, redis)) = (split(embedded), split(redis));
        prop_assert_eq!(decided, redis_decided, "the stores differ, step {}", index);
        if !self.was_refunded {
            let expected = self.model.clone().acquire(limit, now, cost).0;
            if self.is_exact {
                prop_assert_eq!(expected, decided, "step {}", index);
            }
            prop_assert!(expected.allowed || !decided.allowed, "step {}: admits too much", index);
            let is_same = expected.allowed == decided.allowed;
            prop_assert!(!is_same || decided.remaining <= expected.remaining, "step {}", index);
        }
        if !decided.allowed {
            return Ok(Some((cost, decided.retry_after)));
        }
        let receipt = self.model.charge(limit, now, cost);
        if let (Some(embedded), Some(redis)) = (embedded, redis) {
            self.open.push(OpenCharge { limit: *limit, receipt, embedded, redis });
        }
        Ok(None)
    }

    async fn peek(&self, index: usize, limit: &Limit, cost: u64) -> Result<(), TestCaseError> {
        let embedded = decision(self.embedded.peek(limit, &self.key, cost).await).into();
        let redis: ExpectedDecision =
            decision(self.redis.peek(limit, &self.key, cost).await).into();
        prop_assert_eq!(embedded, redis, "the stores differ, step {}", index);
        let expected = self.model.peek(limit, self.now(), cost);
        if self.is_exact {
            prop_assert_eq!(expected, embedded, "step {}", index);
        }
        let is_sound = self.was_refunded || embedded.remaining <= expected.remaining;
        prop_assert!(is_sound, "step {}", index);
        Ok(())
    }
}

fn eighths_of(limit: &Limit, eighths: u64, micros: u64) -> Duration {
    let period = limit.period().as_micros() as u64;
    Duration::from_micros(period * eighths / 8 + micros)
}

/// A call that was admitted, and its permit if its charge can be settled.
type Admitted = (Decision, Option<Permit>);

fn settleable(result: Result<Permit, Rejection>) -> Result<Admitted, Rejection> {
    result.map(|permit| (permit.decision(), Some(permit)))
}

fn split(result: Result<Admitted, Rejection>) -> (ExpectedDecision, Option<Permit>) {
    match result {
        Ok((decision, permit)) => (decision.into(), permit),
        Err(rejection) => (decision(Err(rejection)).into(), None),
    }
}

fn compare_traces(algorithm: Algorithm) {
    play_traces(algorithm, &trace(algorithm), &async |server, trace| {
        Settling::new(server).run(trace).await
    });
}

test_each_algorithm!(compare_traces);

/// The bucket has drained what the settlement would give back. Later it drains at the rate of the last call.
#[tokio::test]
async fn a_settlement_that_gives_nothing_back_is_no_change() {
    use Step::*;
    let period = Duration::from_millis(1);
    let limit = |rate, burst| Limit::leaky_bucket("settled", rate, period).burst(burst);
    let first = [Acquire(7), Acquire(4), Wait(8, 0), Acquire(9), Settle(1, 0)];
    let later = [Wait(0, 1), Settle(0, 0), Change(1), Acquire(1)];
    let steps = [&first[..], &later].concat();
    let trace = Trace { limits: vec![limit(7, 21), limit(1_553, 1_553)], steps };
    let compared = Settling::new(&Server::start()).run(&trace).await;
    assert_eq!(compared.expect("the model and both stores agree"), 6);
}
