//! The responses to rejected calls: their status and body, and what the application changes.

use std::time::Duration;

use axum::Router;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::get as route_get;
use futures::FutureExt;
use ratelimit_runtime::web::RateLimitLayer;
use ratelimit_runtime::{Answer, Limit, OnError, Rejection, current, rate_limit};
use support::http::get;

use super::{ALL, hi, router};
use crate::{MINUTE, reported, serve, timed, without_redis};

#[rate_limit(period = "1h", threshold = 1, name = "page")]
async fn limited() -> Result<(), Rejection> {
    Ok(())
}

/// The response of the library with another status.
async fn page() -> axum::response::Response {
    let forbidden = |rejection: Rejection| (StatusCode::FORBIDDEN, rejection);
    limited().await.map_err(forbidden).into_response()
}

/// Checks a limit of calls in flight, which needs a permit.
async fn mistaken() -> Result<(), Rejection> {
    const SLOTS: Limit = Limit::in_flight("slots", 2);
    current().expect("the limiter of the test").check(&SLOTS, "key", 1).await?;
    Ok(())
}

/// Replaces the body and drops the extensions of a response, as compression or a custom error page does.
async fn remade(response: axum::response::Response) -> axum::response::Response {
    let mut made = axum::response::Response::builder().status(response.status());
    for (name, value) in response.headers() {
        made = made.header(name, value);
    }
    let made = made.header("x-made", "1").header("x-made", "2");
    made.body("made".into()).expect("a response")
}

/// The capacity of another call can be larger, so 413 would be wrong. No wait helps.
#[test]
fn responds_429_to_amounts_that_are_too_small() {
    let server = serve(router().layer(RateLimitLayer::new()), &timed().0);
    let ask = |size: u64| get(server.address, &format!("/sized/{size}"), &[]);
    let exceeding = ask(3);
    assert_eq!((exceeding.status, exceeding.header("retry-after")), (429, None));
    assert_eq!(
        exceeding.body,
        "this request is too large: it needs 5 units, and at most 3 are allowed at once"
    );
    let blocked = ask(0);
    assert_eq!((blocked.status, blocked.header("retry-after")), (429, None));
    assert_eq!(blocked.body, "requests are blocked until further notice");
    assert_eq!(blocked.header("ratelimit"), None);
    assert_eq!(reported(&ask(5)), (r#""sized";q=5;w=60"#, r#""sized";r=0;t=60"#));
}

/// A blocked key of the handler, and then one of the layer.
#[test]
fn reports_blocked_keys() {
    let (limiter, clock) = timed();
    let layer = RateLimitLayer::new().limit(ALL, |_| ()).limiter(limiter.clone());
    let server = serve(router().layer(layer), &limiter);
    let ask = || get(server.address, "/hi/1", &["accept: application/problem+json"]);
    let seconds = Duration::from_secs;
    let block = |block: Answer<()>| block.now_or_never().expect("at once").expect("blocked");
    block(limiter.block(&Limit::fixed("hi", 2, seconds(30)), 1_u64, seconds(90)));
    let rejected = ask();
    assert_eq!((rejected.status, rejected.header("retry-after")), (429, Some("90")));
    let states = r#""hi";r=0;t=90, "all";r=3;t=60"#;
    assert_eq!(reported(&rejected), (r#""all";q=4;w=60, "hi";q=2;w=30"#, states));
    block(limiter.block(&ALL, (), seconds(600)));
    let rejected = ask();
    assert_eq!((rejected.status, rejected.header("retry-after")), (429, Some("600")));
    assert!(rejected.body.contains("quota-exceeded"), "{}", rejected.body);
    clock.advance(seconds(600));
    assert_eq!(ask().status, 200);
}

#[test]
fn sends_problem_details_to_clients_that_prefer_json() {
    let (limiter, _) = timed();
    let named = Limit::fixed("a \"b\\\n\u{e9}", 2, MINUTE);
    let layer = RateLimitLayer::new().limit(named, |_| ()).limiter(limiter.clone());
    let away = RateLimitLayer::new().limit(ALL, |_| ()).limiter(without_redis(OnError::Deny));
    let mixed = RateLimitLayer::new().limits(|_, limits| {
        limits.add(&ALL, (), 1);
        limits.add(&ALL.shadow(true), (), 1);
        Ok(())
    });
    let router = router()
        .layer(layer)
        .route("/away", route_get(async || ()).layer(away))
        .route("/mixed", route_get(async || ()).layer(mixed))
        .route("/mistaken", route_get(mistaken));
    let server = serve(router, &limiter);
    let json = "accept: application/json";
    let costly = get(server.address, "/costly", &[json]);
    assert_eq!((costly.status, costly.header("retry-after")), (413, None));
    assert_eq!(costly.header("content-type"), Some("application/problem+json"));
    let problem = r#"{"type":"about:blank","title":"Content Too Large","status":413,"detail":"#;
    let detail = "this request is too large: it needs 3 units, and at most 2 are allowed at once";
    assert_eq!(costly.body, format!("{problem}\"{detail}\"}}"));

    assert_eq!(get(server.address, "/plain", &[]).status, 200);
    for accept in
        [json, "accept: application/*;q=0.5, text/html", "accept: text/x\r\naccept: */json"]
    {
        let rejected = get(server.address, "/plain", &[accept]);
        assert_eq!(reported(&rejected).1, r#""a \"b\\%0A%C3%A9";r=0;t=60"#);
        assert_eq!(rejected.header("content-type"), Some("application/problem+json"));
        assert_eq!(
            rejected.body,
            "{\"type\":\"https://iana.org/assignments/http-problem-types#quota-exceeded\",\
             \"title\":\"Quota Exceeded\",\"status\":429,\
             \"detail\":\"too many requests, try again in 1 minute\",\
             \"violated-policies\":[\"a \\\"b\\\\%0A%C3%A9\"]}"
        );
    }
    for accept in ["accept: */*", "accept: text/html,application/xml;q=0.9,*/*;q=0.8", "x: y"] {
        let rejected = get(server.address, "/plain", &[accept]);
        assert_eq!(rejected.header("content-type"), Some("text/plain; charset=utf-8"));
        assert_eq!(rejected.body, "too many requests, try again in 1 minute");
    }

    let undecided = get(server.address, "/away", &[json]);
    assert_eq!((undecided.status, undecided.header("retry-after")), (503, None));
    let problem =
        r#"{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","#;
    let title = r#""title":"Temporary Reduced Capacity","status":503,"detail":"#;
    let detail = "the service cannot take this request right now, try again in a few minutes";
    let policies = r#""violated-policies":["all"]"#;
    assert_eq!(undecided.body, format!("{problem}{title}\"{detail}\",{policies}}}"));

    let reason = "the service cannot take this request because of an internal error";
    for path in ["/mixed", "/mistaken"] {
        let mistake = get(server.address, path, &[]);
        assert_eq!((mistake.status, &*mistake.body), (500, reason), "{path}");
        assert_eq!(mistake.header("retry-after"), None);
        assert_eq!(mistake.header("cache-control"), Some("no-store"));
    }
    let problem = r#"{"type":"about:blank","title":"Internal Server Error","status":500,"#;
    let mistake = get(server.address, "/mixed", &[json]);
    assert_eq!(mistake.body, format!("{problem}\"detail\":\"{reason}\"}}"));
}

#[test]
fn keeps_the_changes_of_the_application_to_a_rejection() {
    let (limiter, _) = timed();
    let within = Router::new()
        .route("/hi/{id}", route_get(hi))
        .layer(axum::middleware::map_response(remade))
        .route("/page", route_get(page))
        .layer(RateLimitLayer::new());
    let server = serve(within, &limiter);
    let ask = |path| get(server.address, path, &["accept: application/json"]);
    assert_eq!((ask("/hi/1").status, ask("/hi/1").status, ask("/page").status), (200, 200, 200));

    let rejected = ask("/hi/1");
    assert_eq!((rejected.status, &*rejected.body), (429, "made"));
    assert_eq!(reported(&rejected), (r#""hi";q=2;w=30"#, r#""hi";r=0;t=30"#));
    assert_eq!(rejected.headers.iter().filter(|(name, _)| name == "x-made").count(), 2);

    let rejected = ask("/page");
    assert_eq!((rejected.status, rejected.header("retry-after")), (403, Some("3600")));
    assert_eq!(rejected.header("content-type"), Some("application/problem+json"));
    assert_eq!(reported(&rejected).1, r#""page";r=0;t=3600"#);
}

/// Without the layer, and in a spawned task, the request is not known: the response is plain text with the headers of
/// its limit.
#[test]
fn reports_a_rejection_without_the_request() {
    let handler = async |path: Path<u64>| {
        let Err(rejection) = hi(path).await else { return ().into_response() };
        let made = tokio::spawn(async move { rejection.into_response() });
        made.await.expect("it does not panic")
    };
    let spawned = Router::new().route("/hi/{id}", route_get(handler)).layer(RateLimitLayer::new());
    for router in [spawned, router()] {
        let server = serve(router, &timed().0);
        let ask = || get(server.address, "/hi/1", &["accept: application/json"]);
        assert_eq!((ask().status, ask().status), (200, 200));
        let rejected = ask();
        assert_eq!(rejected.header("content-type"), Some("text/plain; charset=utf-8"));
        assert_eq!(reported(&rejected), (r#""hi";q=2;w=30"#, r#""hi";r=0;t=30"#));
    }
}
