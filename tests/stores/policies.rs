//! What a limit says beyond its numbers: who counts together, what to do when Redis cannot decide,
//! and whether to refuse at all.

use std::time::Duration;

use ratelimit_runtime::{
    Clock, Limit, OnError, Part, RateLimiter, Rejection, Scope, Source, VirtualClock,
};
use support::ALGORITHMS;
use support::server::Server;

use crate::{Timed, decision};

const HOUR: Duration = Duration::from_secs(3600);
const LIMIT: Limit = Limit::sliding("policies", 3, HOUR);

/// A limiter whose Redis is gone after one call was counted there.
async fn bereft() -> RateLimiter {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid");
    for on_error in [OnError::Local, OnError::Allow, OnError::Deny] {
        let decision = limiter.check(&LIMIT.on_error(on_error), "key", 1).await.expect("admitted");
        assert_eq!(decision.source, Source::Redis);
    }
    limiter
}

#[tokio::test]
async fn local_counts_in_this_process_by_the_same_limit() {
    let limiter = bereft().await;
    let limit = LIMIT.on_error(OnError::Local);
    for remaining in [2, 1, 0] {
        let decision = limiter.check(&limit, "key", 1).await.expect("admitted");
        assert_eq!((decision.remaining, decision.source), (remaining, Source::Fallback));
    }
    let Err(Rejection::Limited { decision, .. }) = limiter.check(&limit, "key", 1).await else {
        panic!("the local count is exceeded")
    };
    assert_eq!(decision.source, Source::Fallback);
    assert_eq!(limiter.refund(&limit, "key", 1).await.expect("local").remaining, 1);
    assert!(limiter.check(&limit, "another", 3).await.is_ok());
    assert!(limiter.peek(&limit, "another", 0).await.is_ok_and(|peek| peek.remaining == 0));
}

#[tokio::test]
async fn local_admits_a_share_when_it_knows_of_others() {
    let server = Server::start();
    let limiter = server.builder().on_error(OnError::Local).instances(4).build().expect("valid");
    let limits = ALGORITHMS.map(|algorithm| {
        let limit = Limit::new("share", algorithm, 10, HOUR).expect("valid");
        if limit.capacity() == 1 { limit.burst(9) } else { limit }
    });
    for limit in &limits {
        // All of it where Redis decides.
        assert!(limiter.check(limit, "key", 9).await.is_ok());
    }
    drop(server);
    for limit in &limits {
        for remaining in [1, 0] {
            let decision = limiter.check(limit, "key", 1).await.expect("admitted");
            assert_eq!((decision.remaining, decision.source), (remaining, Source::Fallback));
        }
        assert!(limiter.check(limit, "key", 1).await.is_err());
        // A call that costs more than the share takes it all.
        assert_eq!(limiter.check(limit, "dear", 9).await.expect("admitted").remaining, 0);
        assert!(limiter.check(limit, "dear", 1).await.is_err());
        let parts = [Part::new(limit, &"together", 2)];
        assert!(limiter.check_all(&parts).await.is_ok());
        assert!(limiter.check_all(&parts).await.is_err());
        // And never less than one.
        let one = Limit::new("one", limit.algorithm(), 2, HOUR).expect("valid");
        assert!(limiter.check(&one, "key", 1).await.is_ok());
        assert!(limiter.check(&one, "key", 1).await.is_err());
    }
}

#[tokio::test]
async fn a_reset_goes_for_the_local_count_as_well() {
    let limiter = bereft().await;
    let limit = LIMIT.on_error(OnError::Local);
    limiter.check(&limit, "key", 3).await.expect("admitted");
    assert!(limiter.reset(&limit, "key").await.is_err(), "Redis still is away");
    assert!(limiter.check(&limit, "key", 3).await.is_ok());
}

#[tokio::test]
async fn allow_admits_and_says_that_nobody_decided() {
    let limiter = bereft().await;
    let limit = LIMIT.on_error(OnError::Allow);
    for _ in 0..10 {
        let decision = limiter.check(&limit, "key", 1).await.expect("admitted");
        assert_eq!((decision.allowed, decision.source), (true, Source::Fallback));
    }
    assert!(limiter.refund(&limit, "key", 1).await.is_err(), "nothing was given back");
}

#[tokio::test]
async fn deny_refuses_and_does_not_call_it_a_limit() {
    let limiter = bereft().await;
    let limit = LIMIT.on_error(OnError::Deny);
    for _ in 0..10 {
        let refused = limiter.check(&limit, "key", 1).await;
        assert!(matches!(refused, Err(Rejection::Unavailable { .. })), "{refused:?}");
    }
}

#[tokio::test]
async fn the_limiter_says_what_a_limit_does_not() {
    let unreachable = || RateLimiter::builder().redis("redis://127.0.0.1:1");
    let local = unreachable().build().expect("valid");
    assert_eq!(local.check(&LIMIT, (), 1).await.expect("local").source, Source::Fallback);
    assert_eq!(local.check(&LIMIT, (), 1).await.expect("local").remaining, 1);
    let deny = unreachable().on_error(OnError::Deny).build().expect("valid");
    assert!(deny.check(&LIMIT, (), 1).await.is_err());
    assert!(deny.check(&LIMIT.on_error(OnError::Allow), (), 1).await.is_ok());
}

#[tokio::test]
async fn process_counts_here_whatever_store_is_configured() {
    const MINE: Limit = LIMIT.scope(Scope::Process);
    let server = Server::start();
    let limiters = [(); 2].map(|()| server.builder().build().expect("valid"));
    for limiter in &limiters {
        for remaining in [2, 1, 0] {
            let decision = limiter.check(&MINE, "key", 1).await.expect("admitted");
            assert_eq!((decision.remaining, decision.source), (remaining, Source::Embedded));
        }
        assert!(limiter.check(&MINE, "key", 1).await.is_err());
        limiter.refund(&MINE, "key", 1).await.expect("local");
        assert!(limiter.check(&MINE, "key", 1).await.is_ok());
        limiter.reset(&MINE, "key").await.expect("local");
        assert_eq!(limiter.peek(&MINE, "key", 1).await.expect("local").remaining, 3);
    }
    assert_eq!(server.lives(), [], "nothing is counted on Redis");
    // The same name and key elsewhere are another count.
    assert!(limiters[0].check(&LIMIT, "key", 3).await.is_ok());
    assert!(limiters[1].check(&LIMIT, "key", 1).await.is_err());
}

#[tokio::test]
async fn a_shadow_decides_and_counts_and_never_refuses() {
    const SHADOW: Limit = LIMIT.shadow(true);
    let server = Server::start();
    for timed in [Timed::embedded(), Timed::redis(&server)] {
        let limiter = &timed.limiter;
        for _ in 0..3 {
            assert!(limiter.check(&SHADOW, "key", 1).await.expect("admitted").allowed);
        }
        let would_refuse = limiter.check(&SHADOW, "key", 1).await.expect("never refused");
        assert!(!would_refuse.allowed);
        assert_eq!(would_refuse.retry_after, HOUR);
        let never = limiter.check(&SHADOW, "key", 4).await.expect("never refused");
        assert_eq!((never.allowed, never.retry_after), (false, Duration::MAX));
        // It counted: the limit itself is reached.
        assert!(limiter.check(&LIMIT, "key", 1).await.is_err());
        timed.advance(3_600_000_000);
        assert!(limiter.check(&SHADOW, "key", 1).await.expect("admitted").allowed);
    }
    let limiter = bereft().await;
    let undecided = limiter.check(&SHADOW.on_error(OnError::Deny), "key", 1).await;
    assert_eq!(undecided.expect("never refused").source, Source::Fallback);
}

/// The local count of a fallback keeps the limiter's clock.
#[tokio::test]
async fn a_fallback_keeps_time() {
    let clock = VirtualClock::new();
    let limiter = RateLimiter::builder()
        .redis("redis://127.0.0.1:1")
        .clock(Clock::Virtual(clock.clone()))
        .build()
        .expect("valid");
    assert!(limiter.check(&LIMIT, "key", 3).await.is_ok());
    let refused = limiter.check(&LIMIT, "key", 1).await;
    assert_eq!(decision(refused).retry_after, HOUR);
    clock.advance(HOUR);
    assert!(limiter.check(&LIMIT, "key", 3).await.is_ok());
}
