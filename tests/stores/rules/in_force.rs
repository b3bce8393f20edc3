//! Rules in force: what each part of a rule changes, for a limit, a key, or one limit of several.

use std::time::Duration;

use ratelimit_runtime::{
    Algorithm, Limit, OwnedKey, Part, RateLimiter, Rejection, Rule, RuleSet, rate_limit,
};
use support::limits::{HOUR, MINUTE, SECOND, is_bucket, limits, ruled};

use super::{blocked, of_limit};
use crate::{on_both_stores, wait_until_idle};

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

// Rules of limits that the attribute writes: their keys, and amounts that the code computes.

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

// Sets of rules: the limits that a name means, and the rules that a set rejects.

/// The meaning of a rule must not depend on the limits that a process has called.
#[tokio::test]
async fn an_amount_without_a_period_is_for_all_limits_of_its_name() {
    let (minute, hour) = (Limit::fixed("two", 1, MINUTE), Limit::fixed("two", 10, HOUR));
    let mut rules = RuleSet::new();
    rules.set("two/60s", Rule::new().threshold(3)).expect("valid");
    assert_eq!(rules.iter().map(|(name, ..)| name).collect::<Vec<_>>(), ["two/60s"]);
    let error = rules.set("two", Rule::new().threshold(3)).expect_err("a period is missing");
    assert!(error.to_string().contains("`two` and `two/60s` name the same limit"), "{error}");
    let of_all = ruled("two", Rule::new().threshold(3));
    let blocked = ruled("two", Rule::new().blocked(true));
    for order in [[&minute, &hour, &minute], [&hour, &minute, &hour]] {
        let limiter = RateLimiter::embedded();
        let capacity = async |limit: &Limit| limiter.peek(limit, "key", 1).await.unwrap().limit;
        limiter.set_rules(rules.clone()).expect("valid");
        assert_eq!((capacity(&minute).await, capacity(&hour).await), (3, 10));
        limiter.set_rules(of_all.clone()).expect("valid");
        for limit in order {
            assert_eq!(capacity(limit).await, 3, "{limit:?}");
        }
        limiter.set_rules(blocked.clone()).expect("valid");
        for limit in order {
            let result = limiter.check(limit, "key", 1).await;
            assert!(matches!(result, Err(Rejection::Blocked { .. })), "{limit:?}");
        }
    }
}

#[tokio::test]
async fn a_name_that_ends_like_a_period_is_tried_as_it_is_written() {
    for name in ["login/1h", "login/60s"] {
        let limit = Limit::fixed(name, 5, MINUTE);
        let mut rules = RuleSet::new();
        rules.set(name, Rule::new().threshold(7)).expect("valid");
        rules.set_key(name, "mallory", Rule::new().blocked(true)).expect("valid");
        let limiter = RateLimiter::embedded();
        limiter.set_rules(RuleSet::from_json(&rules.to_json()).expect("its own")).expect("valid");
        assert_eq!(limiter.check(&limit, "alice", 1).await.expect("admitted").limit, 7, "{name}");
        let blocked = limiter.check(&limit, "mallory", 1).await;
        assert!(matches!(blocked, Err(Rejection::Blocked { .. })), "{name}: {blocked:?}");
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

    let mut rules = RuleSet::new();
    rules.set("known/1m", Rule::new().threshold(7).burst(5)).expect("valid");
    rules.set_key("known/1h", "%", Rule::new().burst(5)).expect("valid");
    rules.set("other", Rule::new().threshold(3)).expect("valid");
    let capacities = async || {
        let limiter = RateLimiter::embedded();
        limiter.set_rules(rules.clone()).expect("in force");
        let mut capacities = Vec::new();
        for limit in [
            Limit::sliding("known", 1, MINUTE),
            Limit::token_bucket("known", 1, HOUR),
            Limit::fixed("other", 1, MINUTE),
        ] {
            capacities.push(limiter.peek(&limit, (), 1).await.expect("a decision").limit);
        }
        capacities
    };
    assert_eq!(capacities().await, [7, 5, 3], "before a call of the limits");
    RateLimiter::embedded().scope(minute()).await.expect("admitted");
    RateLimiter::embedded().scope(hour()).await.expect("admitted");
    assert_eq!(capacities().await, [7, 5, 3], "after a call of the limits");

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
