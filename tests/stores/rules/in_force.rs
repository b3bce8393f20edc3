//! Rules in force, beside everything else that a call can do.

use std::time::{Duration, SystemTime};

use futures::FutureExt;
use ratelimit_runtime::{
    Algorithm, Decision, Limit, OwnedKey, Part, RateLimiter, Rejection, Rule, RuleSet, Scope,
    Source, rate_limit,
};
use support::ALGORITHMS;
use support::limits::{HOUR, MINUTE, SECOND, is_bucket, limits};
use support::proxy::Proxy;
use support::server::Server;
use tokio::task::{JoinHandle, JoinSet};

use crate::{TestLimiter, on_both_stores, settle_lines};

fn of_limit(rule: Rule) -> RuleSet {
    let mut rules = RuleSet::new();
    rules.set("ruled", rule).expect("valid");
    rules
}

fn of_key(key: &str, rule: Rule) -> RuleSet {
    let mut rules = RuleSet::new();
    rules.set_key("ruled", key, rule).expect("valid");
    rules
}

/// Rules for an annotated limit.
fn of_annotated(key: Option<&str>, rule: Rule) -> RuleSet {
    let mut rules = RuleSet::new();
    let set = match key {
        Some(key) => rules.set_key("annotated", key, rule),
        None => rules.set("annotated", rule),
    };
    set.expect("valid");
    rules
}

impl TestLimiter {
    pub(crate) fn set_rules(&self, rules: RuleSet) {
        self.limiter.set_rules(rules).expect("valid rules");
    }

    fn in_time(&self, time: Duration) -> SystemTime {
        SystemTime::UNIX_EPOCH + self.clock.now() + time
    }
}

#[track_caller]
fn closed(result: &Result<Decision, Rejection>) -> Option<Duration> {
    match result {
        Err(rejection @ Rejection::Closed { decision, .. }) => {
            assert_eq!((decision.allowed, decision.limit, decision.remaining), (false, 0, 0));
            rejection.retry_after()
        }
        other => panic!("not closed: {other:?}"),
    }
}

on_both_stores! {
    async fn a_rule_sets_the_amounts_of_a_limit_and_of_a_key(test: TestLimiter) {
        for limit in limits("ruled", 10, MINUTE) {
            let remaining = async |key: &str| {
                test.limiter.check(&limit, key, 1).await.expect("admitted").remaining
            };
            assert_eq!(remaining("a").await, 9);
            let mut rules = of_limit(Rule::new().threshold(20).burst(20));
            rules.set_key("ruled", "acme", Rule::new().threshold(30).burst(40)).expect("valid");
            rules.set_key("ruled", "small", Rule::new().threshold(5)).expect("valid");
            test.set_rules(rules.clone());
            assert_eq!(test.limiter.rules(), rules);
            let is_bucket = is_bucket(limit.algorithm());
            // What was charged stays charged.
            assert_eq!(remaining("a").await, 18, "{limit:?}");
            assert_eq!(remaining("acme").await, if is_bucket { 39 } else { 29 });
            // The rule of the key has no burst, so that of its limit holds.
            assert_eq!(remaining("small").await, if is_bucket { 19 } else { 4 });
            let peek = test.limiter.peek(&limit, "a", 19).await;
            assert!(!peek.expect("a decision").allowed);
            test.set_rules(RuleSet::new());
            assert_eq!(remaining("a").await, 7);
            // The charge that "small" has made.
            assert_eq!(remaining("small").await, 8);
            for key in ["a", "acme", "small"] {
                assert!(test.limiter.reset(&limit, key).await.expect("reset"));
            }
        }
    }

    async fn a_threshold_leaves_the_burst_of_the_code(test: TestLimiter) {
        test.set_rules(of_limit(Rule::new().threshold(20)));
        let capacity = async |limit: Limit| test.limiter.peek(&limit, "key", 1).await.unwrap().limit;
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

    async fn a_rule_closes_and_exempts(test: TestLimiter) {
        for limit in limits("ruled", 10, MINUTE) {
            let check = async |key: &str, cost| test.limiter.check(&limit, key, cost).await;
            let mut rules = of_limit(Rule::new().closed(true));
            rules.set_key("ruled", "free", Rule::new().exempt(true)).expect("valid");
            rules.set_key("ruled", "open", Rule::new().closed(false)).expect("valid");
            test.set_rules(rules);
            for cost in [0, 1, 11] {
                assert_eq!(closed(&check("key", cost).await), None);
            }
            let peek = test.limiter.peek(&limit, "key", 1).await.expect("a decision");
            assert!(!peek.allowed);
            for _ in 0..3 {
                assert_eq!(check("free", 11).await.expect("exempt").remaining, u32::MAX);
            }
            assert!(test.limiter.peek(&limit, "free", 11).await.expect("a decision").allowed);
            assert_eq!(check("open", 1).await.expect("limited").remaining, 9);
            test.set_rules(RuleSet::new());
            // Neither closed nor exempt calls were counted.
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
        test.set_rules(of_limit(Rule::new().closed(true).until(until)));
        let check = async || test.limiter.check(&limit, "key", 1).await;
        assert_eq!(closed(&check().await), Some(MINUTE));
        test.advance(59_999_999);
        assert_eq!(closed(&check().await), Some(Duration::from_micros(1)));
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
            let shadow = limit.clone().shadow(true);
            assert!(matches!(check(&shadow, 1).await, Err(Rejection::Limited { .. })));
            // A closed shadow rejects nothing.
            test.set_rules(of_limit(Rule::new().shadow(true).closed(true)));
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
            test.set_rules(of_limit(Rule::new().closed(true)));
            assert_eq!(closed(&check().await), None);
            assert_eq!(left(&other).await, 4, "nothing was charged");
            test.set_rules(of_limit(Rule::new().exempt(true)));
            assert_eq!(check().await.expect("the other admits").remaining, 3);

            // 4 of 10 are charged: as a shadow, it rejects the second call, which is admitted.
            test.set_rules(of_limit(Rule::new().shadow(true)));
            assert_eq!(check().await.expect("admitted").remaining, 2);
            assert_eq!(check().await.expect("admitted").remaining, 1);
            assert_eq!(left(&limit).await, 2);
            test.set_rules(of_limit(Rule::new().shadow(true).closed(true)));
            assert_eq!(check().await.expect("admitted").remaining, 0);
            // What the other limit rejects is not charged to the shadow.
            test.set_rules(of_limit(Rule::new().shadow(true).threshold(100).burst(100)));
            assert!(check().await.is_err());
            assert_eq!(left(&limit).await, 92);
            test.limiter.reset(&limit, "key").await.expect("reset");
            test.limiter.reset(&other, "key").await.expect("reset");
        }
    }

    async fn permits_are_settled_under_rules(test: TestLimiter) {
        for limit in limits("ruled", 10, MINUTE) {
            let other = Limit::fixed("other", 5, MINUTE);
            let acquire = async |cost| test.limiter.acquire(&limit, "key", cost).await;
            let left = async |limit| test.limiter.peek(limit, "key", 0).await.unwrap().remaining;
            test.set_rules(of_limit(Rule::new().threshold(20).burst(20)));
            acquire(15).await.expect("admitted").settle(5);
            test.limiter.flush().await.expect("settled");
            assert_eq!(left(&limit).await, 15, "{limit:?}");
            let permit = acquire(10).await.expect("admitted");
            test.set_rules(of_limit(Rule::new().exempt(true)));
            permit.settle(1);
            acquire(100).await.expect("exempt").settle(7);
            test.set_rules(of_limit(Rule::new().closed(true)));
            assert!(matches!(acquire(1).await, Err(Rejection::Closed { .. })));
            test.set_rules(RuleSet::new());
            test.limiter.flush().await.expect("settled");
            assert_eq!(left(&limit).await, 4);

            for (rule, charged) in [
                (Rule::new().exempt(true), 0),
                (Rule::new().shadow(true), 1),
                (Rule::new().shadow(true).closed(true), 0),
                (Rule::new().threshold(20).burst(20), 1),
            ] {
                test.set_rules(of_limit(rule));
                let before = (left(&limit).await, left(&other).await);
                let parts = [Part::new(&limit, &"key", 2), Part::new(&other, &"key", 2)];
                let permits = test.limiter.acquire_all(&parts).await.expect("admitted");
                assert_eq!(permits.len(), 2);
                for permit in permits {
                    permit.settle(1);
                }
                test.limiter.flush().await.expect("settled");
                let after = (left(&limit).await, left(&other).await);
                if rule != Rule::new().exempt(true) && rule != Rule::new().shadow(true).closed(true) {
                    assert_eq!(before.0 - after.0, charged, "{rule:?}");
                }
                assert_eq!(before.1 - after.1, 1, "{rule:?}");
            }
            test.set_rules(RuleSet::new());
            test.limiter.reset(&limit, "key").await.expect("reset");
            test.limiter.reset(&other, "key").await.expect("reset");
        }
    }

    async fn a_call_that_waits_obeys_a_new_rule(test: TestLimiter) {
        for limit in limits("ruled", 10, MINUTE) {
            let waiting = limit.clone().wait(HOUR);
            let start = || {
                let (limiter, waiting) = (test.limiter.clone(), waiting.clone());
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
            settle_lines(&test.limiter).await;
            assert!(!call.is_finished(), "{limit:?}");
            test.set_rules(of_limit(Rule::new().threshold(20).burst(20)));
            assert_eq!(end(call).await.expect("admitted").remaining, 0, "{limit:?}");

            fill().await;
            let call = start();
            settle_lines(&test.limiter).await;
            assert!(!call.is_finished(), "{limit:?}");
            test.set_rules(of_limit(Rule::new().closed(true)));
            assert_eq!(closed(&end(call).await), None);

            fill().await;
            let call = start();
            settle_lines(&test.limiter).await;
            assert!(!call.is_finished(), "{limit:?}");
            test.set_rules(of_limit(Rule::new().exempt(true)));
            assert_eq!(end(call).await.expect("exempt").remaining, u32::MAX);

            fill().await;
            let call = start();
            settle_lines(&test.limiter).await;
            assert!(!call.is_finished(), "{limit:?}");
            test.set_rules(of_limit(Rule::new().shadow(true)));
            assert!(!end(call).await.expect("a shadow").allowed);

            fill().await;
            let call = start();
            settle_lines(&test.limiter).await;
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
            let burst = is_bucket(waiting.algorithm()).then_some(20);
            let twenty = waiting.try_amounts(20, burst).expect("valid");
            let call = tokio::spawn({
                let (limiter, waiting) = (test.limiter.clone(), twenty);
                async move { limiter.check(&waiting, "key", 10).await }
            });
            settle_lines(&test.limiter).await;
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
            let (limiter, limit) = (test.limiter.clone(), limit.clone());
            calls.spawn(async move { (index, limiter.check(&limit, "key", 1).await.is_ok()) });
            settle_lines(&test.limiter).await;
        }
        for step in 0_u32..30 {
            let mut rules = of_key("other", Rule::new().threshold(step + 1));
            rules.set("another", Rule::new().closed(true)).expect("valid");
            test.set_rules(rules);
            test.advance(1_000_000);
            settle_lines(&test.limiter).await;
        }
        test.advance(30_000_000);
        settle_lines(&test.limiter).await;
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
        let waiting = limit.clone().wait(70 * SECOND);
        let limiter = test.limiter.clone();
        let call = tokio::spawn(async move { limiter.check(&waiting, "key", 1).await });
        settle_lines(&test.limiter).await;
        test.advance(20_000_000);
        // Its window ends in 40 s, and the next one in 100 s.
        test.set_rules(of_limit(Rule::new().threshold(2)));
        settle_lines(&test.limiter).await;
        assert!(call.await.expect("no panic").is_ok(), "a second unit of the window");
    }

    /// The moments that were reserved for calls of a bucket are free again when a rule changes its amounts.
    async fn calls_that_wait_for_a_bucket_move_together(test: TestLimiter) {
        let limit = Limit::token_bucket("ruled", 10, SECOND).burst(10);
        let waiting = limit.clone().wait(MINUTE);
        test.limiter.check(&limit, "key", 10).await.expect("admitted");
        let mut calls: Vec<_> = (0..8)
            .map(|_| {
                let (limiter, waiting) = (test.limiter.clone(), waiting.clone());
                tokio::spawn(async move { limiter.check(&waiting, "key", 1).await })
            })
            .collect();
        settle_lines(&test.limiter).await;
        // Half of the time to the next token has passed at each change.
        let mut threshold = 10_u32;
        for change in 0..6 {
            test.advance(500_000 / u64::from(threshold));
            threshold = if threshold == 10 { 20 } else { 10 };
            test.set_rules(of_limit(Rule::new().threshold(threshold)));
            settle_lines(&test.limiter).await;
            test.advance(500_000 / u64::from(threshold) - 1_000);
            settle_lines(&test.limiter).await;
            let admitted = || calls.iter().filter(|call| call.is_finished()).count();
            assert_eq!(admitted(), change, "{limit:?}");
            test.advance(1_002);
            settle_lines(&test.limiter).await;
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

    async fn rules_name_keys_as_the_attribute_writes_them(test: TestLimiter) {
        #[rate_limit(name = "annotated", period = 60, threshold = 1, key = "{tenant}:{id}")]
        async fn format(tenant: &str, id: u32) -> Result<(), Rejection> { Ok(()) }

        #[rate_limit(name = "annotated", period = 60, threshold = 1, key = (tenant, id))]
        async fn tuple(tenant: &str, id: u32) -> Result<(), Rejection> { Ok(()) }

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
            assert_eq!(OwnedKey::parse(text).expect("a key").text(), text);
            test.set_rules(of_key(text, Rule::new().threshold(3)));
            for (other, _) in keys {
                let capacity = test.limiter.peek(&limit, other, 1).await.expect("a decision").limit;
                assert_eq!(capacity, if other == key { 3 } else { 10 }, "{text}");
            }
        }
    }

    async fn rules_override_computed_amounts(test: TestLimiter) {
        #[rate_limit(name = "annotated", period = 60, threshold = plan)]
        async fn call(plan: Option<u32>) -> Result<(), Rejection> { Ok(()) }

        #[rate_limit(
            limit(name = "annotated", period = 60, threshold = plan),
            limit(name = "other", period = 60, threshold = 100),
        )]
        async fn group(plan: Option<u32>) -> Result<(), Rejection> { Ok(()) }

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
        test.set_rules(of_annotated(None, Rule::new().closed(true)));
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
        async fn group(plan: Option<u32>) -> Result<(), Rejection> { Ok(()) }

        #[rate_limit(name = "annotated", period = 60, threshold = plan)]
        async fn call(plan: Option<u32>) -> Result<(), Rejection> { Ok(()) }

        #[rate_limit(name = "annotated", period = 60, threshold = plan, wait = "1h")]
        async fn waiting(plan: Option<u32>) -> Result<(), Rejection> { Ok(()) }

        test.set_rules(of_annotated(None, Rule::new().shadow(true)));
        for plan in [Some(0), None, Some(5)] {
            let other = Limit::sliding("annotated other", 2, MINUTE);
            test.limiter.reset(&other, ()).await.expect("reset");
            for expected in [true, true, false] {
                assert_eq!(test.limiter.scope(group(plan)).await.is_ok(), expected, "{plan:?}");
            }
        }
        // The rule says that the limit is not closed, and not what it admits.
        test.set_rules(of_annotated(None, Rule::new().closed(false)));
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
            settle_lines(&test.limiter).await;
            assert!(!call.is_finished());
            test.set_rules(RuleSet::new());
            assert_eq!(call.await.expect("no panic"), expected, "{plan:?}");
        }
        test.limiter.reset(&Limit::sliding("annotated", 1, MINUTE), ()).await.expect("reset");
    }

    async fn a_closed_call_knows_when_no_rule_closes_it(test: TestLimiter) {
        let limit = Limit::sliding("ruled", 1, MINUTE);
        let retry = async || closed(&test.limiter.check(&limit, "key", 1).await);
        let until = |seconds: u32| Rule::new().closed(true).until(test.in_time(SECOND * seconds));
        let mut rules = of_limit(until(5));
        rules.set_key("ruled", "key", until(1)).expect("valid");
        test.set_rules(rules.clone());
        assert_eq!(retry().await, Some(5 * SECOND));
        rules.set("ruled", Rule::new().closed(true)).expect("valid");
        test.set_rules(rules.clone());
        assert_eq!(retry().await, None);
        let opened = Rule::new().closed(false).until(test.in_time(SECOND * 3));
        rules.set_key("ruled", "key", opened).expect("valid");
        rules.set("ruled", until(7)).expect("valid");
        test.set_rules(rules.clone());
        assert!(test.limiter.check(&limit, "key", 1).await.is_ok());

        // A group names the limit that is closed for longest.
        let mut rules = of_limit(until(1));
        rules.set("other", until(9)).expect("valid");
        test.set_rules(rules);
        let other = Limit::sliding("other", 1, MINUTE);
        let parts = [Part::new(&limit, &"key", 1), Part::new(&other, &"key", 1)];
        assert_eq!(closed(&test.limiter.check_all(&parts).await), Some(9 * SECOND));

        // A call that waits goes on when the rule ends.
        test.limiter.reset(&limit, "key").await.expect("reset");
        let waiting = limit.clone().wait(MINUTE);
        let limiter = test.limiter.clone();
        let call = tokio::spawn(async move { limiter.check(&waiting, "key", 1).await.is_ok() });
        settle_lines(&test.limiter).await;
        assert!(!call.is_finished());
        test.advance(1_000_000);
        assert!(call.await.expect("no panic"));
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
        assert!(test.limiter.check_now(&HERE, "key", 2).is_ok());
        assert!(test.limiter.check_now(&HERE, "key", 1).is_err());
        test.set_rules(of_annotated(None, Rule::new().exempt(true)));
        assert!(test.limiter.check_now(&HERE, "key", 1).is_ok());
    }
}

/// The meaning of a rule must not depend on the limits that a process has called.
#[tokio::test]
async fn an_amount_without_a_period_is_for_all_limits_of_its_name() {
    let (minute, hour) = (Limit::fixed("two", 1, MINUTE), Limit::fixed("two", 10, HOUR));
    let mut rules = RuleSet::new();
    rules.set("two/60s", Rule::new().threshold(3)).expect("valid");
    assert_eq!(rules.iter().map(|(name, ..)| name).collect::<Vec<_>>(), ["two/1m"]);
    let error = rules.set("two", Rule::new().threshold(3)).expect_err("a period is missing");
    assert!(error.to_string().contains("`two` and `two/1m` name the same limit"), "{error}");
    let mut of_all = RuleSet::new();
    of_all.set("two", Rule::new().threshold(3)).expect("valid");
    let mut closed = RuleSet::new();
    closed.set("two", Rule::new().closed(true)).expect("valid");
    for order in [[&minute, &hour, &minute], [&hour, &minute, &hour]] {
        let limiter = RateLimiter::embedded();
        let capacity = async |limit: &Limit| limiter.peek(limit, "key", 1).await.unwrap().limit;
        limiter.set_rules(rules.clone()).expect("valid");
        assert_eq!((capacity(&minute).await, capacity(&hour).await), (3, 10));
        limiter.set_rules(of_all.clone()).expect("valid");
        for limit in order {
            assert_eq!(capacity(limit).await, 3, "{limit:?}");
        }
        limiter.set_rules(closed.clone()).expect("valid");
        for limit in order {
            let result = limiter.check(limit, "key", 1).await;
            assert!(matches!(result, Err(Rejection::Closed { .. })), "{limit:?}");
        }
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

#[test]
fn wrong_rules_say_what_to_write() {
    let mut rules = RuleSet::new();
    let error = rules.set("", Rule::new()).expect_err("no name").to_string();
    assert!(error.contains("write the name of a limit"), "{error}");
    let error = rules.set_key("api", "acme", Rule::new().threshold(0)).expect_err("0").to_string();
    assert!(
        error.contains("the rule of the key `acme` of `api`") && error.contains("`closed = true`")
    );
    let error = rules.set_key("api", "(a", Rule::new()).expect_err("a parenthesis").to_string();
    assert!(error.contains("`(a` of `api`") && error.contains("%28"), "{error}");
    assert!(rules.is_empty());

    rules.set_key("api", "::1", Rule::new().threshold(5)).expect("valid");
    assert_eq!(rules.iter().collect::<Vec<_>>().len(), 1);
    assert!(!rules.unset("api") && !rules.unset_key("api", "x") && !rules.unset("other"));
    assert!(rules.unset_key("api", "%3A%3A1"), "the same key");
    assert!(rules.is_empty());
}

/// A shadow by rule counts where its limit counts.
#[tokio::test]
async fn a_limit_that_waits_does_not_lease_as_a_shadow() {
    let server = Server::start();
    let test = TestLimiter::redis(&server);
    let limit = Limit::sliding("ruled", 10, MINUTE).lease(5).wait(SECOND);
    assert_eq!(test.limiter.check(&limit, "key", 4).await.expect("admitted").remaining, 6);
    test.set_rules(of_limit(Rule::new().shadow(true)));
    assert_eq!(test.limiter.check(&limit, "key", 1).await.expect("admitted").remaining, 5);
    assert_eq!(server.ttls().len(), 1);
}

/// Leased units are charged already. A rule takes effect at once all the same.
#[tokio::test]
async fn leases_obey_a_rule() {
    let server = Server::start();
    let test = TestLimiter::redis(&server);
    let limit = Limit::sliding("ruled", 1_000, MINUTE).lease(50);
    let check = async || test.limiter.check(&limit, "key", 1).await;
    for _ in 0..20 {
        check().await.expect("admitted");
    }
    assert_eq!(check().await.expect("admitted").source, Source::Lease);
    test.set_rules(of_limit(Rule::new().closed(true)));
    assert_eq!(closed(&check().await), None);
    test.set_rules(of_limit(Rule::new().exempt(true)));
    assert_eq!(check().await.expect("exempt").remaining, u32::MAX);
    // Its count is the same, and the units were leased under another threshold.
    test.set_rules(of_limit(Rule::new().threshold(10)));
    assert!(check().await.is_err(), "more than 20 are charged");
    test.advance(1_000_000);
    assert!(check().await.is_err());
    test.set_rules(RuleSet::new());
    assert!(check().now_or_never().is_none() || check().await.is_ok());
}

/// Each set closes one of the limits of a group, so no call is admitted while they replace each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_is_decided_by_one_set_of_rules() {
    let limiter = RateLimiter::embedded();
    let names = ["one of two", "two of two"];
    let limits = names.map(|name| Limit::fixed(name, u32::MAX, HOUR));
    let closing = |name| {
        let mut rules = RuleSet::new();
        rules.set(name, Rule::new().closed(true)).expect("valid");
        limiter.set_rules(rules).expect("valid");
    };
    closing(names[0]);
    let calls = tokio::spawn({
        let limiter = limiter.clone();
        async move {
            let parts = [Part::new(&limits[0], &"key", 1), Part::new(&limits[1], &"key", 1)];
            for call in 0..100_000 {
                let result = limiter.check_all(&parts).await;
                assert!(matches!(result, Err(Rejection::Closed { .. })), "{call}: {result:?}");
            }
        }
    });
    while !calls.is_finished() {
        names.into_iter().for_each(closing);
        tokio::task::yield_now().await;
    }
    calls.await.expect("closed by each set");
}

/// What a call was admitted for is not charged again if the rules change before its shadows are decided.
#[tokio::test(flavor = "multi_thread")]
async fn an_admitted_call_is_charged_once() {
    let server = Server::start();
    let proxy = Proxy::with_latency(server.port(), Duration::from_millis(100));
    let builder = RateLimiter::builder().redis(format!("redis://127.0.0.1:{}", proxy.port));
    let limiter = builder.deadline(10 * SECOND).build().expect("valid");
    let limits = ["enforced", "ruled"].map(|name| Limit::sliding(name, 100, HOUR).wait(5 * SECOND));
    limiter.ping().await.expect("connected");
    for delay in [20, 70, 120, 170, 220] {
        limiter.set_rules(of_limit(Rule::new().shadow(true))).expect("valid");
        let call = tokio::spawn({
            let (limiter, limits) = (limiter.clone(), limits.clone());
            async move {
                let parts = [Part::new(&limits[0], &"key", 1), Part::new(&limits[1], &"key", 1)];
                limiter.check_all(&parts).await
            }
        });
        tokio::time::sleep(Duration::from_millis(delay)).await;
        limiter.set_rules(of_limit(Rule::new().shadow(true).threshold(70))).expect("valid");
        call.await.expect("no panic").expect("admitted");
    }
    let direct = server.builder().build().expect("valid");
    for limit in &limits {
        let left = direct.peek(limit, "key", 1).await.expect("a decision").remaining;
        assert_eq!(left, 95, "{limit:?}");
    }
}
