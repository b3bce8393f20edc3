//! Sets of rules: the limits that a name means, and the rules that a set rejects.

use ratelimit_runtime::{Limit, RateLimiter, Rejection, Rule, RuleSet, rate_limit};
use support::limits::{HOUR, MINUTE, ruled};

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
