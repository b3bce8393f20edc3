//! The policies of a limit: `scope`, `on_error` and `shadow`.

use std::time::Duration;

use ratelimit_runtime::{Builder, Limit, OnError, Part, RateLimiter, Rejection, Scope, Source};
use support::limits::{HOUR, limits};
use support::server::Server;

const LIMIT: Limit = Limit::sliding("policies", 3, HOUR);

fn without_redis() -> Builder {
    RateLimiter::builder().redis("redis://127.0.0.1:1")
}

/// Asserts what each of several calls leaves, and that the next one is rejected.
async fn assert_admits(limiter: &RateLimiter, limit: &Limit, left: &[u64], source: Source) {
    for left in left {
        let decision = limiter.check(limit, "key", 1).await.expect("admitted");
        assert_eq!((decision.remaining, decision.source), (*left, source), "{limit:?}");
    }
    let rejected = limiter.check(limit, "key", 1).await;
    let Err(Rejection::Limited { decision, .. }) = rejected else { panic!("{rejected:?}") };
    assert_eq!(decision.source, source, "{limit:?}");
}

#[tokio::test]
async fn local_admits_the_share_of_one_of_several_instances() {
    let server = Server::start();
    let limiter = server.builder().on_error(OnError::Local).instances(4).build().expect("valid");
    let limits = limits("share", 10, HOUR);
    for limit in limits.clone() {
        // Redis admits the whole threshold.
        assert!(limiter.check(&limit, "key", 9).await.is_ok());
    }
    drop(server);
    for limit in limits {
        assert_admits(&limiter, &limit, &[1, 0], Source::Fallback).await;
        assert_eq!(limiter.credit(&limit, "key", 1).await.expect("local").remaining, 1);
        // A call that costs more than the share takes all of it.
        assert_eq!(limiter.check(&limit, "expensive", 9).await.expect("admitted").remaining, 0);
        assert!(limiter.check(&limit, "expensive", 1).await.is_err());
        let parts = [Part::new(&limit, &"check_all", 2)];
        assert!(limiter.check_all(&parts).await.is_ok());
        assert!(limiter.check_all(&parts).await.is_err());
        // The share is at least one unit.
        let one = Limit::new("one", limit.algorithm(), 2, HOUR).expect("valid");
        assert_admits(&limiter, &one, &[0], Source::Fallback).await;
    }
}

#[tokio::test]
async fn allow_admits_and_reports_the_fallback_as_the_source() {
    let limiter = without_redis().build().expect("valid");
    let limit = LIMIT.on_error(OnError::Allow);
    for _ in 0..10 {
        let decision = limiter.check(&limit, "key", 1).await.expect("admitted");
        assert_eq!((decision.allowed, decision.source), (true, Source::Fallback));
    }
    assert!(limiter.credit(&limit, "key", 1).await.is_err(), "nothing was given back");
}

#[tokio::test]
async fn deny_rejects_with_unavailable() {
    let default = without_redis().build().expect("valid");
    let denying = without_redis().on_error(OnError::Deny).build().expect("valid");
    for (limiter, limit) in [(&default, LIMIT.on_error(OnError::Deny)), (&denying, LIMIT)] {
        for _ in 0..10 {
            let rejected = limiter.check(&limit, "key", 1).await;
            assert!(matches!(rejected, Err(Rejection::Unavailable { .. })), "{rejected:?}");
        }
    }
    // The policy of the limit is stronger than that of the limiter.
    denying.check(&LIMIT.on_error(OnError::Allow), "key", 1).await.expect("admitted");
}

#[tokio::test]
async fn process_scope_counts_in_the_process_with_any_store() {
    const PER_PROCESS: Limit = LIMIT.scope(Scope::Process);
    let server = Server::start();
    let redis = || server.builder().build().expect("valid");
    let limiters = [redis(), redis(), RateLimiter::embedded()];
    for limiter in &limiters {
        assert_admits(limiter, &PER_PROCESS, &[2, 1, 0], Source::Embedded).await;
        limiter.reset(&PER_PROCESS, "key").await.expect("local");
        assert!(limiter.check(&PER_PROCESS, "key", 3).await.is_ok());
        limiter.credit(&PER_PROCESS, "key", 1).await.expect("local");
        assert_eq!(limiter.peek(&PER_PROCESS, "key", 1).await.expect("local").remaining, 1);
    }
    assert_eq!(server.ttls(), [], "no key is on Redis");
    // The same name and key are another count of the store.
    for (limiter, is_admitted) in limiters.iter().zip([true, false, true]) {
        assert_eq!(limiter.check(&LIMIT, "key", 3).await.is_ok(), is_admitted);
    }
}

crate::on_both_stores! {
    async fn a_shadow_counts_and_never_rejects(test: TestLimiter) {
        let shadow = LIMIT.shadow(true);
        let admitted = (1, true, Duration::ZERO);
        let rejected = [(1, false, HOUR), (4, false, Duration::MAX)];
        for (cost, allowed, wait) in [admitted; 3].into_iter().chain(rejected) {
            let decided = test.limiter.check(&shadow, "key", cost).await.expect("a shadow admits");
            assert_eq!((decided.allowed, decided.retry_after), (allowed, wait));
        }
        assert!(!test.allows(&LIMIT, 1).await, "the shadow counts");
    }
}

#[tokio::test]
async fn a_shadow_without_redis_never_rejects() {
    let limiter = without_redis().build().expect("valid");
    let shadow = LIMIT.shadow(true).on_error(OnError::Deny);
    let undecided = limiter.check(&shadow, "key", 1).await;
    assert_eq!(undecided.expect("a shadow admits").source, Source::Fallback);
}
