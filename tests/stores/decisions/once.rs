//! Calls that are charged once: an id that was admitted takes nothing again, on both stores.

use std::time::Duration;

use ratelimit_runtime::{Decision, Limit, Mistake, Part, RateLimiter, Rejection, Rule};
use support::limits::{HOUR, MINUTE, SECOND, ruled};
use support::poll_once;
use support::server::Server;
use tokio::task::JoinSet;

const SENT: Limit = Limit::once("sent", Duration::from_secs(30));

type Checked = Result<Decision, Rejection>;

/// Checks a call of a key with an id, against a limit and one that remembers ids.
async fn check(limiter: &RateLimiter, limits: [&Limit; 2], id: (u64, u64), cost: u64) -> Checked {
    let parts = [Part::new(limits[0], &id.0, cost), Part::new(limits[1], &id, 1)];
    limiter.check_all(&parts).await
}

async fn used(limiter: &RateLimiter, limit: &Limit, key: u64) -> u64 {
    limiter.operator().usage(limit, key).await.expect("counted").used
}

crate::on_both_stores! {
    async fn a_repeated_call_passes_a_full_limit_and_no_block(test: TestLimiter) {
        let (limiter, limit) = (test.limiter, Limit::sliding("orders", 1, HOUR));
        check(&limiter, [&limit, &SENT], (1, 7), 1).await.expect("admitted");
        let rejection = check(&limiter, [&limit, &SENT], (1, 8), 1).await.expect_err("full");
        assert!(matches!(rejection, Rejection::Limited { name, .. } if name == "orders"));
        let decision = check(&limiter, [&limit, &SENT], (1, 7), 1).await.expect("known");
        assert_eq!((decision.allowed, decision.limit, decision.remaining), (true, 1, 0));
        assert_eq!((decision.retry_after, used(&limiter, &limit, 1).await), (Duration::ZERO, 1));
        // The one that was rejected is not remembered.
        limiter.reset(&limit, 1_u64).await.expect("reset");
        check(&limiter, [&limit, &SENT], (1, 8), 1).await.expect("admitted");
        assert_eq!(used(&limiter, &limit, 1).await, 1);
        let wide = Limit::sliding("wide", 9, HOUR);
        for blocked in [&limit, &wide] {
            // A block that ends before the id is forgotten.
            limiter.block(blocked, 1_u64, SECOND).await.expect("blocked");
            let rejected = check(&limiter, [blocked, &SENT], (1, 7), 1).await;
            let Err(Rejection::Blocked { name, .. }) = rejected else { panic!("{rejected:?}") };
            assert_eq!(name, blocked.name());
            limiter.unblock(blocked, 1_u64).await.expect("unblocked");
        }
        // A decision about several others reports each.
        let parts = [&wide, &limit].map(|limit| Part::new(limit, &1_u64, 1));
        let parts = [parts[0], parts[1], Part::new(&SENT, &(1_u64, 7_u64), 1)];
        let decision = limiter.check_all(&parts).await.expect("known");
        assert_eq!((decision.limit, decision.remaining), (1, 0));
        assert_eq!(used(&limiter, &wide, 1).await, 0);
        // Alone, it admits every call.
        for _ in 0..3 {
            assert!(limiter.check(&SENT, 1_u64, 1).await.expect("admitted").allowed);
        }
    }

    async fn rules_do_not_change_how_often_an_id_is_charged(test: TestLimiter) {
        let (limiter, limit) = (test.limiter, Limit::sliding("orders", 2, HOUR));
        let trial = Limit::sliding("orders:trial", 5, HOUR);
        let (plain, shadows) = ([&limit, &SENT], [&limit.shadow(true), &SENT.shadow(true)]);
        for (key, name, rule, limits, observed) in [
            (1, "sent", Rule::new().threshold(5).trial(3), plain, &limit),
            (2, "sent", Rule::new().shadow(true), plain, &limit),
            (3, "orders", Rule::new().shadow(false), shadows, &limit),
            (4, "orders", Rule::new().shadow(true), plain, &limit),
            (5, "orders", Rule::new().trial(5), plain, &trial),
        ] {
            limiter.set_rules(ruled(name, rule)).expect("valid");
            for id in [7, 7, 8, 8, 7] {
                check(&limiter, limits, (key, id), 1).await.expect("admitted");
            }
            assert_eq!(used(&limiter, observed, key).await, 2, "{rule:?}");
            // The limit rejects this call, except a shadow. A trial decides about it all the same.
            let third = check(&limiter, limits, (key, 9), 1).await;
            assert_eq!(third.is_ok(), key == 4, "{rule:?}: {third:?}");
            let units = if key == 5 { 3 } else { 2 };
            assert_eq!(used(&limiter, observed, key).await, units, "{rule:?}");
        }
    }
}

#[test]
fn an_id_has_no_amounts() {
    for rule in [Rule::new().threshold(5), Rule::new().trial(3)] {
        let error = rule.check_fits(&SENT).expect_err("amounts");
        assert!(error.to_string().contains("has no amounts"), "{error}");
    }
    Rule::new().blocked(true).check_fits(&SENT).expect("no amounts");
    SENT.try_amounts(5, None).expect_err("amounts");
}

/// In one process, without a thread that would have to start.
#[test]
fn a_call_beside_a_trial_is_decided_at_once() {
    let (limiter, limit) = (RateLimiter::embedded(), Limit::sliding("orders", 5, HOUR));
    limiter.set_rules(ruled("orders", Rule::new().trial(3))).expect("valid");
    for _ in 0..2 {
        poll_once(check(&limiter, [&limit, &SENT], (1, 7), 1)).expect("admitted");
    }
}

#[tokio::test]
async fn what_a_repeated_call_would_lack_is_a_mistake() {
    let (limiter, limit) = (RateLimiter::embedded(), Limit::sliding("orders", 1, HOUR));
    let (waiting, sent) = (limit.wait(SECOND), SENT.wait(SECOND));
    let slots = Limit::in_flight("slots", 1);
    let beside = |limit, sent| [Part::new(limit, &1, 1), Part::new(sent, &7, 1)];
    for (what, rejected) in [
        ("settles", limiter.acquire_all(&beside(&limit, &SENT)).await.map(drop)),
        ("holds", limiter.acquire_all(&beside(&slots, &SENT)).await.map(drop)),
        ("waits", limiter.check_all(&beside(&waiting, &sent)).await.map(drop)),
    ] {
        let is_mistake =
            matches!(rejected, Err(Rejection::Mistake { mistake: Mistake::ChargedOnce, .. }));
        assert!(is_mistake, "{what}: {rejected:?}");
    }
    assert_eq!(used(&limiter, &limit, 1).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_concurrent_calls_with_an_id_is_charged() {
    let server = Server::start();
    let limit = Limit::sliding("orders", 100, HOUR);
    for limiters in [
        [RateLimiter::embedded()].to_vec(),
        (0..3).map(|_| server.builder().deadline(MINUTE).build().expect("valid")).collect(),
    ] {
        let calls = (0..60).map(|call| {
            let limiter = limiters[call % limiters.len()].clone();
            async move { check(&limiter, [&limit, &SENT], (1, 7), 1).await.is_ok() }
        });
        assert!(calls.collect::<JoinSet<_>>().join_all().await.into_iter().all(|it| it));
        assert_eq!(used(&limiters[0], &limit, 1).await, 1);
    }
}
