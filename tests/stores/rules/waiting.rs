//! Rules that change while calls wait: each call obeys at once and keeps its place.

use ratelimit_runtime::{Limit, Rejection, Rule, RuleSet};
use support::limits::{HOUR, MINUTE, SECOND, is_bucket, limits};
use tokio::task::{JoinHandle, JoinSet};

use super::{blocked, of_key, of_limit};
use crate::{on_both_stores, wait_until_idle};

on_both_stores! {
    async fn a_call_that_waits_obeys_a_new_rule(test: TestLimiter) {
        for limit in limits("ruled", 10, MINUTE) {
            let waiting = limit.wait(HOUR);
            let start = || {
                let (limiter, waiting) = (test.limiter.clone(), waiting);
                tokio::spawn(async move { limiter.check(&waiting, "key", 10).await })
            };
            let fill = async || {
                test.set_rules(RuleSet::new());
                test.limiter.reset(&limit, "key").await.expect("reset");
                assert!(test.limiter.check(&limit, "key", 10).await.is_ok());
            };
            let end = async |call: JoinHandle<_>| call.await.expect("no panic");

            fill().await;
            let call = start();
            wait_until_idle(&test.limiter).await;
            assert!(!call.is_finished(), "{limit:?}");
            test.set_rules(of_limit(Rule::new().threshold(20).burst(20)));
            assert_eq!(end(call).await.expect("admitted").remaining, 0, "{limit:?}");

            fill().await;
            let call = start();
            wait_until_idle(&test.limiter).await;
            assert!(!call.is_finished(), "{limit:?}");
            test.set_rules(of_limit(Rule::new().blocked(true)));
            assert_eq!(blocked(&end(call).await), None);

            fill().await;
            let call = start();
            wait_until_idle(&test.limiter).await;
            assert!(!call.is_finished(), "{limit:?}");
            test.set_rules(of_limit(Rule::new().exempt(true)));
            assert_eq!(end(call).await.expect("exempt").remaining, u64::MAX);

            fill().await;
            let call = start();
            wait_until_idle(&test.limiter).await;
            assert!(!call.is_finished(), "{limit:?}");
            test.set_rules(of_limit(Rule::new().shadow(true)));
            assert!(!end(call).await.expect("a shadow").allowed);

            fill().await;
            let call = start();
            wait_until_idle(&test.limiter).await;
            assert!(!call.is_finished(), "{limit:?}");
            test.set_rules(of_limit(Rule::new().threshold(9).burst(9)));
            let result = end(call).await;
            assert!(
                matches!(result, Err(Rejection::CostExceedsCapacity { varies: true, .. })),
                "{limit:?}: {result:?}"
            );

            // The end of a rule is a change too.
            test.set_rules(RuleSet::new());
            test.limiter.reset(&limit, "key").await.expect("reset");
            assert!(test.limiter.check(&limit, "key", 5).await.is_ok());
            let until = test.in_time(SECOND);
            test.set_rules(of_limit(Rule::new().threshold(10).burst(10).until(until)));
            assert!(test.limiter.check(&limit, "key", 5).await.is_ok());
            let twenty = waiting.try_amounts(20, is_bucket(waiting.algorithm()).then_some(20)).expect("valid");
            let call = tokio::spawn({
                let (limiter, waiting) = (test.limiter.clone(), twenty);
                async move { limiter.check(&waiting, "key", 10).await }
            });
            wait_until_idle(&test.limiter).await;
            assert!(!call.is_finished());
            test.advance(1_000_000);
            assert!(end(call).await.is_ok(), "{limit:?}");
            test.limiter.reset(&limit, "key").await.expect("reset");
        }
    }

    /// Rules for others leave a call its place.
    async fn a_call_that_waits_keeps_its_place_and_its_wait(test: TestLimiter) {
        let limit = Limit::fixed("ruled", 1, MINUTE).wait(90 * SECOND);
        assert!(test.limiter.check(&limit, "key", 1).await.is_ok());
        let mut calls = JoinSet::new();
        for index in 0..2 {
            let (limiter, limit) = (test.limiter.clone(), limit);
            calls.spawn(async move { (index, limiter.check(&limit, "key", 1).await.is_ok()) });
            wait_until_idle(&test.limiter).await;
        }
        for step in 0_u64..30 {
            let mut rules = of_key("other", Rule::new().threshold(step + 1));
            rules.set("another", Rule::new().blocked(true)).expect("valid");
            test.set_rules(rules);
            test.advance(1_000_000);
            wait_until_idle(&test.limiter).await;
        }
        test.advance(30_000_000);
        wait_until_idle(&test.limiter).await;
        // The second call is rejected at once: a window is before it, and its wait ends in it.
        let results = [calls.join_next().await, calls.join_next().await];
        let mut results = results.map(|result| result.expect("a call").expect("no panic"));
        results.sort_unstable();
        assert_eq!(results, [(0, true), (1, false)]);

        // A new rule does not prolong the wait.
        test.limiter.reset(&limit, "key").await.expect("reset");
        test.set_rules(RuleSet::new());
        assert!(test.limiter.check(&limit, "key", 1).await.is_ok());
        test.advance(1);
        let waiting = limit.wait(70 * SECOND);
        let limiter = test.limiter.clone();
        let call = tokio::spawn(async move { limiter.check(&waiting, "key", 1).await });
        wait_until_idle(&test.limiter).await;
        test.advance(20_000_000);
        // Its window ends in 40 s, and the next one in 100 s.
        test.set_rules(of_limit(Rule::new().threshold(2)));
        wait_until_idle(&test.limiter).await;
        assert!(call.await.expect("no panic").is_ok(), "a second unit of the window");
    }

    /// The moments that were reserved for calls of a bucket are free again when a rule changes its amounts.
    async fn calls_that_wait_for_a_bucket_move_together(test: TestLimiter) {
        let limit = Limit::token_bucket("ruled", 10, SECOND).burst(10);
        let waiting = limit.wait(MINUTE);
        test.limiter.check(&limit, "key", 10).await.expect("admitted");
        let mut calls: Vec<_> = (0..8)
            .map(|_| {
                let (limiter, waiting) = (test.limiter.clone(), waiting);
                tokio::spawn(async move { limiter.check(&waiting, "key", 1).await })
            })
            .collect();
        wait_until_idle(&test.limiter).await;
        // Half of the time to the next token has passed at each change.
        let mut threshold = 10_u64;
        for change in 0..6 {
            test.advance(500_000 / threshold);
            threshold = if threshold == 10 { 20 } else { 10 };
            test.set_rules(of_limit(Rule::new().threshold(threshold)));
            wait_until_idle(&test.limiter).await;
            test.advance(500_000 / threshold - 1_000);
            wait_until_idle(&test.limiter).await;
            let admitted = || calls.iter().filter(|call| call.is_finished()).count();
            assert_eq!(admitted(), change, "{limit:?}");
            test.advance(1_002);
            wait_until_idle(&test.limiter).await;
            assert_eq!(admitted(), change + 1, "{limit:?}");
            assert!(calls[change].is_finished(), "in their order");
        }
        for call in calls.drain(..6) {
            call.await.expect("no panic").expect("admitted");
        }
        test.advance(200_000);
        for call in calls {
            call.await.expect("no panic").expect("admitted");
        }
    }
}
