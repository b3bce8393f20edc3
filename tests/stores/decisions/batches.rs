//! Concurrent calls share scripts. Each call gets the decision that it would get in a sequence of single calls.

use std::time::Duration;

use ratelimit_runtime::{Algorithm, Decision, Limit, RateLimiter, Rejection, Source, StoreError};
use redis::Commands;
use support::ALGORITHMS;
use support::server::Server;

use crate::{TestLimiter, decision};

/// Checks all calls at the same time, and returns their decisions in the order of the calls.
async fn check_concurrently(
    limiter: &RateLimiter,
    limit: &Limit,
    calls: &[(String, u64)],
) -> Vec<Decision> {
    let check = |(key, cost): &(String, u64)| tokio::spawn(limiter.check(limit, key, *cost));
    let tasks: Vec<_> = calls.iter().map(check).collect();
    let mut decisions = Vec::new();
    for task in tasks {
        decisions.push(decision(task.await.expect("no panic")));
    }
    decisions
}

#[tokio::test]
async fn concurrent_equal_calls_get_the_decisions_of_sequential_calls() {
    let server = Server::start();
    let (redis, embedded) = (TestLimiter::redis(&server), TestLimiter::embedded());
    redis.clock.set(embedded.clock.now());
    for algorithm in ALGORITHMS {
        // Periods and thresholds that result in fractions of a token and of a microsecond.
        for (threshold, millis) in [(7, 10_001), (100, 9_973), (150, 1_000), (1_000, 333)] {
            let period = Duration::from_millis(millis);
            let mut limit = Limit::new("batch", algorithm, threshold, period).expect("valid");
            if limit.capacity() == 1 {
                limit = limit.burst(threshold / 2 + 1);
            }
            for (round, cost) in [1, 3, 2, 1, 7].into_iter().enumerate() {
                let key = format!("{threshold}");
                let cost = limit.capacity().min(cost);
                let calls = vec![(key.clone(), cost); 120];
                let before = server.script_calls();
                let mut got = check_concurrently(&redis.limiter, &limit, &calls).await;
                let scripts = server.script_calls() - before;
                assert!(scripts < 40, "{scripts} scripts: the calls were not batched");
                let mut expected = Vec::new();
                for (key, cost) in &calls {
                    let check = embedded.limiter.check(&limit, key, *cost);
                    let mut decision = decision(check.await);
                    decision.source = Source::Redis;
                    expected.push(decision);
                }
                let order = |decision: &Decision| {
                    (!decision.allowed, u64::MAX - decision.remaining, decision.reset_after)
                };
                got.sort_by_key(order);
                expected.sort_by_key(order);
                assert_eq!(got, expected, "{algorithm}, {threshold} in {millis} ms, round {round}");
                let pause = period * (round as u32 % 3) / 5 + Duration::from_micros(1_234);
                redis.clock.advance(pause);
                embedded.clock.advance(pause);
            }
        }
    }
}

/// Some keys and costs occur more often than others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_calls_with_different_keys_and_costs_get_their_own_decisions() {
    let server = Server::start();
    let test = TestLimiter::redis(&server);
    for algorithm in ALGORITHMS {
        let mut limit =
            Limit::new("mixture", algorithm, 50, Duration::from_secs(60)).expect("valid");
        if limit.capacity() == 1 {
            limit = limit.burst(50);
        }
        let call = |number: u64| (format!("key {}", number * number % 40), 1 + number % 3);
        let calls: Vec<_> = (0..600).map(call).collect();
        let decisions = check_concurrently(&test.limiter, &limit, &calls).await;
        for key in 0..40 {
            let key = format!("key {key}");
            let of_key = calls.iter().zip(&decisions).filter(|((other, _), _)| *other == key);
            let admitted: u64 = of_key
                .clone()
                .filter(|(_, decision)| decision.allowed)
                .map(|((_, cost), _)| cost)
                .sum();
            let requested: u64 = of_key.clone().map(|((_, cost), _)| cost).sum();
            let left = test.limiter.peek(&limit, &key, 0).await.expect("a decision").remaining;
            assert_eq!(left, 50 - admitted, "{algorithm}, {key}");
            // Each rejected call costs more than is left.
            let rejected = of_key.filter(|(_, decision)| !decision.allowed);
            let least = rejected.map(|((_, cost), _)| *cost).min();
            assert!(least.is_none_or(|least| least > left), "{algorithm}, {key}");
            assert!(least.is_some() == (requested > admitted));
        }
    }
}

/// The error of a foreign key reaches only the callers of that key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_key_in_a_batch_fails_only_its_own_calls() {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid");
    let mut connection = server.connection();
    let limit = Limit::new("foreign", Algorithm::TokenBucket, 5, Duration::from_secs(60));
    let limit = limit.expect("valid");
    for key in 0..200 {
        let name = format!("rl:token_bucket:1m:foreign{{{key}}}");
        match key % 4 {
            0 => connection.hset(name, "field", "value").expect("HSET"),
            1 => connection.set(name, "text").expect("SET"),
            _ => {}
        }
    }
    let calls = (0..200).map(|key| (key, tokio::spawn(limiter.check(&limit, key, 1))));
    for (key, call) in calls.collect::<Vec<_>>() {
        let result = call.await.expect("no panic");
        if key % 4 > 1 {
            assert_eq!(result.expect("admitted").remaining, 4);
            continue;
        }
        let Err(Rejection::Unavailable { error, .. }) = result else { panic!("{result:?}") };
        let StoreError::ForeignKey { key: named, .. } = &error else { panic!("{error:?}") };
        assert!(named.ends_with(&format!("{{{key}}}")), "{named}");
    }
}

/// A call that is dropped before its batch is sent is not charged, and delays no other call.
#[tokio::test]
async fn a_queued_call_that_is_dropped_is_not_charged() {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid");
    let limit = Limit::fixed("dropped", 1_000, Duration::from_secs(3600));
    limiter.check(&limit, "key", 1).await.expect("admitted");
    let mut calls: Vec<_> = (0..100).map(|_| Box::pin(limiter.check(&limit, "key", 1))).collect();
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    for call in &mut calls {
        assert!(call.as_mut().poll(&mut context).is_pending());
    }
    // The first four are pending, and the others are queued.
    drop(calls.split_off(4));
    for call in calls {
        call.await.expect("admitted");
    }
    let left = limiter.peek(&limit, "key", 0).await.expect("a decision").remaining;
    assert_eq!(left, 1_000 - 5);
}
