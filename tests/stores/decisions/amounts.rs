//! Calls with different amounts on one count, beside everything that shares work between calls.

use ratelimit_runtime::{
    Algorithm, Limit, Part, RateLimiter, Rejection, Rule, RuleSet, VirtualClock, rate_limit,
};
use support::ALGORITHMS;
use support::clocks::embedded_on;
use support::limits::{MINUTE, is_bucket, limit, ruled};
use support::server::Server;
use tokio::task::JoinSet;

use crate::{on_both_stores, wait_until_idle};

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
