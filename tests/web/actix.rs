//! actix-web: the middleware, annotated handlers behind it, and the headers that report the limits of both.

use std::net::SocketAddr;

use actix_web::body::{BoxBody, EitherBody};
use actix_web::dev::ServiceResponse;
use actix_web::error::ErrorTooManyRequests;
use actix_web::http::StatusCode;
use actix_web::http::header::{CACHE_CONTROL, HeaderValue, SET_COOKIE};
use actix_web::middleware::{ErrorHandlerResponse, ErrorHandlers};
use actix_web::test::TestRequest;
use actix_web::{HttpRequest, HttpResponse, web};
use ratelimit_runtime::web::actix::{RateLimits, route};
use ratelimit_runtime::web::{Client, Clients};
use ratelimit_runtime::{Decision, Limit, OnError, RateLimiter, Rejection, rate_limit};
use support::http::get;
use support::server::Server;

use crate::axum::{assert_reports_all_limits, assert_takes_routes_and_clients_as_keys};
use crate::{MINUTE, limiters, reported, serve_actix, timed, without_redis};

const ALL: Limit = Limit::fixed("all", 4, MINUTE);

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

#[rate_limit(period = "1h", threshold = 1, key = ())]
async fn limited() -> Result<(), Rejection> {
    Ok(())
}

/// Its error is one of the application, which knows no headers.
#[actix_web::get("/own")]
async fn own() -> actix_web::Result<&'static str> {
    limited().await.map_err(|_| ErrorTooManyRequests("later"))?;
    Ok("hi")
}

async fn left(decision: Option<web::ReqData<Decision>>) -> String {
    decision.map_or("none".to_owned(), |decision| decision.remaining.to_string())
}

/// Responds with the `Cache-Control` in the query.
async fn cached(request: HttpRequest) -> HttpResponse {
    HttpResponse::Ok().insert_header((CACHE_CONTROL, request.query_string())).finish()
}

/// A page of the application, with two cookies.
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

#[test]
fn rejects_with_problem_details_and_without_redis() {
    let (limiter, _) = timed();
    let address = serve(RateLimits::new(), &limiter);
    let ask = || get(address, "/hi/1", &["accept: application/json"]);
    assert_eq!((ask().status, ask().status), (200, 200));
    let rejected = ask();
    assert_eq!(reported(&rejected), (r#""hi";q=2;w=30"#, r#""hi";r=0;t=30"#));
    assert_eq!(rejected.header("content-type"), Some("application/problem+json"));
    assert!(rejected.body.ends_with(r#""violated-policies":["hi"]}"#), "{}", rejected.body);

    let away = RateLimits::new().limit(ALL, |_| ()).limiter(without_redis(OnError::Deny));
    let undecided = get(serve(away, &limiter), "/plain", &[]);
    assert_eq!((undecided.status, undecided.header("ratelimit")), (503, None));
}

/// The middleware adds the headers of a rejection to the response that the application makes of it.
#[test]
fn a_status_keeps_when_to_come_back() {
    let (limiter, _) = timed();
    let address = serve(RateLimits::new(), &limiter);
    let reason = "too many requests, try again in 1 hour";
    for (path, first, text) in [
        ("/own", (200, "hi"), "later"),
        ("/direct", (200, "hi"), reason),
        ("/page", (200, ""), "a page"),
    ] {
        let answer = get(address, path, &[]);
        assert_eq!((answer.status, &*answer.body), first, "{path}");
        let rejected = get(address, path, &[]);
        assert_eq!((rejected.status, &*rejected.body), (429, text), "{path}");
        assert_eq!(rejected.header("retry-after"), Some("3600"), "{path}");
        reported(&rejected);
    }
    let page = get(address, "/page", &[]);
    assert_eq!(page.headers.iter().filter(|(name, _)| name == "set-cookie").count(), 2);
}

#[test]
fn lets_the_application_choose_the_limits_and_see_the_request() {
    let (limiter, _) = timed();
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
    let address = serve(limits, &limiter);
    let ask = |key: &str| get(address, "/hi/1?a=b", &[&format!("x-api-key: {key}")]);
    assert_eq!((ask("a").status, ask("b").status), (200, 200));
    let rejected = ask("a");
    assert_eq!((rejected.status, &*rejected.body), (503, "GET /hi/1 a"));
    let refused = get(address, "/hi/1", &[]);
    assert_eq!((refused.status, &*refused.body), (401, "send an API key"));
    assert_eq!(get(address, "/plain", &[]).header("ratelimit-policy"), None);
}

#[test]
fn takes_routes_and_clients_as_keys() {
    let (limiter, _) = timed();
    let limit = Limit::fixed("routes", 2, MINUTE);
    let limits = RateLimits::new()
        .clients(Clients::behind_proxies(["127.0.0.1"]).expect("an address"))
        .limit(limit, |request| (route(request), Client::of(request)))
        .exempt(|request| request.path() == "/exempt");
    assert_takes_routes_and_clients_as_keys(serve(limits, &limiter), &limiter, &limit);

    // Elsewhere in the application, `web::Data` sets the `Clients`.
    let request = TestRequest::default().peer_addr(([127, 0, 0, 1], 4711).into());
    let request = request.insert_header(("x-forwarded-for", "1.1.1.1"));
    let clients = Clients::behind_proxies(["127.0.0.1"]).expect("an address");
    let request = request.app_data(web::Data::new(clients)).to_http_request();
    assert_eq!(Client::of(&request).to_string(), "1.1.1.1");
}

/// On the embedded store the decision is there at once, with Redis later.
#[test]
fn shows_the_decision_to_the_handler_and_not_to_shared_caches() {
    let redis = Server::start();
    for (limiter, _) in limiters(&redis) {
        let limits = RateLimits::new().limit(ALL, |_| ()).limiter(limiter.clone());
        let exposing = serve(limits.clone().expose_decision(), &limiter);
        assert_eq!(get(exposing, "/left", &[]).body, "3");
        assert_eq!(get(serve(limits, &limiter), "/left", &[]).body, "none");
        for (directive, is_reported) in [("public", false), ("private", true)] {
            let answer = get(exposing, &format!("/cached?{directive}"), &[]);
            assert_eq!(answer.header("ratelimit").is_some(), is_reported, "{directive}");
        }
    }
}
