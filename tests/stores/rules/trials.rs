//! Trials: another threshold that decides each call beside the limit, and rejects nothing.

use futures::executor::block_on;
use futures::future::join_all;
use ratelimit_runtime::{Builder, Scope, Source};
use support::cluster::Cluster;
use support::poll_once;

use super::*;
use crate::faults::store_error;
use crate::leases::spend;

/// Returns how many calls of a key the limit has rejected, and how many its trial would have rejected.
fn rejected(limiter: &RateLimiter) -> (u64, u64) {
    let keys = limiter.operator().rejected_keys(100);
    let of = |name: &str, is_shadow| {
        let keys = keys.iter().filter(|key| key.limit == name && key.is_shadow == is_shadow);
        keys.map(|key| key.rejected).sum()
    };
    (of("ruled", false), of("ruled:trial", true))
}

const NOWHERE: &str = "redis://127.0.0.1:1";

fn with_rule(builder: Builder, rule: Rule) -> RateLimiter {
    let limiter = builder.deadline(10 * MINUTE).build().expect("valid");
    limiter.set_rules(of_limit(rule)).expect("valid");
    limiter
}

on_both_stores! {
    async fn a_trial_decides_each_call_beside_the_limit(test: TestLimiter) {
        for enforced in limits("ruled", 5, MINUTE) {
            let has_burst = enforced.algorithm() == Algorithm::LeakyBucket;
            // The burst of the code stays, so a bucket tries a threshold by its rate. A looser trial sees the calls
            // that the limit rejects. Without a burst, a leaky bucket admits one at a time.
            let other = enforced.try_amounts(5, None).expect("valid");
            for (limit, rule, calls, admitted, tried) in [
                (enforced, Rule::new().trial(2), 8, 5, if has_burst { 3 } else { 6 }),
                (other, Rule::new().threshold(1).trial(7), 9, 1, if has_burst { 8 } else { 2 }),
            ] {
                let before = rejected(&test.limiter);
                test.set_rule(rule);
                assert_eq!(spend(&test.limiter, &limit, calls).await, admitted, "{limit:?}");
                let after = rejected(&test.limiter);
                let new = (after.0 - before.0, after.1 - before.1);
                assert_eq!(new, (calls - admitted, tried), "{limit:?}");
                test.start_over(&enforced).await;
                test.advance(200_000_000);
            }
        }
    }

    async fn a_trial_is_of_limited_calls_only_and_ends_with_its_rule(test: TestLimiter) {
        let enforced = Limit::fixed("ruled", 10, HOUR);
        test.set_rule(Rule::new().blocked(true).trial(1));
        for _ in 0..3 {
            blocked(&test.check(&enforced, 1).await);
        }
        test.set_rule(Rule::new().exempt(true).trial(1));
        assert_eq!(spend(&test.limiter, &enforced, 3).await, 3);
        assert_eq!(rejected(&test.limiter).1, 0);
        // A key has the trial of its limit, unless its rule has another one.
        let mut rules = of_limit(Rule::new().trial(1));
        let of_key = Rule::new().trial(2).until(test.in_time(MINUTE));
        rules.set_key("ruled", "key", of_key).expect("valid");
        rules.set_key("ruled", "other", Rule::new().threshold(20)).expect("valid");
        test.set_rules(rules);
        for (key, expected) in [("key", 1), ("other", 3)] {
            for _ in 0..3 {
                test.limiter.check(&enforced, key, 1).await.expect("admitted");
            }
            assert_eq!(rejected(&test.limiter).1, expected, "{key}");
        }
        test.advance(61_000_000);
        test.check(&enforced, 1).await.expect("admitted");
        // The trial of the limit rejects it, as it has two units.
        assert_eq!(rejected(&test.limiter).1, 4);
        test.set_rules(RuleSet::new());
        test.check(&enforced, 1).await.expect("admitted");
        assert_eq!(rejected(&test.limiter).1, 4);
        test.set_rule(Rule::new().trial(1).shadow(true).threshold(1));
        for _ in 0..2 {
            test.limiter.check(&enforced, "of a shadow", 1).await.expect("a shadow");
        }
        assert_eq!(rejected(&test.limiter), (3, 5), "the blocked limit has rejected three");
    }

    async fn a_trial_beside_permits_waits_leases_and_several_limits(test: TestLimiter) {
        let enforced = Limit::fixed("ruled", 4, HOUR);
        let mut rules = of_limit(Rule::new().trial(1));
        rules.set("other", Rule::new().trial(3)).expect("valid");
        test.set_rules(rules);
        // The charge of the limit is settled; the trial keeps the cost that was expected.
        test.limiter.acquire(&enforced, "key", 1).await.expect("admitted").settle(0);
        test.limiter.flush().await.expect("settled");
        assert_eq!(test.peek(&enforced, 0).await.remaining, 4);
        test.limiter.acquire(&enforced, "key", 1).await.expect("admitted").keep();
        assert_eq!(rejected(&test.limiter), (0, 1));

        // A cost above the threshold of the trial, and a call that charges nothing.
        test.limiter.check(&enforced, "costly", 3).await.expect("admitted");
        test.limiter.check(&enforced, "free", 0).await.expect("admitted");
        // A call of several limits is decided once for each of them, and once for each trial.
        let other = Limit::sliding("other", 5, HOUR);
        let parts = [Part::new(&enforced, &"group", 1), Part::new(&other, &("group", 1), 1)];
        for _ in 0..4 {
            test.limiter.check_all(&parts).await.expect("admitted");
        }
        let permits = test.limiter.acquire_all(&parts).await;
        assert!(matches!(permits, Err(Rejection::Limited { .. })));
        assert_eq!(rejected(&test.limiter), (1, 5));
        let keys = test.limiter.operator().rejected_keys(20);
        let of_other = keys.iter().find(|key| key.limit == "other:trial").expect("rejected");
        assert_eq!((of_other.rejected, of_other.is_shadow), (2, true));

        let before = rejected(&test.limiter);
        let waiting = enforced.wait(SECOND);
        for _ in 0..3 {
            test.limiter.check(&waiting, "waits", 1).await.expect("admitted");
        }
        // They end on their own.
        wait_until(async || rejected(&test.limiter).1 >= before.1 + 2).await;
        let leased = Limit::sliding("ruled", 50, HOUR).lease(10);
        for _ in 0..20 {
            test.limiter.check(&leased, "leased", 1).await.expect("admitted");
        }
        assert_eq!(rejected(&test.limiter).1 - before.1, 2 + 19);
        // Without a future.
        for limit in [enforced, enforced.scope(Scope::Process)] {
            for _ in 0..3 {
                test.limiter.check_blocking(&limit, "blocks", 1).expect("admitted");
            }
        }
        assert_eq!(rejected(&test.limiter).1 - before.1, 2 + 19 + 2 + 2);
    }
}

/// The trial has one more key, in the hash slot of the count, while it stands.
#[tokio::test]
async fn a_trial_has_a_count_of_its_own() {
    let server = Server::start();
    let test = TestLimiter::redis(&server);
    let enforced = Limit::sliding("ruled", 5, HOUR);
    test.set_rule(Rule::new().trial(1));
    spend(&test.limiter, &enforced, 2).await;
    let mut names: Vec<_> = server.ttls().into_iter().map(|(name, _)| name).collect();
    names.sort();
    assert_eq!(names, ["rl:sliding:1h:ruled:trial{key}", "rl:sliding:1h:ruled{key}"]);
    assert_eq!(server.script_calls(), 4, "each call is decided twice");
    test.set_rules(RuleSet::new());
    spend(&test.limiter, &enforced, 2).await;
    assert_eq!(server.script_calls(), 6);

    let cluster = Cluster::start(0);
    let limiter = with_rule(RateLimiter::builder().redis(cluster.url()), Rule::new().trial(1));
    for key in 0..40 {
        limiter.check(&enforced, key % 20, 1).await.expect("admitted");
    }
    limiter.check(&enforced, (), 1).await.expect("admitted");
    assert_eq!(rejected(&limiter), (0, 20));
}

#[tokio::test]
async fn a_busy_trial_is_in_the_batches_of_its_limit() {
    let server = Server::start();
    let test = TestLimiter::redis(&server);
    let enforced = Limit::sliding("ruled", 500, HOUR);
    let scripts = async |calls: u64| {
        let before = server.script_calls();
        let checks = (0..calls).map(|_| test.limiter.check(&enforced, "key", 1));
        assert!(join_all(checks).await.iter().all(Result::is_ok));
        server.script_calls() - before
    };
    let without = scripts(200).await;
    test.set_rule(Rule::new().trial(50));
    let with = scripts(200).await;
    assert_eq!(rejected(&test.limiter), (0, 150));
    assert!(without < 20 && with < 20, "{without} and {with} scripts for 200 calls");
}

/// A trial neither rejects a call nor delays it for longer than the limit does, if Redis does not decide.
#[tokio::test]
async fn a_trial_without_redis_follows_the_policy_of_the_limit() {
    let limiter = with_rule(RateLimiter::builder().redis(NOWHERE), Rule::new().trial(1));
    let enforced = Limit::fixed("ruled", 2, HOUR);
    assert_eq!(spend(&limiter, &enforced, 3).await, 2);
    assert_eq!(rejected(&limiter), (1, 2));
    store_error(limiter.check(&enforced.on_error(OnError::Deny), "key", 1).await);
    limiter.check(&enforced.on_error(OnError::Allow), "key", 1).await.expect("admitted");
    assert_eq!(rejected(&limiter), (1, 2), "no store has decided");
}

/// A call with a trial, or with a limit that a rule makes a shadow, ends within one deadline and its wait.
#[tokio::test]
async fn what_a_rule_adds_takes_no_second_deadline() {
    let server = Server::start();
    let [enforced, other] = ["ruled", "other"].map(|name| Limit::fixed(name, 5, HOUR));
    for wait in [None, Some(SECOND / 20)] {
        let proxy = Proxy::start(server.port(), Duration::ZERO);
        let limiter = proxy.builder().deadline(SECOND).build().expect("valid");
        limiter.check(&enforced, "connects", 1).await.expect("admitted");
        let mut rules = of_limit(Rule::new().trial(1));
        rules.set("other", Rule::new().shadow(true)).expect("valid");
        limiter.set_rules(rules).expect("valid");
        proxy.set(Network::Blackhole);
        let limits = [enforced, other].map(|limit| wait.map_or(limit, |wait| limit.wait(wait)));
        let parts = limits.each_ref().map(|limit| Part::new(limit, &"key", 1));
        let result = timeout(3 * SECOND / 2, limiter.check_all(&parts)).await.expect("in time");
        result.expect("admitted by this process");
    }
}

/// The trial of a call that waits is decided beside it: once the call has taken its grant, it ends.
#[tokio::test]
async fn a_call_that_has_waited_does_not_wait_for_its_trial() {
    let server = Server::start();
    let proxy = Proxy::with_latency(server.port(), Duration::from_millis(200));
    let limiter = with_rule(proxy.builder(), Rule::new().trial(1));
    let waiting = Limit::fixed("ruled", 5, HOUR).wait(MINUTE);
    limiter.check(&waiting, "key", 1).await.expect("admitted");
    let second = timeout(39 * SECOND / 100, limiter.check(&waiting, "key", 1)).await;
    second.expect("in time").expect("admitted");
    wait_until(async || rejected(&limiter).1 == 1).await;
}

// Rules beside permits, leases, shadows and fallbacks, and without a runtime.

on_both_stores! {
    async fn permits_are_settled_under_rules(test: TestLimiter) {
        for limit in limits("ruled", 10, MINUTE) {
            let other = Limit::fixed("other", 5, MINUTE);
            let acquire = async |cost| test.limiter.acquire(&limit, "key", cost).await;
            let left = async |limit| test.peek(limit, 0).await.remaining;
            test.set_rule(amounts(20));
            acquire(15).await.expect("admitted").settle(5);
            test.limiter.flush().await.expect("settled");
            assert_eq!(left(&limit).await, 15, "{limit:?}");
            let permit = acquire(10).await.expect("admitted");
            test.set_rule(Rule::new().exempt(true));
            permit.settle(1);
            acquire(100).await.expect("exempt").settle(7);
            test.set_rule(Rule::new().blocked(true));
            assert!(matches!(acquire(1).await, Err(Rejection::Blocked { .. })));
            test.set_rules(RuleSet::new());
            test.limiter.flush().await.expect("settled");
            assert_eq!(left(&limit).await, 4);

            for (rule, charged) in [
                (Rule::new().exempt(true), 0),
                (Rule::new().shadow(true), 1),
                (Rule::new().shadow(true).blocked(true), 0),
                (amounts(20), 1),
            ] {
                let before = (left(&limit).await, left(&other).await);
                test.set_rule(rule);
                let parts = [Part::new(&limit, &"key", 2), Part::new(&other, &"key", 2)];
                let permits = test.limiter.acquire_all(&parts).await.expect("admitted");
                assert_eq!(permits.len(), 2);
                for permit in permits {
                    permit.settle(1);
                }
                test.limiter.flush().await.expect("settled");
                test.set_rules(RuleSet::new());
                let after = (left(&limit).await, left(&other).await);
                assert_eq!((before.0 - after.0, before.1 - after.1), (charged, 1), "{rule:?}");
            }
            test.start_over(&limit).await;
            test.start_over(&other).await;
        }
    }
}

/// A shadow by rule counts where its limit counts.
#[tokio::test]
async fn a_limit_that_waits_does_not_lease_as_a_shadow() {
    let server = Server::start();
    let test = TestLimiter::redis(&server);
    let limit = Limit::sliding("ruled", 10, MINUTE).lease(5).wait(SECOND);
    assert_eq!(test.check(&limit, 4).await.expect("admitted").remaining, 6);
    test.set_rule(Rule::new().shadow(true));
    assert_eq!(test.check(&limit, 1).await.expect("admitted").remaining, 5);
    assert_eq!(server.ttls().len(), 1);
}

/// Leased units are charged already. A rule takes effect at once all the same.
#[tokio::test]
async fn leases_obey_a_rule() {
    let server = Server::start();
    let test = TestLimiter::redis(&server);
    let limit = Limit::sliding("ruled", 1_000, MINUTE).lease(50);
    assert_eq!(spend(&test.limiter, &limit, 20).await, 20);
    assert_eq!(test.check(&limit, 1).await.expect("admitted").source, Source::Lease);
    test.set_rule(Rule::new().blocked(true));
    assert_eq!(blocked(&test.check(&limit, 1).await), None);
    test.set_rule(Rule::new().exempt(true));
    assert_eq!(test.check(&limit, 1).await.expect("exempt").remaining, u64::MAX);
    // Its count is the same, and the units were leased under another threshold.
    test.set_rule(Rule::new().threshold(10));
    assert_eq!(spend(&test.limiter, &limit, 1).await, 0, "more than 20 are charged");
    test.advance(1_000_000);
    assert_eq!(spend(&test.limiter, &limit, 1).await, 0);
    test.set_rules(RuleSet::new());
    assert_eq!(spend(&test.limiter, &limit, 1).await, 1);
}

/// What a call was admitted for is not charged again if the rules change before its shadows are decided.
#[tokio::test(flavor = "multi_thread")]
async fn an_admitted_call_is_charged_once() {
    let server = Server::start();
    let proxy = Proxy::with_latency(server.port(), SECOND / 10);
    let limiter = proxy.builder().deadline(10 * SECOND).build().expect("valid");
    let limits = ["enforced", "ruled"].map(|name| Limit::sliding(name, 100, HOUR).wait(5 * SECOND));
    limiter.ping().await.expect("connected");
    for delay in [20, 70, 120, 170, 220] {
        limiter.set_rules(of_limit(Rule::new().shadow(true))).expect("valid");
        let parts = limits.each_ref().map(|limit| Part::new(limit, &"key", 1));
        let call = tokio::spawn(limiter.check_all(&parts));
        sleep(Duration::from_millis(delay)).await;
        limiter.set_rules(of_limit(Rule::new().shadow(true).threshold(70))).expect("valid");
        call.await.expect("no panic").expect("admitted");
    }
    let direct = server.builder().build().expect("valid");
    for limit in &limits {
        assert_eq!(direct.peek(limit, "key", 1).await.expect("a decision").remaining, 95);
    }
}

#[tokio::test]
async fn a_fallback_shares_the_amounts_of_the_rule() {
    let builder = RateLimiter::builder().redis(NOWHERE).on_error(OnError::Local).instances(4);
    let limiter = builder.deadline(SECOND / 5).build().expect("valid");
    for limit in limits("ruled", 8, MINUTE) {
        let mut admitted = 0;
        for (threshold, share) in [(1, 1), (8, 2), (40, 10)] {
            limiter.set_rules(of_limit(amounts(threshold))).expect("valid");
            admitted += spend(&limiter, &limit, 50).await;
            assert_eq!(admitted, share, "{limit:?}");
        }
        limiter.set_rules(of_limit(Rule::new().blocked(true))).expect("valid");
        assert_eq!(blocked(&limiter.check(&limit, "key", 1).await), None);
    }
}

/// An executor without timers, and functions that are not async.
#[test]
fn rules_hold_without_a_runtime() {
    #[rate_limit(name = "ruled", period = "1m", threshold = 8, scope = "process")]
    fn sync() -> Result<(), Rejection> {
        Ok(())
    }
    #[rate_limit(name = "ruled", period = "1m", threshold = 8, wait = "10ms")]
    async fn waits() -> Result<(), Rejection> {
        Ok(())
    }

    let limiter = RateLimiter::embedded();
    let run = async || {
        let mut admitted = [0, 0];
        for _ in 0..20 {
            admitted[0] += u64::from(sync().is_ok());
            admitted[1] += u64::from(waits().await.is_ok());
        }
        admitted
    };
    for (rule, admitted) in [
        (Rule::new().threshold(3), [3, 3]),
        (Rule::new().threshold(5), [2, 2]),
        (Rule::new().exempt(true), [20, 20]),
    ] {
        limiter.set_rules(of_limit(rule)).expect("valid");
        assert_eq!(block_on(limiter.scope(run())), admitted, "{rule}");
    }
    limiter.set_rules(of_limit(Rule::new().blocked(true))).expect("valid");
    let at_once = limiter.scope(async { sync() }).now_or_never().expect("decided at once");
    for result in [at_once, block_on(limiter.scope(waits()))] {
        assert!(matches!(result, Err(Rejection::Blocked { .. })), "{result:?}");
    }

    let tries = with_rule(RateLimiter::builder(), Rule::new().trial(1));
    let limit = Limit::fixed("ruled", 2, HOUR);
    for expected in [true, true, false] {
        assert_eq!(poll_once(tries.check(&limit, "key", 1)).is_ok(), expected);
    }
    assert_eq!(rejected(&tries), (1, 2));
}
