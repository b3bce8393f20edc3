//! Several limits in one decision: all are charged or none, for any algorithms, periods, keys and costs.

use std::cmp::Reverse;
use std::time::Duration;

use futures::future::join_all;
use ratelimit_runtime::{
    Align, Calendar, Limit, Mistake, OnError, Part, RateLimiter, Rejection, Scope, Source,
};
use support::ALGORITHMS;
use support::clocks::embedded_on;
use support::limits::{DAY, HOUR, SECOND, limit};
use support::model::ExpectedDecision;
use support::random::Random;

use crate::decision;

const BURST: Limit = Limit::token_bucket("burst", 10, SECOND);
const DAILY: Limit = Limit::fixed("daily", 25, DAY);

#[tokio::test]
async fn the_policies_of_the_limits_apply_to_the_call() {
    let limiter = RateLimiter::builder().redis("redis://127.0.0.1:1").build().expect("valid");
    let both = |with_policy: fn(Limit) -> Limit, cost: u64| {
        let (burst, daily) = (with_policy(BURST), with_policy(DAILY));
        limiter.check_all(&[Part::new(&burst, &1, cost), Part::new(&daily, &1, cost)])
    };
    assert_eq!(both(|limit| limit, 10).await.expect("local").source, Source::Fallback);
    assert_eq!(both(|limit| limit, 10).await.expect_err("local").name(), "burst");
    let allowed = both(|limit| limit.on_error(OnError::Allow), 10).await.expect("allowed");
    assert_eq!((allowed.allowed, allowed.retry_after), (true, Duration::ZERO));
    assert!(both(|limit| limit.shadow(true), 10).await.is_ok_and(|decision| !decision.allowed));
    // A count of its own, which the fallback does not share.
    let process = both(|limit| limit.scope(Scope::Process), 10).await.expect("admitted");
    assert_eq!(process.source, Source::Embedded);
    let process = both(|limit| limit.scope(Scope::Process), 1).await;
    assert_eq!(process.expect_err("counted").name(), "burst");
    let denied = both(|limit| limit.on_error(OnError::Deny), 10).await;
    assert!(matches!(denied, Err(Rejection::Unavailable { .. })), "{denied:?}");
    let exceeds = both(|limit| limit, 11).await.expect_err("the cost exceeds the capacity");
    let is_of_burst =
        matches!(&exceeds, Rejection::CostExceedsCapacity { name, .. } if *name == "burst");
    assert!(is_of_burst, "{exceeds:?}");
}

crate::on_both_stores! {
    /// If a limit rejects, nothing is charged, and the longest `retry_after` determines the decision. Otherwise, the
    /// least `remaining` does. `parity` compares the decisions of single limits with the model.
    async fn several_limits_are_decided_as_each_alone(test: TestLimiter) {
        let alone = embedded_on(&test.clock);
        let limits = (1_u32..).zip(ALGORITHMS).map(|(number, algorithm)| {
            limit("several", algorithm, 3 + u64::from(number), number * SECOND)
        });
        let month = Limit::calendar("several", 3_000, Calendar::Month);
        let month = month.align(Align::zone("Asia/Tokyo"));
        let limits: Vec<_> = limits.chain([month]).collect();
        let (mut random, mut rejected) = (Random(7), 0);
        for call in 0..3_000 {
            test.clock.advance(random.of(&[Duration::ZERO, SECOND / 11, SECOND / 4]));
            let (first, count) = (random.below(6) as usize, 1 + random.below(4) as usize);
            let chosen = limits.iter().cycle().skip(first).take(count);
            let chosen: Vec<_> = chosen.map(|limit| (limit, random.below(4))).collect();
            let peeks = chosen.iter().map(|(limit, cost)| alone.peek(limit, "key", *cost));
            let peeks = join_all(peeks).await.into_iter().map(decision);
            let rejections = peeks.filter(|peek| !peek.allowed);
            let longest = rejections.min_by_key(|peek| Reverse(peek.retry_after));
            let expected = if let Some(longest) = longest {
                rejected += 1;
                longest
            } else {
                let checks = chosen.iter().map(|(limit, cost)| alone.check(limit, "key", *cost));
                let checks = join_all(checks).await.into_iter().map(decision);
                checks.min_by_key(|decision| decision.remaining).expect("at least one limit")
            };
            let parts = chosen.iter().map(|(limit, cost)| Part::new(limit, &"key", *cost));
            let decided = test.limiter.check_all(&parts.collect::<Vec<_>>()).await;
            assert_eq!(ExpectedDecision::from(decision(decided)), expected.into(), "call {call}");
        }
        assert!((1_000..2_000).contains(&rejected), "{rejected}");
    }

    async fn the_limit_with_the_longest_wait_names_the_rejection(test: TestLimiter) {
        let check = |cost: u64| {
            let parts = [Part::new(&BURST, &"key", cost), Part::new(&DAILY, &"key", cost)];
            test.limiter.check_all(&parts)
        };
        assert_eq!(check(10).await.expect("admitted").limit, 10);
        assert_eq!(check(5).await.expect_err("the bucket is empty").name(), "burst");
        assert!(test.allows(&DAILY, 10).await);
        assert_eq!(check(6).await.expect_err("both reject").name(), "daily");
    }

    async fn limits_that_cannot_be_decided_together_are_an_error(test: TestLimiter) {
        let limiter = &test.limiter;
        let error = async |parts: &[Part<'_>]| match limiter.check_all(parts).await {
            Err(Rejection::Mistake { mistake, .. }) => mistake,
            other => panic!("{other:?}"),
        };
        assert_eq!(error(&[]).await, Mistake::NoLimits);
        let part = |limit, cost| Part::new(limit, &1, cost);
        let shadow = BURST.shadow(true);
        assert_eq!(error(&[part(&shadow, 1), part(&DAILY, 1)]).await, Mistake::MixedLimits);
        let more = Limit::fixed("daily", 26, DAY);
        // On Redis, a leased sliding limit has a longer period, and shares its count with a limit that does not lease.
        let leased = Limit::sliding("daily", 5, HOUR).lease(2);
        let plain = Limit::sliding("daily", 9, HOUR);
        for limits in [[&more, &DAILY], [&leased, &plain], [&plain, &leased]] {
            let error = error(&limits.map(|limit| part(limit, 1))).await;
            let is_shared = matches!(&error, Mistake::SharedCount { name, .. } if *name == "daily");
            assert!(is_shared, "{error:?}");
        }
        // With another key, algorithm or period, a limit has another count.
        let hourly = Limit::fixed("daily", 1, HOUR);
        let apart = [part(&more, 1), Part::new(&DAILY, &2, 1), part(&plain, 1), part(&hourly, 1)];
        assert!(limiter.check_all(&apart).await.is_ok());
        for (limit, left) in [(&more, 25), (&plain, 8), (&hourly, 0)] {
            assert_eq!(limiter.peek(limit, 1, 1).await.expect("a decision").remaining, left);
        }
        // A limit that occurs twice is charged once, with the sum of the costs.
        let twice = |cost| [Part::new(&DAILY, &3, 10), Part::new(&DAILY, &3, cost)];
        let exceeds = limiter.check_all(&twice(16)).await;
        let is_refused = matches!(exceeds, Err(Rejection::CostExceedsCapacity { cost: 26, .. }));
        assert!(is_refused, "{exceeds:?}");
        assert_eq!(limiter.check_all(&twice(15)).await.expect("admitted").remaining, 0);
    }
}
