//! Routes as keys: each spelling of a path that reaches a handler has the key of its route.

use std::collections::HashMap;

use axum::extract::Request;
use axum::http::Uri;
use ratelimit_runtime::web::actix;
use ratelimit_runtime::web::axum::route;

use crate::prelude::*;

const THRESHOLD: i64 = 100;
const ROUTES: Limit = Limit::fixed("routes", THRESHOLD as u64, MINUTE);

/// Three paths that have a handler, in several spellings. Each framework accepts other spellings.
const SPELLINGS: &str = "\
    /login /login?a=%6c /login#a /%6cogin /%6Cogin /%6c%6f%67%69%6e /LOGIN /%4cOGIN \
    /%256cogin /login/ /login// /%6cogin/ //login //%6cogin /./login /%2e/login /x/../login \
    /x/%2e%2e/login /login/. /login/%2e /login%2f /%2flogin /login%20 /login%00 /login;a \
    /login%ff /users/1 /users/%31 /%75sers/2 /users/a%2fb /users/a%2Fb /users/a/b /users//1 \
    /users/1/ /users/%2e%2e /users/.. /users/%2575sers /api/items/1 /api/items/%31 \
    /api/%69tems/1 /%61pi/%69tems/1 //api//items//1 /api%2fitems/1 /api/items/1/ /api/login";

/// Sends each spelling. A handler responds with its route, and all paths without a route have one key. Returns the
/// number of spellings that reach a handler.
fn count_by_route(address: SocketAddr) -> i64 {
    let mut counts = HashMap::new();
    for path in SPELLINGS.split(' ') {
        let answer = get(address, path, &[]);
        assert!(matches!(answer.status, 200 | 404), "{path}: {answer:?}");
        let route = if answer.status == 200 { answer.body.clone() } else { String::new() };
        let count = counts.entry(route).or_insert(0);
        *count += 1;
        let remaining = items(reported(&answer).1)[0].1[0].1;
        assert_eq!(remaining, THRESHOLD - *count, "{path} reached `{}`", answer.body);
    }
    counts.remove("");
    counts.values().sum()
}

fn actix_routes(config: &mut web::ServiceConfig) {
    let item = web::get().to(async || "/api/items/{id}");
    config
        .route("/login", web::get().to(async || "/login"))
        .route("/users/{id}", web::get().to(async || "/users/{id}"))
        .service(web::scope("/api").route("/items/{id}", item));
}

fn axum_routes() -> Router {
    let item = Router::new().route("/items/{id}", route_get(async || "/api/items/{id}"));
    Router::new()
        .route("/login", route_get(async || "/login"))
        .route("/users/{id}", route_get(async || "/users/{id}"))
        .nest("/api", item)
}

/// Removes slashes at the end of a path, as a normalizing layer around a router does.
fn trimmed(mut request: Request) -> Request {
    let (path, query) = (request.uri().path(), request.uri().query());
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    let text = format!("{}{query}", path.trim_end_matches('/'));
    if !text.is_empty() {
        *request.uri_mut() = text.parse::<Uri>().expect("a path");
    }
    request
}

#[test]
fn a_spelling_that_reaches_a_handler_of_actix_has_the_key_of_its_route() {
    let reaching = [false, true].map(|trims| {
        let limits = RateLimits::new().limit(ROUTES, actix::route);
        count_by_route(serve_actix(actix_routes, limits, &timed().0, trims))
    });
    assert_eq!(reaching, [18, 27]);
}

#[test]
fn a_spelling_that_reaches_a_handler_of_axum_has_the_key_of_its_route() {
    let reaching = [false, true].map(|trims| {
        let app = axum_routes().layer(RateLimitLayer::new().limit(ROUTES, route));
        let trimming = || Router::new().fallback_service(app.clone().map_request(trimmed));
        count_by_route(serve(if trims { trimming() } else { app }, &timed().0).address)
    });
    assert_eq!(reaching, [12, 16]);
}
