//! Rules in force: what each part of a rule changes, for a limit, a key, or one limit of several.

use ratelimit_runtime::OwnedKey;

use super::*;

on_both_stores! {
    async fn a_rule_sets_the_amounts_of_a_limit_and_of_a_key(test: TestLimiter) {
        for limit in limits("ruled", 10, MINUTE) {
            test.check(&limit, 1).await.expect("admitted");
            let mut rules = of_limit(amounts(20));
            rules.set_key("ruled", "acme", Rule::new().threshold(30).burst(40)).expect("valid");
            rules.set_key("ruled", "small", Rule::new().threshold(5)).expect("valid");
            test.set_rules(rules.clone());
            assert_eq!(test.limiter.rules(), rules);
            let decision = test.peek(&limit, 0).await;
            assert_eq!((decision.limit, decision.remaining), (20, 19), "what was charged stays");
            // The rule of the key `small` has no burst, so that of its limit holds.
            let expected = if is_bucket(limit.algorithm()) { [40, 20] } else { [30, 5] };
            for (key, expected) in ["acme", "small"].into_iter().zip(expected) {
                let peek = test.limiter.peek(&limit, key, 1).await.expect("a decision");
                assert_eq!(peek.limit, expected, "{limit:?}");
            }
            test.set_rules(RuleSet::new());
            assert_eq!(test.peek(&limit, 0).await.remaining, 9);
            test.start_over(&limit).await;
        }
        // A rule without a burst keeps the burst of the code. A window has no burst.
        let limit = |algorithm| Limit::new("ruled", algorithm, 10, MINUTE).expect("valid");
        let (threshold, burst) = (Rule::new().threshold(20), Rule::new().burst(7));
        for (rule, limit, expected) in [
            (threshold, limit(Algorithm::TokenBucket), 20),
            (threshold, limit(Algorithm::LeakyBucket), 1),
            (threshold, limit(Algorithm::TokenBucket).burst(3), 3),
            (threshold, limit(Algorithm::LeakyBucket).burst(3), 3),
            (burst, limit(Algorithm::TokenBucket).burst(3), 7),
            (burst, limit(Algorithm::Sliding), 10),
        ] {
            test.set_rule(rule);
            assert_eq!(test.peek(&limit, 0).await.limit, expected, "{rule}, {limit:?}");
        }
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
                assert_eq!(check("free", 11).await.expect("exempt").remaining, u64::MAX);
            }
            assert!(!test.peek(&limit, 0).await.allowed);
            assert!(test.limiter.peek(&limit, "free", 11).await.expect("a decision").allowed);
            assert_eq!(check("open", 1).await.expect("limited").remaining, 9);
            test.set_rules(RuleSet::new());
            // Neither blocked nor exempt calls were counted.
            for key in ["key", "free"] {
                assert_eq!(check(key, 1).await.expect("limited").remaining, 9, "{key}");
            }
            for key in ["key", "free", "open"] {
                test.limiter.reset(&limit, key).await.expect("reset");
            }
        }
    }

    async fn a_rule_ends_at_its_moment(test: TestLimiter) {
        let limit = Limit::sliding("ruled", 1, HOUR);
        test.set_rule(Rule::new().blocked(true).until(test.in_time(MINUTE)));
        assert_eq!(blocked(&test.check(&limit, 1).await), Some(MINUTE));
        test.advance(59_999_999);
        assert_eq!(blocked(&test.check(&limit, 1).await), Some(Duration::from_micros(1)));
        test.advance(1);
        assert!(test.check(&limit, 1).await.is_ok());
        assert!(matches!(test.check(&limit, 1).await, Err(Rejection::Limited { .. })));

        let mut rules = of_limit(Rule::new().threshold(2).until(test.in_time(SECOND)));
        let of_key = Rule::new().threshold(3).until(test.in_time(2 * SECOND));
        rules.set_key("ruled", "key", of_key).expect("valid");
        test.set_rules(rules);
        assert_eq!(test.peek(&limit, 0).await.limit, 3);
        test.advance(2_000_000);
        assert_eq!(test.peek(&limit, 0).await.limit, 1);
    }

    async fn a_shadow_by_rule_admits_and_counts(test: TestLimiter) {
        for limit in limits("ruled", 10, MINUTE) {
            test.set_rule(Rule::new().shadow(true));
            assert_eq!(test.check(&limit, 10).await.expect("admitted").remaining, 0);
            assert!(!test.check(&limit, 1).await.expect("a shadow").allowed);
            // A shadow of the code is enforced.
            test.set_rule(Rule::new().shadow(false));
            let enforced = test.check(&limit.shadow(true), 1).await;
            assert!(matches!(enforced, Err(Rejection::Limited { .. })));
            // A blocked shadow rejects nothing.
            test.set_rule(Rule::new().shadow(true).blocked(true));
            assert!(!test.check(&limit, 1).await.expect("a shadow").allowed);
            test.start_over(&limit).await;
        }
    }

    async fn each_limit_of_several_has_its_own_rules(test: TestLimiter) {
        for limit in limits("ruled", 10, MINUTE) {
            let other = Limit::fixed("other", 5, MINUTE);
            let check = async || {
                let parts = [Part::new(&limit, &"key", 4), Part::new(&other, &"key", 1)];
                test.limiter.check_all(&parts).await
            };
            test.set_rule(amounts(4));
            assert!(check().await.is_ok());
            assert!(matches!(check().await, Err(Rejection::Limited { .. })));
            test.set_rule(Rule::new().blocked(true));
            assert_eq!(blocked(&check().await), None);
            assert_eq!(test.peek(&other, 0).await.remaining, 4, "nothing was charged");
            // The other limit admits an exempt call, and those of a shadow. 4 of 10 are charged, so as a shadow, the
            // limit rejects the second call.
            let shadow = Rule::new().shadow(true);
            for (rule, expected) in [
                (Rule::new().exempt(true), 3),
                (shadow, 2),
                (shadow, 1),
                (shadow.blocked(true), 0),
            ] {
                test.set_rule(rule);
                assert_eq!(check().await.expect("admitted").remaining, expected, "{rule}");
            }
            // What the other limit rejects is not charged to the shadow.
            test.set_rule(shadow.threshold(100).burst(100));
            assert!(check().await.is_err());
            assert_eq!(test.peek(&limit, 0).await.remaining, 92);
            test.start_over(&limit).await;
            test.start_over(&other).await;
        }
    }

    async fn a_blocked_call_knows_when_no_rule_blocks_it(test: TestLimiter) {
        let [limit, other] = ["ruled", "other"].map(|name| Limit::sliding(name, 1, MINUTE));
        let until = |seconds: u32| Rule::new().blocked(true).until(test.in_time(SECOND * seconds));
        for (of_limit, of_key, expected) in [
            (until(5), until(1), Some(5 * SECOND)),
            (Rule::new().blocked(true), until(1), None),
        ] {
            let mut rules = ruled("ruled", of_limit);
            rules.set_key("ruled", "key", of_key).expect("valid");
            test.set_rules(rules);
            assert_eq!(blocked(&test.check(&limit, 1).await), expected);
        }
        let mut rules = of_limit(until(7));
        let opened = Rule::new().blocked(false).until(test.in_time(SECOND * 3));
        rules.set_key("ruled", "key", opened).expect("valid");
        test.set_rules(rules);
        assert!(test.check(&limit, 1).await.is_ok());

        // A group names the limit that is blocked for longest.
        let mut rules = of_limit(until(1));
        rules.set("other", until(9)).expect("valid");
        test.set_rules(rules);
        let parts = [Part::new(&limit, &"key", 1), Part::new(&other, &"key", 1)];
        assert_eq!(blocked(&test.limiter.check_all(&parts).await), Some(9 * SECOND));
    }
}

// Rules of limits that the attribute writes: their keys, and amounts that the code computes.

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
            let mut rules = RuleSet::new();
            rules.set_key("annotated", key, Rule::new().exempt(true)).expect("valid");
            test.set_rules(rules);
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
            test.set_rules(ruled("annotated", rule));
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
            test.set_rules(ruled("annotated", Rule::new().threshold(1)));
            test.limiter.scope(waiting(plan)).await.expect("the first");
            let mut call = Box::pin(test.limiter.scope(waiting(plan)));
            assert!(call.as_mut().now_or_never().is_none());
            wait_until_idle(&test.limiter).await;
            assert!(call.as_mut().now_or_never().is_none());
            test.set_rules(RuleSet::new());
            assert_eq!(call.await.is_ok(), expected, "{plan:?}");
        }
    }
}

// Sets of rules: the limits that a name means, and the rules that a set rejects.

/// The meaning of a rule must not depend on the limits that a process has called.
#[tokio::test]
async fn an_amount_without_a_period_is_for_all_limits_of_its_name() {
    let (minute, hour) = (Limit::fixed("two", 1, MINUTE), Limit::fixed("two", 10, HOUR));
    let mut rules = ruled("two/60s", Rule::new().threshold(3));
    assert_eq!(rules.iter().map(|(name, ..)| name).collect::<Vec<_>>(), ["two/60s"]);
    let error = rules.set("two", Rule::new().threshold(3)).expect_err("a period is missing");
    assert!(error.to_string().contains("`two` and `two/60s` name the same limit"), "{error}");
    for order in [[&minute, &hour, &minute], [&hour, &minute, &hour]] {
        let limiter = RateLimiter::embedded();
        let capacity = async |limit: &Limit| limiter.peek(limit, "key", 1).await.unwrap().limit;
        limiter.set_rules(rules.clone()).expect("valid");
        assert_eq!((capacity(&minute).await, capacity(&hour).await), (3, 10));
        limiter.set_rules(ruled("two", Rule::new().threshold(3))).expect("valid");
        for limit in order {
            assert_eq!(capacity(limit).await, 3, "{limit:?}");
        }
        limiter.set_rules(ruled("two", Rule::new().blocked(true))).expect("valid");
        for limit in order {
            blocked(&limiter.check(limit, "key", 1).await);
        }
    }
}

#[tokio::test]
async fn a_name_that_ends_like_a_period_is_tried_as_it_is_written() {
    for name in ["login/1h", "login/60s"] {
        let limit = Limit::fixed(name, 5, MINUTE);
        let mut rules = ruled(name, Rule::new().threshold(7));
        rules.set_key(name, "mallory", Rule::new().blocked(true)).expect("valid");
        let limiter = RateLimiter::embedded();
        limiter.set_rules(RuleSet::from_json(&rules.to_json()).expect("its own")).expect("valid");
        assert_eq!(limiter.check(&limit, "alice", 1).await.expect("admitted").limit, 7, "{name}");
        blocked(&limiter.check(&limit, "mallory", 1).await);
        // Its period can be written as well.
        let rules = ruled(&format!("{name}/1m"), Rule::new().threshold(9));
        limiter.set_rules(rules).expect("valid");
        assert_eq!(limiter.check(&limit, "alice", 1).await.expect("admitted").limit, 9, "{name}");
    }
}

/// A set of rules that is in force in one process must be in force in each other.
#[tokio::test]
async fn a_set_with_an_amount_that_does_not_fit_is_obeyed_otherwise() {
    #[rate_limit(name = "known", period = "1m", threshold = 1)]
    async fn minute() -> Result<(), Rejection> {
        Ok(())
    }
    #[rate_limit(name = "known", period = "1h", threshold = 1, algo = "token_bucket")]
    async fn hour() -> Result<(), Rejection> {
        Ok(())
    }

    let mut rules = ruled("known/1m", Rule::new().threshold(7).burst(5));
    rules.set_key("known/1h", "%", Rule::new().burst(5)).expect("valid");
    rules.set("other", Rule::new().threshold(3)).expect("valid");
    for is_called in [false, true] {
        let limiter = RateLimiter::embedded();
        limiter.set_rules(rules.clone()).expect("in force");
        for (limit, expected) in [
            (Limit::sliding("known", 1, MINUTE), 7),
            (Limit::token_bucket("known", 1, HOUR), 5),
            (Limit::fixed("other", 1, MINUTE), 3),
        ] {
            let capacity = limiter.peek(&limit, (), 1).await.expect("a decision").limit;
            assert_eq!(capacity, expected, "{limit:?}, called: {is_called}");
        }
        RateLimiter::embedded().scope(minute()).await.expect("admitted");
        RateLimiter::embedded().scope(hour()).await.expect("admitted");
    }

    let seen = ratelimit_runtime::limits();
    let seen: Vec<_> = seen.iter().filter(|seen| seen.limit.name() == "known").collect();
    assert_eq!(seen.len(), 2);
    assert!(seen.iter().all(|seen| seen.place.contains(file!()) && !seen.is_computed));
}

/// A limit with rules of keys alone has no rule of its own. A tool shows what it lists.
#[test]
fn rules_are_set_and_removed() {
    let mut rules = RuleSet::new();
    let error = rules.set("", Rule::new()).expect_err("no name").to_string();
    assert!(error.contains("write the name of a limit"), "{error}");
    let error = rules.set_key("api", "acme", Rule::new().trial(0)).expect_err("0").to_string();
    assert!(error.contains("the rule of the key `acme` of `api`"), "{error}");
    assert!(rules.is_empty());

    rules.set_key("api", "::1", Rule::new().threshold(9).trial(1)).expect("valid");
    assert_eq!((rules.rule("api"), rules.iter().count()), (None, 1));
    let listed: Vec<_> = rules.iter().map(|(.., rule)| rule.to_string()).collect();
    assert_eq!(listed, ["threshold = 9, trial = 1"]);
    rules.set("api", Rule::new().blocked(true)).expect("valid");
    assert_eq!((rules.rule("api"), rules.iter().count()), (Some(Rule::new().blocked(true)), 2));
    assert!(rules.unset("api"));
    assert!(!rules.unset("api") && !rules.unset_key("api", "x") && !rules.unset("other"));
    assert!(rules.unset_key("api", "%3A%3A1"), "the same key");
    assert!(rules.is_empty());
}
