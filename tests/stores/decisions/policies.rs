//! The policies of a limit: `scope`, `on_error` and `shadow`.

use std::time::Duration;

use ratelimit_runtime::{
    Clock, Limit, OnError, Part, RateLimiter, Rejection, Scope, Source, VirtualClock,
};
use support::ALGORITHMS;
use support::limits::HOUR;
use support::server::Server;

use crate::{TestLimiter, decision};

const LIMIT: Limit = Limit::sliding("policies", 3, HOUR);

/// A limiter whose Redis was stopped after some calls were counted there.
async fn limiter_without_its_redis() -> RateLimiter {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid");
    for on_error in [OnError::Local, OnError::Allow, OnError::Deny] {
        let decision = limiter.check(&LIMIT.on_error(on_error), "key", 1).await.expect("admitted");
        assert_eq!(decision.source, Source::Redis);
    }
    limiter
}

/// Without Redis, as with Redis.
#[test]
fn a_scope_has_a_count_of_its_own() {
    const LIMIT: Limit = Limit::fixed("scopes", 1, Duration::from_secs(60));
    let limiter = RateLimiter::embedded();
    for limit in [LIMIT, LIMIT.scope(Scope::Process)] {
        assert!(limiter.check_blocking(&limit, "key", 1).is_ok());
        assert!(limiter.check_blocking(&limit, "key", 1).is_err());
    }
    let global = LIMIT.scope(Scope::Process).scope(Scope::Global);
    assert!(limiter.check_blocking(&global, "key", 1).is_err());
}

#[tokio::test]
async fn local_falls_back_to_a_count_in_the_process() {
    let limiter = limiter_without_its_redis().await;
    let limit = LIMIT.on_error(OnError::Local);
    for remaining in [2, 1, 0] {
        let decision = limiter.check(&limit, "key", 1).await.expect("admitted");
        assert_eq!((decision.remaining, decision.source), (remaining, Source::Fallback));
    }
    let Err(Rejection::Limited { decision, .. }) = limiter.check(&limit, "key", 1).await else {
        panic!("the local count is exceeded")
    };
    assert_eq!(decision.source, Source::Fallback);
    assert_eq!(limiter.credit(&limit, "key", 1).await.expect("local").remaining, 1);
    assert!(limiter.check(&limit, "another", 3).await.is_ok());
    assert!(limiter.peek(&limit, "another", 0).await.is_ok_and(|peek| peek.remaining == 0));
}

#[tokio::test]
async fn local_admits_the_share_of_one_of_several_instances() {
    let server = Server::start();
    let limiter = server.builder().on_error(OnError::Local).instances(4).build().expect("valid");
    let limits = ALGORITHMS.map(|algorithm| {
        let limit = Limit::new("share", algorithm, 10, HOUR).expect("valid");
        if limit.capacity() == 1 { limit.burst(9) } else { limit }
    });
    for limit in &limits {
        // Redis admits the whole threshold.
        assert!(limiter.check(limit, "key", 9).await.is_ok());
    }
    drop(server);
    for limit in &limits {
        for remaining in [1, 0] {
            let decision = limiter.check(limit, "key", 1).await.expect("admitted");
            assert_eq!((decision.remaining, decision.source), (remaining, Source::Fallback));
        }
        assert!(limiter.check(limit, "key", 1).await.is_err());
        // A call that costs more than the share takes all of it.
        assert_eq!(limiter.check(limit, "expensive", 9).await.expect("admitted").remaining, 0);
        assert!(limiter.check(limit, "expensive", 1).await.is_err());
        let parts = [Part::new(limit, &"check_all", 2)];
        assert!(limiter.check_all(&parts).await.is_ok());
        assert!(limiter.check_all(&parts).await.is_err());
        // The share is at least one unit.
        let one = Limit::new("one", limit.algorithm(), 2, HOUR).expect("valid");
        assert!(limiter.check(&one, "key", 1).await.is_ok());
        assert!(limiter.check(&one, "key", 1).await.is_err());
    }
}

#[tokio::test]
async fn a_reset_drops_the_local_count_as_well() {
    let limiter = limiter_without_its_redis().await;
    let limit = LIMIT.on_error(OnError::Local);
    limiter.check(&limit, "key", 3).await.expect("admitted");
    assert!(limiter.reset(&limit, "key").await.is_err(), "Redis is down");
    assert!(limiter.check(&limit, "key", 3).await.is_ok());
}

#[tokio::test]
async fn allow_admits_and_reports_the_fallback_as_the_source() {
    let limiter = limiter_without_its_redis().await;
    let limit = LIMIT.on_error(OnError::Allow);
    for _ in 0..10 {
        let decision = limiter.check(&limit, "key", 1).await.expect("admitted");
        assert_eq!((decision.allowed, decision.source), (true, Source::Fallback));
    }
    assert!(limiter.credit(&limit, "key", 1).await.is_err(), "nothing was given back");
}

#[tokio::test]
async fn deny_rejects_with_unavailable() {
    let limiter = limiter_without_its_redis().await;
    let limit = LIMIT.on_error(OnError::Deny);
    for _ in 0..10 {
        let rejected = limiter.check(&limit, "key", 1).await;
        assert!(matches!(rejected, Err(Rejection::Unavailable { .. })), "{rejected:?}");
    }
}

#[tokio::test]
async fn the_limiter_sets_on_error_for_limits_that_do_not() {
    let unreachable = || RateLimiter::builder().redis("redis://127.0.0.1:1");
    let local = unreachable().build().expect("valid");
    assert_eq!(local.check(&LIMIT, (), 1).await.expect("local").source, Source::Fallback);
    assert_eq!(local.check(&LIMIT, (), 1).await.expect("local").remaining, 1);
    let deny = unreachable().on_error(OnError::Deny).build().expect("valid");
    assert!(deny.check(&LIMIT, (), 1).await.is_err());
    assert!(deny.check(&LIMIT.on_error(OnError::Allow), (), 1).await.is_ok());
}

#[tokio::test]
async fn process_scope_counts_in_the_process_with_any_store() {
    const PER_PROCESS: Limit = LIMIT.scope(Scope::Process);
    let server = Server::start();
    let limiters = [(); 2].map(|()| server.builder().build().expect("valid"));
    for limiter in &limiters {
        for remaining in [2, 1, 0] {
            let decision = limiter.check(&PER_PROCESS, "key", 1).await.expect("admitted");
            assert_eq!((decision.remaining, decision.source), (remaining, Source::Embedded));
        }
        assert!(limiter.check(&PER_PROCESS, "key", 1).await.is_err());
        limiter.credit(&PER_PROCESS, "key", 1).await.expect("local");
        assert!(limiter.check(&PER_PROCESS, "key", 1).await.is_ok());
        limiter.reset(&PER_PROCESS, "key").await.expect("local");
        assert_eq!(limiter.peek(&PER_PROCESS, "key", 1).await.expect("local").remaining, 3);
    }
    assert_eq!(server.ttls(), [], "no key is on Redis");
    // On Redis, the same name and key are another count.
    assert!(limiters[0].check(&LIMIT, "key", 3).await.is_ok());
    assert!(limiters[1].check(&LIMIT, "key", 1).await.is_err());
}

#[tokio::test]
async fn a_shadow_counts_and_never_rejects() {
    const SHADOW: Limit = LIMIT.shadow(true);
    let server = Server::start();
    for test in [TestLimiter::embedded(), TestLimiter::redis(&server)] {
        let limiter = &test.limiter;
        for _ in 0..3 {
            assert!(limiter.check(&SHADOW, "key", 1).await.expect("admitted").allowed);
        }
        let decision = limiter.check(&SHADOW, "key", 1).await.expect("a shadow admits");
        assert!(!decision.allowed);
        assert_eq!(decision.retry_after, HOUR);
        let never = limiter.check(&SHADOW, "key", 4).await.expect("a shadow admits");
        assert_eq!((never.allowed, never.retry_after), (false, Duration::MAX));
        // The shadow counts, so the limit is reached.
        assert!(limiter.check(&LIMIT, "key", 1).await.is_err());
        test.advance(3_600_000_000);
        assert!(limiter.check(&SHADOW, "key", 1).await.expect("admitted").allowed);
    }
    let limiter = limiter_without_its_redis().await;
    let undecided = limiter.check(&SHADOW.on_error(OnError::Deny), "key", 1).await;
    assert_eq!(undecided.expect("a shadow admits").source, Source::Fallback);
}

#[tokio::test]
async fn a_fallback_uses_the_clock_of_the_limiter() {
    let clock = VirtualClock::new();
    let limiter = RateLimiter::builder()
        .redis("redis://127.0.0.1:1")
        .clock(Clock::Virtual(clock.clone()))
        .build()
        .expect("valid");
    assert!(limiter.check(&LIMIT, "key", 3).await.is_ok());
    let rejected = limiter.check(&LIMIT, "key", 1).await;
    assert_eq!(decision(rejected).retry_after, HOUR);
    clock.advance(HOUR);
    assert!(limiter.check(&LIMIT, "key", 3).await.is_ok());
}
