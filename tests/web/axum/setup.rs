//! The layer and its surroundings: routes and clients as keys, the limiter, and limits that disagree.

use std::sync::Arc;

use axum::routing::get as route_get;
use ratelimit_runtime::Limit;
use ratelimit_runtime::web::axum::route;
use ratelimit_runtime::web::{Client, Clients, RateLimitLayer};
use support::http::get;

use super::{ALL, once, router};
use crate::{MINUTE, items, reported, serve, timed};

#[test]
fn takes_routes_and_clients_as_keys() {
    let (limiter, _) = timed();
    let limit = Limit::fixed("routes", 2, MINUTE);
    let layer = RateLimitLayer::new()
        .clients(Clients::behind_proxies(["127.0.0.1"]).expect("an address"))
        .limit(limit, |request| (route(request), Client::of(request)))
        .exempt(|request| request.uri.path() == "/tried")
        .limiter(limiter.clone());
    let router = router().route("/once", route_get(once)).layer(layer);
    let server = serve(router, &limiter);
    let ask = |path, client| {
        let header = format!("x-forwarded-for: {client}");
        get(server.address, path, &[&header]).status
    };
    // Neither the parameters in the path nor the hops that the client sends change the key.
    assert_eq!((ask("/hi/1", "1.1.1.1"), ask("/hi/2", "6.6.6.6, 1.1.1.1")), (200, 200));
    assert_eq!(ask("/hi/3", "1.1.1.1"), 429);
    assert_eq!((ask("/hi/3", "2.2.2.2"), ask("/plain", "1.1.1.1")), (200, 200));
    // All paths without a route share one key.
    assert_eq!((ask("/x", "1.1.1.1"), ask("/y", "1.1.1.1"), ask("/z", "1.1.1.1")), (404, 404, 429));
    assert!((0..3).all(|_| ask("/tried", "1.1.1.1") == 200));

    // The handler extracts the same client.
    let answer = get(server.address, "/once", &["x-forwarded-for: 2001:db8::1:2"]);
    assert_eq!((answer.status, &*answer.body), (200, "2001:db8::/64"));
    let other = get(server.address, "/once", &["x-forwarded-for: 2001:db8::3:4"]);
    assert_eq!(reported(&other).1, r#""once";r=0;t=3600, "routes";r=0;t=60"#);
}

/// The state of the router has no part in it. Without a layer of ours, an extension sets the `Clients`.
#[test]
fn extracts_the_client_beside_any_state() {
    struct State;
    let (limiter, _) = timed();
    let routes = || axum::Router::new().route("/", route_get(once)).with_state(Arc::new(State));
    let clients = Clients::behind_proxies(["127.0.0.1"]).expect("an address");
    let header = ["x-forwarded-for: 1.1.1.1"];
    let direct = get(serve(routes(), &limiter).address, "/", &header);
    assert_eq!(&*direct.body, "127.0.0.1");
    let set = serve(routes().layer(axum::Extension(clients)), &limiter);
    assert_eq!(&*get(set.address, "/", &header).body, "1.1.1.1");
}

/// A layer without a limiter of its own uses the limiter of the task.
#[test]
fn uses_the_current_limiter() {
    let (limiter, _) = timed();
    let layer = RateLimitLayer::new().limit(ALL, |_: &_| "current");
    let server = serve(router().layer(layer), &limiter);
    for left in [3, 2] {
        assert_eq!(items(reported(&get(server.address, "/plain", &[])).1)[0].1[0].1, left);
    }
    let decision = server.runtime.block_on(limiter.peek(&ALL, "current", 1)).expect("embedded");
    assert_eq!(decision.remaining, 2);
}

#[test]
#[should_panic(expected = "`trial` disagrees about `scope`, `on_error`, `shadow` or `wait`")]
fn panics_if_the_limits_of_one_layer_disagree() {
    let trial = Limit::fixed("trial", 1, MINUTE).shadow(true);
    let _ = RateLimitLayer::new().limit(ALL, |_| ()).limit(trial, |_| ());
}

#[test]
fn shares_one_count_between_layer_and_handler() {
    let (limiter, _) = timed();
    let layer = RateLimitLayer::new().limit(ALL, |_| ()).limiter(limiter.clone());
    let server = serve(router().layer(layer), &limiter);
    let field = r#""all";r=2;t=60"#;
    assert_eq!(reported(&get(server.address, "/again", &[])), (r#""all";q=4;w=60"#, field));
    assert_eq!(get(server.address, "/again", &[]).status, 200);
    assert_eq!(get(server.address, "/again", &[]).status, 429);
}
