//! The settings of a layer: keys, costs, decisions in extensions, and hidden limits.

use axum::Extension;
use ratelimit_runtime::web::axum::route;
use support::http::Response;

use super::{assert_takes_routes_and_clients_as_keys, once, router};
use crate::prelude::*;

const SECRET: Limit = Limit::fixed("secret", 4, MINUTE).hidden(true);

#[test]
fn takes_routes_and_clients_as_keys() {
    let (limiter, _) = timed();
    let limit = Limit::fixed("routes", 2, MINUTE);
    let layer = RateLimitLayer::new()
        .clients(Clients::behind_proxies(["127.0.0.1"]).expect("an address"))
        .limit(limit, |request| {
            let route = route(request);
            (route, Client::of(request))
        })
        .exempt(|request| request.uri.path() == "/exempt");
    let server = serve(router().route("/once", route_get(once)).layer(layer), &limiter);
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
    assert_eq!(&*get(serve(routes(), &limiter).address, "/", &header).body, "127.0.0.1");
    let set = serve(routes().layer(Extension(clients)), &limiter);
    assert_eq!(&*get(set.address, "/", &header).body, "1.1.1.1");
}

#[test]
#[should_panic(expected = "`trial` disagrees about `scope`, `on_error`, `shadow` or `wait`")]
fn panics_if_the_limits_of_one_layer_disagree() {
    let trial = Limit::fixed("trial", 1, MINUTE).shadow(true);
    let _ = RateLimitLayer::new().limit(ALL, |_| ()).limit(trial, |_| ());
}

fn cost(request: &Parts) -> u64 {
    let written = request.headers.get("x-cost").and_then(|cost| cost.to_str().ok());
    written.and_then(|cost| cost.parse().ok()).unwrap_or(1)
}

async fn left(Extension(decision): Extension<Decision>) -> String {
    format!("{} of {}", decision.remaining, decision.limit)
}

#[test]
fn the_handler_finds_the_decision_in_the_extensions() {
    let redis = Server::start();
    for (limiter, _) in limiters(&redis) {
        let layer = RateLimitLayer::new()
            .limit_with_cost(ALL, |_| (), cost)
            .exempt(|request| request.uri.path() == "/exempt");
        let app = || Router::new().fallback(left);
        let server = serve(app().layer(layer.clone().expose_decision()), &limiter);
        let body = |cost| get(server.address, "/", &[&format!("x-cost: {cost}")]).body;
        assert_eq!((&*body(1), &*body(2)), ("3 of 4", "1 of 4"));
        // axum responds with 500 to a handler whose extension is missing.
        assert_eq!(get(server.address, "/exempt", &[]).status, 500);
        assert_eq!(get(serve(app().layer(layer), &limiter).address, "/", &[]).status, 500);
    }
}

#[rate_limit(limit = SECRET, key = 7, cost = 3)]
async fn secret() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(
    limit(limit = ALL, key = 8, hidden = false),
    limit(limit = SECRET, key = 8),
    limit(period = "1m", threshold = 4, name = "secret.group"),
    cost = 3,
    hidden = true
)]
async fn secret_in_a_group() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(limit = SECRET, key = 9, hidden = false)]
async fn shown() -> Result<(), Rejection> {
    Ok(())
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

/// Asserts that a response has this status, and does not show the limit `secret`, of 4 a minute.
#[track_caller]
fn assert_hidden(answer: &Response, status: u16) {
    assert_eq!(answer.status, status);
    let headers = answer.headers.iter().map(|(name, value)| format!("{name}: {value}"));
    for line in headers.chain([answer.body.clone()]) {
        assert!(!line.contains("secret"), "{line}");
        assert!(!line.starts_with("ratelimit") && !line.starts_with("x-ratelimit"), "{line}");
    }
    assert!(!answer.body.contains('4') || answer.body.contains("\"status\":4"), "{}", answer.body);
}

#[test]
fn no_header_and_no_body_shows_a_hidden_limit() {
    let layer = RateLimitLayer::new().limit_with_cost(SECRET, |_| (), cost).legacy_headers();
    let plain = || Router::new().fallback(async || "hi");
    let server = serve(plain().layer(layer), &timed().0);
    for accept in ["accept: text/plain", "accept: application/json"] {
        let ask = |cost: u64| get(server.address, "/", &[accept, &format!("x-cost: {cost}")]);
        assert_hidden(&ask(0), 200);
        assert_hidden(&ask(5), 413);
        while ask(1).status == 200 {}
        let rejected = ask(1);
        assert_eq!(rejected.header("retry-after"), Some("60"));
        assert_hidden(&rejected, 429);
    }
    let ask = |server: &Running| get(server.address, "/", &["accept: application/json"]);
    let handler = || Router::new().route("/", route_get(secret));
    for router in [handler().layer(RateLimitLayer::new()), handler()] {
        let server = serve(router, &RateLimiter::embedded());
        assert_hidden(&ask(&server), 200);
        assert_hidden(&ask(&server), 429);
    }
    let layer = RateLimitLayer::new().limit(SECRET, |_| ());
    assert_hidden(&ask(&serve(plain().layer(layer), &without_redis(OnError::Deny))), 503);
}
