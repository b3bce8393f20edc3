//! The units in use of a count, which do not depend on the amounts of the limit that asks for them.

use std::time::Duration;

use ratelimit_runtime::{Limit, OnError, RateLimiter, Rule, RuleSet, Scope, Source, Usage};
use support::ALGORITHMS;
use support::limits::{HOUR, MINUTE, SECOND, is_bucket, limit, ruled};
use support::server::Server;

use crate::{TestLimiter, on_both_stores};

async fn usage(test: &TestLimiter, limit: &Limit) -> Usage {
    test.limiter.operator().usage(limit, "key").await.expect("an answer")
}

fn with(limit: &Limit, threshold: u64) -> Limit {
    let burst = is_bucket(limit.algorithm()).then_some(threshold);
    limit.try_amounts(threshold, burst).expect("valid")
}

on_both_stores! {
    async fn the_units_in_use_are_those_that_calls_took_under_any_amounts(test: TestLimiter) {
        for algorithm in ALGORITHMS {
            // The amounts of a limit that each call computes are announced as 1.
            let announced = limit("used", algorithm, 1, MINUTE);
            let unused = usage(&test, &announced).await;
            assert_eq!((unused.used, unused.reset_after), (0, Duration::ZERO));
            for (threshold, cost) in [(50, 30), (40, 5), (2_000, 7)] {
                test.limiter.check(&with(&announced, threshold), "key", cost).await.expect("fits");
            }
            for asking in [1, 41, 42, 43, 1_000_000] {
                let used = usage(&test, &with(&announced, asking)).await;
                assert_eq!((used.used, used.blocked_for), (42, None), "{algorithm} by {asking}");
                assert!(used.reset_after > Duration::ZERO);
            }
            let rule = Rule::new();
            for rule in [rule.blocked(true), rule.exempt(true), rule.shadow(true)] {
                test.set_rules(ruled("used", rule));
                let used = usage(&test, &announced).await;
                assert_eq!((used.used, used.blocked_for), (42, None), "{algorithm}: {rule}");
            }
            test.set_rules(RuleSet::new());
            // A debt of 60 units, and a blocked key.
            let limit = with(&announced, 2_000);
            let permit = test.limiter.acquire(&limit, "key", 10).await.expect("fits");
            permit.settle(70);
            test.limiter.flush().await.expect("settled");
            test.limiter.block(&announced, "key", 90 * SECOND).await.expect("blocked");
            for _ in 0..2 {
                let used = usage(&test, &announced).await;
                assert_eq!((used.used, used.blocked_for), (112, Some(90 * SECOND)), "{algorithm}");
                assert!(used.reset_after >= 90 * SECOND);
            }
            test.limiter.unblock(&announced, "key").await.expect("unblocked");
            test.advance(1_485_000);
            let used = usage(&test, &announced).await;
            // A bucket has refilled 49.5 tokens. A part of a unit counts as a whole one.
            let expected = if is_bucket(algorithm) { 63 } else { 112 };
            assert_eq!(used.used, expected, "{algorithm}");
            test.clock.advance(used.reset_after);
            assert_eq!(usage(&test, &announced).await.used, 0, "{algorithm}");
        }
    }
}

#[tokio::test]
async fn leased_units_of_this_process_are_not_in_use() {
    let server = Server::start();
    let (one, other) = (TestLimiter::redis(&server), TestLimiter::redis(&server));
    other.clock.set(one.clock.now());
    let leased = Limit::sliding("leased", 1_000, HOUR).lease(10);
    // A process leases more with each request.
    for calls in 1..=8 {
        one.limiter.check(&leased, "key", 1).await.expect("fits");
        assert_eq!(usage(&one, &leased).await.used, calls);
    }
    let used = usage(&other, &leased).await.used;
    assert!(used > 8, "{used}: with the units that the first process holds");
}

#[tokio::test]
async fn a_redis_that_is_down_counts_nothing() {
    let limit = Limit::sliding("down", 5, MINUTE);
    let builder = RateLimiter::builder().redis("redis://127.0.0.1:1").deadline(10 * SECOND);
    let limiter = builder.build().expect("valid");
    limiter.check(&limit, "key", 3).await.expect("this process decides");
    let used = limiter.operator().usage(&limit, "key").await.expect("an answer");
    assert_eq!((used.used, used.source), (3, Source::Fallback));
    for on_error in [OnError::Allow, OnError::Deny] {
        limiter.operator().usage(&limit.on_error(on_error), "key").await.expect_err("no answer");
    }
    let here = limit.scope(Scope::Process);
    let used = limiter.operator().usage(&here, "key").await.expect("an answer");
    assert_eq!(used.source, Source::Embedded);
}
