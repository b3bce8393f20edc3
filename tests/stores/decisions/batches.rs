//! Concurrent calls share scripts. Each call gets the decision that it would get in a sequence of single calls.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::FutureExt;
use futures::future::join_all;
use ratelimit_runtime::{Limit, RateLimiter, Rejection, Source, StoreError};
use redis::Commands;
use support::limits::{HOUR, MINUTE, is_bucket, limits};
use support::server::Server;

use crate::{TestLimiter, decision};

/// Some keys and costs occur more often than others, by the clock of the server. A low class of calls can take 40 of 50
/// units. `parity` plays equal calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_calls_with_different_keys_costs_and_amounts_get_their_own_decisions() {
    let (server, limiter) = Server::with_limiter();
    for high in limits("mixture", 50, HOUR) {
        // The buckets of both classes have one rate.
        let threshold = if is_bucket(high.algorithm()) { 50 } else { 40 };
        let burst = is_bucket(high.algorithm()).then_some(40);
        let low = high.try_amounts(threshold, burst).expect("valid");
        let call = |number: u64| {
            let limit = if number % 7 < 4 { low } else { high };
            (format!("key {}", number * number % 40), 1 + number % 3, limit)
        };
        let calls: Vec<_> = (0..600).map(call).collect();
        let before = server.script_calls();
        let checks = calls.iter().map(|(key, cost, limit)| limiter.check(limit, key, *cost));
        let decisions = join_all(checks.map(tokio::spawn)).await.into_iter();
        let decisions: Vec<_> = decisions.map(|it| decision(it.expect("no panic"))).collect();
        let scripts = server.script_calls() - before;
        assert!(scripts < 300, "{scripts} scripts: the calls were not batched");
        let mut used = BTreeMap::<_, u64>::new();
        for ((key, cost, limit), decision) in calls.iter().zip(&decisions) {
            assert_eq!(decision.limit, limit.capacity());
            *used.entry(key).or_default() += if decision.allowed { *cost } else { 0 };
        }
        for ((key, cost, limit), decision) in calls.iter().zip(&decisions) {
            let left = limiter.peek(limit, key, 0).await.expect("a decision").remaining;
            assert_eq!(left, limit.capacity().saturating_sub(used[key]), "{limit:?}, {key}");
            // Each rejected call costs more than is left.
            assert!(decision.allowed || *cost > left, "{limit:?}, {key}");
        }
    }
}

/// The error of a foreign key reaches only the callers of that key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_key_in_a_batch_fails_only_its_own_calls() {
    let (server, limiter) = Server::with_limiter();
    let mut connection = server.connection();
    let limit = Limit::token_bucket("foreign", 5, MINUTE);
    for key in (0..200).filter(|key| key % 4 < 2) {
        let name = format!("rl:token_bucket:1m:foreign{{{key}}}");
        let _: () = match key % 4 {
            0 => connection.hset(name, "field", "value").expect("HSET"),
            _ => connection.set(name, "text").expect("SET"),
        };
    }
    let calls = join_all((0..200).map(|key| tokio::spawn(limiter.check(&limit, key, 1))));
    for (key, result) in calls.await.into_iter().enumerate() {
        let result = result.expect("no panic");
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
    let (_server, limiter) = Server::with_limiter();
    let limit = Limit::fixed("dropped", 1_000, HOUR);
    limiter.check(&limit, "key", 1).await.expect("admitted");
    let mut calls: Vec<_> = (0..100).map(|_| Box::pin(limiter.check(&limit, "key", 1))).collect();
    assert!(calls.iter_mut().all(|call| call.now_or_never().is_none()));
    // The first four are pending, and the others are queued.
    calls.truncate(4);
    assert!(join_all(calls).await.iter().all(Result::is_ok));
    let left = limiter.peek(&limit, "key", 0).await.expect("a decision").remaining;
    assert_eq!(left, 1_000 - 5);
}

// The rejection cache: rejects a key locally, with the decision that the store would make.

const LIMIT: Limit = Limit::sliding("rejections", 2, MINUTE);

/// Checks a call, and returns whether it is admitted, and the source of the decision.
async fn source(limiter: &RateLimiter, limit: &Limit, key: &str) -> (bool, Source) {
    let decision = decision(limiter.check(limit, key, 1).await);
    (decision.allowed, decision.source)
}

/// `parity` compares the decisions of the cache with the model, until their last microsecond.
#[tokio::test]
async fn rejects_locally_while_the_rejection_is_cached() {
    let server = Server::start();
    // Each algorithm, also the sliding counter, rejects for less than the second that the cache keeps a rejection.
    for limit in limits("cached", 3, Duration::from_millis(700)) {
        let test = TestLimiter::redis(&server);
        while test.allows(&limit, 1).await {}
        let wait = test.decide(&limit, 1).await.retry_after;
        let scripts = server.script_calls();
        for _ in 1..7 {
            test.clock.advance(wait / 7);
            let rejected = test.decide(&limit, 1).await;
            assert_eq!((rejected.allowed, rejected.source), (false, Source::Cache), "{limit:?}");
        }
        assert_eq!(server.script_calls(), scripts, "{limit:?}");
    }
}

#[tokio::test]
async fn a_refund_or_a_reset_ends_a_cached_rejection() {
    let server = Server::start();
    let (test, there) = (TestLimiter::redis(&server), TestLimiter::redis(&server));
    there.clock.set(test.clock.now());
    let here = &test.limiter;
    let fill = async |key| {
        while source(here, &LIMIT, key).await.0 {}
        assert_eq!(source(here, &LIMIT, key).await, (false, Source::Cache));
    };

    fill("refund").await;
    here.credit(&LIMIT, "refund", 1).await.expect("Redis");
    assert_eq!(source(here, &LIMIT, "refund").await, (true, Source::Redis));

    fill("reset").await;
    here.reset(&LIMIT, "reset").await.expect("Redis");
    assert_eq!(source(here, &LIMIT, "reset").await, (true, Source::Redis));

    // A refund of another process: within a second.
    fill("elsewhere").await;
    there.limiter.credit(&LIMIT, "elsewhere", 1).await.expect("Redis");
    assert_eq!(source(here, &LIMIT, "elsewhere").await, (false, Source::Cache));
    test.advance(1_000_000);
    assert_eq!(source(here, &LIMIT, "elsewhere").await, (true, Source::Redis));
}

#[tokio::test]
async fn the_cache_rejects_only_calls_that_redis_would_reject() {
    let server = Server::start();
    let test = TestLimiter::redis(&server);
    while source(&test.limiter, &LIMIT, "key").await.0 {}
    assert_eq!(source(&test.limiter, &LIMIT, "key").await, (false, Source::Cache));
    // Redis decides for another key, another threshold, a peek, a shadow, and costs other than one.
    assert_eq!(source(&test.limiter, &LIMIT, "other").await, (true, Source::Redis));
    let larger = Limit::sliding("rejections", 3, MINUTE);
    assert_eq!(source(&test.limiter, &larger, "key").await, (true, Source::Redis));
    while source(&test.limiter, &LIMIT, "key").await.1 != Source::Cache {}
    let shadow = LIMIT.shadow(true);
    // Three units count, so the count is above the limit.
    for decided in [
        test.decide(&LIMIT, 0).await,
        test.decide(&LIMIT, 2).await,
        test.peek(&LIMIT, 1).await,
        test.decide(&shadow, 1).await,
        test.decide(&shadow, 1).await,
    ] {
        assert_eq!((decided.allowed, decided.source), (false, Source::Redis));
    }

    let uncached = server.builder().cache_rejections(false).build().expect("valid");
    for _ in 0..5 {
        assert_eq!(source(&uncached, &LIMIT, "uncached").await.1, Source::Redis);
    }
}

#[tokio::test]
async fn a_cached_rejection_ends_in_time_if_the_clock_steps_back_during_its_request() {
    const STEP: Duration = Duration::from_secs(10);
    let server = Server::start();
    let test = TestLimiter::redis(&server);
    let limit = Limit::fixed("stepped", 1, Duration::from_millis(500));
    assert!(test.allows(&limit, 1).await);
    let mut check = Box::pin(test.limiter.check(&limit, "key", 1));
    assert!(futures::poll!(check.as_mut()).is_pending(), "the request was sent");
    test.clock.set(test.clock.now() - STEP);
    assert!(!decision(check.await).allowed);
    for _ in 0..20 {
        test.advance(50_000);
        let again = test.decide(&limit, 1).await;
        // The window ends by the clock before the step.
        assert!(again.retry_after <= limit.period() + STEP, "{again:?}");
    }
}
