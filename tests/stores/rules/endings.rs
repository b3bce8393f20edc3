//! Rules that change while calls wait, and how waits end: a rule admits or rejects the whole line, a grant stays, and a
//! shutdown ends all.

use futures::FutureExt;
use ratelimit_runtime::__private;
use ratelimit_runtime::{Algorithm, Decision, Limit, Rejection, Rule, RuleSet, StoreError};
use support::limits::{HOUR, MINUTE, SECOND, is_bucket, limits};

use super::crowd::{Crowd, amounts};
use super::{blocked, of_limit};
use crate::{on_both_stores, wait_until_idle};

on_both_stores! {
    async fn an_exempt_line_is_admitted_without_a_charge(test: TestLimiter) {
        for limit in limits("ruled", 10, HOUR) {
            let waiting = limit.wait(9 * HOUR);
            test.limiter.check(&limit, "key", 8).await.expect("a new key");
            let mut crowd = Crowd::default();
            for _ in 0..5 {
                crowd.start(&test, &waiting, 5).await;
            }
            crowd.set(&test, of_limit(Rule::new().exempt(true))).await;
            assert_eq!(crowd.admitted(), [0, 1, 2, 3, 4], "{limit:?}");
            for (_, result) in &crowd.ended {
                assert_eq!(result.as_ref().expect("exempt").remaining, u64::MAX);
            }
            test.set_rules(RuleSet::new());
            let left = test.limiter.peek(&limit, "key", 0).await.expect("a decision").remaining;
            assert_eq!(left, 2, "{limit:?}");
            test.limiter.reset(&limit, "key").await.expect("reset");
        }
    }

    async fn a_blocked_line_is_rejected_with_the_block(test: TestLimiter) {
        for limit in limits("ruled", 10, HOUR) {
            let waiting = limit.wait(9 * HOUR);
            let before = test.limiter.check(&limit, "key", 8).await.expect("a new key");
            for (end, retry_after) in [(None, None), (Some(10 * HOUR), Some(10 * HOUR))] {
                let mut crowd = Crowd::default();
                for _ in 0..3 {
                    crowd.start(&test, &waiting, 5).await;
                }
                let rule = Rule::new().blocked(true);
                let rule = end.map_or(rule, |end| rule.until(test.in_time(end)));
                crowd.set(&test, of_limit(rule)).await;
                assert_eq!(crowd.ended.len(), 3, "{limit:?}");
                for (_, result) in &crowd.ended {
                    assert_eq!(blocked(result), retry_after, "{limit:?}");
                }
                test.set_rules(RuleSet::new());
            }
            let left = test.limiter.peek(&limit, "key", 0).await.expect("a decision").remaining;
            assert_eq!(left, before.remaining, "{limit:?}");
            test.limiter.reset(&limit, "key").await.expect("reset");
        }
    }

    async fn a_line_of_a_shadow_is_decided_at_once(test: TestLimiter) {
        for limit in limits("ruled", 10, HOUR) {
            let waiting = limit.wait(9 * HOUR);
            test.limiter.check(&limit, "key", 8).await.expect("a new key");
            let mut crowd = Crowd::default();
            for cost in [5, 5, 2] {
                crowd.start(&test, &waiting, cost).await;
            }
            test.set_rules(of_limit(Rule::new().shadow(true)));
            while crowd.ended.len() < 3 {
                crowd.poll(&test).await;
            }
            let allowed = |ended: &(usize, Result<Decision, Rejection>)| {
                ended.1.as_ref().expect("a shadow").allowed
            };
            let allowed: Vec<_> = crowd.ended.iter().map(allowed).collect();
            // The last call fits beside the first charge. A bucket of Redis may still hold a moment of the first call.
            let fits = allowed[2] || is_bucket(limit.algorithm());
            assert_eq!((&allowed[..2], fits), (&[false, false][..], true), "{limit:?}");
            test.set_rules(RuleSet::new());
            test.limiter.reset(&limit, "key").await.expect("reset");
        }
    }

    /// A call whose turn has come keeps the grant of the old amounts.
    async fn a_call_whose_turn_has_come_keeps_its_grant(test: TestLimiter) {
        for limit in limits("ruled", 2, MINUTE) {
            let waiting = limit.wait(HOUR);
            test.limiter.check(&limit, "key", 2).await.expect("a new key");
            let mut crowd = Crowd::default();
            for _ in 0..2 {
                crowd.start(&test, &waiting, 2).await;
            }
            let is_estimate = limit.algorithm() == Algorithm::SlidingCounter;
            test.clock.advance(if is_estimate { 2 * MINUTE } else { MINUTE });
            // On the embedded store, the second call drives the line of the first.
            let behind = crowd.calls[1].as_mut().expect("waits");
            assert!(behind.as_mut().now_or_never().is_none());
            wait_until_idle(&test.limiter).await;
            test.set_rules(of_limit(amounts(1)));
            crowd.poll(&test).await;
            assert_eq!(crowd.admitted(), [0], "{limit:?}: {:?}", crowd.ended);
            assert_eq!(crowd.ended[0].1.as_ref().expect("admitted").limit, 2, "{limit:?}");
            // The call behind it costs more than the new capacity.
            let behind = &crowd.ended[1].1;
            assert!(matches!(behind, Err(Rejection::CostExceedsCapacity { .. })), "{behind:?}");
            test.set_rules(RuleSet::new());
            test.limiter.reset(&limit, "key").await.expect("reset");
        }
    }

    async fn a_shutdown_ends_calls_whose_line_changes(test: TestLimiter) {
        let limit = Limit::token_bucket("ruled", 10, SECOND).burst(10);
        let waiting = limit.wait(MINUTE);
        test.limiter.check(&limit, "key", 10).await.expect("a new key");
        let mut crowd = Crowd::default();
        for _ in 0..5 {
            crowd.start(&test, &waiting, 1).await;
        }
        test.set_rules(of_limit(Rule::new().threshold(20)));
        test.limiter.shutdown().await.expect("given back");
        crowd.poll(&test).await;
        assert_eq!(crowd.ended.len(), 5);
        for (_, result) in &crowd.ended {
            let is_shut = matches!(
                result,
                Err(Rejection::Unavailable { error: StoreError::ShuttingDown, .. })
            );
            assert!(is_shut, "{result:?}");
        }
        // A later change finds no call. All reserved moments are free again.
        test.set_rules(RuleSet::new());
        assert_eq!(__private::lines(&test.limiter), 0);
        test.advance(100_000);
        test.limiter.check(&limit, "key", 1).await.expect("the next token");
    }
}
