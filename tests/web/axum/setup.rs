//! The settings of a layer: keys, costs, decisions in extensions, and hidden limits.

use std::sync::Arc;

use axum::http::request::Parts;
use axum::routing::get as route_get;
use axum::{Extension, Router};
use ratelimit_runtime::web::axum::route;
use ratelimit_runtime::web::{Client, Clients, RateLimitLayer};
use ratelimit_runtime::{Decision, Limit, OnError, RateLimiter, Rejection, rate_limit};
use support::http::{Response, get};
use support::server::Server;

use super::{ALL, assert_takes_routes_and_clients_as_keys, once, router};
use crate::{MINUTE, limiters, reported, serve, timed, without_redis};

const SECRET: Limit = Limit::fixed("secret", 4, MINUTE).hidden(true);

#[test]
fn takes_routes_and_clients_as_keys() {
    let (limiter, _) = timed();
    let limit = Limit::fixed("routes", 2, MINUTE);
    let layer = RateLimitLayer::new()
        .clients(Clients::behind_proxies(["127.0.0.1"]).expect("an address"))
        .limit(limit, |request| {
            let route = route(request);
            assert_eq!(route.as_str(), route.to_string());
            (route, Client::of(request))
        })
        .exempt(|request| request.uri.path() == "/exempt");
    let router = router().route("/once", route_get(once)).layer(layer);
    let server = serve(router, &limiter);
    assert_takes_routes_and_clients_as_keys(server.address, &limiter, &limit);
}

/// The state of the router has no part in it. Without a layer of ours, an extension sets the `Clients`.
#[test]
fn extracts_the_client_beside_any_state() {
    struct State;
    let (limiter, _) = timed();
    let routes = || Router::new().route("/", route_get(once)).with_state(Arc::new(State));
    let clients = Clients::behind_proxies(["127.0.0.1"]).expect("an address");
    let header = ["x-forwarded-for: 1.1.1.1"];
    let direct = get(serve(routes(), &limiter).address, "/", &header);
    assert_eq!(&*direct.body, "127.0.0.1");
    let set = serve(routes().layer(Extension(clients)), &limiter);
    assert_eq!(&*get(set.address, "/", &header).body, "1.1.1.1");
}

#[test]
#[should_panic(expected = "`trial` disagrees about `scope`, `on_error`, `shadow` or `wait`")]
fn panics_if_the_limits_of_one_layer_disagree() {
    let trial = Limit::fixed("trial", 1, MINUTE).shadow(true);
    let _ = RateLimitLayer::new().limit(ALL, |_| ()).limit(trial, |_| ());
}

/// The cost of a request, as the request says.
fn cost(request: &Parts) -> u64 {
    let written = request.headers.get("x-cost").and_then(|cost| cost.to_str().ok());
    written.and_then(|cost| cost.parse().ok()).unwrap_or(1)
}

async fn left(Extension(decision): Extension<Decision>) -> String {
    format!("{} of {}", decision.remaining, decision.limit)
}

#[test]
fn a_request_takes_the_units_of_its_cost() {
    let (limiter, _) = timed();
    let layer = RateLimitLayer::new().limit_with_cost(ALL, |_| (), cost).limiter(limiter.clone());
    let server = serve(Router::new().route("/", route_get(async || "hi")).layer(layer), &limiter);
    let ask = |cost: u64| get(server.address, "/", &[&format!("x-cost: {cost}")]);
    assert_eq!(reported(&ask(3)).1, r#""all";r=1;t=60"#);
    assert_eq!((ask(5).status, ask(2).status, ask(0).status), (413, 429, 200));
    assert_eq!(reported(&ask(1)).1, r#""all";r=0;t=60"#);
    assert_eq!((ask(1).status, ask(0).status), (429, 200));
}

/// On the embedded store the decision is there at once, with Redis later.
#[test]
fn the_handler_finds_the_decision_in_the_extensions() {
    let redis = Server::start();
    for (limiter, _) in limiters(&redis) {
        let layer = RateLimitLayer::new()
            .limit_with_cost(ALL, |_| (), cost)
            .exempt(|request| request.uri.path() == "/exempt")
            .limiter(limiter.clone());
        let app = || Router::new().route("/", route_get(left)).route("/exempt", route_get(left));
        let server = serve(app().layer(layer.clone().expose_decision()), &limiter);
        let body = |cost| get(server.address, "/", &[&format!("x-cost: {cost}")]).body;
        assert_eq!((&*body(1), &*body(2)), ("3 of 4", "1 of 4"));
        // axum responds with 500 to a handler whose extension is missing.
        assert_eq!(get(server.address, "/exempt", &[]).status, 500);
        let server = serve(app().layer(layer), &limiter);
        assert_eq!(get(server.address, "/", &[]).status, 500);
    }
}

#[rate_limit(limit = SECRET, key = 7, cost = crate::three())]
async fn secret() -> Result<&'static str, Rejection> {
    Ok("hi")
}

#[rate_limit(
    limit(limit = ALL, key = 8, hidden = false),
    limit(limit = SECRET, key = 8),
    limit(period = "1m", threshold = 4, name = "secret.group"),
    cost = crate::three(),
    hidden = true
)]
async fn secret_in_a_group() -> Result<&'static str, Rejection> {
    Ok("hi")
}

#[rate_limit(limit = SECRET, key = 9, hidden = false)]
async fn shown() -> Result<&'static str, Rejection> {
    Ok("hi")
}

#[test]
fn the_attribute_hides_limits() {
    let router = Router::new()
        .route("/group", route_get(secret_in_a_group))
        .route("/shown", route_get(shown));
    let server = serve(router.layer(RateLimitLayer::new()), &timed().0);
    let ask = |path| get(server.address, path, &["accept: application/json"]);
    let answer = ask("/group");
    assert_eq!(reported(&answer), (r#""all";q=4;w=60"#, r#""all";r=1;t=60"#));
    assert!(!answer.headers.iter().any(|(_, value)| value.contains("secret")), "{answer:?}");
    assert_eq!(reported(&ask("/shown")), (r#""secret";q=4;w=60"#, r#""secret";r=3;t=60"#));
}

/// Asserts that a response does not show the limit `secret`, of 4 a minute.
#[track_caller]
fn assert_hidden(answer: &Response) {
    let headers = answer.headers.iter().map(|(name, value)| format!("{name}: {value}"));
    for line in headers.chain([answer.body.clone()]) {
        assert!(!line.contains("secret"), "{line}");
        assert!(!line.starts_with("ratelimit") && !line.starts_with("x-ratelimit"), "{line}");
    }
    assert!(!answer.body.contains('4') || answer.body.contains("\"status\":4"), "{}", answer.body);
}

#[test]
fn no_header_and_no_body_shows_a_hidden_limit() {
    let (limiter, _) = timed();
    let layer = RateLimitLayer::new().limit_with_cost(SECRET, |_| (), cost).legacy_headers();
    let of_layer = layer.limiter(limiter.clone());
    let server = serve(Router::new().fallback(async || "hi").layer(of_layer), &limiter);
    for accept in ["accept: text/plain", "accept: application/json"] {
        let ask = |cost: u64| get(server.address, "/", &[accept, &format!("x-cost: {cost}")]);
        for (answer, status) in [(ask(0), 200), (ask(5), 413)] {
            assert_eq!(answer.status, status);
            assert_hidden(&answer);
        }
        while ask(1).status == 200 {}
        let rejected = ask(1);
        assert_eq!((rejected.status, rejected.header("retry-after")), (429, Some("60")));
        assert_hidden(&rejected);
    }
    // Of a handler, with a layer and without.
    for layer in [Some(RateLimitLayer::new()), None] {
        let router = Router::new().route("/", route_get(secret));
        let router = if let Some(layer) = layer { router.layer(layer) } else { router };
        let limiter = RateLimiter::embedded();
        let server = serve(router, &limiter);
        for status in [200, 429] {
            let answer = get(server.address, "/", &["accept: application/json"]);
            assert_eq!(answer.status, status);
            assert_hidden(&answer);
        }
    }
    // Without a decision.
    let away = without_redis(OnError::Deny);
    let layer = RateLimitLayer::new().limit(SECRET, |_| ()).limiter(away);
    let server = serve(Router::new().fallback(async || "hi").layer(layer), &limiter);
    let answer = get(server.address, "/", &["accept: application/json"]);
    assert_eq!(answer.status, 503);
    assert_hidden(&answer);
}
