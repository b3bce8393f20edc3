//! Several limits in one decision: all are charged or none, for any algorithms, periods, keys and costs. The
//! model, the embedded store and Redis make the same decisions.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use ratelimit_runtime::{
    Algorithm, Limit, Mistake, OnError, Part, RateLimiter, Rejection, Scope, Source, VirtualClock,
};
use support::ALGORITHMS;
use support::clocks::embedded_on;
use support::limits::{DAY, HOUR, SECOND};
use support::model::{ExpectedDecision, Model};
use support::random;
use support::server::Server;

use crate::{TestLimiter, decision};

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

fn limits() -> impl Strategy<Value = Vec<Limit>> {
    let limit = |algorithm: Algorithm| {
        (3_u64..12, 1_u64..100, 3_u64..6).prop_map(move |(threshold, tenths, burst)| {
            let period = Duration::from_millis(tenths * 100);
            let limit = Limit::new("several", algorithm, threshold, period).expect("valid");
            if algorithm == Algorithm::LeakyBucket { limit.burst(burst) } else { limit }
        })
    };
    ALGORITHMS.into_iter().map(limit).collect::<Vec<_>>()
}

/// Returns the decision of the models. If a limit rejects, nothing is charged, and the longest `retry_after`
/// determines the decision. Otherwise, the least `remaining` does.
fn expected(models: &mut [Model], call: &Call, limits: &[Limit], clock: u64) -> ExpectedDecision {
    let mut decide = |charges: bool| -> Vec<ExpectedDecision> {
        let decide = |(index, cost): &(usize, u64)| {
            let (limit, model) = (&limits[*index], &mut models[*index]);
            if charges { model.check(limit, clock, *cost) } else { model.peek(limit, clock, *cost) }
        };
        call.merged().iter().map(decide).collect()
    };
    let rejected = decide(false).into_iter().filter(|it| !it.allowed);
    if let Some(longest) = rejected.min_by_key(|it| Reverse(it.retry_after)) {
        return longest;
    }
    decide(true).into_iter().min_by_key(|it| it.remaining).expect("at least one limit")
}

#[test]
fn random_traces_get_the_decisions_of_the_model() {
    let server = Server::start();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (traces, rejected) = (AtomicU64::new(0), AtomicU64::new(0));
    let calls = prop::collection::vec(call(), 1..150);
    random::play(120, &(limits(), calls), |(limits, calls)| {
        let key = traces.fetch_add(1, Ordering::Relaxed);
        let clock = VirtualClock::at(Duration::from_secs(1_800_000_000));
        let (embedded, redis) = (embedded_on(&clock), server.limiter_on(&clock));
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
            let model = expected(&mut models, call, &limits, now);
            let decide = |limiter: &RateLimiter| -> ExpectedDecision {
                decision(runtime.block_on(limiter.check_all(&parts))).into()
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
                prop_assert_eq!(model, peek.remaining, "{} at the end", limit.algorithm());
            }
        }
        Ok(())
    });
    let rejected = rejected.into_inner();
    assert!(rejected > 1_000, "only {rejected} calls were rejected");
    server.assert_all_keys_expire();
}

const BURST: Limit = Limit::token_bucket("burst", 10, SECOND);
const DAILY: Limit = Limit::fixed("daily", 25, DAY);

#[tokio::test]
async fn the_limit_with_the_longest_wait_names_the_rejection() {
    let server = Server::start();
    for TestLimiter { limiter, .. } in [TestLimiter::embedded(), TestLimiter::redis(&server)] {
        let check = |cost: u64| {
            let parts = [Part::new(&BURST, &"key", cost), Part::new(&DAILY, &"key", cost)];
            limiter.check_all(&parts)
        };
        assert_eq!(check(10).await.expect("admitted").limit, 10);
        assert_eq!(check(5).await.expect_err("the bucket is empty").name(), "burst");
        limiter.check(&DAILY, "key", 10).await.expect("admitted");
        assert_eq!(check(6).await.expect_err("both reject").name(), "daily");
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

crate::on_both_stores! {
    async fn limits_that_cannot_be_decided_together_are_an_error(test: TestLimiter) {
        let limiter = &test.limiter;
        let error = async |parts: &[Part<'_>]| match limiter.check_all(parts).await {
            Err(Rejection::Mistake { mistake, .. }) => mistake,
            other => panic!("{other:?}"),
        };
        assert_eq!(error(&[]).await, Mistake::NoLimits);
        let shadow = BURST.shadow(true);
        let mixed = [Part::new(&shadow, &1, 1), Part::new(&DAILY, &1, 1)];
        assert_eq!(error(&mixed).await, Mistake::MixedLimits);
        let more = Limit::fixed("daily", 26, DAY);
        // On Redis, a leased sliding limit has a longer period, and shares its count with a limit that does not lease.
        let leased = Limit::sliding("daily", 5, HOUR).lease(2);
        let plain = Limit::sliding("daily", 9, HOUR);
        for limits in [[&more, &DAILY], [&leased, &plain], [&plain, &leased]] {
            let one_count = error(&limits.map(|limit| Part::new(limit, &1, 1))).await;
            assert!(
                matches!(&one_count, Mistake::SharedCount { name, .. } if *name == "daily"),
                "{one_count:?}"
            );
        }
        // With another key, algorithm or period, a limit has another count.
        let hourly = Limit::fixed("daily", 1, HOUR);
        let apart = [
            Part::new(&more, &1, 1),
            Part::new(&DAILY, &2, 1),
            Part::new(&plain, &1, 1),
            Part::new(&hourly, &1, 1),
        ];
        assert!(limiter.check_all(&apart).await.is_ok());
        for (limit, left) in [(&more, 25), (&plain, 8), (&hourly, 0)] {
            assert_eq!(limiter.peek(limit, 1, 1).await.expect("a decision").remaining, left);
        }
        // A limit that occurs twice is charged once, with the sum of the costs.
        let twice = [Part::new(&DAILY, &3, 10), Part::new(&DAILY, &3, 15)];
        assert_eq!(limiter.check_all(&twice).await.expect("admitted").remaining, 0);
        let exceeds = [Part::new(&DAILY, &4, 10), Part::new(&DAILY, &4, 16)];
        let exceeds = limiter.check_all(&exceeds).await;
        let is_refused = matches!(exceeds, Err(Rejection::CostExceedsCapacity { cost: 26, .. }));
        assert!(is_refused, "{exceeds:?}");
    }
}

/// Threads name the same keys, and so the same shards, in different orders: they do not deadlock, and the counts
/// of all keys stay equal.
#[test]
fn concurrent_threads_charge_all_limits_or_none() {
    const LIMIT: Limit = Limit::fixed("threads", 1_000, DAY);
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
