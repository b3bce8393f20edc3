//! Many calls at once: each gets what it would have got one after the other, from fewer scripts.

use std::time::Duration;

use ratelimit_runtime::{Algorithm, Decision, Limit, RateLimiter, Rejection, Source, StoreError};
use redis::Commands;
use support::ALGORITHMS;
use support::server::Server;

use crate::{Timed, decision};

/// Asks all at once, and gives the answers in their order.
async fn at_once(limiter: &RateLimiter, limit: &Limit, calls: &[(String, u32)]) -> Vec<Decision> {
    let check = |(key, cost): &(String, u32)| tokio::spawn(limiter.check(limit, key, *cost));
    let tasks: Vec<_> = calls.iter().map(check).collect();
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(decision(task.await.expect("no panic")));
    }
    answers
}

#[tokio::test]
async fn equal_calls_are_answered_as_if_one_came_after_the_other() {
    let server = Server::start();
    let (redis, one) = (Timed::redis(&server), Timed::embedded());
    redis.clock.set(one.clock.now());
    for algorithm in ALGORITHMS {
        // Periods and thresholds that leave fractions of a token and of a microsecond.
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
                let mut got = at_once(&redis.limiter, &limit, &calls).await;
                assert!(server.script_calls() - before < 40, "they were not put together");
                let mut expected = Vec::new();
                for (key, cost) in &calls {
                    let mut answer = decision(one.limiter.check(&limit, key, *cost).await);
                    answer.source = Source::Redis;
                    expected.push(answer);
                }
                let order = |decision: &Decision| {
                    (!decision.allowed, u32::MAX - decision.remaining, decision.reset_after)
                };
                got.sort_by_key(order);
                expected.sort_by_key(order);
                assert_eq!(got, expected, "{algorithm}, {threshold} in {millis} ms, round {round}");
                let pause = period * (round as u32 % 3) / 5 + Duration::from_micros(1_234);
                redis.clock.advance(pause);
                one.clock.advance(pause);
            }
        }
    }
}

/// Keys and costs as they come, some more often than others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_call_of_a_mixture_gets_its_own_answer() {
    let server = Server::start();
    let timed = Timed::redis(&server);
    for algorithm in ALGORITHMS {
        let mut limit =
            Limit::new("mixture", algorithm, 50, Duration::from_secs(60)).expect("valid");
        if limit.capacity() == 1 {
            limit = limit.burst(50);
        }
        let call = |number: u32| (format!("key {}", number * number % 40), 1 + number % 3);
        let calls: Vec<_> = (0..600).map(call).collect();
        let answers = at_once(&timed.limiter, &limit, &calls).await;
        for key in 0..40 {
            let key = format!("key {key}");
            let of_key = calls.iter().zip(&answers).filter(|((other, _), _)| *other == key);
            let admitted: u32 = of_key
                .clone()
                .filter(|(_, answer)| answer.allowed)
                .map(|((_, cost), _)| cost)
                .sum();
            let wanted: u32 = of_key.clone().map(|((_, cost), _)| cost).sum();
            let left = timed.limiter.peek(&limit, &key, 0).await.expect("a decision").remaining;
            assert_eq!(left, 50 - admitted, "{algorithm}, {key}");
            // Who was refused did not fit.
            let least =
                of_key.filter(|(_, answer)| !answer.allowed).map(|((_, cost), _)| *cost).min();
            assert!(least.is_none_or(|least| least > left), "{algorithm}, {key}");
            assert!(least.is_some() == (wanted > admitted));
        }
    }
}

/// What is wrong with one key is told to its callers alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_key_harms_no_other() {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid");
    let mut connection = server.connection();
    let limit = Limit::new("foreign", Algorithm::TokenBucket, 5, Duration::from_secs(60));
    let limit = limit.expect("valid");
    for key in 0..200 {
        let name = format!("ratelimit:token_bucket:1m:foreign{{{key}}}");
        match key % 4 {
            0 => connection.hset(name, "field", "value").expect("HSET"),
            1 => connection.set(name, "text").expect("SET"),
            _ => {}
        }
    }
    let calls = (0..200).map(|key| (key, tokio::spawn(limiter.check(&limit, key, 1))));
    for (key, call) in calls.collect::<Vec<_>>() {
        let answer = call.await.expect("no panic");
        if key % 4 > 1 {
            assert_eq!(answer.expect("admitted").remaining, 4);
            continue;
        }
        let Err(Rejection::Unavailable { error, .. }) = answer else { panic!("{answer:?}") };
        let StoreError::ForeignKey { key: named, .. } = &error else { panic!("{error:?}") };
        assert!(named.ends_with(&format!("{{{key}}}")), "{named}");
    }
}

/// Who gives up while it waits to be taken along is not charged, and nobody else is held up.
#[tokio::test]
async fn who_gives_up_in_the_queue_is_not_charged() {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid");
    let limit = Limit::fixed("left", 1_000, Duration::from_secs(3600));
    limiter.check(&limit, "key", 1).await.expect("admitted");
    let mut calls: Vec<_> = (0..100).map(|_| Box::pin(limiter.check(&limit, "key", 1))).collect();
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    for call in &mut calls {
        assert!(call.as_mut().poll(&mut context).is_pending());
    }
    // The first four are on their way; nobody has taken off with the others yet.
    drop(calls.split_off(4));
    for call in calls {
        call.await.expect("admitted");
    }
    let left = limiter.peek(&limit, "key", 0).await.expect("a decision").remaining;
    assert_eq!(left, 1_000 - 5);
}
