//! Concurrent calls share scripts. Each call gets the decision that it would get in a sequence of single calls.

use std::time::Duration;

use futures::future::join_all;
use ratelimit_runtime::{Limit, RateLimiter, Rejection, Source, StoreError};
use redis::Commands;
use support::limits::{HOUR, MINUTE, limits};
use support::server::Server;

use crate::{TestLimiter, decision};

/// Some keys and costs occur more often than others, by the clock of the server. `parity` plays equal calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_calls_with_different_keys_and_costs_get_their_own_decisions() {
    let (server, limiter) = Server::with_limiter();
    for limit in limits("mixture", 50, HOUR) {
        let call = |number: u64| (format!("key {}", number * number % 40), 1 + number % 3);
        let calls: Vec<_> = (0..600).map(call).collect();
        let before = server.script_calls();
        let check = |(key, cost): &(String, u64)| tokio::spawn(limiter.check(&limit, key, *cost));
        let tasks: Vec<_> = calls.iter().map(check).collect();
        let decisions = join_all(tasks).await.into_iter();
        let decisions: Vec<_> = decisions.map(|it| decision(it.expect("no panic"))).collect();
        let scripts = server.script_calls() - before;
        assert!(scripts < 300, "{scripts} scripts: the calls were not batched");
        for key in 0..40 {
            let key = format!("key {key}");
            let of_key = calls.iter().zip(&decisions).filter(|((other, _), _)| *other == key);
            let admitted: u64 = of_key
                .clone()
                .filter(|(_, decision)| decision.allowed)
                .map(|((_, cost), _)| cost)
                .sum();
            let requested: u64 = of_key.clone().map(|((_, cost), _)| cost).sum();
            let left = limiter.peek(&limit, &key, 0).await.expect("a decision").remaining;
            assert_eq!(left, 50 - admitted, "{limit:?}, {key}");
            // Each rejected call costs more than is left.
            let rejected = of_key.filter(|(_, decision)| !decision.allowed);
            let least = rejected.map(|((_, cost), _)| *cost).min();
            assert!(least.is_none_or(|least| least > left), "{limit:?}, {key}");
            assert!(least.is_some() == (requested > admitted));
        }
    }
}

/// The error of a foreign key reaches only the callers of that key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_key_in_a_batch_fails_only_its_own_calls() {
    let (server, limiter) = Server::with_limiter();
    let mut connection = server.connection();
    let limit = Limit::token_bucket("foreign", 5, MINUTE);
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
    let (_server, limiter) = Server::with_limiter();
    let limit = Limit::fixed("dropped", 1_000, HOUR);
    limiter.check(&limit, "key", 1).await.expect("admitted");
    let mut calls: Vec<_> = (0..100).map(|_| Box::pin(limiter.check(&limit, "key", 1))).collect();
    for call in &mut calls {
        assert!(futures::poll!(call.as_mut()).is_pending());
    }
    // The first four are pending, and the others are queued.
    drop(calls.split_off(4));
    for call in calls {
        call.await.expect("admitted");
    }
    let left = limiter.peek(&limit, "key", 0).await.expect("a decision").remaining;
    assert_eq!(left, 1_000 - 5);
}

// The rejection cache: rejects a key locally, with the decision that the store would make.

const LIMIT: Limit = Limit::sliding("rejections", 2, Duration::from_secs(60));

/// Checks a call, and returns whether it is admitted, and the source of the decision.
async fn source(limiter: &RateLimiter, limit: &Limit, key: &str) -> (bool, Source) {
    let decision = decision(limiter.check(limit, key, 1).await);
    (decision.allowed, decision.source)
}

#[tokio::test]
async fn rejects_locally_while_the_rejection_is_cached() {
    let server = Server::start();
    // Each algorithm, also the sliding counter, rejects for less than the second that the cache keeps a rejection.
    for limit in limits("cached", 3, Duration::from_millis(700)) {
        let test = TestLimiter::redis(&server);
        let check = async || decision(test.limiter.check(&limit, "key", 1).await);
        while check().await.allowed {}
        let rejected = check().await;
        let scripts = server.script_calls();
        let mut waited = Duration::ZERO;
        let step = Duration::from_micros(rejected.retry_after.as_micros() as u64 / 7);
        while waited + step < rejected.retry_after * 9 / 10 {
            test.clock.advance(step);
            waited += step;
            let again = check().await;
            assert_eq!((again.allowed, again.source), (false, Source::Cache), "{limit:?}");
            assert_eq!(again.retry_after, rejected.retry_after - waited);
            assert_eq!(again.reset_after, rejected.reset_after - waited);
            assert_eq!((again.remaining, again.limit), (0, rejected.limit));
        }
        assert_eq!(server.script_calls(), scripts, "{limit:?}");
        // The rejection ends at the exact microsecond.
        test.clock.advance(rejected.retry_after - waited - Duration::from_micros(1));
        assert!(!check().await.allowed);
        test.clock.advance(Duration::from_micros(1));
        assert!(check().await.allowed, "{limit:?}");
    }
}

#[tokio::test]
async fn a_refund_or_a_reset_ends_a_cached_rejection() {
    let server = Server::start();
    let (here, there) = (TestLimiter::redis(&server), TestLimiter::redis(&server));
    there.clock.set(here.clock.now());
    let fill = async |key| while source(&here.limiter, &LIMIT, key).await.0 {};

    fill("refund").await;
    assert_eq!(source(&here.limiter, &LIMIT, "refund").await, (false, Source::Cache));
    here.limiter.credit(&LIMIT, "refund", 1).await.expect("Redis");
    assert_eq!(source(&here.limiter, &LIMIT, "refund").await, (true, Source::Redis));

    fill("reset").await;
    here.limiter.reset(&LIMIT, "reset").await.expect("Redis");
    assert_eq!(source(&here.limiter, &LIMIT, "reset").await, (true, Source::Redis));

    // A refund of another process: within a second.
    fill("elsewhere").await;
    there.limiter.credit(&LIMIT, "elsewhere", 1).await.expect("Redis");
    assert_eq!(source(&here.limiter, &LIMIT, "elsewhere").await, (false, Source::Cache));
    here.clock.advance(Duration::from_secs(1));
    assert_eq!(source(&here.limiter, &LIMIT, "elsewhere").await, (true, Source::Redis));
}

#[tokio::test]
async fn the_cache_rejects_only_calls_that_redis_would_reject() {
    let server = Server::start();
    let test = TestLimiter::redis(&server);
    while source(&test.limiter, &LIMIT, "key").await.0 {}
    assert_eq!(source(&test.limiter, &LIMIT, "key").await, (false, Source::Cache));
    // Redis decides for another key, another threshold, a peek, and costs other than one.
    assert_eq!(source(&test.limiter, &LIMIT, "other").await, (true, Source::Redis));
    let larger = Limit::sliding("rejections", 3, Duration::from_secs(60));
    assert_eq!(source(&test.limiter, &larger, "key").await, (true, Source::Redis));
    while source(&test.limiter, &LIMIT, "key").await.1 != Source::Cache {}
    for cost in [0, 2] {
        // Three units count, so the count is above the limit.
        let result = decision(test.limiter.check(&LIMIT, "key", cost).await);
        assert_eq!((result.allowed, result.source), (false, Source::Redis));
    }
    let peek = test.limiter.peek(&LIMIT, "key", 1).await.expect("a decision");
    assert_eq!(peek.source, Source::Redis);
    // Redis decides for a shadow.
    let shadow = LIMIT.shadow(true);
    for _ in 0..3 {
        let result = test.limiter.check(&shadow, "key", 1).await.expect("a shadow admits");
        assert_eq!((result.allowed, result.source), (false, Source::Redis));
    }

    let uncached = server.builder().cache_rejections(false).build().expect("valid");
    for _ in 0..5 {
        assert_eq!(source(&uncached, &LIMIT, "uncached").await.1, Source::Redis);
    }
}

#[tokio::test]
async fn a_cached_rejection_ends_in_time_if_the_clock_steps_back_during_its_request() {
    const SHORT: Limit = Limit::fixed("stepped", 1, Duration::from_millis(500));
    const STEP: Duration = Duration::from_secs(10);
    let server = Server::start();
    let test = TestLimiter::redis(&server);
    assert_eq!(source(&test.limiter, &SHORT, "key").await, (true, Source::Redis));
    let mut check = Box::pin(test.limiter.check(&SHORT, "key", 1));
    assert!(futures::poll!(check.as_mut()).is_pending(), "the request was sent");
    test.clock.set(test.clock.now() - STEP);
    assert!(!decision(check.await).allowed);
    for _ in 0..20 {
        test.clock.advance(Duration::from_millis(50));
        let again = decision(test.limiter.check(&SHORT, "key", 1).await);
        // The window ends by the clock before the step.
        assert!(again.retry_after <= SHORT.period() + STEP, "{again:?}");
    }
}
