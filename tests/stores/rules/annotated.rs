//! Rules of limits that the attribute writes: their keys, and amounts that the code computes.

use ratelimit_runtime::{Limit, OwnedKey, Rejection, Rule, RuleSet, rate_limit};
use support::limits::MINUTE;

use crate::{on_both_stores, wait_until_idle};

/// Rules for the limit with the name `annotated`, or for one of its keys.
fn of_annotated(key: Option<&str>, rule: Rule) -> RuleSet {
    let mut rules = RuleSet::new();
    let set = match key {
        Some(key) => rules.set_key("annotated", key, rule),
        None => rules.set("annotated", rule),
    };
    set.expect("valid");
    rules
}

on_both_stores! {
    async fn rules_name_keys_as_the_attribute_writes_them(test: TestLimiter) {
        #[rate_limit(name = "annotated", period = 60, threshold = 1, key = "{tenant}:{id}")]
        async fn format(tenant: &str, id: u64) -> Result<(), Rejection> { Ok(()) }

        #[rate_limit(name = "annotated", period = 60, threshold = 1, key = (tenant, id))]
        async fn tuple(tenant: &str, id: u64) -> Result<(), Rejection> { Ok(()) }

        #[rate_limit(name = "annotated", period = 60, threshold = 1)]
        async fn without_key() -> Result<(), Rejection> { Ok(()) }

        #[rate_limit(name = "annotated", period = 60, threshold = 1, key = address)]
        async fn address(address: std::net::Ipv6Addr) -> Result<(), Rejection> { Ok(()) }

        let calls = async || {
            let limiter = &test.limiter;
            [
                limiter.scope(format("a:b", 7)).await.is_ok(),
                limiter.scope(tuple("a:b", 7)).await.is_ok(),
                limiter.scope(without_key()).await.is_ok(),
                limiter.scope(address(std::net::Ipv6Addr::LOCALHOST)).await.is_ok(),
            ]
        };
        assert_eq!(calls().await, [true; 4]);
        for (index, key) in ["(a%3Ab):(7)", "(a%3Ab:7)", "%", "::1"].into_iter().enumerate() {
            test.set_rules(of_annotated(Some(key), Rule::new().exempt(true)));
            let expected: [bool; 4] = std::array::from_fn(|other| other == index);
            assert_eq!(calls().await, expected, "{key}");
            let key = OwnedKey::parse(key).expect("a key");
            let limit = Limit::sliding("annotated", 1, MINUTE);
            assert!(test.limiter.reset(&limit, key).await.expect("reset"));
            assert_eq!(calls().await, expected);
            test.set_rules(RuleSet::new());
            assert_eq!(calls().await, expected, "the count that was reset");
        }
    }

    /// A rule for one limit of a group does not open the others, whatever the code computes.
    async fn rules_override_computed_amounts(test: TestLimiter) {
        #[rate_limit(name = "annotated", period = 60, threshold = plan)]
        async fn call(plan: Option<u64>) -> Result<(), Rejection> { Ok(()) }

        #[rate_limit(
            limit(name = "annotated", period = 60, threshold = plan),
            limit(name = "annotated other", period = 60, threshold = 2),
        )]
        async fn group(plan: Option<u64>) -> Result<(), Rejection> { Ok(()) }

        #[rate_limit(name = "annotated", period = 60, threshold = plan, wait = "1h")]
        async fn waiting(plan: Option<u64>) -> Result<(), Rejection> { Ok(()) }

        let plans = [None, Some(0), Some(5)];
        let reset = async || {
            for (name, threshold) in [("annotated", 1), ("annotated other", 2)] {
                let limit = Limit::sliding(name, threshold, MINUTE);
                test.limiter.reset(&limit, ()).await.expect("reset");
            }
        };
        for (rule, expected) in [
            // The rule says that the limit is not blocked, and not what it admits.
            (Rule::new().blocked(false), [(true, true), (false, false), (true, true)]),
            (Rule::new().threshold(1), [(true, false); 3]),
            (Rule::new().blocked(true), [(false, false); 3]),
            (Rule::new().exempt(true), [(true, true); 3]),
            (Rule::new().shadow(true), [(true, true); 3]),
        ] {
            test.set_rules(of_annotated(None, rule));
            for (plan, expected) in plans.into_iter().zip(expected) {
                reset().await;
                let first = test.limiter.scope(call(plan)).await.is_ok();
                let second = test.limiter.scope(group(plan)).await.is_ok();
                assert_eq!((first, second), expected, "{rule}, {plan:?}");
            }
        }
        for plan in plans {
            reset().await;
            for expected in [true, true, false] {
                assert_eq!(test.limiter.scope(group(plan)).await.is_ok(), expected, "{plan:?}");
            }
        }
        // A call that waits for a rule is as the code says once the rule is gone.
        for (plan, expected) in [(None, true), (Some(0), false), (Some(2), true)] {
            reset().await;
            test.set_rules(of_annotated(None, Rule::new().threshold(1)));
            test.limiter.scope(waiting(plan)).await.expect("the first");
            let call = tokio::spawn({
                let limiter = test.limiter.clone();
                async move { limiter.scope(waiting(plan)).await.is_ok() }
            });
            wait_until_idle(&test.limiter).await;
            assert!(!call.is_finished());
            test.set_rules(RuleSet::new());
            assert_eq!(call.await.expect("no panic"), expected, "{plan:?}");
        }
    }
}
