//! Rules beside what decides without a request, or without a runtime.

use std::time::Duration;

use futures::executor::block_on;
use futures::{FutureExt, StreamExt, stream};
use ratelimit_runtime::stream::RateLimitStreamExt;
use ratelimit_runtime::{
    Limit, OnError, RateLimiter, Rejection, Rule, RuleSet, Source, rate_limit,
};
use support::ALGORITHMS;
use support::limits::MINUTE;
use support::server::Server;
use tokio::time::timeout;

use crate::on_both_stores;

fn set(limiter: &RateLimiter, rule: Rule) {
    let mut rules = RuleSet::new();
    rules.set("paired", rule).expect("valid");
    limiter.set_rules(rules).expect("valid");
}

fn limits() -> impl Iterator<Item = Limit> {
    ALGORITHMS.into_iter().map(|it| Limit::new("paired", it, 8, MINUTE).expect("valid"))
}

/// A rejection that was cached under other amounts decides no call.
#[tokio::test]
async fn cached_rejections_are_those_of_the_rule() {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid settings");
    for limit in limits() {
        set(&limiter, Rule::new().threshold(2).burst(2));
        let check = async || limiter.check(&limit, "key", 1).await;
        for _ in 0..2 {
            check().await.expect("admitted");
        }
        for source in [Source::Redis, Source::Cache] {
            let Err(Rejection::Limited { decision, .. }) = check().await else { panic!("limited") };
            assert_eq!((decision.limit, decision.source), (2, source), "{limit:?}");
        }
        set(&limiter, Rule::new().threshold(20).burst(20));
        let decision = check().await.expect("admitted");
        assert_eq!((decision.limit, decision.source), (20, Source::Redis), "{limit:?}");
        set(&limiter, Rule::new().threshold(2).burst(2));
        let Err(Rejection::Limited { decision, .. }) = check().await else { panic!("limited") };
        assert_eq!(decision.limit, 2);
        set(&limiter, Rule::new().blocked(true));
        assert!(matches!(check().await, Err(Rejection::Blocked { .. })));
        set(&limiter, Rule::new().exempt(true));
        check().await.expect("exempt");
        set(&limiter, Rule::new().shadow(true).threshold(1).burst(1));
        assert!(!check().await.expect("a shadow").allowed);
    }
}

/// Without Redis, a process decides by its share of the amounts of the rule.
#[tokio::test]
async fn a_fallback_shares_the_amounts_of_the_rule() {
    let builder = RateLimiter::builder().redis("redis://127.0.0.1:1").instances(4);
    let limiter = builder.on_error(OnError::Local).deadline(Duration::from_millis(200));
    let limiter = limiter.build().expect("valid settings");
    for limit in limits() {
        for (threshold, share) in [(8, 2), (40, 10), (1, 1)] {
            set(&limiter, Rule::new().threshold(threshold).burst(threshold));
            let mut admitted = 0;
            for _ in 0..50 {
                admitted += u64::from(limiter.check(&limit, threshold, 1).await.is_ok());
            }
            assert_eq!(admitted, share, "{limit:?}");
        }
        set(&limiter, Rule::new().blocked(true));
        let blocked = limiter.check(&limit, "key", 1).await;
        assert!(matches!(blocked, Err(Rejection::Blocked { .. })));
    }
}

/// An executor without timers, and functions that are not async.
#[test]
fn rules_hold_without_a_runtime() {
    #[rate_limit(name = "paired", period = "1m", threshold = 8, scope = "process")]
    fn sync() -> Result<(), Rejection> {
        Ok(())
    }
    #[rate_limit(name = "paired", period = "1m", threshold = 8, wait = "10ms")]
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
    let decide = |rule| {
        set(&limiter, rule);
        block_on(limiter.scope(run()))
    };
    assert_eq!(decide(Rule::new().threshold(3)), [3, 3]);
    assert_eq!(decide(Rule::new().threshold(5)), [2, 2]);
    assert_eq!(decide(Rule::new().exempt(true)), [20, 20]);
    set(&limiter, Rule::new().blocked(true));
    assert!(matches!(
        limiter.scope(async { sync() }).now_or_never().expect("decided at once"),
        Err(Rejection::Blocked { .. })
    ));
    let waited = block_on(limiter.scope(waits()));
    assert!(matches!(waited, Err(Rejection::Blocked { .. })), "{waited:?}");
}

on_both_stores! {
    /// The items of a stream obey a new rule, also the one that waits.
    async fn a_stream_obeys_a_new_rule(test: TestLimiter) {
        let limit = Limit::sliding("paired", 2, MINUTE);
        let items = stream::iter(0..20).rate_limited(&limit, "key").limiter(test.limiter.clone());
        let mut items = std::pin::pin!(items);
        // Whether a stream has another item shows only after a while.
        let mut ready = async || {
            let mut count = 0;
            while let Ok(Some(item)) = timeout(Duration::from_millis(100), items.next()).await {
                item.expect("admitted");
                count += 1;
            }
            count
        };
        assert_eq!(ready().await, 2);
        set(&test.limiter, Rule::new().threshold(5));
        assert_eq!(ready().await, 3);
        test.advance(60_000_000);
        assert_eq!(ready().await, 5);
        set(&test.limiter, Rule::new().threshold(1));
        assert_eq!(ready().await, 0);
        test.advance(60_000_000);
        assert_eq!(ready().await, 1);
        set(&test.limiter, Rule::new().exempt(true));
        assert_eq!(ready().await, 9);
    }
}
