//! Refusals that are remembered: as the store would refuse, without asking it.

use std::time::Duration;

use ratelimit_runtime::{Limit, RateLimiter, Source};
use support::ALGORITHMS;
use support::server::Server;

use crate::{Timed, decision};

const LIMIT: Limit = Limit::sliding("refusals", 2, Duration::from_secs(60));

async fn source(limiter: &RateLimiter, limit: &Limit, key: &str) -> (bool, Source) {
    let decision = decision(limiter.check(limit, key, 1).await);
    (decision.allowed, decision.source)
}

#[tokio::test]
async fn who_hammers_is_refused_without_asking() {
    let server = Server::start();
    for algorithm in ALGORITHMS {
        let timed = Timed::redis(&server);
        // A sliding counter, too, refuses for less than the second that a refusal is remembered.
        let limit = Limit::new("hammer", algorithm, 3, Duration::from_millis(700)).expect("valid");
        let check = async || decision(timed.limiter.check(&limit, "key", 1).await);
        while check().await.allowed {}
        let refused = check().await;
        let asked = server.script_calls();
        let mut waited = Duration::ZERO;
        let step = Duration::from_micros(refused.retry_after.as_micros() as u64 / 7);
        while waited + step < refused.retry_after * 9 / 10 {
            timed.clock.advance(step);
            waited += step;
            let again = check().await;
            assert_eq!((again.allowed, again.source), (false, Source::Cache), "{algorithm}");
            assert_eq!(again.retry_after, refused.retry_after - waited);
            assert_eq!(again.reset_after, refused.reset_after - waited);
            assert_eq!((again.remaining, again.limit), (0, refused.limit));
        }
        assert_eq!(server.script_calls(), asked, "{algorithm}");
        // To the microsecond at which it is admitted.
        timed.clock.advance(refused.retry_after - waited - Duration::from_micros(1));
        assert!(!check().await.allowed);
        timed.clock.advance(Duration::from_micros(1));
        assert!(check().await.allowed, "{algorithm}");
    }
}

#[tokio::test]
async fn what_is_given_back_is_seen() {
    let server = Server::start();
    let (here, there) = (Timed::redis(&server), Timed::redis(&server));
    there.clock.set(here.clock.now());
    let fill = async |key| while source(&here.limiter, &LIMIT, key).await.0 {};

    fill("refund").await;
    assert_eq!(source(&here.limiter, &LIMIT, "refund").await, (false, Source::Cache));
    here.limiter.refund(&LIMIT, "refund", 1).await.expect("Redis");
    assert_eq!(source(&here.limiter, &LIMIT, "refund").await, (true, Source::Redis));

    fill("reset").await;
    here.limiter.reset(&LIMIT, "reset").await.expect("Redis");
    assert_eq!(source(&here.limiter, &LIMIT, "reset").await, (true, Source::Redis));

    // Elsewhere, within a second.
    fill("elsewhere").await;
    there.limiter.refund(&LIMIT, "elsewhere", 1).await.expect("Redis");
    assert_eq!(source(&here.limiter, &LIMIT, "elsewhere").await, (false, Source::Cache));
    here.clock.advance(Duration::from_secs(1));
    assert_eq!(source(&here.limiter, &LIMIT, "elsewhere").await, (true, Source::Redis));
}

#[tokio::test]
async fn only_what_must_be_refused_is() {
    let server = Server::start();
    let timed = Timed::redis(&server);
    while source(&timed.limiter, &LIMIT, "key").await.0 {}
    assert_eq!(source(&timed.limiter, &LIMIT, "key").await, (false, Source::Cache));
    // Another key, another threshold, a look, no cost, and more than one are asked about.
    assert_eq!(source(&timed.limiter, &LIMIT, "other").await, (true, Source::Redis));
    let larger = Limit::sliding("refusals", 3, Duration::from_secs(60));
    assert_eq!(source(&timed.limiter, &larger, "key").await, (true, Source::Redis));
    while source(&timed.limiter, &LIMIT, "key").await.1 != Source::Cache {}
    for cost in [0, 2] {
        let answer = decision(timed.limiter.check(&LIMIT, "key", cost).await);
        assert_eq!((answer.allowed, answer.source), (cost == 0, Source::Redis));
    }
    let peek = timed.limiter.peek(&LIMIT, "key", 1).await.expect("a decision");
    assert_eq!(peek.source, Source::Redis);
    // A shadow really decides.
    let shadow = LIMIT.shadow(true);
    for _ in 0..3 {
        let answer = timed.limiter.check(&shadow, "key", 1).await.expect("goes on");
        assert_eq!((answer.allowed, answer.source), (false, Source::Redis));
    }

    let forgetful = server.builder().cache_rejections(false).build().expect("valid");
    for _ in 0..5 {
        assert_eq!(source(&forgetful, &LIMIT, "forgetful").await.1, Source::Redis);
    }
}
