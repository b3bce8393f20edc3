//! Calls with different amounts on one count, beside everything that shares work between calls.

use std::time::Duration;

use ratelimit_runtime::{
    Algorithm, Limit, OnError, Part, RateLimiter, Rejection, Rule, RuleSet, Scope, Source, Usage,
    VirtualClock, rate_limit,
};
use support::ALGORITHMS;
use support::clocks::embedded_on;
use support::limits::{HOUR, MINUTE, SECOND, is_bucket, limit, limits, ruled};
use support::server::Server;
use tokio::task::JoinSet;

use crate::{TestLimiter, on_both_stores, wait_until_idle};

on_both_stores! {
    /// Calls with other amounts wait in a line of their own.
    async fn waiting_calls_keep_their_amounts(test: TestLimiter) {
        for algorithm in ALGORITHMS {
            let [small, large] = [10, 20].map(|units| limit("amounts", algorithm, units, MINUTE));
            assert!(test.allows(&small, 10).await);
            let waiting = small.wait(10 * MINUTE);
            let call = tokio::spawn(test.limiter.check(&waiting, "key", 10));
            wait_until_idle(&test.limiter).await;
            let other = tokio::spawn(test.limiter.check(&large.wait(10 * MINUTE), "key", 1));
            wait_until_idle(&test.limiter).await;
            // A bucket has reserved units for the first call, above the capacity of both.
            let is_bucket = is_bucket(algorithm);
            assert_eq!(other.is_finished(), !is_bucket, "{algorithm}");
            call.abort();
            for _ in 0..20 {
                test.clock.advance(MINUTE / 2);
                wait_until_idle(&test.limiter).await;
            }
            other.await.expect("no panic").expect("admitted");
            test.limiter.reset(&small, "key").await.expect("reset");
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
            let part = |limit, cost| Part::new(limit, &"key", cost);
            let waiting = blocked.wait(MINUTE);
            for cost in [0, 1, 9] {
                let rejected = [
                    limiter.check(&blocked, "key", cost).await.map(drop),
                    limiter.check(&waiting, "key", cost).await.map(drop),
                    limiter.acquire(&blocked, "key", cost).await.map(drop),
                    limiter.check_all(&[part(&open, 1), part(&blocked, cost)]).await.map(drop),
                    limiter.check_all(&[part(&blocked, cost)]).await.map(drop),
                    limiter.acquire_all(&[part(&blocked, cost), part(&open, 1)]).await.map(drop),
                ];
                for (call, result) in rejected.into_iter().enumerate() {
                    let is_blocked = matches!(result, Err(Rejection::Blocked { .. }));
                    assert!(is_blocked, "{algorithm}, {cost} units, call {call}: {result:?}");
                }
            }
            assert!(!limiter.peek(&blocked, "key", 0).await.expect("a peek").allowed);
            assert_eq!(limiter.operator().usage(&blocked, "key").await.expect("usage").used, 1, "{algorithm}");
            limiter.check(&blocked.shadow(true), "key", 1).await.expect("a shadow");
            limiter.reset(&open, "key").await.expect("reset");
            let other = blocked.try_amounts(5, None).expect("valid");
            assert_eq!(other.threshold(), 5);

            limiter.set_rules(ruled("amounts", Rule::new().threshold(3))).expect("valid");
            assert!(test.allows(&blocked, 1).await, "{algorithm}");
            limiter.set_rules(RuleSet::new()).expect("valid");
            assert!(!limiter.peek(&blocked, "key", 0).await.expect("a peek").allowed);
            limiter.reset(&open, "key").await.expect("reset");
        }
    }
}

#[test]
fn a_burst_of_0_blocks_a_bucket() {
    let limits = ALGORITHMS.map(|it| Limit::new("amounts", it, 4, MINUTE).expect("valid"));
    for limit in limits {
        let blocked = limit.try_amounts(4, Some(0)).map(|limit| limit.threshold());
        if is_bucket(limit.algorithm()) {
            assert_eq!(blocked, Ok(0));
        } else {
            blocked.expect_err("not a bucket");
            limit.try_amounts(0, Some(4)).expect_err("not a bucket");
        }
    }
    let blocked = limits[0].try_amounts(0, None).expect("valid");
    let error = serde_json::to_string(&blocked).expect_err("no such configuration");
    assert!(error.to_string().contains("blocked by an amount of 0"), "{error}");
}

#[rate_limit(name = "leased amounts", period = 60, threshold = threshold, key = threshold, lease = 50)]
async fn leased(threshold: u64) -> Result<(), Rejection> {
    Ok(())
}

/// A limit leases no more than it admits.
#[tokio::test]
async fn a_lease_shrinks_to_what_fits() {
    let (server, limiter) = Server::with_limiter();
    let run = async {
        for (threshold, scripts) in [(10, 1..=9), (1_000, 1..=100)] {
            let before = server.script_calls();
            for _ in 0..threshold {
                leased(threshold).await.expect("admitted");
            }
            let calls = server.script_calls() - before;
            assert!(scripts.contains(&calls), "{threshold}: {calls} scripts");
            leased(threshold).await.expect_err("used up");
        }
    };
    limiter.scope(run).await;
}

/// Returns the limits of a high and of a low class of calls, which can take 80 of 100 units. Buckets have one rate.
fn classes(algorithm: Algorithm) -> [Limit; 2] {
    let limit = Limit::new("classes", algorithm, 100, MINUTE).expect("valid");
    [100, 80].map(|units| {
        let is_bucket = is_bucket(algorithm);
        let threshold = if is_bucket { 100 } else { units };
        limit.try_amounts(threshold, is_bucket.then_some(units)).expect("valid")
    })
}

async fn admitted(limiter: &RateLimiter, limit: &Limit, key: u64, calls: u64) -> u64 {
    let mut admitted = 0;
    for _ in 0..calls {
        match limiter.check(limit, key, 1).await {
            Ok(_) => admitted += 1,
            Err(Rejection::Limited { .. }) => {}
            Err(other) => panic!("{other:?}"),
        }
    }
    admitted
}

/// Under load from three processes, each call of the high class is admitted, whatever the low class does. Calls share
/// batches, and none is decided by the amounts of another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_low_class_never_takes_what_is_kept_for_a_high_one() {
    let server = Server::start();
    let clock = VirtualClock::new();
    let embedded = embedded_on(&clock);
    let fleets = [[(); 3].map(|()| embedded.clone()), [(); 3].map(|()| server.limiter_on(&clock))];
    for (fleet, algorithm) in fleets.iter().flat_map(|fleet| ALGORITHMS.map(|it| (fleet, it))) {
        let [high, low] = classes(algorithm);
        for key in 0..4 {
            let mut tasks = JoinSet::new();
            for task in 0..12 {
                let limiter = fleet[task % 3].clone();
                // 360 calls of the low class, and, at the same time, 18 of the 20 calls that are kept for the high one.
                tasks.spawn(async move {
                    let (limit, calls) = if task < 9 { (low, 40) } else { (high, 6) };
                    (task < 9, admitted(&limiter, &limit, key, calls).await)
                });
            }
            let mut units = [0, 0];
            for (is_low, admitted) in tasks.join_all().await {
                units[usize::from(is_low)] += admitted;
            }
            let [of_high, of_low] = units;
            assert_eq!(of_high, 18, "{algorithm}: {units:?}");
            // The calls of the high class count for the low one as well.
            assert!((80 - 18..=80).contains(&of_low), "{algorithm}: {units:?}");
            assert_eq!(admitted(&fleet[0], &low, key, 10).await, 0, "{algorithm}");
            let rest = admitted(&fleet[1], &high, key, 200).await;
            assert_eq!(of_high + of_low + rest, 100, "{algorithm}: {units:?}");
            assert_eq!(admitted(&fleet[2], &low, key, 1).await, 0, "{algorithm}");
        }
    }
}

// Calls of cost 0 take nothing.

on_both_stores! {
    /// A budget of 10 units. Each call uses 8, which is known after the call only.
    async fn a_budget_is_spent_by_calls_of_cost_0(test: TestLimiter) {
        for limit in limits("budget", 10, HOUR) {
            for admitted in 0..100 {
                let result = test.limiter.acquire(&limit, "key", 0).await;
                assert_eq!(result.is_ok(), admitted < 2, "{limit:?}: {result:?}");
                if let Ok(permit) = result {
                    permit.settle(8);
                    test.limiter.flush().await.expect("settled");
                }
            }
            let rejection = test.limiter.check(&limit, "key", 0).await.expect_err("a debt");
            let wait = rejection.retry_after().expect("limited");
            let peek = test.limiter.peek(&limit, "key", 0).await.expect("a decision");
            assert_eq!((peek.allowed, peek.retry_after), (false, wait), "{limit:?}");
            test.clock.advance(wait - Duration::from_micros(1));
            assert!(test.limiter.acquire(&limit, "key", 0).await.is_err(), "{limit:?}");
            test.clock.advance(Duration::from_micros(1));
            assert!(test.limiter.acquire(&limit, "key", 0).await.is_ok(), "{limit:?}");
        }
    }

    async fn slots_above_a_lowered_limit_reject_calls_of_cost_0(test: TestLimiter) {
        let slots = Limit::in_flight("lowered", 2);
        let held = test.limiter.acquire(&slots, "key", 2).await.expect("free");
        test.limiter.acquire(&slots, "key", 0).await.expect("not above").refund();
        let lowered = slots.try_amounts(1, None).expect("valid");
        let rejected = test.limiter.acquire(&lowered, "key", 0).await;
        assert!(matches!(rejected, Err(Rejection::Busy { .. })), "{rejected:?}");
        drop(held);
    }

    async fn the_limit_above_which_a_count_is_rejects_a_call_of_several(test: TestLimiter) {
        for limit in limits("several", 10, HOUR) {
            let other = Limit::sliding("other", 5, HOUR);
            test.limiter.acquire(&limit, "key", 0).await.expect("a new key").settle(11);
            test.limiter.flush().await.expect("settled");
            let parts = [Part::new(&other, &"key", 5), Part::new(&limit, &"key", 0)];
            let rejection = test.limiter.check_all(&parts).await.expect_err("above its limit");
            assert_eq!(rejection.name(), "several", "{limit:?}");
            test.limiter.check(&other, "key", 5).await.expect("nothing was charged");
            test.limiter.reset(&other, "key").await.expect("reset");
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
        match result {
            Ok(permit) if call % 2 == 1 => {
                let decision = permit.decision();
                assert_eq!((decision.remaining, decision.source), (4, Source::Redis));
                permit.settle(0);
            }
            Err(Rejection::Blocked { .. }) if call % 2 == 0 => {}
            other => panic!("{call}: {other:?}"),
        }
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
