//! Calls with different amounts on one count, beside everything that shares work between calls.

use std::time::Duration;

use ratelimit_runtime::{
    Limit, OnError, Part, RateLimiter, Rejection, Rule, RuleSet, Scope, Source, Usage,
};
use support::ALGORITHMS;
use support::limits::{HOUR, MINUTE, SECOND, is_bucket, limit, limits, ruled};
use support::server::Server;

use crate::{TestLimiter, on_both_stores, wait_until_idle, with_amount};

on_both_stores! {
    /// Calls with other amounts wait in a line of their own. A bucket has reserved units for the first call.
    async fn waiting_calls_keep_their_amounts(test: TestLimiter) {
        for limit in limits("amounts", 10, MINUTE) {
            assert!(test.allows(&limit, 10).await);
            let call = tokio::spawn(test.limiter.check(&limit.wait(10 * MINUTE), "key", 10));
            wait_until_idle(&test.limiter).await;
            let larger = with_amount(&limit, 20).wait(10 * MINUTE);
            let other = tokio::spawn(test.limiter.check(&larger, "key", 1));
            wait_until_idle(&test.limiter).await;
            assert_eq!(other.is_finished(), !is_bucket(limit.algorithm()), "{limit:?}");
            call.abort();
            for _ in 0..20 {
                test.clock.advance(MINUTE / 2);
                wait_until_idle(&test.limiter).await;
            }
            other.await.expect("no panic").expect("admitted");
            test.reset(&limit).await;
        }
    }

    /// What was counted stays, and a rule opens the limit.
    async fn an_amount_of_0_blocks(test: TestLimiter) {
        let limiter = &test.limiter;
        for algorithm in ALGORITHMS {
            let open = Limit::new("amounts", algorithm, 4, MINUTE).expect("valid");
            assert!(test.allows(&open, 1).await, "{algorithm}");
            let blocked = open.try_amounts(0, None).expect("valid");
            assert_eq!((blocked.threshold(), blocked.capacity()), (0, 0));
            for cost in [0, 1, 9] {
                let [one, other] = [Part::new(&open, &"key", 1), Part::new(&blocked, &"key", cost)];
                let rejected = [
                    limiter.check(&blocked, "key", cost).await.map(drop),
                    limiter.check(&blocked.wait(MINUTE), "key", cost).await.map(drop),
                    limiter.acquire(&blocked, "key", cost).await.map(drop),
                    limiter.check_all(&[one, other]).await.map(drop),
                    limiter.check_all(&[other]).await.map(drop),
                    limiter.acquire_all(&[other, one]).await.map(drop),
                ];
                for (call, result) in rejected.into_iter().enumerate() {
                    let is_blocked = matches!(result, Err(Rejection::Blocked { .. }));
                    assert!(is_blocked, "{algorithm}, {cost} units, call {call}: {result:?}");
                }
            }
            assert!(!test.peek(&blocked, 0).await.allowed);
            assert_eq!(usage(&test, &blocked).await.used, 1, "{algorithm}");
            limiter.check(&blocked.shadow(true), "key", 1).await.expect("a shadow");
            test.reset(&open).await;
            assert_eq!(blocked.try_amounts(5, None).expect("valid").threshold(), 5);

            test.set_rules(ruled("amounts", Rule::new().threshold(3)));
            assert!(test.allows(&blocked, 1).await, "{algorithm}");
            test.set_rules(RuleSet::new());
            assert!(!test.peek(&blocked, 0).await.allowed);
            test.reset(&open).await;
        }
    }
}

#[test]
fn a_burst_of_0_blocks_a_bucket() {
    for limit in limits("amounts", 4, MINUTE) {
        let is_bucket = is_bucket(limit.algorithm());
        let blocked = limit.try_amounts(4, Some(0)).map(|limit| limit.threshold());
        assert_eq!(blocked.ok(), is_bucket.then_some(0));
        assert!(is_bucket || limit.try_amounts(0, Some(4)).is_err());
        let blocked = limit.try_amounts(0, None).expect("valid");
        let error = serde_json::to_string(&blocked).expect_err("no such configuration");
        assert!(error.to_string().contains("blocked by an amount of 0"), "{error}");
    }
}

// Calls of cost 0 take nothing.

on_both_stores! {
    async fn slots_above_a_lowered_limit_reject_calls_of_cost_0(test: TestLimiter) {
        let slots = Limit::in_flight("lowered", 2);
        let _held = test.limiter.acquire(&slots, "key", 2).await.expect("free");
        test.limiter.acquire(&slots, "key", 0).await.expect("not above").refund();
        let lowered = slots.try_amounts(1, None).expect("valid");
        let rejected = test.limiter.acquire(&lowered, "key", 0).await;
        assert!(matches!(rejected, Err(Rejection::Busy { .. })), "{rejected:?}");
    }

    async fn the_limit_above_which_a_count_is_rejects_a_call_of_several(test: TestLimiter) {
        for limit in limits("several", 10, HOUR) {
            let other = Limit::sliding("other", 5, HOUR);
            test.settle(test.acquire(&limit, 0).await, 11).await;
            let parts = [Part::new(&other, &"key", 5), Part::new(&limit, &"key", 0)];
            let rejection = test.limiter.check_all(&parts).await.expect_err("above its limit");
            assert_eq!(rejection.name(), "several", "{limit:?}");
            assert!(test.allows(&other, 5).await, "nothing was charged");
            test.reset(&other).await;
        }
    }
}

/// Calls of cost 0 that are rejected, and need a receipt, share batches with calls that are admitted.
#[tokio::test]
async fn a_rejected_call_of_cost_0_does_not_disturb_its_batch() {
    let server = Server::start();
    let limiter = server.builder().deadline(MINUTE).build().expect("valid");
    let limit = Limit::sliding("batch", 5, MINUTE);
    for key in 0..20 {
        limiter.block(&limit, ("blocked", key), MINUTE).await.expect("a reply");
    }
    let calls = (0..40).map(|call| {
        let (word, cost) = if call % 2 == 0 { ("blocked", 0) } else { ("open", 1) };
        limiter.acquire(&limit, (word, call / 2), cost)
    });
    for (call, result) in futures::future::join_all(calls).await.into_iter().enumerate() {
        if call % 2 == 0 {
            assert!(matches!(result, Err(Rejection::Blocked { .. })), "{call}: {result:?}");
            continue;
        }
        let permit = result.expect("admitted");
        assert_eq!((permit.decision().remaining, permit.decision().source), (4, Source::Redis));
        permit.settle(0);
    }
    // Each receipt is the one of its own call.
    limiter.flush().await.expect("settled");
    for key in 0..20 {
        let left = limiter.peek(&limit, ("open", key), 1).await.expect("admitted").remaining;
        assert_eq!(left, 5, "{key}");
    }
}

// The units in use of a count, which do not depend on the amounts of the limit that asks for them.

async fn usage(test: &TestLimiter, limit: &Limit) -> Usage {
    test.limiter.operator().usage(limit, "key").await.expect("an answer")
}

on_both_stores! {
    async fn the_units_in_use_are_those_that_calls_took_under_any_amounts(test: TestLimiter) {
        for algorithm in ALGORITHMS {
            // The amounts of a limit that each call computes are announced as 1.
            let announced = limit("used", algorithm, 1, MINUTE);
            let unused = usage(&test, &announced).await;
            assert_eq!((unused.used, unused.reset_after), (0, Duration::ZERO));
            for (threshold, cost) in [(50, 30), (40, 5), (2_000, 7)] {
                assert!(test.allows(&with_amount(&announced, threshold), cost).await, "it fits");
            }
            for asking in [1, 41, 42, 43, 1_000_000] {
                let used = usage(&test, &with_amount(&announced, asking)).await;
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
            test.settle(test.acquire(&with_amount(&announced, 2_000), 10).await, 70).await;
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
        assert!(one.allows(&leased, 1).await);
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
