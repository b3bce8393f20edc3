//! Several limits in one decision: all are charged or none, for any algorithms, periods, keys and costs. The
//! model, the embedded store and Redis make the same decisions.

use std::cmp::Reverse;
use std::iter::zip;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use ratelimit_runtime::{
    Algorithm, Limit, Mistake, OnError, Part, RateLimiter, Rejection, Scope, Source, VirtualClock,
};
use support::clocks::embedded_on;
use support::limits::{DAY, HOUR, SECOND};
use support::model::{ExpectedDecision, Model};
use support::random;
use support::server::Server;
use support::{ALGORITHMS, poll_once};

use crate::decision;

/// Indices of limits, each with a cost.
type Parts = Vec<(usize, u64)>;

/// Returns a call, and the microseconds between the previous one and this one.
fn call() -> impl Strategy<Value = (Parts, u64)> {
    let wait = prop_oneof![4 => Just(0), 3 => 0_u64..200_000, 2 => 0_u64..20_000_000];
    let indices = prop::sample::subsequence(vec![0, 1, 2, 3, 4], 1..5).prop_shuffle();
    let parts = (indices, prop::array::uniform5(0_u64..4))
        .prop_map(|(indices, costs)| zip(indices, costs).collect());
    (parts, wait)
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
fn expected(models: &mut [Model], call: &Parts, limits: &[Limit], now: u64) -> ExpectedDecision {
    let of = |(index, cost): &(usize, u64)| models[*index].peek(&limits[*index], now, *cost);
    let rejected = call.iter().map(of).filter(|it| !it.allowed);
    if let Some(longest) = rejected.min_by_key(|it| Reverse(it.retry_after)) {
        return longest;
    }
    let of = |(index, cost): &(usize, u64)| models[*index].check(&limits[*index], now, *cost);
    call.iter().map(of).min_by_key(|it| it.remaining).expect("at least one limit")
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
        let now = || clock.now().as_micros() as u64;
        for (index, (parts, wait)) in calls.iter().enumerate() {
            clock.advance(Duration::from_micros(*wait));
            let part = |(index, cost): &(usize, u64)| Part::new(&limits[*index], &key, *cost);
            let model = expected(&mut models, parts, &limits, now());
            let parts: Vec<_> = parts.iter().map(part).collect();
            for limiter in [&embedded, &redis] {
                let decided = decision(runtime.block_on(limiter.check_all(&parts)));
                prop_assert_eq!(model, decided.into(), "{:?}, call {}", decided.source, index);
            }
            rejected.fetch_add(u64::from(!model.allowed), Ordering::Relaxed);
        }
        // A rejected call charges no limit: each count equals the count of the model.
        for (limit, model) in limits.iter().zip(&mut models) {
            let model = model.peek(limit, now(), 1).remaining;
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
async fn the_policies_of_the_limits_apply_to_the_call() {
    let limiter = RateLimiter::builder().redis("redis://127.0.0.1:1").build().expect("valid");
    let both = |with_policy: fn(Limit) -> Limit, cost: u64| {
        let (burst, daily) = (with_policy(BURST), with_policy(DAILY));
        limiter.check_all(&[Part::new(&burst, &1, cost), Part::new(&daily, &1, cost)])
    };
    assert_eq!(both(|limit| limit, 10).await.expect("local").source, Source::Fallback);
    assert_eq!(both(|limit| limit, 10).await.expect_err("local").name(), "burst");
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
    let exceeds = both(|limit| limit, 11).await.expect_err("the cost exceeds the capacity");
    let is_of_burst =
        matches!(&exceeds, Rejection::CostExceedsCapacity { name, .. } if *name == "burst");
    assert!(is_of_burst, "{exceeds:?}");
}

crate::on_both_stores! {
    async fn the_limit_with_the_longest_wait_names_the_rejection(test: TestLimiter) {
        let check = |cost: u64| {
            let parts = [Part::new(&BURST, &"key", cost), Part::new(&DAILY, &"key", cost)];
            test.limiter.check_all(&parts)
        };
        assert_eq!(check(10).await.expect("admitted").limit, 10);
        assert_eq!(check(5).await.expect_err("the bucket is empty").name(), "burst");
        assert!(test.allows(&DAILY, 10).await);
        assert_eq!(check(6).await.expect_err("both reject").name(), "daily");
    }

    async fn limits_that_cannot_be_decided_together_are_an_error(test: TestLimiter) {
        let limiter = &test.limiter;
        let error = async |parts: &[Part<'_>]| match limiter.check_all(parts).await {
            Err(Rejection::Mistake { mistake, .. }) => mistake,
            other => panic!("{other:?}"),
        };
        assert_eq!(error(&[]).await, Mistake::NoLimits);
        let part = |limit, cost| Part::new(limit, &1, cost);
        let shadow = BURST.shadow(true);
        assert_eq!(error(&[part(&shadow, 1), part(&DAILY, 1)]).await, Mistake::MixedLimits);
        let more = Limit::fixed("daily", 26, DAY);
        // On Redis, a leased sliding limit has a longer period, and shares its count with a limit that does not lease.
        let leased = Limit::sliding("daily", 5, HOUR).lease(2);
        let plain = Limit::sliding("daily", 9, HOUR);
        for limits in [[&more, &DAILY], [&leased, &plain], [&plain, &leased]] {
            let error = error(&limits.map(|limit| part(limit, 1))).await;
            let is_shared = matches!(&error, Mistake::SharedCount { name, .. } if *name == "daily");
            assert!(is_shared, "{error:?}");
        }
        // With another key, algorithm or period, a limit has another count.
        let hourly = Limit::fixed("daily", 1, HOUR);
        let apart = [part(&more, 1), Part::new(&DAILY, &2, 1), part(&plain, 1), part(&hourly, 1)];
        assert!(limiter.check_all(&apart).await.is_ok());
        for (limit, left) in [(&more, 25), (&plain, 8), (&hourly, 0)] {
            assert_eq!(limiter.peek(limit, 1, 1).await.expect("a decision").remaining, left);
        }
        // A limit that occurs twice is charged once, with the sum of the costs.
        let twice = |cost| [Part::new(&DAILY, &3, 10), Part::new(&DAILY, &3, cost)];
        let exceeds = limiter.check_all(&twice(16)).await;
        let is_refused = matches!(exceeds, Err(Rejection::CostExceedsCapacity { cost: 26, .. }));
        assert!(is_refused, "{exceeds:?}");
        assert_eq!(limiter.check_all(&twice(15)).await.expect("admitted").remaining, 0);
    }
}

/// Threads name the same keys, and so the same shards, in different orders: they do not deadlock, and the counts
/// of all keys stay equal.
#[test]
fn concurrent_threads_charge_all_limits_or_none() {
    const LIMIT: Limit = Limit::fixed("threads", 1_000, DAY);
    let limiter = RateLimiter::embedded();
    let keys: [u64; 16] = std::array::from_fn(|key| key as u64);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (limiter, mut keys) = (&limiter, keys);
            keys.rotate_left(thread * 2);
            if thread % 2 == 1 {
                keys.reverse();
            }
            scope.spawn(move || {
                let parts = keys.each_ref().map(|key| Part::new(&LIMIT, key, 1));
                for _ in 0..200 {
                    let _ = poll_once(limiter.check_all(&parts));
                }
            });
        }
    });
    for key in keys {
        let left = poll_once(limiter.peek(&LIMIT, key, 0)).expect("decided").remaining;
        assert_eq!(left, 0, "key {key}");
    }
}
