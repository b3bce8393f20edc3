//! Automatic leases: only busy keys are leased, and never more than one percent of the threshold stands idle.

use ratelimit_runtime::{
    Limit, Mistake, Part, RateLimiter, Rejection, Rule, RuleSet, Source, VirtualClock, rate_limit,
};
use support::limits::{MINUTE, is_bucket};
use support::server::Server;

use super::{TERM, remaining, spend};
use crate::{TestLimiter, decision, wait_until};

/// So many calls of a key within a term make it busy.
const BUSY: u64 = 8;

const WINDOW: Limit = Limit::sliding("auto", 10_000, MINUTE).auto_lease();
const BUCKET: Limit = Limit::token_bucket("auto", 10_000, MINUTE).burst(5_000).auto_lease();

/// Calls so often that a key becomes busy, and a little more, so that the process holds units.
async fn warm(limiter: &RateLimiter, limit: &Limit) -> u64 {
    let mut calls = 0;
    loop {
        calls += 1;
        let decision = limiter.check(limit, "key", 1).await.expect("admitted");
        if decision.source == Source::Lease {
            return calls;
        }
    }
}

#[tokio::test]
async fn keys_with_few_calls_are_not_leased() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let limiter = server.limiter_on(&clock);
    for limit in [WINDOW, BUCKET] {
        for key in 0..100 {
            for call in 1..BUSY {
                let decision = limiter.check(&limit, key, 1).await.expect("admitted");
                assert_eq!(decision.source, Source::Redis);
                assert_eq!(decision.limit, limit.capacity());
                assert_eq!(decision.remaining, limit.capacity() - call);
            }
        }
        clock.advance(TERM);
        // The first calls of a later term do not count together with those before it.
        for _ in 1..BUSY {
            let decision = limiter.check(&limit, 1, 1).await.expect("admitted");
            assert_eq!(decision.source, Source::Redis);
        }
    }
}

#[tokio::test]
async fn a_busy_key_is_leased_and_little_stands_idle() {
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
        clock.advance(TERM);
        if !is_bucket(limit.algorithm()) {
            wait_until(async || remaining(&server, &clock, &limit).await == full - 4_000).await;
        }
    }
}

/// The fewer units are left, the fewer a process requests in advance: the last ones are free for all processes.
#[tokio::test]
async fn no_units_stand_idle_while_calls_are_rejected() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let limiters: Vec<_> = (0..10).map(|_| server.limiter_on(&clock)).collect();
    let mut admitted = 0;
    for _ in 0..25 {
        for limiter in &limiters {
            admitted += spend(limiter, &WINDOW, 50).await;
        }
    }
    assert!((9_990..=10_000).contains(&admitted), "{admitted}");
}

/// While a key is leased, the burst of a bucket is smaller by what refills in a term: 100 tokens in 600 ms.
#[tokio::test]
async fn a_bucket_has_its_whole_burst_while_it_is_not_leased() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let limiter = server.limiter_on(&clock);
    assert_eq!(limiter.check(&BUCKET, "whole", 5_000).await.expect("admitted").remaining, 0);
    assert!(limiter.check(&BUCKET, "whole", 1).await.is_err());

    let calls = warm(&limiter, &BUCKET).await;
    assert!((BUSY..=BUSY + 2).contains(&calls), "{calls} calls");
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

#[tokio::test]
async fn a_key_that_is_rejected_is_not_leased_for_a_term() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let limiter = server.limiter_on(&clock);
    let there = server.limiter_on(&clock);
    warm(&limiter, &BUCKET).await;
    while there.check(&BUCKET, "key", 10).await.is_ok() {}
    while limiter.check(&BUCKET, "key", 1).await.is_ok() {}
    // Not under the terms of leases: the next tokens are not kept back for them.
    clock.advance(TERM / 2);
    for _ in 0..2 * BUSY {
        let decision = limiter.check(&BUCKET, "key", 1).await.expect("50 tokens refilled");
        assert_eq!((decision.source, decision.limit), (Source::Redis, 5_000));
    }
    clock.advance(TERM);
    let calls = warm(&limiter, &BUCKET).await;
    assert!((BUSY..=BUSY + 2).contains(&calls), "{calls} calls");
}

/// Units come back, and calls after that are not counted as leases.
#[tokio::test]
async fn nothing_is_leased_after_a_shutdown() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    for limit in [WINDOW, BUCKET] {
        let limiter = server.limiter_on(&clock);
        let calls = warm(&limiter, &limit).await;
        limiter.shutdown().await.expect("the units are returned");
        let kept = if is_bucket(limit.algorithm()) { 100 } else { 0 };
        let (left, most) = (remaining(&server, &clock, &limit).await, limit.capacity() - calls);
        assert!((most - kept..=most).contains(&left), "{left} of {most}");
        limiter.reset(&limit, "key").await.expect("reset");
        for call in 1..=limit.capacity() / 50 {
            let decision = limiter.check(&limit, "key", 50).await.expect("admitted");
            assert_eq!(
                (decision.source, decision.remaining),
                (Source::Redis, limit.capacity() - call * 50)
            );
        }
    }
}

/// While a key is blocked, no units are spent, also by a process that holds some.
#[tokio::test]
async fn a_blocked_key_spends_no_units() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let limiter = server.limiter_on(&clock);
    for limit in [WINDOW, BUCKET] {
        let calls = warm(&limiter, &limit).await;
        limiter.block(&limit, "key", TERM / 2).await.expect("blocked");
        for _ in 0..2 * BUSY {
            let blocked = limiter.check(&limit, "key", 1).await.expect_err("blocked");
            assert!(matches!(blocked, Rejection::Blocked { .. }), "{blocked}");
        }
        clock.advance(TERM / 2);
        let first = limiter.check(&limit, "key", 1).await.expect("open");
        assert_eq!(first.source, Source::Redis, "the units went back");
        let kept = if is_bucket(limit.algorithm()) { 100 } else { 0 };
        let left = limit.capacity() - calls - 1;
        assert!((left - kept..=left).contains(&first.remaining), "{first:?}");
    }
}

/// The calls of a runtime do not wait for a request of another, and both find the same keys.
#[test]
fn runtimes_share_what_is_leased() {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid");
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().expect("a runtime")
    };
    let (one, two) = (runtime(), runtime());
    let limit = Limit::sliding("auto", 10_000, 100 * MINUTE).auto_lease();
    let mut leased = 0;
    for call in 0..200 {
        let runtime = if call % 2 == 0 { &one } else { &two };
        let decision = runtime.block_on(limiter.check(&limit, "key", 1)).expect("admitted");
        leased += u64::from(decision.source == Source::Lease);
    }
    assert!(leased > 150, "{leased} of 200");
    two.block_on(limiter.shutdown()).expect("the units are returned");
    let left = one.block_on(limiter.peek(&limit, "key", 1)).expect("a reply").remaining;
    assert_eq!(left, 10_000 - 200);
}

#[tokio::test]
async fn a_peek_sees_the_units_that_are_held_and_a_reset_drops_them() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let limiter = server.limiter_on(&clock);
    for limit in [WINDOW, BUCKET] {
        let calls = warm(&limiter, &limit).await;
        let left = limiter.peek(&limit, "key", 1).await.expect("a reply").remaining;
        let kept = if is_bucket(limit.algorithm()) { 100 } else { 0 };
        assert!((limit.capacity() - calls - kept..=limit.capacity() - calls).contains(&left));
        assert!(limiter.reset(&limit, "key").await.expect("reset"));
        let left = limiter.check(&limit, "key", 0).await.expect("admitted");
        assert_eq!((left.source, left.remaining), (Source::Redis, limit.capacity()));
    }
}

#[tokio::test]
async fn a_lease_obeys_a_rule_and_its_limit_keeps_its_count() {
    let server = Server::start();
    let test = TestLimiter::redis(&server);
    for limit in [WINDOW, BUCKET] {
        let calls = warm(&test.limiter, &limit).await;
        // A bucket is empty by then. One percent of 50 is less than a unit.
        test.advance(2_000_000);
        let mut rules = RuleSet::new();
        rules.set(limit.name(), Rule::new().threshold(50).burst(50)).expect("valid");
        test.set_rules(rules);
        let mut admitted = 0;
        while let Ok(decision) = test.limiter.check(&limit, "key", 1).await {
            assert_eq!((decision.source, decision.limit), (Source::Redis, 50));
            admitted += 1;
        }
        let charged = if is_bucket(limit.algorithm()) { 0 } else { calls };
        assert_eq!(admitted, 50 - charged, "what was charged stays charged");
        test.set_rules(RuleSet::new());
        test.limiter.reset(&limit, "key").await.expect("reset");
    }
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

#[rate_limit(period = "1h", threshold = 200, lease = "auto")]
async fn embedded() -> Result<(), Rejection> {
    Ok(())
}

/// As with any lease: nothing changes on the embedded store, and a charge cannot be settled.
#[tokio::test]
async fn an_automatic_lease_is_a_lease() {
    let limiter = RateLimiter::embedded();
    let calls = limiter.scope(async {
        for _ in 0..200 {
            embedded().await.expect("admitted");
        }
        embedded().await
    });
    let Err(Rejection::Limited { decision, .. }) = calls.await else { panic!("rejected") };
    assert_eq!((decision.limit, decision.source), (200, Source::Embedded));

    let rejection = limiter.acquire(&WINDOW, "key", 1).await.expect_err("leased");
    let Rejection::Mistake { mistake, .. } = rejection else { panic!("{rejection}") };
    assert_eq!(mistake, Mistake::Leased);

    let server = Server::start();
    let plain = Limit::sliding("auto", 9, MINUTE);
    for test in [TestLimiter::embedded(), TestLimiter::redis(&server)] {
        let parts = [&WINDOW, &plain].map(|limit| Part::new(limit, &"key", 1));
        let error = test.limiter.check_all(&parts).await.expect_err("one count");
        let Rejection::Mistake { mistake, .. } = error else { panic!("{error}") };
        assert!(matches!(mistake, Mistake::SharedCount { .. }), "{mistake:?}");
    }
}
