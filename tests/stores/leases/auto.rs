//! Automatic leases: only busy keys are leased, and never more than one percent of the threshold stands idle.

use ratelimit_runtime::{
    Limit, Mistake, Part, RateLimiter, Rejection, Source, VirtualClock, rate_limit,
};
use support::limits::{MINUTE, is_bucket};
use support::server::Server;

use super::{LEASED, TERM, remaining, spend};
use crate::{decision, on_both_stores, wait_until};

/// So many calls of a key within a term make it busy.
const BUSY: u64 = 8;

const WINDOW: Limit = Limit::sliding("auto", 10_000, MINUTE).auto_lease();
const BUCKET: Limit = Limit::token_bucket("auto", 10_000, MINUTE).burst(5_000).auto_lease();

/// Makes calls, and returns whether Redis has decided each of them.
async fn are_decided_by_redis(limiter: &RateLimiter, limit: &Limit, key: &str, calls: u64) -> bool {
    let mut by_redis = 0;
    for _ in 0..calls {
        let decision = limiter.check(limit, key, 1).await.expect("admitted");
        by_redis += u64::from(decision.source == Source::Redis);
    }
    by_redis == calls
}

#[tokio::test]
async fn a_busy_key_is_leased_until_a_shutdown_and_little_stands_idle() {
    for limit in [WINDOW, BUCKET, Limit::fixed("auto", 10_000, MINUTE).auto_lease()] {
        let (server, clock) = (Server::start(), VirtualClock::new());
        let limiter = server.limiter_on(&clock);
        let most_idle = limit.capacity() / 100;
        // A bucket withholds what refills in a term.
        let kept = if is_bucket(limit.algorithm()) { 100 } else { 0 };
        let full = remaining(&server, &clock, &limit).await;
        for round in 1..=40 {
            assert_eq!(spend(&limiter, &limit, 100).await, 100);
            let charged = full - remaining(&server, &clock, &limit).await;
            let spent = round * 100;
            assert!((spent..=spent + most_idle + kept).contains(&charged), "{charged} for {spent}");
        }
        let scripts = server.script_calls() - 41;
        assert!(scripts < 4_000 / most_idle + 2 * BUSY, "{limit:?}: {scripts} scripts");
        assert!(are_decided_by_redis(&limiter, &limit, "few calls", BUSY - 1).await, "{limit:?}");
        clock.advance(TERM);
        if !is_bucket(limit.algorithm()) {
            wait_until(async || remaining(&server, &clock, &limit).await == full - 4_000).await;
        }
        limiter.shutdown().await.expect("the units are returned");
        assert!(are_decided_by_redis(&limiter, &limit, "key", 2 * BUSY).await, "{limit:?}");
    }
}

/// While a key is leased, the burst of a bucket is smaller by what refills in a term: 100 tokens in 600 ms.
#[tokio::test]
async fn a_bucket_has_its_whole_burst_while_it_is_not_leased() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let limiter = server.limiter_on(&clock);
    assert_eq!(limiter.check(&BUCKET, "whole", 5_000).await.expect("admitted").remaining, 0);
    assert!(limiter.check(&BUCKET, "whole", 1).await.is_err());

    assert!(!are_decided_by_redis(&limiter, &BUCKET, "key", BUSY + 2).await, "the key is busy");
    assert_eq!(limiter.check(&BUCKET, "key", 1).await.expect("admitted").limit, 4_900);
    // A call of more units than a lease has goes to Redis.
    let large = limiter.check(&BUCKET, "key", 51).await.expect("admitted");
    assert_eq!((large.source, large.limit), (Source::Redis, 5_000));
    let rejected = decision(limiter.check(&BUCKET, "key", 4_900).await);
    assert!(!rejected.allowed, "the lease keeps back what refills");
    clock.advance(MINUTE);
    wait_until(async || remaining(&server, &clock, &BUCKET).await == 5_000).await;
    assert_eq!(limiter.check(&BUCKET, "key", 5_000).await.expect("admitted").remaining, 0);
}

#[rate_limit(
    name = "auto by plan", period = 60, algo = "token_bucket", threshold = threshold, burst = threshold,
    key = plan, lease = "auto"
)]
async fn by_plan(plan: &str, threshold: u64) -> Result<(), Rejection> {
    Ok(())
}

#[tokio::test]
async fn limits_with_computed_amounts_lease_automatically() {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid settings");
    let run = async {
        for (plan, threshold, most) in [("free", 90, 90), ("paid", 50_000, 60)] {
            let before = server.script_calls();
            for _ in 0..90 {
                by_plan(plan, threshold).await.expect("admitted");
            }
            let scripts = server.script_calls() - before;
            assert!(scripts <= most && (plan == "paid" || scripts == 90), "{plan}: {scripts}");
        }
    };
    limiter.scope(run).await;
}

on_both_stores! {
    /// A charge of a limit that leases cannot be settled, and another limit of its count must lease as well.
    async fn an_automatic_lease_is_a_lease(test: TestLimiter) {
        let leased = [Part::new(&LEASED, &"key", 1)];
        let alone = test.limiter.acquire(&WINDOW, "key", 1).await.expect_err("leased");
        let several = test.limiter.acquire_all(&leased).await.expect_err("leased");
        for rejection in [alone, several] {
            let Rejection::Mistake { mistake, .. } = rejection else { panic!("{rejection}") };
            assert_eq!(mistake, Mistake::Leased);
        }
        let plain = Limit::sliding("auto", 9, MINUTE);
        let parts = [&WINDOW, &plain].map(|limit| Part::new(limit, &"key", 1));
        let error = test.limiter.check_all(&parts).await.expect_err("one count");
        let Rejection::Mistake { mistake, .. } = error else { panic!("{error}") };
        assert!(matches!(mistake, Mistake::SharedCount { .. }), "{mistake:?}");
    }
}
