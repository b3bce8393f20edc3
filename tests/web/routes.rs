//! Routes as keys: each spelling of a path that reaches a handler has the key of its route.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};

use actix_web::middleware::{Condition, NormalizePath};
use actix_web::{App, HttpServer, guard, web};
use axum::Router;
use axum::extract::Request;
use axum::http::Uri;
use axum::routing::get as route_get;
use ratelimit_runtime::Limit;
use ratelimit_runtime::web::actix::{self, RateLimits};
use ratelimit_runtime::web::{RateLimitLayer, axum::route};
use support::http::get;
use tower::ServiceExt;

use crate::{MINUTE, items, reported, serve, timed};

const THRESHOLD: i64 = 20_000;
const ROUTES: Limit = Limit::fixed("routes", THRESHOLD as u64, MINUTE);

/// Three paths that have a handler, in several spellings. Each framework accepts other spellings.
const SPELLINGS: [&str; 45] = [
    "/login",
    "/login?a=%6c",
    "/login#a",
    "/%6cogin",
    "/%6Cogin",
    "/%6c%6f%67%69%6e",
    "/LOGIN",
    "/%4cOGIN",
    "/%256cogin",
    "/login/",
    "/login//",
    "/%6cogin/",
    "//login",
    "//%6cogin",
    "/./login",
    "/%2e/login",
    "/x/../login",
    "/x/%2e%2e/login",
    "/login/.",
    "/login/%2e",
    "/login%2f",
    "/%2flogin",
    "/login%20",
    "/login%00",
    "/login;a",
    "/login%ff",
    "/users/1",
    "/users/%31",
    "/%75sers/2",
    "/users/a%2fb",
    "/users/a%2Fb",
    "/users/a/b",
    "/users//1",
    "/users/1/",
    "/users/%2e%2e",
    "/users/..",
    "/users/%2575sers",
    "/api/items/1",
    "/api/items/%31",
    "/api/%69tems/1",
    "/%61pi/%69tems/1",
    "//api//items//1",
    "/api%2fitems/1",
    "/api/items/1/",
    "/api/login",
];

/// Sends each spelling. A handler responds with its route. Returns the number of spellings that reach one.
fn count_by_route(address: SocketAddr) -> usize {
    let mut counts = HashMap::new();
    for path in SPELLINGS {
        let answer = get(address, path, &[]);
        assert!(matches!(answer.status, 200 | 404), "{path}: {answer:?}");
        let route = if answer.status == 200 { answer.body.clone() } else { String::new() };
        let count = counts.entry(route).or_insert(0);
        *count += 1;
        let remaining = items(reported(&answer).1)[0].1[0].1;
        assert_eq!(remaining, THRESHOLD - *count, "{path} reached `{}`", answer.body);
    }
    SPELLINGS.len() - counts[""] as usize
}

/// Sends requests without a handler over one connection. Returns the units that are left to the last one.
fn left_after_random_paths(address: SocketAddr, requests: u64) -> i64 {
    let mut stream = BufReader::new(TcpStream::connect(address).expect("a connection"));
    let (mut seed, mut head) = (1_u64, String::new());
    for _ in 0..requests {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let bytes = seed.to_be_bytes();
        let mut path = format!("/none/{:x}", seed >> 40);
        for byte in &bytes[..2] {
            write!(path, "/%{byte:02x}").expect("a string");
        }
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
        stream.get_mut().write_all(request.as_bytes()).expect("a request");
        head.clear();
        while !head.ends_with("\r\n\r\n") {
            stream.read_line(&mut head).expect("a line");
        }
        assert!(head.starts_with("HTTP/1.1 404") && head.contains("content-length: 0"), "{head}");
    }
    let state = head.lines().find_map(|line| line.strip_prefix("ratelimit: "));
    items(state.expect("the header"))[0].1[0].1
}

/// Serves the routes that `configure` adds behind `limits`, with a normalizing middleware outside of them.
fn serve_actix(
    configure: impl Fn(&mut web::ServiceConfig) + Clone + Send + 'static,
    limits: RateLimits,
    normalizes: bool,
) -> SocketAddr {
    let (tell, address) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let server = HttpServer::new(move || {
            let normalize = Condition::new(normalizes, NormalizePath::trim());
            App::new().configure(configure.clone()).wrap(limits.clone()).wrap(normalize)
        });
        let server = server.workers(1).disable_signals().bind("127.0.0.1:0").expect("a free port");
        tell.send(server.addrs()[0]).expect("the test waits for it");
        actix_web::rt::System::new().block_on(server.run()).expect("it is served");
    });
    address.recv().expect("an address")
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
    let reaching = [false, true].map(|normalizes| {
        let limits = RateLimits::new().limit(ROUTES, actix::route).limiter(timed().0);
        count_by_route(serve_actix(actix_routes, limits, normalizes))
    });
    assert_eq!(reaching, [18, 27]);
}

#[test]
fn a_spelling_that_reaches_a_handler_of_axum_has_the_key_of_its_route() {
    let reaching = [false, true].map(|normalizes| {
        let (limiter, _) = timed();
        let app = axum_routes()
            .layer(RateLimitLayer::new().limit(ROUTES, route).limiter(limiter.clone()));
        let trimming = || Router::new().fallback_service(app.clone().map_request(trimmed));
        let server = serve(if normalizes { trimming() } else { app }, &limiter);
        count_by_route(server.address)
    });
    assert_eq!(reaching, [12, 16]);
}

#[test]
fn all_paths_without_a_route_have_one_key() {
    const REQUESTS: u64 = 10_000;
    let left = THRESHOLD - REQUESTS as i64;
    let (limiter, _) = timed();
    let limits = RateLimits::new().limit(ROUTES, actix::route).limiter(limiter.clone());
    let address = serve_actix(actix_routes, limits, true);
    assert_eq!(left_after_random_paths(address, REQUESTS), left);

    let (limiter, _) = timed();
    let layer = RateLimitLayer::new().limit(ROUTES, route).limiter(limiter.clone());
    let server = serve(axum_routes().layer(layer), &limiter);
    assert_eq!(left_after_random_paths(server.address, REQUESTS), left);
}

/// The path does not tell the scopes apart, and their guards do.
#[test]
fn a_scope_with_a_guard_has_limits_of_its_own() {
    let (limiter, _) = timed();
    let configure = move |config: &mut web::ServiceConfig| {
        for plan in ["free", "paid"] {
            let name = plan;
            let limit = Limit::fixed(name, if plan == "paid" { 3 } else { 1 }, MINUTE);
            let limits = RateLimits::new().limit(limit, |_| ()).limiter(limiter.clone());
            let scope = web::scope("/api").guard(guard::Header("x-plan", plan)).wrap(limits);
            config.service(scope.route("/{id}", web::get().to(move || async move { plan })));
        }
    };
    let address = serve_actix(configure, RateLimits::new(), false);
    for (path, plan, status) in [
        ("/api/1", "paid", 200),
        ("/%61pi/2", "paid", 200),
        ("/api/3", "free", 200),
        ("/%61pi/4", "free", 429),
        ("/api/%35", "paid", 200),
        ("/api/6", "paid", 429),
    ] {
        let answer = get(address, path, &[&format!("x-plan: {plan}")]);
        assert_eq!((answer.status, items(reported(&answer).1)[0].0.as_str()), (status, plan));
    }
}
