//! `require_decision`: a test that sends a request to each route finds the routes without a limit.

use actix_web::dev::Service as _;
use actix_web::test::call_service;
use axum::body::Body;
use ratelimit_runtime::{current, in_scope};

use crate::prelude::*;

const ALL: Limit = Limit::fixed("all", 1, MINUTE);

#[rate_limit(limit = ALL)]
async fn limited() -> Result<&'static str, Rejection> {
    Ok("limited")
}

#[rate_limit(period = "1m", threshold = 1, shadow = true)]
async fn shadow() -> Result<&'static str, Rejection> {
    Ok("shadow")
}

#[rate_limit(period = "1m", threshold = None)]
async fn unlimited() -> Result<&'static str, Rejection> {
    Ok("unlimited")
}

fn app() -> Router {
    let layered = RateLimitLayer::new().limit(ALL, |_| ()).exempt(|it| it.uri.path() == "/open");
    let chosen = RateLimitLayer::new().limits(|_, limits| {
        limits.add(&ALL, (), 1);
        Ok(())
    });
    Router::new()
        .route("/layered", route_get(async || "layered"))
        .route("/open", route_get(async || "open"))
        .route_layer(layered)
        .route("/chosen", route_get(async || "chosen").layer(chosen))
        .route("/limited", route_get(limited))
        .route("/shadow", route_get(shadow))
        .route("/unlimited", route_get(unlimited))
        .route("/spawned", route_get(async || _ = tokio::spawn(in_scope(limited())).await))
        .route("/peeks", route_get(async || _ = current().expect("set").peek(&ALL, (), 1).await))
        .route("/plain", route_get(async || "plain"))
}

/// Sends a request to `app`. Returns the status of the response, or the message of the panic.
async fn send(limiter: &RateLimiter, app: &Router, path: &str) -> Result<u16, String> {
    let request = Request::get(path).body(Body::empty()).expect("a request");
    let response = limiter.scope(app.clone().oneshot(request));
    AssertUnwindSafe(response)
        .catch_unwind()
        .await
        .map(|response| response.expect("infallible").status().as_u16())
        .map_err(|panic| *panic.downcast().expect("a text"))
}

#[tokio::test]
async fn finds_the_routes_without_a_limit() {
    let redis = Server::start();
    for (limiter, _) in limiters(&redis) {
        let app = app().layer(RateLimitLayer::new().require_decision());
        for path in ["/layered", "/chosen", "/limited"] {
            limiter.reset(&ALL, ()).await.expect("reset");
            assert_eq!(send(&limiter, &app, path).await, Ok(200), "{path}");
            assert_eq!(send(&limiter, &app, path).await, Ok(429), "{path}");
        }
        for path in ["/open", "/shadow", "/unlimited", "/spawned", "/peeks", "/plain"] {
            let message = send(&limiter, &app, path).await.expect_err(path);
            let expected = format!("no limit has decided about `GET {path}`");
            assert!(message.starts_with(&expected), "{message}");
        }
    }
}

#[tokio::test]
async fn a_limit_decides_also_without_its_store_and_under_rules() {
    let app = app().layer(RateLimitLayer::new().require_decision());
    for (on_error, status) in [(OnError::Local, 200), (OnError::Allow, 200), (OnError::Deny, 503)] {
        let limiter = without_redis(on_error);
        assert_eq!(send(&limiter, &app, "/limited").await, Ok(status));
        assert!(send(&limiter, &app, "/plain").await.is_err());
    }
    let limiter = RateLimiter::embedded();
    let set = |rule| limiter.set_rules(ruled("all", rule)).expect("valid");
    set(Rule::new().blocked(true));
    assert_eq!(send(&limiter, &app, "/limited").await, Ok(429));
    set(Rule::new().exempt(true));
    assert!(send(&limiter, &app, "/limited").await.is_err());
}

#[tokio::test]
async fn the_layer_has_limits_and_exemptions_of_its_own() {
    let (limiter, _) = timed();
    let layer = RateLimitLayer::new().require_decision().exempt(|it| it.uri.path() == "/plain");
    let exempt = app().layer(layer.clone());
    let own = app().layer(layer.limit(Limit::fixed("own", 2, MINUTE), |_| ()));
    // Routes only: a request without a route is not looked at.
    let routed = app().route_layer(RateLimitLayer::new().require_decision());
    for (app, path, expected) in [
        (&exempt, "/plain", Some(200)),
        (&exempt, "/open", None),
        (&own, "/open", Some(200)),
        (&own, "/none", Some(404)),
        (&own, "/open", Some(429)),
        (&routed, "/none", Some(404)),
        (&routed, "/plain", None),
    ] {
        assert_eq!(send(&limiter, app, path).await.ok(), expected, "{path}");
    }
}

#[actix_web::test]
async fn finds_the_routes_of_actix_without_a_limit() {
    let (limiter, _) = timed();
    let limits = RateLimits::new().require_decision().exempt(|it| it.path() == "/health");
    let inner = RateLimits::new().limit(ALL, |_| ());
    let app = App::new()
        .service(web::resource("/layered").wrap(inner).to(async || "layered"))
        .route("/limited", web::get().to(limited))
        .route("/health", web::get().to(async || "healthy"))
        .route("/plain", web::get().to(async || "plain"))
        .wrap(limits)
        .wrap_fn(move |request, service| limiter.scope(service.call(request)));
    let app = init_service(app).await;
    let send = async |path: &str| {
        let request = TestRequest::get().uri(path).to_request();
        let response = AssertUnwindSafe(call_service(&app, request)).catch_unwind().await;
        response.map(|response| response.status().as_u16())
    };
    for (path, status) in [("/layered", 200), ("/limited", 429), ("/health", 200)] {
        assert_eq!(send(path).await.ok(), Some(status), "{path}");
    }
    let message = *send("/plain").await.expect_err("no limit").downcast::<String>().expect("text");
    assert!(message.starts_with("no limit has decided about `GET /plain`"), "{message}");
}
