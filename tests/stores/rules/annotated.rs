//! Rules of limits that the attribute writes: their keys, and amounts that the code computes.

use ratelimit_runtime::{Limit, OwnedKey, Rejection, Rule, RuleSet, Scope, rate_limit};
use support::limits::MINUTE;

use super::{of_annotated, of_key};
use crate::{on_both_stores, wait_until_idle};

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

    async fn any_bytes_of_a_key_can_have_a_rule(test: TestLimiter) {
        let limit = Limit::sliding("ruled", 10, MINUTE);
        let keys: [(&[u8], &str); 6] = [
            (b"\xff", "%FF"),
            (b"a\xc3(", "a%C3%28"),
            (b"\xff\xfe", "%FF%FE"),
            (b"\x1b[2J", "%1B[2J"),
            ("\u{202e}ann".as_bytes(), "%E2%80%AEann"),
            ("\u{fffd}".as_bytes(), "\u{fffd}"),
        ];
        for (key, text) in keys {
            assert_eq!(OwnedKey::parse(text).expect("a key").to_string(), text);
            test.set_rules(of_key(text, Rule::new().threshold(3)));
            for (other, _) in keys {
                let capacity = test.limiter.peek(&limit, other, 1).await.expect("a decision").limit;
                assert_eq!(capacity, if other == key { 3 } else { 10 }, "{text}");
            }
        }
    }

    async fn rules_override_computed_amounts(test: TestLimiter) {
        #[rate_limit(name = "annotated", period = 60, threshold = plan)]
        async fn call(plan: Option<u64>) -> Result<(), Rejection> { Ok(()) }

        #[rate_limit(
            limit(name = "annotated", period = 60, threshold = plan),
            limit(name = "other", period = 60, threshold = 100),
        )]
        async fn group(plan: Option<u64>) -> Result<(), Rejection> { Ok(()) }

        let plans = [None, Some(0), Some(5)];
        let calls = async || {
            let mut results = Vec::new();
            for plan in plans {
                let limit = Limit::sliding("annotated", 1, MINUTE);
                test.limiter.reset(&limit, ()).await.expect("reset");
                let first = test.limiter.scope(call(plan)).await.is_ok();
                let second = test.limiter.scope(group(plan)).await.is_ok();
                results.push((first, second));
            }
            results
        };
        assert_eq!(calls().await, [(true, true), (false, false), (true, true)]);
        test.set_rules(of_annotated(None, Rule::new().threshold(1)));
        assert_eq!(calls().await, [(true, false); 3]);
        test.set_rules(of_annotated(None, Rule::new().blocked(true)));
        assert_eq!(calls().await, [(false, false); 3]);
        test.set_rules(of_annotated(None, Rule::new().exempt(true)));
        assert_eq!(calls().await, [(true, true); 3]);
        test.set_rules(of_annotated(None, Rule::new().shadow(true)));
        assert_eq!(calls().await, [(true, true); 3]);
    }

    /// A rule for one limit of a group does not open the others, whatever the code computes.
    async fn a_computed_amount_stays_one_under_rules(test: TestLimiter) {
        #[rate_limit(
            limit(name = "annotated", period = 60, threshold = plan),
            limit(name = "annotated other", period = 60, threshold = 2),
        )]
        async fn group(plan: Option<u64>) -> Result<(), Rejection> { Ok(()) }

        #[rate_limit(name = "annotated", period = 60, threshold = plan)]
        async fn call(plan: Option<u64>) -> Result<(), Rejection> { Ok(()) }

        #[rate_limit(name = "annotated", period = 60, threshold = plan, wait = "1h")]
        async fn waiting(plan: Option<u64>) -> Result<(), Rejection> { Ok(()) }

        test.set_rules(of_annotated(None, Rule::new().shadow(true)));
        for plan in [Some(0), None, Some(5)] {
            let other = Limit::sliding("annotated other", 2, MINUTE);
            test.limiter.reset(&other, ()).await.expect("reset");
            for expected in [true, true, false] {
                assert_eq!(test.limiter.scope(group(plan)).await.is_ok(), expected, "{plan:?}");
            }
        }
        // The rule says that the limit is not blocked, and not what it admits.
        test.set_rules(of_annotated(None, Rule::new().blocked(false)));
        for _ in 0..3 {
            test.limiter.scope(call(None)).await.expect("unlimited");
            test.limiter.scope(call(Some(0))).await.expect_err("0");
        }
        // A call that waits for a rule is as the code says once the rule is gone.
        for (plan, expected) in [(None, true), (Some(0), false), (Some(2), true)] {
            let limit = Limit::sliding("annotated", 1, MINUTE);
            test.limiter.reset(&limit, ()).await.expect("reset");
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
        test.limiter.reset(&Limit::sliding("annotated", 1, MINUTE), ()).await.expect("reset");
    }

    async fn rules_hold_for_constants_and_for_the_process(test: TestLimiter) {
        const RULED: Limit = Limit::sliding("annotated", 1, MINUTE);
        const HERE: Limit = RULED.scope(Scope::Process);

        #[rate_limit(limit = RULED, key = key)]
        async fn call(key: &str) -> Result<(), Rejection> { Ok(()) }

        test.set_rules(of_annotated(None, Rule::new().threshold(2)));
        assert!(test.limiter.scope(call("key")).await.is_ok());
        assert!(test.limiter.scope(call("key")).await.is_ok());
        assert!(test.limiter.scope(call("key")).await.is_err());
        assert!(test.limiter.check_blocking(&HERE, "key", 2).is_ok());
        assert!(test.limiter.check_blocking(&HERE, "key", 1).is_err());
        test.set_rules(of_annotated(None, Rule::new().exempt(true)));
        assert!(test.limiter.check_blocking(&HERE, "key", 1).is_ok());
    }
}
