//! A handler that takes the slots out of its request.

use std::convert::Infallible;

use actix_web::test::{TestRequest, call_service, init_service, read_body};
use actix_web::{App, web};
use axum::body::Body;
use axum::routing::get as route_get;
use axum::{Extension, Router};
use http::{Request, Response};
use ratelimit_runtime::web::actix::RateLimits;
use ratelimit_runtime::web::{RateLimitLayer, RequestSlots};
use ratelimit_runtime::{Limit, Permit, RateLimiter, Rule};
use support::limits::ruled;
use support::server::Server;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tower::ServiceExt;
use tower_layer::Layer;

use super::{TWO, in_flight, layer, wait_for_in_flight};
use crate::{limiters, timed};

const OUTER: Limit = Limit::in_flight("outer", 9);

type Taken = UnboundedSender<Vec<Permit>>;

/// Takes the slots, and passes them to the test.
async fn take(slots: RequestSlots, Extension(taken): Extension<Taken>) -> &'static str {
    taken.send(slots.take()).expect("the test receives them");
    assert!(slots.take().is_empty());
    "taken"
}

async fn status(service: &Router, path: &str) -> u16 {
    let request = Request::get(path).body(Body::empty()).expect("a request");
    service.clone().oneshot(request).await.expect("infallible").status().as_u16()
}

/// The slots of all layers belong to the work of the handler. Without a slot, nothing is taken.
#[tokio::test]
async fn taken_slots_are_held_until_their_permits_are_dropped() {
    let redis = Server::start();
    for (limiter, _) in limiters(&redis) {
        let (sender, mut taken) = unbounded_channel::<Vec<Permit>>();
        let outer = RateLimitLayer::new().limit(OUTER, |_| ()).limiter(limiter.clone());
        let app = Router::new().route("/", route_get(take)).layer(Extension(sender));
        let app = app.layer(layer(&limiter)).layer(outer);
        assert_eq!((status(&app, "/").await, status(&app, "/").await), (200, 200));
        let [first, second] = [taken.recv().await, taken.recv().await].map(|it| it.expect("sent"));
        assert_eq!((first.len(), second.len()), (2, 2));
        assert_eq!(status(&app, "/").await, 429);
        wait_for_in_flight(&limiter, &OUTER, 2).await;
        assert_eq!(in_flight(&limiter, &TWO).await, 2);
        drop(first);
        assert_eq!((in_flight(&limiter, &TWO).await, in_flight(&limiter, &OUTER).await), (1, 1));
        assert_eq!(status(&app, "/").await, 200);
        drop((second, taken.recv().await));

        limiter.set_rules(ruled("two", Rule::new().exempt(true))).expect("valid");
        assert_eq!(status(&app, "/").await, 200);
        // Only the outer layer holds a slot.
        assert_eq!(taken.recv().await.expect("sent").len(), 1);
    }
}

/// Slots that are not taken while the response is there are free, whoever still has the extension.
#[tokio::test]
async fn slots_that_are_taken_too_late_are_gone() {
    let (limiter, _) = timed();
    let (sender, mut kept) = unbounded_channel::<RequestSlots>();
    let handle = tower::service_fn(move |request: Request<String>| {
        let slots = request.extensions().get::<RequestSlots>().cloned().expect("from the layer");
        assert_eq!(format!("{slots:?}"), "RequestSlots { slots: 1 }");
        sender.send(slots).expect("the test receives it");
        std::future::ready(Ok::<_, Infallible>(Response::new(String::new())))
    });
    let response = layer(&limiter).layer(handle).oneshot(Request::new(String::new())).await;
    let slots = kept.recv().await.expect("sent");
    assert_eq!(in_flight(&limiter, &TWO).await, 0);
    assert!(slots.take().is_empty());
    drop(response);
}

#[tokio::test]
async fn an_extractor_without_a_layer_that_holds_responds_with_500() {
    let limiter = RateLimiter::embedded();
    let (sender, _taken) = unbounded_channel::<Vec<Permit>>();
    let app = Router::new().route("/", route_get(take)).layer(Extension(sender));
    let app = app.layer(RateLimitLayer::new().limiter(limiter.clone()));
    assert_eq!(status(&app, "/").await, 500);

    let handle = async |slots: RequestSlots| slots.take().len().to_string();
    let fixed = RateLimits::new().limit(TWO, |_| ());
    let chosen = RateLimits::new().limits(|request, limits| {
        if request.path() == "/" {
            limits.add(&TWO, (), 1);
        }
        Ok(())
    });
    // An empty text stands for any response with 500.
    for (limits, path, taken) in [
        (RateLimits::new(), "/", ""),
        (fixed, "/", "1"),
        (chosen.clone(), "/", "1"),
        (chosen, "/free", "0"),
    ] {
        let app = App::new().wrap(limits.limiter(limiter.clone()));
        let app = init_service(app.route("/{path:.*}", web::get().to(handle))).await;
        let response = call_service(&app, TestRequest::get().uri(path).to_request()).await;
        assert_eq!(response.status() == 500, taken.is_empty(), "{path}");
        assert!(read_body(response).await.starts_with(taken.as_bytes()), "{path}");
        assert_eq!(in_flight(&limiter, &TWO).await, 0);
    }
}
