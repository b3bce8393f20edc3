//! Rules beside permits, leases, shadows and fallbacks, and without a runtime.

use std::time::Duration;

use futures::FutureExt;
use futures::executor::block_on;
use ratelimit_runtime::{
    Limit, OnError, Part, RateLimiter, Rejection, Rule, RuleSet, Source, rate_limit,
};
use support::limits::{HOUR, MINUTE, SECOND, limits};
use support::proxy::Proxy;
use support::server::Server;

use super::{blocked, of_limit};
use crate::{TestLimiter, on_both_stores};

on_both_stores! {
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
            test.set_rules(of_limit(Rule::new().blocked(true)));
            assert!(matches!(acquire(1).await, Err(Rejection::Blocked { .. })));
            test.set_rules(RuleSet::new());
            test.limiter.flush().await.expect("settled");
            assert_eq!(left(&limit).await, 4);

            for (rule, charged) in [
                (Rule::new().exempt(true), 0),
                (Rule::new().shadow(true), 1),
                (Rule::new().shadow(true).blocked(true), 0),
                (Rule::new().threshold(20).burst(20), 1),
            ] {
                let before = (left(&limit).await, left(&other).await);
                test.set_rules(of_limit(rule));
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
            test.limiter.reset(&limit, "key").await.expect("reset");
            test.limiter.reset(&other, "key").await.expect("reset");
        }
    }

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
    test.set_rules(of_limit(Rule::new().blocked(true)));
    assert_eq!(blocked(&check().await), None);
    test.set_rules(of_limit(Rule::new().exempt(true)));
    assert_eq!(check().await.expect("exempt").remaining, u64::MAX);
    // Its count is the same, and the units were leased under another threshold.
    test.set_rules(of_limit(Rule::new().threshold(10)));
    assert!(check().await.is_err(), "more than 20 are charged");
    test.advance(1_000_000);
    assert!(check().await.is_err());
    test.set_rules(RuleSet::new());
    assert!(check().now_or_never().is_none() || check().await.is_ok());
}

/// What a call was admitted for is not charged again if the rules change before its shadows are decided.
#[tokio::test(flavor = "multi_thread")]
async fn an_admitted_call_is_charged_once() {
    let server = Server::start();
    let proxy = Proxy::with_latency(server.port(), Duration::from_millis(100));
    let limiter = proxy.builder().deadline(10 * SECOND).build().expect("valid");
    let limits = ["enforced", "ruled"].map(|name| Limit::sliding(name, 100, HOUR).wait(5 * SECOND));
    limiter.ping().await.expect("connected");
    for delay in [20, 70, 120, 170, 220] {
        limiter.set_rules(of_limit(Rule::new().shadow(true))).expect("valid");
        let call = tokio::spawn({
            let (limiter, limits) = (limiter.clone(), limits);
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

#[tokio::test]
async fn a_fallback_shares_the_amounts_of_the_rule() {
    let builder = RateLimiter::builder().redis("redis://127.0.0.1:1").instances(4);
    let limiter = builder.on_error(OnError::Local).deadline(SECOND / 5).build().expect("valid");
    for limit in limits("ruled", 8, MINUTE) {
        for (threshold, share) in [(8, 2), (40, 10), (1, 1)] {
            let rule = Rule::new().threshold(threshold).burst(threshold);
            limiter.set_rules(of_limit(rule)).expect("valid");
            let mut admitted = 0;
            for _ in 0..50 {
                admitted += u64::from(limiter.check(&limit, threshold, 1).await.is_ok());
            }
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
}
