//! Rules in force: what each part of a rule changes, for a limit, a key, or one limit of several.

use std::time::Duration;

use ratelimit_runtime::{Algorithm, Limit, Part, Rejection, Rule, RuleSet};
use support::limits::{HOUR, MINUTE, SECOND, is_bucket, limits};

use super::{blocked, of_limit};
use crate::on_both_stores;

on_both_stores! {
    async fn a_rule_sets_the_amounts_of_a_limit_and_of_a_key(test: TestLimiter) {
        for limit in limits("ruled", 10, MINUTE) {
            let peek = async |key: &str| test.limiter.peek(&limit, key, 1).await.unwrap();
            test.limiter.check(&limit, "a", 1).await.expect("admitted");
            let mut rules = of_limit(Rule::new().threshold(20).burst(20));
            rules.set_key("ruled", "acme", Rule::new().threshold(30).burst(40)).expect("valid");
            rules.set_key("ruled", "small", Rule::new().threshold(5)).expect("valid");
            test.set_rules(rules.clone());
            assert_eq!(test.limiter.rules(), rules);
            let is_bucket = is_bucket(limit.algorithm());
            let decision = peek("a").await;
            assert_eq!((decision.limit, decision.remaining), (20, 19), "what was charged stays");
            assert_eq!(peek("acme").await.limit, if is_bucket { 40 } else { 30 });
            // The rule of the key has no burst, so that of its limit holds.
            assert_eq!(peek("small").await.limit, if is_bucket { 20 } else { 5 });
            test.set_rules(RuleSet::new());
            assert_eq!(peek("a").await.remaining, 9);
            assert!(test.limiter.reset(&limit, "a").await.expect("reset"));
        }
        // Without a burst, that of the code holds.
        test.set_rules(of_limit(Rule::new().threshold(20)));
        let capacity =
            async |limit: Limit| test.limiter.peek(&limit, "key", 1).await.unwrap().limit;
        let limit = |algorithm| Limit::new("ruled", algorithm, 10, MINUTE).expect("valid");
        assert_eq!(capacity(limit(Algorithm::TokenBucket)).await, 20);
        assert_eq!(capacity(limit(Algorithm::LeakyBucket)).await, 1);
        assert_eq!(capacity(limit(Algorithm::TokenBucket).burst(3)).await, 3);
        assert_eq!(capacity(limit(Algorithm::LeakyBucket).burst(3)).await, 3);
        test.set_rules(of_limit(Rule::new().burst(7)));
        assert_eq!(capacity(limit(Algorithm::TokenBucket).burst(3)).await, 7);
        // A window has no burst.
        assert_eq!(capacity(limit(Algorithm::Sliding)).await, 10);
    }

    async fn a_rule_blocks_and_exempts(test: TestLimiter) {
        for limit in limits("ruled", 10, MINUTE) {
            let check = async |key: &str, cost| test.limiter.check(&limit, key, cost).await;
            let mut rules = of_limit(Rule::new().blocked(true));
            rules.set_key("ruled", "free", Rule::new().exempt(true)).expect("valid");
            rules.set_key("ruled", "open", Rule::new().blocked(false)).expect("valid");
            test.set_rules(rules);
            for cost in [0, 1, 11] {
                assert_eq!(blocked(&check("key", cost).await), None);
            }
            let peek = test.limiter.peek(&limit, "key", 1).await.expect("a decision");
            assert!(!peek.allowed);
            for _ in 0..3 {
                assert_eq!(check("free", 11).await.expect("exempt").remaining, u64::MAX);
            }
            assert!(test.limiter.peek(&limit, "free", 11).await.expect("a decision").allowed);
            assert_eq!(check("open", 1).await.expect("limited").remaining, 9);
            test.set_rules(RuleSet::new());
            // Neither blocked nor exempt calls were counted.
            assert_eq!(check("key", 1).await.expect("open").remaining, 9);
            assert_eq!(check("free", 1).await.expect("limited").remaining, 9);
            for key in ["key", "free", "open"] {
                test.limiter.reset(&limit, key).await.expect("reset");
            }
        }
    }

    async fn a_rule_ends_at_its_moment(test: TestLimiter) {
        let limit = Limit::sliding("ruled", 1, HOUR);
        let until = test.in_time(MINUTE);
        test.set_rules(of_limit(Rule::new().blocked(true).until(until)));
        let check = async || test.limiter.check(&limit, "key", 1).await;
        assert_eq!(blocked(&check().await), Some(MINUTE));
        test.advance(59_999_999);
        assert_eq!(blocked(&check().await), Some(Duration::from_micros(1)));
        test.advance(1);
        assert!(check().await.is_ok());
        assert!(matches!(check().await, Err(Rejection::Limited { .. })));

        let mut rules = of_limit(Rule::new().threshold(2).until(test.in_time(SECOND)));
        rules.set_key("ruled", "key", Rule::new().threshold(3).until(test.in_time(2 * SECOND)))
            .expect("valid");
        test.set_rules(rules);
        let capacity = async || test.limiter.peek(&limit, "key", 1).await.unwrap().limit;
        assert_eq!(capacity().await, 3);
        test.advance(2_000_000);
        assert_eq!(capacity().await, 1);
    }

    async fn a_shadow_by_rule_admits_and_counts(test: TestLimiter) {
        for limit in limits("ruled", 10, MINUTE) {
            test.set_rules(of_limit(Rule::new().shadow(true)));
            let check = async |limit: &Limit, cost| test.limiter.check(limit, "key", cost).await;
            assert_eq!(check(&limit, 10).await.expect("admitted").remaining, 0);
            let rejected = check(&limit, 1).await.expect("a shadow");
            assert!(!rejected.allowed);
            // A shadow of the code is enforced.
            test.set_rules(of_limit(Rule::new().shadow(false)));
            let shadow = limit.shadow(true);
            assert!(matches!(check(&shadow, 1).await, Err(Rejection::Limited { .. })));
            // A blocked shadow rejects nothing.
            test.set_rules(of_limit(Rule::new().shadow(true).blocked(true)));
            assert!(!check(&limit, 1).await.expect("a shadow").allowed);
            test.limiter.reset(&limit, "key").await.expect("reset");
        }
    }

    async fn each_limit_of_several_has_its_own_rules(test: TestLimiter) {
        for limit in limits("ruled", 10, MINUTE) {
            let other = Limit::fixed("other", 5, MINUTE);
            let check = async || {
                let parts = [Part::new(&limit, &"key", 4), Part::new(&other, &"key", 1)];
                test.limiter.check_all(&parts).await
            };
            let left = async |limit| test.limiter.peek(limit, "key", 0).await.unwrap().remaining;
            test.set_rules(of_limit(Rule::new().threshold(4).burst(4)));
            assert!(check().await.is_ok());
            assert!(matches!(check().await, Err(Rejection::Limited { .. })));
            test.set_rules(of_limit(Rule::new().blocked(true)));
            assert_eq!(blocked(&check().await), None);
            assert_eq!(left(&other).await, 4, "nothing was charged");
            test.set_rules(of_limit(Rule::new().exempt(true)));
            assert_eq!(check().await.expect("the other admits").remaining, 3);

            // 4 of 10 are charged: as a shadow, it rejects the second call, which is admitted.
            test.set_rules(of_limit(Rule::new().shadow(true)));
            assert_eq!(check().await.expect("admitted").remaining, 2);
            assert_eq!(check().await.expect("admitted").remaining, 1);
            assert_eq!(left(&limit).await, 2);
            test.set_rules(of_limit(Rule::new().shadow(true).blocked(true)));
            assert_eq!(check().await.expect("admitted").remaining, 0);
            // What the other limit rejects is not charged to the shadow.
            test.set_rules(of_limit(Rule::new().shadow(true).threshold(100).burst(100)));
            assert!(check().await.is_err());
            assert_eq!(left(&limit).await, 92);
            test.limiter.reset(&limit, "key").await.expect("reset");
            test.limiter.reset(&other, "key").await.expect("reset");
        }
    }

    async fn a_blocked_call_knows_when_no_rule_blocks_it(test: TestLimiter) {
        let limit = Limit::sliding("ruled", 1, MINUTE);
        let retry = async || blocked(&test.limiter.check(&limit, "key", 1).await);
        let until = |seconds: u32| Rule::new().blocked(true).until(test.in_time(SECOND * seconds));
        let mut rules = of_limit(until(5));
        rules.set_key("ruled", "key", until(1)).expect("valid");
        test.set_rules(rules.clone());
        assert_eq!(retry().await, Some(5 * SECOND));
        rules.set("ruled", Rule::new().blocked(true)).expect("valid");
        test.set_rules(rules.clone());
        assert_eq!(retry().await, None);
        let opened = Rule::new().blocked(false).until(test.in_time(SECOND * 3));
        rules.set_key("ruled", "key", opened).expect("valid");
        rules.set("ruled", until(7)).expect("valid");
        test.set_rules(rules.clone());
        assert!(test.limiter.check(&limit, "key", 1).await.is_ok());

        // A group names the limit that is blocked for longest.
        let mut rules = of_limit(until(1));
        rules.set("other", until(9)).expect("valid");
        test.set_rules(rules);
        let other = Limit::sliding("other", 1, MINUTE);
        let parts = [Part::new(&limit, &"key", 1), Part::new(&other, &"key", 1)];
        assert_eq!(blocked(&test.limiter.check_all(&parts).await), Some(9 * SECOND));
    }
}
