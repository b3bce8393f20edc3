//! Slots beside rates, the other settings of a layer, rules, waits, and a limiter or a store that ends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::poll_immediate;
use http_body_util::BodyExt;
use hyper::body::Frame;
use ratelimit_runtime::web::RateLimitLayer;
use ratelimit_runtime::web::actix::RateLimits;
use ratelimit_runtime::{
    Limit, Mistake, OnError, RateLimiter, Rejection, Rule, RuleSet, Scope, StoreError, VirtualClock,
};
use support::server::Server;

use super::{Handler, TWO, in_flight, layer, wait_for_in_flight};
use crate::{MINUTE, limiters, timed};

const RATE: Limit = Limit::fixed("rate", 3, MINUTE);

async fn left(limiter: &RateLimiter, limit: &Limit) -> u64 {
    limiter.flush().await.expect("settled");
    limiter.peek(limit, (), 1).await.expect("decided").remaining
}

fn ruled(rule: Rule) -> RuleSet {
    let mut rules = RuleSet::new();
    rules.set("two", rule).expect("valid");
    rules
}

#[tokio::test]
async fn a_rate_and_slots_are_one_decision() {
    let redis = Server::start();
    for (limiter, _) in limiters(&redis) {
        let (handler, layer) = (Handler::default(), layer(&limiter).limit(RATE, |_| ()));
        let (first, _) = handler.admit(&layer).await;
        let (second, _) = handler.admit(&layer).await;
        assert_eq!((left(&limiter, &RATE).await, in_flight(&limiter, &TWO).await), (1, 2));
        let (busy, _) = handler.send(&layer, "/").await;
        assert_eq!((busy.status().as_u16(), left(&limiter, &RATE).await), (429, 1));
        assert_eq!(busy.headers()["retry-after"], "1");
        assert_eq!(busy.headers()["ratelimit"], r#""two";r=0, "rate";r=1"#);
        let policy = &busy.headers()["ratelimit-policy"];
        assert_eq!(policy, r#""two";q=2;qu="concurrent-requests", "rate";q=3;w=60"#);

        drop(first);
        let (third, _) = handler.admit(&layer).await;
        drop(second);
        let (limited, _) = handler.send(&layer, "/").await;
        assert_eq!((limited.status().as_u16(), in_flight(&limiter, &TWO).await), (429, 1));
        assert_eq!(limited.headers()["retry-after"], "60");
        assert_eq!(limited.headers()["ratelimit"], r#""rate";r=0;t=60, "two";r=1"#);
        drop(third);
        // A rate keeps the charge of a request that has ended.
        assert_eq!((left(&limiter, &RATE).await, in_flight(&limiter, &TWO).await), (0, 0));
    }
}

/// Of the limits that reject a request, the one with the longest wait is reported first, and then those without slots.
#[tokio::test]
async fn slots_that_reject_beside_a_rate_are_reported_before_limits_that_admit() {
    let redis = Server::start();
    let wide = Limit::fixed("wide", 9, MINUTE);
    for (limiter, _) in limiters(&redis) {
        let handler = Handler::default();
        let layer = RateLimitLayer::new().limit(wide, |_| ()).limit(TWO, |_| ());
        let layer = layer.limit_with_cost(RATE, |_| (), |head| head.uri.path().len() as u64);
        let layer = layer.limiter(limiter.clone());
        let _running = [handler.admit(&layer).await, handler.admit(&layer).await];
        let (busy, _) = handler.send(&layer, "/").await;
        let states = r#""two";r=0, "wide";r=7, "rate";r=1"#;
        assert_eq!(busy.status(), 429);
        assert_eq!(busy.headers()["ratelimit"], states);
        let (both, _) = handler.send(&layer, "/7").await;
        assert_eq!(both.status(), 429);
        assert_eq!(both.headers()["retry-after"], "60");
        let states = r#""rate";r=1;t=60, "two";r=0, "wide";r=7;t=60"#;
        assert_eq!(both.headers()["ratelimit"], states);
    }
}

/// A request that does not count gets its charge back with the head of its response, and holds its slot until the end.
#[tokio::test]
async fn slots_are_held_whether_the_request_counts_or_not() {
    let redis = Server::start();
    for (limiter, _) in limiters(&redis) {
        let handler = Handler::default();
        let layer = layer(&limiter).limit(RATE, |_| ());
        for (counts, remaining) in [(false, 3), (true, 2)] {
            let layer = layer.clone().count_if(move |_| counts);
            let (body, _sender) = handler.admit(&layer).await;
            assert_eq!(left(&limiter, &RATE).await, remaining);
            assert_eq!(in_flight(&limiter, &TWO).await, 1);
            drop(body);
            wait_for_in_flight(&limiter, &TWO, 0).await;
            assert_eq!(left(&limiter, &RATE).await, remaining);
        }
    }
}

#[tokio::test]
async fn rules_apply_to_slots_of_layers() {
    let redis = Server::start();
    for (limiter, _) in limiters(&redis) {
        let (handler, layer) = (Handler::default(), layer(&limiter));
        let (held, _sender) = handler.admit(&layer).await;
        for (rule, status, units) in [
            (Rule::new().in_flight(1), 429, 1),
            (Rule::new().in_flight(3), 200, 2),
            (Rule::new().exempt(true), 200, 1),
            (Rule::new().blocked(true), 429, 1),
            (Rule::new().in_flight(1).shadow(true), 200, 1),
        ] {
            limiter.set_rules(ruled(rule)).expect("valid");
            let (response, _sender) = handler.send(&layer, "/").await;
            assert_eq!(response.status(), status, "{rule:?}");
            limiter.set_rules(RuleSet::new()).expect("valid");
            assert_eq!(in_flight(&limiter, &TWO).await, units, "{rule:?}");
            drop(response);
            wait_for_in_flight(&limiter, &TWO, 1).await;
        }
        drop(held);
        wait_for_in_flight(&limiter, &TWO, 0).await;
    }
}

/// A trial tries another threshold of the rate, and takes no slot.
#[tokio::test]
async fn a_trial_of_the_rate_takes_no_slot() {
    let redis = Server::start();
    for (limiter, _) in limiters(&redis) {
        let (handler, layer) = (Handler::default(), layer(&limiter).limit(RATE, |_| ()));
        let mut rules = RuleSet::new();
        rules.set("rate", Rule::new().trial(1)).expect("valid");
        limiter.set_rules(rules).expect("valid");
        let bodies = [handler.admit(&layer).await, handler.admit(&layer).await];
        assert_eq!(in_flight(&limiter, &TWO).await, 2);
        let keys = limiter.operator().rejected_keys(10);
        let tried = keys.iter().find(|key| key.is_shadow).expect("the trial has rejected one");
        assert_eq!((tried.limit.as_str(), tried.rejected), ("rate:trial", 1));
        drop(bodies);
        wait_for_in_flight(&limiter, &TWO, 0).await;
    }
}

/// A shadow admits each request, and holds slots while there are some.
#[tokio::test]
async fn a_shadow_admits_without_a_slot() {
    let (limiter, _) = timed();
    let layer = RateLimitLayer::new().limit(TWO.shadow(true), |_| ());
    let (handler, layer) = (Handler::default(), layer.limiter(limiter.clone()));
    let mut bodies = Vec::new();
    for units in [1, 2, 2, 2] {
        bodies.push(handler.admit(&layer).await);
        assert_eq!(in_flight(&limiter, &TWO).await, units);
    }
    bodies.clear();
    assert_eq!(in_flight(&limiter, &TWO).await, 0);
}

#[tokio::test]
async fn a_request_waits_until_a_body_ends() {
    let redis = Server::start();
    // Real time: Redis grants slots to lines from the background thread.
    let on_redis = redis.builder().build().expect("valid settings");
    for limiter in [RateLimiter::embedded(), on_redis] {
        let waiting = TWO.wait(MINUTE);
        let layer = RateLimitLayer::new().limit(waiting, |_| ()).limiter(limiter.clone());
        let handler = Handler::default();
        let (mut first, sender) = handler.admit(&layer).await;
        let second = handler.admit(&layer).await;
        let mut third = Box::pin(handler.admit(&layer));
        let mut fourth = Box::pin(handler.admit(&layer));
        for _ in 0..20 {
            assert!(poll_immediate(&mut third).await.is_none());
            assert!(poll_immediate(&mut fourth).await.is_none());
            tokio::task::yield_now().await;
        }
        sender.send(Ok(Frame::data(Bytes::from_static(b"last")))).expect("not dropped");
        drop(sender);
        assert!(first.frame().await.is_some());
        let third = tokio::time::timeout(MINUTE, third).await.expect("a slot is free");
        // Its client leaves while it waits.
        drop(fourth);
        drop((second, third));
        wait_for_in_flight(&limiter, &TWO, 0).await;
    }
}

#[tokio::test]
async fn slots_of_this_process_are_held_beside_redis() {
    let redis = Server::start();
    let limiter = redis.limiter_on(&VirtualClock::new());
    let local = Limit::in_flight("local", 1).scope(Scope::Process);
    let layer = RateLimitLayer::new().limit(local, |_| ()).limiter(limiter.clone());
    let handler = Handler::default();
    let (body, _sender) = handler.admit(&layer).await;
    assert_eq!((handler.status(&layer, "/").await, redis.ttls().len()), (429, 0));
    drop(body);
    assert_eq!(handler.status(&layer, "/").await, 200);
}

#[tokio::test]
async fn a_body_outlives_redis() {
    let redis = Server::start();
    let port = redis.port();
    let limiter = redis.builder().deadline(Duration::from_millis(200));
    let limiter = limiter.on_error(OnError::Local).build().expect("valid settings");
    let (handler, layer) = (Handler::default(), layer(&limiter));
    let (mut before, sender) = handler.admit(&layer).await;
    drop(redis);
    // The process admits its share by itself.
    let (during, other) = handler.admit(&layer).await;
    let data = Frame::data(Bytes::from_static(b"data"));
    sender.send(Ok(data)).expect("not dropped");
    assert!(before.frame().await.is_some());
    drop(sender);
    assert!(before.frame().await.is_none());

    let restarted = Server::start_on(port);
    let witness = restarted.builder().build().expect("valid settings");
    wait_for_in_flight(&witness, &TWO, 1).await;
    drop((during, other));
    wait_for_in_flight(&witness, &TWO, 0).await;
    restarted.assert_all_keys_expire();
}

#[tokio::test]
async fn a_body_outlives_its_limiter() {
    let redis = Server::start();
    let limiter = redis.builder().build().expect("valid settings");
    let witness = redis.builder().build().expect("valid settings");
    let (handler, layer) = (Handler::default(), layer(&limiter));
    let (body, _sender) = handler.admit(&layer).await;
    drop((limiter, layer));
    assert_eq!(in_flight(&witness, &TWO).await, 1);
    drop(body);
    wait_for_in_flight(&witness, &TWO, 0).await;

    let limiter = RateLimiter::embedded();
    let (body, _sender) = handler.admit(&super::layer(&limiter)).await;
    drop(limiter);
    drop(body);
}

#[tokio::test]
async fn a_shutdown_names_the_slots_of_bodies() {
    let redis = Server::start();
    let limiter = redis.builder().deadline(Duration::from_millis(500));
    let limiter = limiter.build().expect("valid settings");
    let witness = redis.builder().build().expect("valid settings");
    let (handler, layer) = (Handler::default(), layer(&limiter));
    let (mut body, sender) = handler.admit(&layer).await;
    let error = limiter.shutdown().await.expect_err("a body streams");
    assert!(matches!(error, StoreError::InFlight { units: 1, .. }), "{error:?}");
    drop(sender);
    assert!(body.frame().await.is_none());
    wait_for_in_flight(&witness, &TWO, 0).await;
}

/// What an inner layer rejects holds no slot of the outer one for longer than its response.
#[tokio::test]
async fn the_rejection_of_an_inner_layer_frees_the_outer_slot() {
    let (limiter, _) = timed();
    let inner = Limit::in_flight("inner", 1);
    let inner = RateLimitLayer::new().limit(inner, |_| ()).limiter(limiter.clone());
    let service = tower::ServiceBuilder::new().layer(layer(&limiter)).layer(inner);
    let handle = service.service_fn(async |_: http::Request<String>| {
        Ok::<_, std::convert::Infallible>(http::Response::new(String::from("text")))
    });
    let send = || tower::ServiceExt::oneshot(handle.clone(), http::Request::new(String::new()));
    let first = send().await.expect("infallible");
    assert_eq!((first.status().as_u16(), in_flight(&limiter, &TWO).await), (200, 1));
    let second = send().await.expect("infallible");
    assert_eq!((second.status().as_u16(), in_flight(&limiter, &TWO).await), (429, 2));
    drop(second);
    assert_eq!(in_flight(&limiter, &TWO).await, 1);
    drop(first);
    assert_eq!(in_flight(&limiter, &TWO).await, 0);
}

#[tokio::test]
async fn slots_count_as_a_decision_that_is_required_and_exposed() {
    let (limiter, _) = timed();
    let layer = layer(&limiter).require_decision().legacy_headers();
    let layer = layer.exempt(|request| request.uri.path() == "/exempt");
    let handler = Handler::default();
    let (response, _sender) = handler.send(&layer, "/").await;
    assert_eq!(response.headers()["x-ratelimit-remaining"], "1");
    assert_eq!(handler.status(&layer, "/exempt").await, 200);
    assert_eq!(in_flight(&limiter, &TWO).await, 1);
    let without: RateLimitLayer = RateLimitLayer::new().require_decision();
    let without = AssertUnwindSafe(handler.status(&without, "/")).catch_unwind().await;
    assert!(without.is_err(), "no limit has decided");
}

/// A request takes as many units as it costs: megabytes in work, for instance.
#[tokio::test]
async fn a_request_holds_the_units_of_its_cost() {
    let (limiter, _) = timed();
    let cost = |request: &http::request::Parts| request.uri.path().len() as u64;
    let layer = RateLimitLayer::new().limit_with_cost(TWO, |_| (), cost);
    let (handler, layer) = (Handler::default(), layer.limiter(limiter.clone()));
    assert_eq!(handler.status(&layer, "/abc").await, 413);
    let (response, _sender) = handler.send(&layer, "/a").await;
    assert_eq!((response.status().as_u16(), in_flight(&limiter, &TWO).await), (200, 2));
    assert_eq!(handler.status(&layer, "/").await, 429);
    drop(response);
    assert_eq!(handler.status(&layer, "/").await, 200);
}

#[tokio::test]
async fn a_layer_that_cannot_hold_says_so() {
    let message = |build: &dyn Fn()| {
        let panic = catch_unwind(AssertUnwindSafe(build)).expect_err("refused");
        panic.downcast::<String>().map(|text| *text).unwrap_or_default()
    };
    let leased = Limit::fixed("leased", 9, MINUTE).lease(2);
    let refused = message(&|| drop(RateLimitLayer::outbound::<()>().limit(TWO, |()| ())));
    assert!(refused.contains("`two` limits calls in flight"), "{refused}");
    for refused in [
        message(&|| drop(RateLimitLayer::new().limit(TWO, |_| ()).limit(leased, |_| ()))),
        message(&|| drop(RateLimitLayer::new().limit(leased, |_| ()).limit(TWO, |_| ()))),
        message(&|| drop(RateLimits::new().limit(TWO, |_| ()).limit(leased, |_| ()))),
    ] {
        assert!(refused.contains("`leased` has a lease"), "{refused}");
    }

    // Limits that are chosen for each request are known late.
    let (limiter, _) = timed();
    let layer = RateLimitLayer::new().limits(move |request, limits| {
        if request.uri.path() != "/leased" {
            limits.add(&TWO, (), 1);
        }
        if request.uri.path() != "/" {
            limits.add(&leased, (), 1);
        }
        Ok(())
    });
    let layer = layer.limiter(limiter.clone());
    let handler = Handler::default();
    let (body, _sender) = handler.admit(&layer).await;
    assert_eq!(in_flight(&limiter, &TWO).await, 1);
    assert_eq!(handler.status(&layer, "/both").await, 500);
    assert_eq!(handler.status(&layer, "/leased").await, 200);
    drop(body);

    let layer = RateLimitLayer::outbound().limits(|(): &(), limits| {
        limits.add(&TWO, (), 1);
        Ok(())
    });
    let client = tower::service_fn(async |()| Ok::<_, std::convert::Infallible>(()));
    let service = tower_layer::Layer::layer(&layer.limiter(limiter), client);
    let error = tower::ServiceExt::oneshot(service, ()).await.expect_err("it holds no slots");
    let Some(Rejection::Mistake { mistake: Mistake::NeedsPermit, .. }) = error.downcast_ref()
    else {
        panic!("{error}")
    };
}
