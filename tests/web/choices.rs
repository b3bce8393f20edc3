//! What an application chooses for each request: its limits, and the response if it is not handled.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::response::IntoResponse;
use axum::routing::get as route_get;
use axum::{Json, Router};
use ratelimit_runtime::web::{RateLimitLayer, RejectedRequest, RequestLimits, TextResponse};
use ratelimit_runtime::{Limit, OnError, Rejection, Rule, RuleSet, rate_limit};
use support::http::{get, request};
use support::limits::ruled;
use support::poll_once;
use support::server::Server;

use crate::{MINUTE, limiters, reported, serve, timed, without_redis};

const ALL: Limit = Limit::fixed("all", 4, MINUTE);

#[rate_limit(period = "1h", threshold = 1, key = ())]
async fn handled() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = "1h", threshold = 1, key = ())]
async fn response() -> axum::response::Response {
    "hi".into_response()
}

#[rate_limit(period = "1h", threshold = 1, key = ())]
async fn status() -> StatusCode {
    StatusCode::NO_CONTENT
}

#[rate_limit(period = "1h", threshold = 1, key = ())]
async fn text() -> (StatusCode, String) {
    (StatusCode::OK, "hi".to_owned())
}

/// The rejection of another function, which becomes a status.
async fn asked() -> Result<Json<u64>, StatusCode> {
    handled().await?;
    Ok(Json(7))
}

#[rate_limit(period = "1h", threshold = 1, key = (), hidden = true)]
async fn unseen() -> Result<Json<u64>, StatusCode> {
    Ok(Json(7))
}

#[rate_limit(period = "1h", threshold = 1, key = ())]
async fn limited() -> Result<(), Rejection> {
    Ok(())
}

/// Its error is one of the application, which knows no headers.
async fn own() -> Result<(), (StatusCode, &'static str)> {
    limited().await.map_err(|_| (StatusCode::TOO_MANY_REQUESTS, "later"))
}

/// A status and a header of the application.
#[rate_limit(
    period = "1h",
    threshold = 1,
    key = (),
    on_limited = |_| (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "7"), ("cache-control", "private")])
)]
async fn said() -> (StatusCode, [(&'static str, &'static str); 2]) {
    (StatusCode::OK, [("x-a", "1"), ("x-b", "2")])
}

/// A handler that goes on after a rejection, and has its own reason for its status.
async fn other(axum::extract::Path(status): axum::extract::Path<u16>) -> StatusCode {
    let _ = handled().await;
    StatusCode::from_u16(status).expect("a status")
}

fn app() -> Router {
    Router::new()
        .route("/asked", route_get(asked))
        .route("/unseen", route_get(unseen))
        .route("/own", route_get(own))
        .route("/said", route_get(said))
        .route("/other/{status}", route_get(other))
        .route("/response", route_get(response))
        .route("/status", route_get(status))
        .route("/text", route_get(text))
        .route("/handled", route_get(handled))
        .route("/plain", route_get(async || "plain"))
        .route("/free", route_get(async || "free"))
}

/// A status has no headers. The layer adds those of the rejection to a 429, and the application keeps its own.
#[test]
fn a_status_keeps_when_to_come_back() {
    let (limiter, _) = timed();
    let server = serve(app().layer(RateLimitLayer::new()).layer(RateLimitLayer::new()), &limiter);
    let ask = |path: &str| get(server.address, path, &[]);
    let reason = "too many requests, try again in 1 hour";
    for (path, first, rejected) in [
        ("/response", (200, "hi"), reason),
        ("/status", (204, ""), ""),
        ("/text", (200, "hi"), reason),
        ("/asked", (200, "7"), ""),
        ("/own", (200, ""), "later"),
    ] {
        let answer = ask(path);
        assert_eq!((answer.status, &*answer.body), first, "{path}");
        assert_eq!(answer.header("retry-after"), None, "{path}");
        let answer = ask(path);
        assert_eq!((answer.status, &*answer.body), (429, rejected), "{path}");
        assert_eq!(answer.header("retry-after"), Some("3600"), "{path}");
        reported(&answer);
    }
    for (path, wait, cache) in [("/unseen", "3600", "no-store"), ("/said", "7", "private")] {
        assert_eq!(ask(path).status, 200);
        let answer = ask(path);
        assert_eq!((answer.status, answer.header("retry-after")), (429, Some(wait)), "{path}");
        assert_eq!(answer.header("cache-control"), Some(cache), "{path}");
        assert_eq!(answer.header("ratelimit").is_none(), path == "/unseen");
    }
    // Another status asks for no wait.
    let answer = ask("/other/403");
    assert_eq!((answer.status, answer.header("retry-after")), (403, None));

    let bare = serve(Router::new().route("/", route_get(text)), &limiter);
    let answer = get(bare.address, "/", &[]);
    assert_eq!((answer.status, &*answer.body), (429, reason));
    assert_eq!((answer.header("retry-after"), answer.header("ratelimit")), (None, None));
}

/// The plan of a customer, a key that borrows from the request, requests without limits, and requests without a key.
fn by_plan(request: &Parts, limits: &mut RequestLimits) -> Result<(), TextResponse> {
    if request.uri.path() == "/free" {
        return Ok(());
    }
    let key = request.headers.get("x-api-key").ok_or((401, "send an API key"))?;
    let (name, threshold) =
        if key.as_bytes().starts_with(b"paid") { ("paid", 3) } else { ("free", 1) };
    limits.add(&Limit::fixed(name, threshold, MINUTE), key.as_bytes(), 1);
    if request.method == Method::POST {
        limits.add(&Limit::fixed("writes", 5, MINUTE), key.as_bytes(), 2);
    }
    Ok(())
}

#[test]
fn lets_the_application_choose_the_limits_of_each_request() {
    let (limiter, _) = timed();
    let layer = RateLimitLayer::new().limits(by_plan).limiter(limiter.clone());
    let server = serve(app().layer(layer), &limiter);
    let ask = |key: &str| get(server.address, "/plain", &[&format!("x-api-key: {key}")]);
    assert_eq!(reported(&ask("paid-1")), (r#""paid";q=3;w=60"#, r#""paid";r=2;t=60"#));
    assert_eq!((ask("free-1").status, ask("free-1").status, ask("free-2").status), (200, 429, 200));
    let refused = get(server.address, "/plain", &[]);
    assert_eq!((refused.status, &*refused.body), (401, "send an API key"));
    assert_eq!(refused.header("content-type"), Some("text/plain; charset=utf-8"));
    let unlimited = get(server.address, "/free", &[]);
    assert_eq!((unlimited.status, unlimited.header("ratelimit-policy")), (200, None));
    // A limit that was not decided is in the policy, as one of `.limit(..)`.
    let away = RateLimitLayer::new().limits(by_plan).limiter(without_redis(OnError::Deny));
    let away = serve(app().layer(away), &limiter);
    let undecided = get(away.address, "/plain", &["x-api-key: free"]);
    let policy = undecided.header("ratelimit-policy");
    assert_eq!((undecided.status, policy), (503, Some(r#""free";q=1;w=60"#)));
    // Several limits are decided together: the third write is rejected, and takes no unit of the plan.
    let write = || request(server.address, "POST", "/plain", &["x-api-key: paid-2"], &[]).status;
    assert_eq!((write(), write(), write()), (405, 405, 429));
    assert_eq!((ask("paid-2").status, ask("paid-2").status), (200, 429));
}

/// Beside the limits of the application, the layer has its own. It asks for each key once.
#[test]
fn decides_chosen_limits_together_with_fixed_ones() {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    let (limiter, _) = timed();
    let count = |_: &_| {
        ASKED.fetch_add(1, SeqCst);
    };
    let layer = RateLimitLayer::new().limit(ALL, count).limits(by_plan);
    let server = serve(app().layer(layer.limiter(limiter.clone())), &limiter);
    let ask = || get(server.address, "/plain", &["x-api-key: free"]);
    assert_eq!(reported(&ask()).0, r#""all";q=4;w=60, "free";q=1;w=60"#);
    assert_eq!(reported(&ask()).1, r#""free";r=0;t=60, "all";r=3;t=60"#);
    let decision = poll_once(limiter.peek(&ALL, (), 1)).expect("embedded");
    assert_eq!((decision.remaining, ASKED.load(SeqCst)), (3, 2));
}

/// The application sees the request, sets the status and headers, and cannot break the response.
#[test]
fn lets_the_body_see_the_request_and_set_the_response() {
    let (limiter, _) = timed();
    let body = |request: &RejectedRequest<'_>| {
        let is_german = request.query().is_some_and(|query| query.contains("lang=de"));
        let kind = if is_german { "text/html" } else { "text/html\r\nx: y" };
        let id = request.header("X-Request-Id").unwrap_or("none");
        let (name, seconds) = (request.rejection().name(), request.retry_after());
        let call = format!("{} {} {id}", request.method(), request.path());
        TextResponse::new(kind, format!("{call}: {name}, {}", seconds.unwrap_or_default()))
            .status(if is_german { 503 } else { request.status() })
            .header("content-language", if is_german { "de" } else { "en" })
            .header("not a name", "x")
            .header("x-value", "not\na value")
    };
    let layer = RateLimitLayer::new().rejection_body(body);
    let layered = layer.clone().limit(Limit::fixed("layered", 1, MINUTE), |_: &_| ());
    let layered = serve(app().layer(layered.limiter(limiter.clone())), &limiter);
    let handled = serve(app().layer(layer.clone()), &limiter);
    // An inner layer has the body of the outer one, if it sets none.
    let inner = RateLimitLayer::new().limit(Limit::fixed("inner", 1, MINUTE), |_: &_| ());
    let inner = serve(app().layer(inner.limiter(limiter.clone())).layer(layer), &limiter);
    for (server, path, reason) in [
        (layered, "/plain", "layered, 60"),
        (handled, "/handled", "web::choices::handled, 3600"),
        (inner, "/plain", "inner, 60"),
    ] {
        assert_eq!(get(server.address, path, &[]).status, 200);
        for (query, status, kind, language) in
            [("?lang=de", 503, "text/html", "de"), ("", 429, "text/plain; charset=utf-8", "en")]
        {
            let answer = get(server.address, &format!("{path}{query}"), &["x-request-id: 7"]);
            let body = format!("GET {path} 7: {reason}");
            assert_eq!((answer.status, &answer.body), (status, &body));
            assert_eq!(answer.header("content-type"), Some(kind));
            assert_eq!(answer.header("content-language"), Some(language));
            assert_eq!(answer.header("x-value"), None);
            assert!(answer.header("retry-after").is_some());
        }
    }
}

/// A handler that goes on after a rejection: its response reports the limits that admitted the request, too.
#[test]
fn a_rejection_that_a_handler_survives_hides_no_limit() {
    let (limiter, _) = timed();
    let layer = RateLimitLayer::new().limit(ALL, |_| ()).limiter(limiter.clone());
    let survive = async || if handled().await.is_err() { "cached" } else { "fresh" };
    let server = serve(Router::new().route("/", route_get(survive)).layer(layer), &limiter);
    assert_eq!(get(server.address, "/", &[]).body, "fresh");
    let answer = get(server.address, "/", &[]);
    assert_eq!((answer.status, &*answer.body), (200, "cached"));
    let (_, state) = reported(&answer);
    assert_eq!(state, r#""web::choices::handled";r=0;t=3600, "all";r=2;t=60"#);
}

// Responses under rules: their fields and statuses are those of the limits in force.

const RULED: Limit = Limit::fixed("ruled", 3, MINUTE);

#[rate_limit(limit = RULED)]
async fn handler() -> Result<&'static str, Rejection> {
    Ok("handler")
}

#[rate_limit(
    wait = "90s",
    limit(name = "ruled", period = "1m", threshold = 2),
    limit(name = "other", period = "1h", threshold = 50)
)]
async fn waiting() -> Result<&'static str, Rejection> {
    Ok("waiting")
}

/// A layer and a handler report each limit once, with the amounts in force.
#[test]
fn layers_report_the_limits_in_force() {
    let redis = Server::start();
    let other = Limit::fixed("other", 50, MINUTE);
    for (limiter, clock) in limiters(&redis) {
        let layer = || RateLimitLayer::new().limiter(limiter.clone());
        let both = layer().limit(other, |_| ()).limit(RULED, |_| "both");
        let app = Router::new()
            .route("/layer", route_get(async || ()).layer(layer().limit(RULED, |_| "layer")))
            .route("/both", route_get(async || ()).layer(both))
            .route("/handler", route_get(handler).layer(RateLimitLayer::new()));
        let server = serve(app, &limiter);
        let set = |rule| limiter.set_rules(ruled("ruled", rule)).expect("valid");
        for path in ["/layer", "/handler"] {
            let ask = || get(server.address, path, &[]);
            limiter.set_rules(RuleSet::new()).expect("valid");
            assert_eq!(reported(&ask()), (r#""ruled";q=3;w=60"#, r#""ruled";r=2;t=60"#));
            set(Rule::new().threshold(5));
            assert_eq!(reported(&ask()), (r#""ruled";q=5;w=60"#, r#""ruled";r=3;t=60"#));
            set(Rule::new().threshold(1));
            // On Redis, the second rejection comes from the cache.
            for _ in 0..2 {
                let answer = ask();
                assert_eq!(answer.status, 429);
                assert_eq!(reported(&answer), (r#""ruled";q=1;w=60"#, r#""ruled";r=0;t=60"#));
            }
            for rule in [Rule::new().exempt(true), Rule::new().threshold(1).shadow(true)] {
                set(rule);
                let answer = ask();
                assert_eq!((answer.status, answer.header("ratelimit")), (200, None), "{rule:?}");
            }
            let blocked = Rule::new().blocked(true);
            let until = std::time::SystemTime::UNIX_EPOCH + clock.now() + MINUTE / 2;
            for (rule, wait) in [(blocked.until(until), Some("30")), (blocked, None)] {
                set(rule);
                let answer = ask();
                assert_eq!((answer.status, answer.header("retry-after")), (429, wait), "{rule:?}");
            }
        }
        set(Rule::new().threshold(5));
        let policy = r#""other";q=50;w=60, "ruled";q=5;w=60"#;
        let states = r#""other";r=49;t=60, "ruled";r=4;t=60"#;
        assert_eq!(reported(&get(server.address, "/both", &[])), (policy, states));
    }
}

/// A call that starts again under a new rule reports its limits once.
#[test]
fn a_call_that_waits_reports_its_limits_once() {
    let (limiter, _) = timed();
    let app = Router::new().route("/waiting", route_get(waiting)).layer(RateLimitLayer::new());
    let server = serve(app, &limiter);
    let ruled_limit = Limit::sliding("ruled", 2, Duration::from_secs(60));
    server.runtime.block_on(async {
        limiter.check(&ruled_limit, (), 2).await.expect("admitted");
    });
    let address = server.address;
    let answer = std::thread::spawn(move || get(address, "/waiting", &[]));
    std::thread::sleep(Duration::from_millis(300));
    assert!(!answer.is_finished(), "it waits");
    limiter.set_rules(ruled("ruled", Rule::new().threshold(1))).expect("valid");
    std::thread::sleep(Duration::from_millis(300));
    assert!(!answer.is_finished(), "it waits");
    limiter.set_rules(ruled("ruled", Rule::new().threshold(9))).expect("valid");
    let answer = answer.join().expect("no panic");
    assert_eq!(answer.status, 200);
    let (policy, state) = reported(&answer);
    assert_eq!(policy, r#""ruled";q=9;w=60, "other";q=50;w=3600"#);
    assert_eq!(state, r#""ruled";r=6;t=60, "other";r=49;t=3600"#);
}
