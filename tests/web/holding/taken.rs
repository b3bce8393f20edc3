//! A handler that takes the slots out of its request.

use std::convert::Infallible;

use actix_web::test::{TestRequest, call_service, init_service};
use actix_web::{App, HttpResponse, web};
use axum::body::Body;
use axum::routing::get as route_get;
use axum::{Extension, Router};
use http::{Request, Response};
use ratelimit_runtime::web::actix::RateLimits;
use ratelimit_runtime::web::{RateLimitLayer, RequestSlots};
use ratelimit_runtime::{Limit, Permit, RateLimiter, Rule, RuleSet};
use support::server::Server;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tower::ServiceExt;
use tower_layer::Layer;

use super::{TWO, in_flight, layer};
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

#[tokio::test]
async fn taken_slots_are_held_until_their_permits_are_dropped() {
    let redis = Server::start();
    for (limiter, _) in limiters(&redis) {
        let (sender, mut taken) = unbounded_channel::<Vec<Permit>>();
        let app = Router::new().route("/", route_get(take)).layer(Extension(sender));
        let app = app.layer(layer(&limiter));
        assert_eq!((status(&app, "/").await, status(&app, "/").await), (200, 200));
        let [first, second] = [taken.recv().await, taken.recv().await].map(|it| it.expect("sent"));
        assert_eq!((first.len(), second.len(), in_flight(&limiter, &TWO).await), (1, 1, 2));
        assert_eq!(status(&app, "/").await, 429);
        drop(first);
        assert_eq!((in_flight(&limiter, &TWO).await, status(&app, "/").await), (1, 200));
        drop((second, taken));
    }
}

/// The slots of all layers belong to the work of the handler. Without a slot, nothing is taken.
#[tokio::test]
async fn slots_of_several_layers_and_of_none_are_taken_together() {
    let (limiter, _) = timed();
    let (sender, mut taken) = unbounded_channel::<Vec<Permit>>();
    let app = Router::new().route("/", route_get(take)).layer(Extension(sender));
    let outer = RateLimitLayer::new().limit(OUTER, |_| ()).limiter(limiter.clone());
    let app = app.layer(layer(&limiter)).layer(outer);
    assert_eq!(status(&app, "/").await, 200);
    let both = taken.recv().await.expect("sent");
    assert_eq!((both.len(), in_flight(&limiter, &OUTER).await), (2, 1));
    assert_eq!(in_flight(&limiter, &TWO).await, 1);
    drop(both);
    assert_eq!((in_flight(&limiter, &OUTER).await, in_flight(&limiter, &TWO).await), (0, 0));

    let mut rules = RuleSet::new();
    rules.set("two", Rule::new().exempt(true)).expect("valid");
    limiter.set_rules(rules).expect("valid");
    assert_eq!(status(&app, "/").await, 200);
    // Only the outer layer holds a slot.
    assert_eq!(taken.recv().await.expect("sent").len(), 1);
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

    let handle =
        async |slots: RequestSlots| HttpResponse::Ok().body(slots.take().len().to_string());
    let app = init_service(App::new().route("/", web::get().to(handle))).await;
    let response = call_service(&app, TestRequest::get().uri("/").to_request()).await;
    assert_eq!(response.status(), 500);
    let fixed = RateLimits::new().limit(TWO, |_| ());
    let chosen = RateLimits::new().limits(|request, limits| {
        if request.path() == "/" {
            limits.add(&TWO, (), 1);
        }
        Ok(())
    });
    for (limits, path, taken) in
        [(fixed, "/", "1"), (chosen.clone(), "/", "1"), (chosen, "/free", "0")]
    {
        let app = App::new().wrap(limits.limiter(limiter.clone()));
        let app = init_service(app.route("/{path:.*}", web::get().to(handle))).await;
        let response = call_service(&app, TestRequest::get().uri(path).to_request()).await;
        assert_eq!(actix_web::test::read_body(response).await, taken, "{path}");
        assert_eq!(in_flight(&limiter, &TWO).await, 0);
    }
}
