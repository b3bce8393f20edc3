//! The units in use of a count, which do not depend on the amounts of the limit that asks for them.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use ratelimit_runtime::{Limit, OnError, RateLimiter, Rule, RuleSet, Scope, Source, Usage};
use support::ALGORITHMS;
use support::limits::{HOUR, MINUTE, SECOND, limit};
use support::server::Server;

use crate::{TestLimiter, on_both_stores};

async fn usage(test: &TestLimiter, limit: &Limit) -> Usage {
    test.limiter.operator().usage(limit, "key").await.expect("an answer")
}

fn with(limit: &Limit, threshold: u64) -> Limit {
    let burst = support::limits::is_bucket(limit.algorithm()).then_some(threshold);
    limit.try_amounts(threshold, burst).expect("valid")
}

on_both_stores! {
    async fn the_units_in_use_are_those_that_calls_took_under_any_amounts(test: TestLimiter) {
        for algorithm in ALGORITHMS {
            // The amounts of a limit that each call computes are announced as 1.
            let announced = limit("used", algorithm, 1, MINUTE);
            assert_eq!(usage(&test, &announced).await.used, 0);
            for (threshold, cost) in [(50, 30), (40, 5), (2_000, 7)] {
                test.limiter.check(&with(&announced, threshold), "key", cost).await.expect("fits");
            }
            // A peek says that nothing is left of 1.
            assert_eq!(test.limiter.peek(&announced, "key", 1).await.expect("a decision").remaining, 0);
            for asking in [1, 41, 42, 43, 1_000_000] {
                let used = usage(&test, &with(&announced, asking)).await;
                assert_eq!((used.used, used.blocked_for), (42, None), "{algorithm} by {asking}");
                assert!(used.reset_after > Duration::ZERO);
            }
            // The same as what a peek says that is left, where a peek knows the amounts.
            let left = test.limiter.peek(&with(&announced, 2_000), "key", 1).await.expect("a decision");
            assert_eq!(left.remaining, 2_000 - 42, "{algorithm}");
            let of_other = test.limiter.operator().usage(&announced, "other").await.expect("an answer");
            assert_eq!((of_other.used, of_other.reset_after), (0, Duration::ZERO));
        }
    }

    async fn units_in_use_become_free(test: TestLimiter) {
        for algorithm in ALGORITHMS {
            let asked = limit("freed", algorithm, 1, MINUTE);
            test.limiter.check(&with(&asked, 60), "key", 60).await.expect("fits");
            test.advance(1_500_000);
            let used = usage(&test, &asked).await;
            // A bucket has refilled one token and a half. A part of a unit counts as a whole one.
            let expected = if support::limits::is_bucket(algorithm) { 59 } else { 60 };
            assert_eq!(used.used, expected, "{algorithm}");
            test.advance(u64::try_from(used.reset_after.as_micros()).expect("short"));
            assert_eq!(usage(&test, &asked).await.used, 0, "{algorithm}");
            test.limiter.reset(&asked, "key").await.expect("an answer");
        }
    }

    async fn a_debt_is_in_use_and_so_are_the_units_of_a_blocked_key(test: TestLimiter) {
        for algorithm in ALGORITHMS {
            let asked = limit("blocked", algorithm, 1, HOUR);
            let permit = test.limiter.acquire(&with(&asked, 20), "key", 10).await.expect("fits");
            permit.settle(70);
            test.limiter.flush().await.expect("settled");
            assert_eq!(usage(&test, &asked).await.used, 70, "{algorithm}");
            test.limiter.block(&asked, "key", 90 * SECOND).await.expect("blocked");
            for _ in 0..2 {
                let blocked = usage(&test, &asked).await;
                assert_eq!((blocked.used, blocked.blocked_for), (70, Some(90 * SECOND)), "{algorithm}");
                assert!(blocked.reset_after >= 90 * SECOND);
            }
            test.limiter.unblock(&asked, "key").await.expect("unblocked");
            assert_eq!(usage(&test, &asked).await.used, 70, "{algorithm}");
        }
    }

    async fn neither_rules_nor_shadows_change_what_is_in_use(test: TestLimiter) {
        let asked = Limit::sliding("ruled", 50, MINUTE);
        test.limiter.check(&asked, "key", 40).await.expect("fits");
        for rule in [
            Rule::new().threshold(7),
            Rule::new().blocked(true),
            Rule::new().exempt(true),
            Rule::new().shadow(true),
        ] {
            let mut rules = RuleSet::new();
            rules.set("ruled", rule).expect("valid");
            test.limiter.set_rules(rules).expect("valid");
            let used = usage(&test, &asked).await;
            assert_eq!((used.used, used.blocked_for), (40, None), "{rule}");
        }
    }
}

/// The embedded store and Redis count the same units, after random calls with random amounts.
#[test]
fn both_stores_count_the_same_units() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let server = Server::start();
    let call = (1..200_u64, 1..30_u64, 0..40_000_000_u64, 0..12_u8);
    let mut runner = TestRunner::new(ProptestConfig { cases: 24, ..ProptestConfig::default() });
    let traces = proptest::collection::vec(call, 1..40);
    let result = runner.run(&traces, |calls| {
        runtime.block_on(async {
            let [here, there] = [TestLimiter::embedded(), TestLimiter::redis(&server)];
            there.clock.set(here.clock.now());
            for algorithm in ALGORITHMS {
                let asked = limit("both", algorithm, 1, MINUTE);
                there.limiter.reset(&asked, "key").await.expect("an answer");
                for (threshold, cost, pause, act) in &calls {
                    for test in [&here, &there] {
                        let limit = with(&asked, *threshold);
                        test.advance(*pause);
                        match act {
                            0 => drop(test.limiter.block(&asked, "key", 20 * SECOND).await),
                            1 => drop(test.limiter.unblock(&asked, "key").await),
                            2 => drop(test.limiter.credit(&limit, "key", *cost).await),
                            _ => drop(test.limiter.check(&limit, "key", *cost).await),
                        }
                    }
                    let (one, other) = (usage(&here, &asked).await, usage(&there, &asked).await);
                    let parts = |usage: Usage| (usage.used, usage.reset_after, usage.blocked_for);
                    prop_assert_eq!(parts(one), parts(other), "{}", algorithm);
                    let peeked = here.limiter.peek(&with(&asked, 1_000), "key", 1).await;
                    let left = peeked.expect("a decision").remaining;
                    if one.blocked_for.is_none() && !support::limits::is_bucket(algorithm) {
                        // A part of a unit in use counts as a whole one, and a part that is left as none.
                        prop_assert_eq!(one.used, 1_000 - left, "{}", algorithm);
                    }
                }
            }
            Ok(())
        })
    });
    result.expect("both stores agree");
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
    assert_eq!(
        limiter.operator().usage(&here, "key").await.expect("an answer").source,
        Source::Embedded
    );
}
