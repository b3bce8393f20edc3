//! Calls that are charged once: an id that was admitted takes nothing again, on both stores.

use std::collections::HashMap;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ratelimit_runtime::{
    Decision, Limit, Mistake, Part, RateLimiter, Rejection, Rule, RuleSet, VirtualClock,
};
use support::clocks::embedded_on;
use support::limits::{HOUR, MINUTE, SECOND, limits};
use support::random::Random;
use support::server::Server;
use tokio::task::JoinSet;

const SENT: Limit = Limit::once("sent", Duration::from_secs(30));

async fn check(
    limiter: &RateLimiter,
    limit: &Limit,
    key: u64,
    id: u64,
    cost: u64,
) -> Result<Decision, Rejection> {
    check_beside(limiter, limit, &SENT, key, id, cost).await
}

async fn check_beside(
    limiter: &RateLimiter,
    limit: &Limit,
    sent: &Limit,
    key: u64,
    id: u64,
    cost: u64,
) -> Result<Decision, Rejection> {
    let request = (key, id);
    limiter.check_all(&[Part::new(limit, &key, cost), Part::new(sent, &request, 1)]).await
}

/// A list of ids, and a limiter that sees each id once, make the same decisions.
#[tokio::test]
async fn an_id_is_charged_once_while_it_is_remembered() {
    let server = Server::start();
    // Keys of their own, because the ids of all limits are in one count.
    for (limit, first) in limits("orders", 5, MINUTE).zip((0..).step_by(10)) {
        let clock = VirtualClock::new();
        for limiter in [embedded_on(&clock), server.limiter_on(&clock)] {
            let (alone, mut known, mut repeated) = (embedded_on(&clock), HashMap::new(), 0);
            let mut random = Random(7);
            for seed in 0..400_u64 {
                clock.advance(random.millis(2_000));
                let (key, id, cost) = (first + random.below(2), random.below(12), random.below(3));
                let now = clock.now();
                let is_known = known.get(&(key, id)).is_some_and(|until| now < *until);
                let decided = check(&limiter, &limit, key, id, cost).await;
                let decided = decided.ok().map(|decision| decision.remaining);
                if is_known {
                    repeated += 1;
                    let left = alone.peek(&limit, key, 1).await.expect("decided");
                    assert_eq!(decided, Some(left.remaining), "{limit:?} {seed}");
                    continue;
                }
                let expected = alone.check(&limit, key, cost).await.ok();
                if expected.is_some() {
                    known.insert((key, id), now + 30 * SECOND);
                }
                let expected = expected.map(|decision| decision.remaining);
                assert_eq!(decided, expected, "{limit:?} {seed} {:?}", limiter.source());
            }
            assert!(repeated > 100, "{repeated}");
        }
    }
}

#[tokio::test]
async fn a_repeated_call_passes_a_full_limit_and_no_block() {
    let server = Server::start();
    let clock = VirtualClock::new();
    let limit = Limit::sliding("orders", 1, HOUR);
    for limiter in [embedded_on(&clock), server.limiter_on(&clock)] {
        check(&limiter, &limit, 1, 7, 1).await.expect("admitted");
        let rejection = check(&limiter, &limit, 1, 8, 1).await.expect_err("full");
        assert!(matches!(rejection, Rejection::Limited { name, .. } if name.as_str() == "orders"));
        let decision = check(&limiter, &limit, 1, 7, 1).await.expect("known");
        assert_eq!((decision.allowed, decision.limit, decision.remaining), (true, 1, 0));
        assert_eq!(decision.retry_after, Duration::ZERO);
        assert_eq!(limiter.operator().usage(&limit, 1_u64).await.expect("counted").used, 1);
        // The one that was rejected is not remembered.
        limiter.reset(&limit, 1_u64).await.expect("reset");
        check(&limiter, &limit, 1, 8, 1).await.expect("admitted");
        assert_eq!(limiter.operator().usage(&limit, 1_u64).await.expect("counted").used, 1);
        limiter.block(&limit, 1_u64, MINUTE).await.expect("blocked");
        let rejection = check(&limiter, &limit, 1, 7, 1).await.expect_err("blocked");
        assert!(matches!(rejection, Rejection::Blocked { .. }), "{rejection:?}");
        limiter.unblock(&limit, 1_u64).await.expect("unblocked");
        // A decision about several others reports each.
        let wide = Limit::sliding("wide", 9, HOUR);
        let request = (1_u64, 7_u64);
        let parts = [Part::new(&wide, &1_u64, 1), Part::new(&limit, &1_u64, 1)];
        let parts = [parts[0], parts[1], Part::new(&SENT, &request, 1)];
        let decision = limiter.check_all(&parts).await.expect("known");
        assert_eq!((decision.limit, decision.remaining), (1, 0));
        assert_eq!(limiter.operator().usage(&wide, 1_u64).await.expect("counted").used, 0);
        // A block that ends before the id is forgotten.
        limiter.block(&wide, 1_u64, SECOND).await.expect("blocked");
        let rejection = check(&limiter, &wide, 1, 7, 1).await.expect_err("blocked");
        assert!(matches!(rejection, Rejection::Blocked { .. }), "{rejection:?}");
        // Alone, it admits every call.
        for _ in 0..3 {
            assert!(limiter.check(&SENT, 1_u64, 1).await.expect("admitted").allowed);
        }
    }
}

#[tokio::test]
async fn rules_do_not_change_how_often_an_id_is_charged() {
    let server = Server::start();
    let limit = Limit::sliding("orders", 5, HOUR);
    let (shadow, shadow_sent) = (limit.shadow(true), SENT.shadow(true));
    for limiter in [RateLimiter::embedded(), server.builder().build().expect("valid")] {
        for (key, name, rule, limit, sent) in [
            (1, "sent", Rule::new().threshold(5).trial(3), limit, SENT),
            (2, "sent", Rule::new().shadow(true), limit, SENT),
            (3, "orders", Rule::new().shadow(false), shadow, shadow_sent),
        ] {
            let mut rules = RuleSet::new();
            rules.set(name, rule).expect("valid");
            limiter.set_rules(rules).expect("valid");
            for _ in 0..3 {
                check_beside(&limiter, &limit, &sent, key, 7, 1).await.expect("admitted");
            }
            let usage = limiter.operator().usage(&limit, key).await.expect("counted");
            assert_eq!(usage.used, 1, "{rule:?}");
        }
    }
    for rule in [Rule::new().threshold(5), Rule::new().trial(3)] {
        let error = rule.check_fits(&SENT).expect_err("amounts");
        assert!(error.to_string().contains("has no amounts"), "{error}");
    }
    Rule::new().blocked(true).check_fits(&SENT).expect("no amounts");
    SENT.try_amounts(5, None).expect_err("amounts");
}

/// A rule makes the limit a shadow, or adds a trial.
#[tokio::test]
async fn shadows_and_trials_do_not_charge_repeated_calls() {
    let server = Server::start();
    let limit = Limit::sliding("orders", 2, HOUR);
    let trial = Limit::sliding("orders:trial", 5, HOUR);
    for limiter in [RateLimiter::embedded(), server.builder().build().expect("valid")] {
        for (key, rule, observed, used) in
            [(1, Rule::new().shadow(true), limit, 2), (2, Rule::new().trial(5), trial, 3)]
        {
            let mut rules = RuleSet::new();
            rules.set("orders", rule).expect("valid");
            limiter.set_rules(rules).expect("valid");
            for id in [7, 7, 8, 8, 7] {
                check(&limiter, &limit, key, id, 1).await.expect("admitted");
            }
            // A trial also decides about a call that the limit rejects.
            let third = check(&limiter, &limit, key, 9, 1).await;
            assert_eq!(third.is_ok(), observed == limit, "{third:?}");
            let usage = limiter.operator().usage(&observed, key).await.expect("counted");
            assert_eq!(usage.used, used, "{observed:?}");
        }
    }
}

/// In one process, without a thread that would have to start.
#[test]
fn a_call_beside_a_trial_is_decided_at_once() {
    let (limiter, limit) = (RateLimiter::embedded(), Limit::sliding("orders", 5, HOUR));
    let mut rules = RuleSet::new();
    rules.set("orders", Rule::new().trial(3)).expect("valid");
    limiter.set_rules(rules).expect("valid");
    for _ in 0..2 {
        let mut call = pin!(check(&limiter, &limit, 1, 7, 1));
        let polled = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(polled, Poll::Ready(Ok(_))), "{polled:?}");
    }
}

#[tokio::test]
async fn what_a_repeated_call_would_lack_is_a_mistake() {
    let (limiter, limit) = (RateLimiter::embedded(), Limit::sliding("orders", 1, HOUR));
    let is_mistake =
        |error| matches!(error, Rejection::Mistake { mistake: Mistake::ChargedOnce, .. });
    let parts = [Part::new(&limit, &1, 1), Part::new(&SENT, &7, 1)];
    assert!(is_mistake(limiter.acquire_all(&parts).await.map(drop).expect_err("settles")));
    let slots = Limit::in_flight("slots", 1);
    let held = [Part::new(&slots, &1, 1), Part::new(&SENT, &7, 1)];
    assert!(is_mistake(limiter.acquire_all(&held).await.map(drop).expect_err("holds")));
    let (waiting, sent) = (limit.wait(SECOND), SENT.wait(SECOND));
    let waits = [Part::new(&waiting, &1, 1), Part::new(&sent, &7, 1)];
    assert!(is_mistake(limiter.check_all(&waits).await.expect_err("waits")));
    assert_eq!(limiter.operator().usage(&limit, 1).await.expect("counted").used, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_concurrent_calls_with_an_id_is_charged() {
    let server = Server::start();
    let limit = Limit::sliding("orders", 100, HOUR);
    for limiters in [
        [RateLimiter::embedded()].to_vec(),
        (0..3).map(|_| server.builder().deadline(MINUTE).build().expect("valid")).collect(),
    ] {
        let mut calls = JoinSet::new();
        for call in 0..60 {
            let limiter = limiters[call % limiters.len()].clone();
            calls.spawn(async move { check(&limiter, &limit, 1, 7, 1).await.is_ok() });
        }
        assert!(calls.join_all().await.into_iter().all(|it| it));
        let usage = limiters[0].operator().usage(&limit, 1_u64).await.expect("counted");
        assert_eq!(usage.used, 1);
    }
}
