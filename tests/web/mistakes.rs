//! Requests that a mistake in the program leaves undecided: an error of the server, and no outage.

use actix_web::dev::Service as _;
use actix_web::test::{TestRequest, call_service, init_service};
use actix_web::web;
use axum::Router;
use axum::routing::get as route_get;
use ratelimit_runtime::web::actix::RateLimits;
use ratelimit_runtime::web::{RateLimitLayer, RequestLimits};
use ratelimit_runtime::{Limit, RateLimiter, Rejection, current};
use support::http::get;

use crate::{MINUTE, serve};

const ALL: Limit = Limit::fixed("all", 4, MINUTE);

/// Limits that cannot be decided together.
fn mixed(limits: &mut RequestLimits) {
    limits.add(&ALL, (), 1);
    limits.add(&ALL.shadow(true), (), 1);
}

/// Checks a limit of calls in flight, which needs a permit.
async fn handler() -> Result<&'static str, Rejection> {
    const SLOTS: Limit = Limit::in_flight("slots", 2);
    current().expect("the limiter of the test").check(&SLOTS, "key", 1).await?;
    Ok("hi")
}

const BODY: &str = "the service cannot take this request because of an internal error";

#[test]
fn a_mistake_is_an_internal_error_in_axum() {
    let limiter = RateLimiter::embedded();
    let layer = RateLimitLayer::new().limits(|_, limits| {
        mixed(limits);
        Ok(())
    });
    let router = Router::new()
        .route("/layer", route_get(async || "hi").layer(layer))
        .route("/behind", route_get(handler).layer(RateLimitLayer::new()))
        .route("/alone", route_get(handler));
    let server = serve(router, &limiter);
    for path in ["/layer", "/behind", "/alone"] {
        let answer = get(server.address, path, &[]);
        assert_eq!((answer.status, &*answer.body), (500, BODY), "{path}");
        assert_eq!(answer.header("retry-after"), None);
        assert_eq!(answer.header("cache-control"), Some("no-store"));
    }
    let answer = get(server.address, "/layer", &["accept: application/json"]);
    let problem = r#"{"type":"about:blank","title":"Internal Server Error","status":500,"#;
    assert_eq!(answer.body, format!("{problem}\"detail\":\"{BODY}\"}}"));
}

#[actix_web::test]
async fn a_mistake_is_an_internal_error_in_actix() {
    let limiter = RateLimiter::embedded();
    let limits = RateLimits::new().limits(|_, limits| {
        mixed(limits);
        Ok(())
    });
    let app = actix_web::App::new()
        .service(web::resource("/layer").wrap(limits).to(async || "hi"))
        .service(web::resource("/behind").wrap(RateLimits::new()).to(handler))
        .route("/alone", web::get().to(handler))
        .wrap_fn(move |request, service| limiter.scope(service.call(request)));
    let app = init_service(app).await;
    for path in ["/layer", "/behind", "/alone"] {
        let answer = call_service(&app, TestRequest::get().uri(path).to_request()).await;
        assert_eq!(answer.status().as_u16(), 500, "{path}");
        assert_eq!(actix_web::test::read_body(answer).await, BODY);
    }
}
