//! Several limits in one decision: all are charged or none, for any algorithms, periods, keys and costs. The
//! model, the embedded store and Redis make the same decisions.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use ratelimit_runtime::{
    Algorithm, Clock, Decision, Limit, Mistake, OnError, Part, RateLimiter, Rejection, Scope,
    Source, VirtualClock,
};
use support::ALGORITHMS;
use support::model::{ExpectedDecision, Model};
use support::operations::{OperationKind, assert_plays};
use support::server::Server;

use crate::TestLimiter;

const NAMES: [&str; 5] = ["several.a", "several.b", "several.c", "several.d", "several.e"];

#[derive(Clone, Debug)]
struct Call {
    /// Indices of limits, each with a cost. An index can occur twice.
    parts: Vec<(usize, u64)>,
    /// The microseconds between the previous call and this one.
    wait: u64,
}

impl Call {
    /// Returns the sum of the costs for each limit.
    fn merged(&self) -> Vec<(usize, u64)> {
        let mut merged: Vec<(usize, u64)> = Vec::new();
        for (index, cost) in &self.parts {
            match merged.iter_mut().find(|(one, _)| one == index) {
                Some((_, sum)) => *sum += cost,
                None => merged.push((*index, *cost)),
            }
        }
        merged
    }
}

fn call() -> impl Strategy<Value = Call> {
    let wait = prop_oneof![4 => Just(0), 3 => 0_u64..200_000, 2 => 0_u64..20_000_000];
    (prop::collection::vec((0_usize..5, 0_u64..4), 1..5), wait)
        .prop_map(|(parts, wait)| Call { parts, wait })
}

#[test]
fn plays_calls_of_several_limits() {
    assert_plays(
        &call(),
        |_| &[OperationKind::Several, OperationKind::Advance],
        |kind| {
            use OperationKind::*;
            match kind {
                Several | Advance => true,
                Check | Burst | Acquire | Wait | Drop | Pause | Lease | Return | Settle | Debt
                | Keep | Refund | Peek | Reset | Block | Unblock | Change | Rule | Free | Idle
                | Step | Retry | Evict | LostReply | Crash | MoveSlot => false,
            }
        },
    );
}

fn limits() -> impl Strategy<Value = Vec<Limit>> {
    let limit = |algorithm: Algorithm, name: &'static str| {
        (3_u64..12, 1_u64..100, 3_u64..6).prop_map(move |(threshold, tenths, burst)| {
            let period = Duration::from_millis(tenths * 100);
            let limit = Limit::new(name, algorithm, threshold, period).expect("valid");
            if algorithm == Algorithm::LeakyBucket { limit.burst(burst) } else { limit }
        })
    };
    ALGORITHMS
        .into_iter()
        .zip(NAMES)
        .map(|(algorithm, name)| limit(algorithm, name))
        .collect::<Vec<_>>()
}

/// The name of the limit that determines the decision of a call, and the decision.
type NamedDecision = (String, ExpectedDecision);

/// Returns the decision of a store.
fn named_decision(
    call: &Call,
    limits: &[Limit],
    result: Result<Decision, Rejection>,
) -> NamedDecision {
    let (name, decision) = match result {
        Err(Rejection::Limited { name, decision, .. }) => (name.to_string(), decision),
        // The decision of an admitted call does not name the limit, but contains its capacity.
        Ok(decision) => {
            let mut names = call.parts.iter().map(|(index, _)| &limits[*index]);
            let limit = names.find(|limit| limit.capacity() == decision.limit);
            (limit.expect("one of the limits").name().to_owned(), decision)
        }
        Err(other) => panic!("the store makes no decision: {other:?}"),
    };
    (name, decision.into())
}

/// Returns the decision of the models. If a limit rejects, nothing is charged, and the longest `retry_after`
/// determines the decision. Otherwise, the least `remaining` does.
fn expected(models: &mut [Model], call: &Call, limits: &[Limit], clock: u64) -> NamedDecision {
    let strictest = |decisions: &[NamedDecision]| {
        let rejected = decisions.iter().filter(|(_, it)| !it.allowed);
        let longest = rejected.clone().map(|(_, it)| it.retry_after).max();
        let least = decisions.iter().map(|(_, it)| it.remaining).min();
        match longest {
            Some(longest) => rejected.clone().find(|(_, it)| it.retry_after == longest),
            None => decisions.iter().find(|(_, it)| Some(it.remaining) == least),
        }
        .cloned()
        .expect("at least one limit")
    };
    let mut decide = |charges: bool| -> Vec<NamedDecision> {
        let decide = |(index, cost): &(usize, u64)| {
            let (limit, model) = (&limits[*index], &mut models[*index]);
            let decision = if charges {
                model.check(limit, clock, *cost)
            } else {
                model.peek(limit, clock, *cost)
            };
            (limit.name().to_owned(), decision)
        };
        call.merged().iter().map(decide).collect()
    };
    let peeks = decide(false);
    let is_rejected = peeks.iter().any(|(_, it)| !it.allowed);
    strictest(&if is_rejected { peeks } else { decide(true) })
}

#[test]
fn random_traces_get_the_decisions_of_the_model() {
    let server = Server::start();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (traces, rejected) = (AtomicU64::new(0), AtomicU64::new(0));
    let config = Config {
        cases: 120,
        max_shrink_iters: 5_000,
        failure_persistence: None,
        ..Config::default()
    };
    let calls = prop::collection::vec(call(), 1..150);
    let outcome = TestRunner::new(config).run(&(limits(), calls), |(limits, calls)| {
        let key = traces.fetch_add(1, Ordering::Relaxed);
        let clock = VirtualClock::at(Duration::from_secs(1_800_000_000));
        let shared = || Clock::Virtual(clock.clone());
        let embedded = RateLimiter::builder().clock(shared()).build().expect("valid");
        let redis = server.builder().clock(shared()).build().expect("valid");
        let mut models: Vec<_> = limits.iter().map(|limit| Model::new(limit, None)).collect();
        for (index, call) in calls.iter().enumerate() {
            clock.advance(Duration::from_micros(call.wait));
            let parts: Vec<_> = call
                .parts
                .iter()
                .map(|(index, cost)| Part::new(&limits[*index], &key, *cost))
                .collect();
            let exceeds = |(index, cost): &(usize, u64)| *cost > limits[*index].capacity();
            if call.merged().iter().any(exceeds) {
                let rejected = runtime.block_on(redis.check_all(&parts));
                let exceeds = matches!(rejected, Err(Rejection::CostExceedsCapacity { .. }));
                prop_assert!(exceeds, "call {}: {:?}", index, rejected);
                continue;
            }
            let now = clock.now().as_micros() as u64;
            let (_, model) = expected(&mut models, call, &limits, now);
            let decide = |limiter: &RateLimiter| {
                named_decision(call, &limits, runtime.block_on(limiter.check_all(&parts))).1
            };
            let (store, script) = (decide(&embedded), decide(&redis));
            prop_assert_eq!(model, store, "embedded, call {}", index);
            prop_assert_eq!(model, script, "Redis, call {}", index);
            rejected.fetch_add(u64::from(!model.allowed), Ordering::Relaxed);
        }
        // A rejected call charges no limit: each count equals the count of the model.
        for (limit, model) in limits.iter().zip(&mut models) {
            let now = clock.now().as_micros() as u64;
            let model = model.peek(limit, now, 1).remaining;
            for limiter in [&embedded, &redis] {
                let peek = runtime.block_on(limiter.peek(limit, key, 1)).expect("decided");
                prop_assert_eq!(model, peek.remaining, "{} at the end", limit.name());
            }
        }
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    let rejected = rejected.into_inner();
    assert!(rejected > 1_000, "only {rejected} calls were rejected");
    server.assert_all_keys_expire();
}

const BURST: Limit = Limit::token_bucket("burst", 10, Duration::from_secs(1));
const DAILY: Limit = Limit::fixed("daily", 25, Duration::from_secs(86_400));

#[tokio::test]
async fn the_limit_with_the_longest_wait_determines_the_rejection() {
    let server = Server::start();
    for TestLimiter { limiter, clock } in [TestLimiter::embedded(), TestLimiter::redis(&server)] {
        let check = |cost: u64| {
            let parts = [Part::new(&BURST, &"key", cost), Part::new(&DAILY, &"key", cost)];
            limiter.check_all(&parts)
        };
        let first = check(10).await.expect("admitted");
        assert_eq!((first.limit, first.remaining), (10, 0));
        let Err(Rejection::Limited { name, decision, .. }) = check(5).await else {
            panic!("the bucket is empty")
        };
        assert_eq!((name.as_str(), decision.retry_after), ("burst", Duration::from_millis(500)));
        clock.advance(Duration::from_secs(1));
        assert!(check(10).await.is_ok());
        // Both limits reject.
        let rejected = check(6).await.expect_err("the day is used up");
        assert_eq!(
            (rejected.name(), rejected.retry_after()),
            ("daily", Some(Duration::from_secs(86_399)))
        );
        // Neither limit was charged.
        clock.advance(Duration::from_secs(1));
        let last = check(5).await.expect("admitted");
        assert_eq!((last.limit, last.remaining), (25, 0));
    }
}

#[tokio::test]
async fn the_policies_of_the_limits_apply_to_the_call() {
    let limiter = RateLimiter::builder().redis("redis://127.0.0.1:1").build().expect("valid");
    let both = |with_policy: fn(Limit) -> Limit, cost: u64| {
        let (burst, daily) = (with_policy(BURST), with_policy(DAILY));
        limiter.check_all(&[Part::new(&burst, &1, cost), Part::new(&daily, &1, cost)])
    };
    let as_built = |limit| limit;
    assert_eq!(both(as_built, 10).await.expect("local").source, Source::Fallback);
    assert_eq!(both(as_built, 10).await.expect_err("local").name(), "burst");
    let allowed = both(|limit| limit.on_error(OnError::Allow), 10).await.expect("allowed");
    assert_eq!((allowed.allowed, allowed.retry_after), (true, Duration::ZERO));
    assert!(both(|limit| limit.shadow(true), 10).await.is_ok_and(|decision| !decision.allowed));
    // A count of its own, which the fallback does not share.
    let process = both(|limit| limit.scope(Scope::Process), 10).await.expect("admitted");
    assert_eq!(process.source, Source::Embedded);
    let process = both(|limit| limit.scope(Scope::Process), 1).await;
    assert_eq!(process.expect_err("counted").name(), "burst");
    let denied = both(|limit| limit.on_error(OnError::Deny), 10).await;
    assert!(matches!(denied, Err(Rejection::Unavailable { .. })), "{denied:?}");
    let exceeds = both(as_built, 11).await.expect_err("the cost exceeds the capacity");
    assert!(
        matches!(&exceeds, Rejection::CostExceedsCapacity { name, .. } if *name == "burst"),
        "{exceeds:?}"
    );
}

#[tokio::test]
async fn limits_that_cannot_be_decided_together_are_an_error() {
    let limiter = RateLimiter::embedded();
    let error = async |parts: &[Part<'_>]| match limiter.check_all(parts).await {
        Err(Rejection::Mistake { mistake, .. }) => mistake,
        other => panic!("{other:?}"),
    };
    assert_eq!(error(&[]).await, Mistake::NoLimits);
    let shadow = BURST.shadow(true);
    let mixed = [Part::new(&shadow, &1, 1), Part::new(&DAILY, &1, 1)];
    assert_eq!(error(&mixed).await, Mistake::MixedLimits);
    let more = Limit::fixed("daily", 26, Duration::from_secs(86_400));
    let one_count = [Part::new(&more, &1, 1), Part::new(&DAILY, &1, 1)];
    let one_count = error(&one_count).await;
    assert!(
        matches!(&one_count, Mistake::SharedCount { name, .. } if *name == "daily"),
        "{one_count:?}"
    );
    // With different keys, they have different counts.
    let apart = [Part::new(&more, &1, 1), Part::new(&DAILY, &2, 1)];
    assert!(limiter.check_all(&apart).await.is_ok());
    // A limit that occurs twice is charged once, with the sum of the costs.
    let twice = [Part::new(&DAILY, &3, 10), Part::new(&DAILY, &3, 15)];
    assert_eq!(limiter.check_all(&twice).await.expect("admitted").remaining, 0);
    let exceeds = [Part::new(&DAILY, &4, 10), Part::new(&DAILY, &4, 16)];
    let exceeds = limiter.check_all(&exceeds).await;
    assert!(matches!(exceeds, Err(Rejection::CostExceedsCapacity { cost: 26, .. })), "{exceeds:?}");
}

/// Each period has its own count: entries that leave the shorter window still count in the longer one.
#[tokio::test]
async fn limits_of_one_name_with_different_periods_count_separately() {
    let second = Limit::sliding("api", 10, Duration::from_secs(1));
    let hour = Limit::sliding("api", 25, Duration::from_secs(3600));
    let server = Server::start();
    for TestLimiter { limiter, clock } in [TestLimiter::embedded(), TestLimiter::redis(&server)] {
        let mut admitted = 0;
        for _ in 0..100 {
            let parts = [Part::new(&second, &"key", 1), Part::new(&hour, &"key", 1)];
            admitted += u64::from(limiter.check_all(&parts).await.is_ok());
            clock.advance(Duration::from_millis(90));
        }
        assert_eq!(admitted, 25);
    }
}

/// Threads name the same keys, and so the same shards, in different orders: they do not deadlock, and the counts
/// of all keys stay equal.
#[test]
fn concurrent_threads_charge_all_limits_or_none() {
    const LIMIT: Limit = Limit::fixed("threads", 1_000, Duration::from_secs(86_400));
    let limiter = RateLimiter::embedded();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let keys: Vec<u64> = (0..16).collect();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (limiter, runtime, mut keys) = (&limiter, &runtime, keys.clone());
            keys.rotate_left(thread * 2);
            if thread % 2 == 1 {
                keys.reverse();
            }
            scope.spawn(move || {
                let parts: Vec<_> = keys.iter().map(|key| Part::new(&LIMIT, key, 1)).collect();
                for _ in 0..200 {
                    let _ = runtime.block_on(limiter.check_all(&parts));
                }
            });
        }
    });
    for key in &keys {
        let left = runtime.block_on(limiter.peek(&LIMIT, key, 0)).expect("decided").remaining;
        assert_eq!(left, 0, "key {key}");
    }
}

/// On Redis, a leased sliding limit has a longer period. It still shares its count with a limit that does not lease.
#[tokio::test]
async fn a_leased_limit_shares_its_count_on_both_stores() {
    let server = Server::start();
    let minute = Duration::from_secs(60);
    let leased = Limit::sliding("shared", 5, minute).lease(2);
    let plain = Limit::sliding("shared", 9, minute);
    for test in [TestLimiter::embedded(), TestLimiter::redis(&server)] {
        for limits in [[&leased, &plain], [&plain, &leased]] {
            let parts = limits.map(|limit| Part::new(limit, &"key", 1));
            let error = test.limiter.check_all(&parts).await.expect_err("one count");
            let is_shared_count =
                matches!(&error, Rejection::Mistake { mistake: Mistake::SharedCount { .. }, .. });
            assert!(is_shared_count, "{error:?}");
        }
    }
}
