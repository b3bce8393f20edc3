//! Calls with different amounts on one count, beside everything that shares work between calls.

use ratelimit_runtime::{
    Algorithm, Limit, OnError, Part, RateLimiter, Rejection, Rule, RuleSet, Source, rate_limit,
};
use support::ALGORITHMS;
use support::limits::{MINUTE, SECOND, is_bucket};
use support::server::Server;
use tokio::task::JoinSet;

use crate::{decision, on_both_stores, wait_until_idle};

/// Limits with these thresholds on one count.
fn limits<const N: usize>(algorithm: Algorithm, thresholds: [u64; N]) -> [Limit; N] {
    let limit = Limit::new("amounts", algorithm, 1, MINUTE).expect("valid");
    thresholds.map(|threshold| {
        let is_bucket = is_bucket(algorithm);
        limit.try_amounts(threshold, is_bucket.then_some(threshold)).expect("valid")
    })
}

on_both_stores! {
    async fn each_call_is_decided_by_its_own_amounts(test: TestLimiter) {
        for algorithm in ALGORITHMS {
            let [small, large] = limits(algorithm, [5, 20]);
            assert!(test.allows(&small, 5).await);
            assert!(!test.allows(&small, 1).await, "{algorithm}");
            assert!(test.allows(&large, 10).await, "{algorithm}");
            // The count is above the capacity of the smaller limit.
            let rejected = test.decide(&small, 1).await;
            assert_eq!((rejected.allowed, rejected.remaining), (false, 0), "{algorithm}");
            let exceeding = test.limiter.check(&small, "key", 6).await;
            assert!(matches!(exceeding, Err(Rejection::CostExceedsCapacity { varies: false, .. })));
            let shadow = small.shadow(true);
            assert!(!test.limiter.check(&shadow, "key", 1).await.expect("a shadow").allowed);
            assert!(test.allows(&large, 1).await, "{algorithm}");
            test.limiter.reset(&small, "key").await.expect("reset");
        }
    }

    /// A group is decided by the amounts of each part.
    async fn several_limits_have_their_own_amounts(test: TestLimiter) {
        for algorithm in ALGORITHMS {
            let [small, large] = limits(algorithm, [5, 20]);
            let other = Limit::fixed("other", 100, MINUTE);
            let check = async |limit| {
                let parts = [Part::new(limit, &"key", 5), Part::new(&other, &"key", 1)];
                test.limiter.check_all(&parts).await.is_ok()
            };
            let admitted = [check(&small).await, check(&small).await, check(&large).await];
            assert_eq!(admitted, [true, false, true], "{algorithm}");
            test.limiter.reset(&small, "key").await.expect("reset");
        }
    }

    /// Calls with other amounts wait in a line of their own.
    async fn waiting_calls_keep_their_amounts(test: TestLimiter) {
        for algorithm in ALGORITHMS {
            let [small, large] = limits(algorithm, [10, 20]);
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

            let mut rules = RuleSet::new();
            rules.set("amounts", Rule::new().threshold(3)).expect("valid");
            limiter.set_rules(rules).expect("valid");
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

#[tokio::test]
async fn a_cached_rejection_is_of_its_amounts() {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid settings");
    for algorithm in ALGORITHMS {
        let [small, large] = limits(algorithm, [5, 20]);
        limiter.check(&small, "key", 5).await.expect("admitted");
        for source in [Source::Redis, Source::Cache] {
            let rejected = decision(limiter.check(&small, "key", 1).await);
            assert_eq!((rejected.allowed, rejected.source), (false, source), "{algorithm}");
        }
        limiter.check(&large, "key", 1).await.expect("admitted");
        limiter.reset(&small, "key").await.expect("reset");
    }
}

/// Concurrent calls share batches, if their amounts are equal. No call is decided by those of another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_keep_amounts_apart() {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid settings");
    for algorithm in ALGORITHMS {
        let limits = limits(algorithm, [30, 60, 90]);
        let mut calls = JoinSet::new();
        for call in 0..600 {
            let index = call % 3;
            let check = limiter.check(&limits[index], "key", 1);
            calls.spawn(async move { (index, check.await.is_ok()) });
        }
        let mut admitted = [0; 3];
        for (index, is_admitted) in calls.join_all().await {
            admitted[index] += u64::from(is_admitted);
        }
        // Together no more than the largest; the others not above their own.
        assert_eq!(admitted.iter().sum::<u64>(), 90, "{algorithm}: {admitted:?}");
        assert!(admitted[0] <= 30 && admitted[0] + admitted[1] <= 60, "{algorithm}: {admitted:?}");
        limiter.reset(&limits[0], "key").await.expect("reset");
    }
}

#[rate_limit(name = "leased amounts", period = 60, threshold = threshold, key = threshold, lease = 50)]
async fn leased(threshold: u64) -> Result<(), Rejection> {
    Ok(())
}

/// A limit leases no more than it admits.
#[tokio::test]
async fn a_lease_shrinks_to_what_fits() {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid settings");
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

/// Without Redis, a process decides by its share of the amounts.
#[tokio::test]
async fn a_fallback_shares_the_amounts_of_each_call() {
    let builder = RateLimiter::builder().redis("redis://127.0.0.1:1").instances(4);
    let limiter = builder.on_error(OnError::Local).deadline(SECOND / 5);
    let limiter = limiter.build().expect("valid settings");
    for algorithm in ALGORITHMS {
        for limit in limits(algorithm, [8, 40]) {
            let key = limit.threshold();
            let mut admitted = 0;
            for _ in 0..20 {
                admitted += u64::from(limiter.check(&limit, key, 1).await.is_ok());
            }
            assert_eq!(admitted, limit.threshold() / 4, "{algorithm}");
        }
    }
}
