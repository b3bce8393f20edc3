//! actix-web: the middleware, annotated handlers behind it, the headers that report the limits of both, and servers
//! with several workers.

use std::sync::mpsc;

use actix_web::body::{BoxBody, EitherBody};
use actix_web::dev::ServiceResponse;
use actix_web::error::ErrorTooManyRequests;
use actix_web::http::StatusCode;
use actix_web::http::header::{CACHE_CONTROL, HeaderValue, SET_COOKIE};
use actix_web::middleware::{ErrorHandlerResponse, ErrorHandlers};
use actix_web::{HttpRequest, HttpResponse, HttpServer};
use ratelimit_runtime::web::actix::route;
use support::log::Log;
use tracing::Dispatch;

use crate::axum::{assert_reports_all_limits, assert_takes_routes_and_clients_as_keys};
use crate::prelude::*;

#[actix_web::get("/hi/{id}")]
#[rate_limit(period = "30s", threshold = 2, algo = "fixed", key = *id, name = "hi")]
async fn hi(id: web::Path<u64>) -> Result<String, Rejection> {
    Ok(format!("hi {id}"))
}

#[rate_limit(period = "1h", threshold = 1, key = client, name = "once")]
#[actix_web::get("/once")]
async fn once(client: Client) -> actix_web::Result<String> {
    Ok(client.to_string())
}

#[actix_web::get("/direct")]
#[rate_limit(period = "1h", threshold = 1, key = ())]
async fn direct() -> HttpResponse {
    HttpResponse::Ok().body("hi")
}

#[rate_limit(period = "1h", threshold = 1, key = (), name = "paged")]
async fn paged() -> Result<&'static str, Rejection> {
    Ok("")
}

#[actix_web::get("/own")]
async fn own() -> actix_web::Result<&'static str> {
    paged().await.map_err(|_| ErrorTooManyRequests("later"))
}

async fn left(decision: Option<web::ReqData<Decision>>) -> String {
    decision.map_or("none".to_owned(), |decision| decision.remaining.to_string())
}

async fn cached(request: HttpRequest) -> HttpResponse {
    HttpResponse::Ok().insert_header((CACHE_CONTROL, request.query_string())).finish()
}

#[allow(clippy::unnecessary_wraps, reason = "the signature of an error handler")]
fn page<B>(response: ServiceResponse<B>) -> actix_web::Result<ErrorHandlerResponse<B>> {
    let mut response = response.map_body(|_, _| EitherBody::right(BoxBody::new("a page")));
    for cookie in ["a=1", "b=2"] {
        response.headers_mut().append(SET_COOKIE, HeaderValue::from_static(cookie));
    }
    Ok(ErrorHandlerResponse::Response(response))
}

fn serve(limits: RateLimits, limiter: &RateLimiter) -> SocketAddr {
    let routes = |config: &mut web::ServiceConfig| {
        let errors = ErrorHandlers::new().handler(StatusCode::TOO_MANY_REQUESTS, page);
        config
            .service((hi, once, direct, own))
            .service(web::resource("/page").wrap(errors).route(web::get().to(paged)))
            .route("/plain", web::get().to(async || "plain"))
            .route("/left", web::get().to(left))
            .route("/cached", web::get().to(cached));
    };
    serve_actix(routes, limits, limiter, false)
}

#[test]
fn reports_all_limits_on_every_response() {
    let (limiter, clock) = timed();
    let address = serve(RateLimits::new().limit(ALL, |_| ()).legacy_headers(), &limiter);
    assert_reports_all_limits(address, &clock);
}

/// The middleware adds the headers of a rejection to the response that the application makes of it.
#[test]
fn a_status_keeps_when_to_come_back() {
    let reason = "too many requests, try again in 1 hour";
    for (path, first, text) in [
        ("/own", (200, ""), "later"),
        ("/direct", (200, "hi"), reason),
        ("/page", (200, ""), "a page"),
    ] {
        let address = serve(RateLimits::new(), &timed().0);
        let answer = get(address, path, &[]);
        assert_eq!((answer.status, &*answer.body), first, "{path}");
        let rejected = get(address, path, &[]);
        assert_eq!((rejected.status, &*rejected.body), (429, text), "{path}");
        assert_eq!(rejected.header("retry-after"), Some("3600"), "{path}");
        reported(&rejected);
        let cookies = rejected.headers.iter().filter(|(name, _)| name == "set-cookie").count();
        assert_eq!(cookies, if path == "/page" { 2 } else { 0 });
    }
}

#[test]
fn lets_the_application_choose_the_limits_and_see_the_request() {
    let limits = RateLimits::new().limits(|request, limits| {
        if request.path() == "/plain" {
            return Ok(());
        }
        let key = request.headers().get("x-api-key").ok_or((401, "send an API key"))?;
        limits.add(&Limit::fixed("by_key", 1, MINUTE), key.as_bytes(), 1);
        Ok(())
    });
    let limits = limits.rejection_body(|request| {
        let key = request.header("X-Api-Key").unwrap_or("none");
        (503, "text/html", format!("{} {} {key}", request.method(), request.path()))
    });
    let address = serve(limits, &timed().0);
    for (key, status, body) in [
        ("x-api-key: a", 200, "hi 1"),
        ("x-api-key: b", 200, "hi 1"),
        ("x-api-key: a", 503, "GET /hi/1 a"),
        ("x: y", 401, "send an API key"),
    ] {
        let answer = get(address, "/hi/1?a=b", &[key]);
        assert_eq!((answer.status, &*answer.body), (status, body), "{key}");
    }
    assert_eq!(get(address, "/plain", &[]).header("ratelimit-policy"), None);
}

#[test]
fn takes_routes_and_clients_as_keys() {
    let (limiter, _) = timed();
    let limit = Limit::fixed("routes", 2, MINUTE);
    let clients = Clients::behind_proxies(["127.0.0.1"]).expect("an address");
    let limits = RateLimits::new()
        .clients(clients.clone())
        .limit(limit, |request| (route(request), Client::of(request)))
        .exempt(|request| request.path() == "/exempt");
    assert_takes_routes_and_clients_as_keys(serve(limits, &limiter), &limiter, &limit);

    let request = TestRequest::default().peer_addr(([127, 0, 0, 1], 4711).into());
    let request = request.insert_header(("x-forwarded-for", "1.1.1.1"));
    let request = request.app_data(web::Data::new(clients)).to_http_request();
    assert_eq!(Client::of(&request).to_string(), "1.1.1.1");
}

#[test]
fn shows_the_decision_to_the_handler_and_not_to_shared_caches() {
    let redis = Server::start();
    for (limiter, _) in limiters(&redis) {
        let limits = RateLimits::new().limit(ALL, |_| ()).limiter(limiter.clone());
        let exposing = serve(limits.clone().expose_decision(), &limiter);
        assert_eq!(get(exposing, "/left", &[]).body, "3");
        assert_eq!(get(serve(limits.clone(), &limiter), "/left", &[]).body, "none");
        let away = serve(limits.limiter(without_redis(OnError::Deny)), &limiter);
        let undecided = get(away, "/plain", &[]);
        assert_eq!((undecided.status, undecided.header("ratelimit")), (503, None));
        for (directive, is_reported) in [("public", false), ("private", true)] {
            let answer = get(exposing, &format!("/cached?{directive}"), &[]);
            assert_eq!(answer.header("ratelimit").is_some(), is_reported, "{directive}");
        }
    }
}

const WORKERS: usize = 4;

/// Starts a server whose factories call `build`. Returns its address, and the events of `build`.
fn serve_workers(build: impl Fn() -> RateLimiter + Clone + Send + 'static) -> (SocketAddr, String) {
    let log = Log::default();
    let format = tracing_subscriber::fmt().with_writer(log.writer()).with_ansi(false);
    let events = Dispatch::new(format.finish());
    let (tell, address) = mpsc::channel();
    let (started, starts) = mpsc::channel();
    std::thread::spawn(move || {
        let server = HttpServer::new(move || {
            let limiter = tracing::dispatcher::with_default(&events, &build);
            started.send(()).expect("the test waits for it");
            let limits = RateLimits::new().limit(Limit::fixed("workers", 5, MINUTE), |_| ());
            App::new().wrap(limits.limiter(limiter)).route("/", web::get().to(async || "hello"))
        });
        let server = server.workers(WORKERS).disable_signals().bind("127.0.0.1:0");
        let server = server.expect("a free port");
        tell.send(server.addrs()[0]).expect("the test waits for it");
        actix_web::rt::System::new().block_on(server.run()).expect("it is served");
    });
    assert_eq!(starts.iter().take(WORKERS).count(), WORKERS);
    (address.recv().expect("an address"), log.text())
}

#[test]
fn warns_once_of_a_limiter_in_the_factory_of_an_app() {
    let (_, plain) = serve_workers(RateLimiter::embedded);
    let (_, built) = serve_workers(|| RateLimiter::builder().max_keys(9).build().expect("valid"));
    for (events, file) in [(plain, ""), (built, "tests/web/actix.rs")] {
        let [event] = events.lines().collect::<Vec<_>>()[..] else { panic!("{events}") };
        assert!(event.contains("WARN") && event.contains("before `HttpServer::new`"), "{event}");
        assert!(event.contains(file), "{event}");
    }
}

#[test]
fn workers_share_a_limiter_from_outside_of_the_factory() {
    let limiter = RateLimiter::embedded();
    let (address, events) = serve_workers(move || limiter.clone());
    let admitted = (0..20).filter(|_| get(address, "/", &[]).status == 200).count();
    assert_eq!((admitted, &*events), (5, ""));
}
