//! What an application chooses for each request: its limits, and the response if it is not handled.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;

use axum::Json;
use axum::http::Method;
use ratelimit_runtime::RuleSet;
use ratelimit_runtime::web::RejectedRequest;
use support::http::request;

use crate::prelude::*;

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

#[rate_limit(period = "1h", threshold = 1, key = (), hidden = true)]
async fn unseen() -> Result<Json<u64>, StatusCode> {
    Ok(Json(7))
}

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
async fn other(Path(status): Path<u16>) -> StatusCode {
    let _ = handled().await;
    StatusCode::from_u16(status).expect("a status")
}

fn app() -> Router {
    let later = (StatusCode::TOO_MANY_REQUESTS, "later");
    Router::new()
        .route("/asked", route_get(async || handled().await.map_err(StatusCode::from)))
        .route("/own", route_get(async move || handled().await.map_err(|_| later)))
        .route("/unseen", route_get(unseen))
        .route("/said", route_get(said))
        .route("/other/{status}", route_get(other))
        .route("/response", route_get(response))
        .route("/status", route_get(status))
        .route("/text", route_get(text))
        .route("/handled", route_get(handled))
        .route("/plain", route_get(async || "plain"))
}

/// A status has no headers. The layer adds those of the rejection to a 429, and the application keeps its own.
#[test]
fn a_status_keeps_when_to_come_back() {
    let reason = "too many requests, try again in 1 hour";
    let (wait, no_store) = (Some("3600"), Some("no-store"));
    for (path, first, rejected, headers) in [
        ("/response", (200, "hi"), (429, reason), (wait, no_store)),
        ("/status", (204, ""), (429, ""), (wait, no_store)),
        ("/text", (200, "hi"), (429, reason), (wait, no_store)),
        ("/asked", (200, ""), (429, ""), (wait, no_store)),
        ("/own", (200, ""), (429, "later"), (wait, no_store)),
        ("/unseen", (200, "7"), (429, ""), (wait, no_store)),
        ("/said", (200, ""), (429, ""), (Some("7"), Some("private"))),
        // Another status asks for no wait.
        ("/other/403", (403, ""), (403, ""), (None, None)),
    ] {
        let app = app().layer(RateLimitLayer::new()).layer(RateLimitLayer::new());
        let server = serve(app, &timed().0);
        let answer = get(server.address, path, &[]);
        assert_eq!((answer.status, &*answer.body), first, "{path}");
        assert_eq!(answer.header("retry-after"), None, "{path}");
        let answer = get(server.address, path, &[]);
        assert_eq!((answer.status, &*answer.body), rejected, "{path}");
        let shown = (answer.header("retry-after"), answer.header("cache-control"));
        assert_eq!(shown, headers, "{path}");
        assert_eq!(answer.header("ratelimit").is_none(), path == "/unseen");
        if headers.0 == wait && path != "/unseen" {
            reported(&answer);
        }
    }
    let bare = serve(app(), &timed().0);
    let [_, answer] = [(); 2].map(|()| get(bare.address, "/text", &[]));
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
    let layer = RateLimitLayer::new().limits(by_plan);
    let server = serve(app().layer(layer.clone()), &timed().0);
    let ask = |key: &str| get(server.address, "/plain", &[&format!("x-api-key: {key}")]);
    assert_eq!(reported(&ask("paid-1")), (r#""paid";q=3;w=60"#, r#""paid";r=2;t=60"#));
    assert_eq!((ask("free-1").status, ask("free-1").status, ask("free-2").status), (200, 429, 200));
    let refused = get(server.address, "/plain", &[]);
    assert_eq!((refused.status, &*refused.body), (401, "send an API key"));
    assert_eq!(refused.header("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(get(server.address, "/free", &[]).header("ratelimit-policy"), None);
    // Several limits are decided together: the third write is rejected, and takes no unit of the plan.
    let write = || request(server.address, "POST", "/plain", &["x-api-key: paid-2"], &[]).status;
    assert_eq!((write(), write(), write()), (405, 405, 429));
    assert_eq!((ask("paid-2").status, ask("paid-2").status), (200, 429));
    // A limit that was not decided is in the policy, as one of `.limit(..)`.
    let away = serve(app().layer(layer), &without_redis(OnError::Deny));
    let undecided = get(away.address, "/plain", &["x-api-key: free"]);
    let policy = undecided.header("ratelimit-policy");
    assert_eq!((undecided.status, policy), (503, Some(r#""free";q=1;w=60"#)));
}

#[test]
fn decides_chosen_limits_together_with_fixed_ones() {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    let (limiter, _) = timed();
    let count = |_: &_| _ = ASKED.fetch_add(1, SeqCst);
    let layer = RateLimitLayer::new().limit(ALL, count).limits(by_plan);
    let server = serve(app().layer(layer), &limiter);
    let ask = || get(server.address, "/plain", &["x-api-key: free"]);
    assert_eq!(reported(&ask()).0, r#""all";q=4;w=60, "free";q=1;w=60"#);
    assert_eq!(reported(&ask()).1, r#""free";r=0;t=60, "all";r=3;t=60"#);
    let decision = poll_once(limiter.peek(&ALL, (), 1)).expect("embedded");
    assert_eq!((decision.remaining, ASKED.load(SeqCst)), (3, 2));
}

#[test]
fn lets_the_body_see_the_request_and_set_the_response() {
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
    let layered = app().layer(layer.clone().limit(Limit::fixed("layered", 1, MINUTE), |_: &_| ()));
    // An inner layer has the body of the outer one, if it sets none.
    let inner = RateLimitLayer::new().limit(Limit::fixed("inner", 1, MINUTE), |_: &_| ());
    for (app, path, reason) in [
        (layered, "/plain", "layered, 60"),
        (app().layer(layer.clone()), "/handled", "web::choices::handled, 3600"),
        (app().layer(inner).layer(layer), "/plain", "inner, 60"),
    ] {
        let server = serve(app, &timed().0);
        assert_eq!(get(server.address, path, &[]).status, 200);
        for (query, status, kind, language) in
            [("?lang=de", 503, "text/html", "de"), ("", 429, "text/plain; charset=utf-8", "en")]
        {
            let answer = get(server.address, &format!("{path}{query}"), &["x-request-id: 7"]);
            assert_eq!((answer.status, &answer.body), (status, &format!("GET {path} 7: {reason}")));
            assert_eq!(answer.header("content-type"), Some(kind));
            assert_eq!(answer.header("content-language"), Some(language));
            assert_eq!(answer.header("x-value"), None);
            assert!(answer.header("retry-after").is_some());
        }
    }
}

const RULED: Limit = Limit::fixed("ruled", 3, MINUTE);

#[rate_limit(limit = RULED)]
async fn handler() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(
    wait = "90s",
    limit(name = "ruled", period = "1m", threshold = 2),
    limit(name = "other", period = "1h", threshold = 50)
)]
async fn waiting() -> Result<(), Rejection> {
    Ok(())
}

#[test]
fn layers_report_the_limits_in_force() {
    let redis = Server::start();
    let other = Limit::fixed("other", 50, MINUTE);
    for (limiter, clock) in limiters(&redis) {
        let layer = RateLimitLayer::new;
        let both = layer().limit(other, |_| ()).limit(RULED, |_| "both");
        let app = Router::new()
            .route("/layer", route_get(async || ()).layer(layer().limit(RULED, |_| "layer")))
            .route("/both", route_get(async || ()).layer(both))
            .route("/handler", route_get(handler).layer(layer()));
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
            let blocked = Rule::new().blocked(true);
            let until = std::time::SystemTime::UNIX_EPOCH + clock.now() + MINUTE / 2;
            for (rule, status, wait) in [
                (Rule::new().exempt(true), 200, None),
                (Rule::new().threshold(1).shadow(true), 200, None),
                (blocked.until(until), 429, Some("30")),
                (blocked, 429, None),
            ] {
                set(rule);
                let answer = ask();
                let shown = (answer.status, answer.header("retry-after"));
                assert_eq!(shown, (status, wait), "{rule:?}");
                assert!(status == 429 || answer.header("ratelimit").is_none(), "{rule:?}");
            }
        }
        set(Rule::new().threshold(5));
        let policy = r#""other";q=50;w=60, "ruled";q=5;w=60"#;
        let states = r#""other";r=49;t=60, "ruled";r=4;t=60"#;
        assert_eq!(reported(&get(server.address, "/both", &[])), (policy, states));
    }
}

#[test]
fn a_call_that_waits_reports_its_limits_once() {
    let (limiter, _) = timed();
    let app = Router::new().route("/waiting", route_get(waiting)).layer(RateLimitLayer::new());
    let server = serve(app, &limiter);
    poll_once(limiter.check(&Limit::sliding("ruled", 2, MINUTE), (), 2)).expect("admitted");
    let answer = std::thread::spawn(move || get(server.address, "/waiting", &[]));
    for threshold in [1, 9] {
        std::thread::sleep(Duration::from_millis(300));
        assert!(!answer.is_finished(), "it waits");
        limiter.set_rules(ruled("ruled", Rule::new().threshold(threshold))).expect("valid");
    }
    let answer = answer.join().expect("no panic");
    assert_eq!(answer.status, 200);
    let policy = r#""ruled";q=9;w=60, "other";q=50;w=3600"#;
    assert_eq!(reported(&answer), (policy, r#""ruled";r=6;t=60, "other";r=49;t=3600"#));
}
