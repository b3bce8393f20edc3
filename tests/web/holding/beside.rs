//! Slots beside rates, the other settings of a layer, rules, waits, and other layers.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use futures::future::poll_immediate;
use http_body_util::BodyExt;
use hyper::body::Frame;
use ratelimit_runtime::web::RateLimitLayer;
use ratelimit_runtime::web::actix::RateLimits;
use ratelimit_runtime::{Limit, Mistake, RateLimiter, Rejection};
use support::server::Server;

use super::{Handler, TWO, in_flight, layer, wait_for_in_flight};
use crate::{MINUTE, left, limiters, timed};

const RATE: Limit = Limit::fixed("rate", 3, MINUTE);

/// Of the limits that reject a request, the one with the longest wait is reported first, and then those without slots.
/// Then those follow that admit it.
#[tokio::test]
async fn a_rate_and_slots_are_one_decision() {
    let redis = Server::start();
    let wide = Limit::fixed("wide", 9, MINUTE);
    for (limiter, _) in limiters(&redis) {
        let handler = Handler::default();
        let layer = RateLimitLayer::new().limit(wide, |_| ()).limit(TWO, |_| ()).legacy_headers();
        let layer = layer.limit_with_cost(RATE, |_| (), |head| head.uri.path().len() as u64);
        let layer = layer.limiter(limiter.clone());
        let running = [handler.admit(&layer).await, handler.admit(&layer).await];
        for (path, wait, capacity, states) in [
            ("/", "1", "2", r#""two";r=0, "wide";r=7, "rate";r=1"#),
            ("/7", "60", "3", r#""rate";r=1;t=60, "two";r=0, "wide";r=7;t=60"#),
        ] {
            let (rejected, _) = handler.send(&layer, path).await;
            assert_eq!(rejected.status(), 429);
            assert_eq!(rejected.headers()["retry-after"], wait);
            assert_eq!(rejected.headers()["ratelimit"], states);
            assert_eq!(rejected.headers()["x-ratelimit-limit"], capacity);
            let policy = r#""wide";q=9;w=60, "two";q=2;qu="concurrent-requests", "rate";q=3;w=60"#;
            assert_eq!(rejected.headers()["ratelimit-policy"], policy);
        }
        // A rate keeps the charge of a request that has ended.
        assert_eq!((left(&limiter, &RATE).await, in_flight(&limiter, &TWO).await), (1, 2));
        drop(running);
        wait_for_in_flight(&limiter, &TWO, 0).await;
        assert_eq!(left(&limiter, &RATE).await, 1);
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
async fn a_layer_that_cannot_hold_or_settle_says_so() {
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
        message(&|| drop(RateLimitLayer::new().limit(leased, |_| ()).count_if(|_| true))),
        message(&|| drop(RateLimitLayer::new().count_if(|_| true).limit(leased, |_| ()))),
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
    assert_eq!(handler.status(&layer.count_if(|_| true), "/leased").await, 500);
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
