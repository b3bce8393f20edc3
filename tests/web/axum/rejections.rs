//! The responses to rejected calls: their status and body, and what the application changes.

use ratelimit_runtime::{Answer, current, set_global};

use super::{hi, router};
use crate::prelude::*;

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

#[rate_limit(period = "300ms", threshold = 1, key = "{id}")]
async fn short(Path(id): Path<u64>) -> impl IntoResponse {
    format!("{id}")
}

/// One test, because a process has one global limiter.
#[tokio::test(flavor = "multi_thread")]
async fn rejects_by_the_limiter_of_the_process() {
    let redis = Server::start();
    set_global(redis.builder().deadline(5 * SECOND).build().expect("valid")).expect("the first");
    let again = set_global(RateLimiter::embedded()).expect_err("the second");
    assert!(again.to_string().contains("already set"), "{again}");
    let address = listen(Router::new().route("/{id}", route_get(short))).await;
    // A wait below a second is rounded up: 0 would cause a retry at once.
    let rejected = (0..100).map(|_| get(address, "/1", &[])).find(|it| it.status == 429);
    let rejected = rejected.expect("several requests in one window of 300 ms");
    assert_eq!(rejected.header("retry-after"), Some("1"));
    assert_eq!(rejected.header("cache-control"), Some("no-store"));
    assert_eq!(get(address, "/2", &[]).status, 200);
    drop(redis);
    let undecided = get(address, "/3", &[]);
    assert_eq!((undecided.status, undecided.header("retry-after")), (503, None));
    assert!(!undecided.body.contains("Redis"), "not for clients: {}", undecided.body);
}

/// The capacity of another call can be larger, so 413 would be wrong. No wait helps.
#[test]
fn responds_429_to_amounts_that_are_too_small() {
    let server = serve(router().layer(RateLimitLayer::new()), &timed().0);
    let ask = |size: u64| get(server.address, &format!("/sized/{size}"), &[]);
    let exceeding =
        "this request is too large: it needs 5 units, and at most 3 are allowed at once";
    for (size, reason) in [(3, exceeding), (0, "requests are blocked until further notice")] {
        let rejected = ask(size);
        assert_eq!((rejected.status, rejected.header("retry-after")), (429, None), "{size}");
        assert_eq!(rejected.body, reason);
    }
    assert_eq!(ask(0).header("ratelimit"), None);
    assert_eq!(reported(&ask(5)), (r#""sized";q=5;w=60"#, r#""sized";r=0;t=60"#));
}

#[test]
fn reports_blocked_keys() {
    let (limiter, clock) = timed();
    let server = serve(router().layer(RateLimitLayer::new().limit(ALL, |_| ())), &limiter);
    let ask = || get(server.address, "/hi/1", &["accept: application/problem+json"]);
    let block = |block: Answer<()>| block.now_or_never().expect("at once").expect("blocked");
    block(limiter.block(&Limit::fixed("hi", 2, 30 * SECOND), 1_u64, 90 * SECOND));
    let rejected = ask();
    assert_eq!((rejected.status, rejected.header("retry-after")), (429, Some("90")));
    let states = r#""hi";r=0;t=90, "all";r=3;t=60"#;
    assert_eq!(reported(&rejected), (r#""all";q=4;w=60, "hi";q=2;w=30"#, states));
    block(limiter.block(&ALL, (), 600 * SECOND));
    let rejected = ask();
    assert_eq!((rejected.status, rejected.header("retry-after")), (429, Some("600")));
    assert!(rejected.body.contains("quota-exceeded"), "{}", rejected.body);
    clock.advance(600 * SECOND);
    assert_eq!(ask().status, 200);
}

#[test]
fn sends_problem_details_to_clients_that_prefer_json() {
    let named = Limit::fixed("a \"b\\\n\u{e9}", 2, MINUTE);
    let away = RateLimitLayer::new().limit(ALL, |_| ()).limiter(without_redis(OnError::Deny));
    let mixed = RateLimitLayer::new().limits(|_, limits| {
        limits.add(&ALL, (), 1);
        limits.add(&ALL.shadow(true), (), 1);
        Ok(())
    });
    let router = router()
        .layer(RateLimitLayer::new().limit(named, |_| ()))
        .route("/away", route_get(async || ()).layer(away))
        .route("/mixed", route_get(async || ()).layer(mixed))
        .route("/mistaken", route_get(mistaken));
    let server = serve(router, &timed().0);
    let ask = |path, accept| get(server.address, path, &[accept]);
    let json = "accept: application/json";
    let large = "this request is too large: it needs 3 units, and at most 2 are allowed at once";
    let reduced = concat!(
        r#""type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","#,
        r#""title":"Temporary Reduced Capacity""#
    );
    let busy = "the service cannot take this request right now, try again in a few minutes";
    let mistake = "the service cannot take this request because of an internal error";
    let about = |title| format!(r#""type":"about:blank","title":"{title}""#);
    for (path, status, start, detail, end) in [
        ("/costly", 413, &*about("Content Too Large"), large, ""),
        ("/away", 503, reduced, busy, r#","violated-policies":["all"]"#),
        ("/mixed", 500, &*about("Internal Server Error"), mistake, ""),
    ] {
        let rejected = ask(path, json);
        assert_eq!((rejected.status, rejected.header("retry-after")), (status, None), "{path}");
        assert_eq!(rejected.header("content-type"), Some("application/problem+json"));
        let problem = format!(r#"{{{start},"status":{status},"detail":"{detail}"{end}}}"#);
        assert_eq!(rejected.body, problem);
    }
    for path in ["/mixed", "/mistaken"] {
        let rejected = ask(path, "accept: text/plain");
        assert_eq!((rejected.status, &*rejected.body), (500, mistake), "{path}");
        assert_eq!(rejected.header("retry-after"), None);
        assert_eq!(rejected.header("cache-control"), Some("no-store"));
    }

    assert_eq!(ask("/plain", json).status, 200);
    for accept in [json, "accept: text/x\r\naccept: */json"] {
        let rejected = ask("/plain", accept);
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
    for accept in ["accept: text/html,application/xml;q=0.9,*/*;q=0.8", "x: y"] {
        let rejected = ask("/plain", accept);
        assert_eq!(rejected.header("content-type"), Some("text/plain; charset=utf-8"));
        assert_eq!(rejected.body, "too many requests, try again in 1 minute");
    }
}

#[test]
fn keeps_the_changes_of_the_application_to_a_rejection() {
    let within = Router::new()
        .route("/hi/{id}", route_get(hi))
        .layer(axum::middleware::map_response(remade))
        .route("/page", route_get(page))
        .layer(RateLimitLayer::new());
    let server = serve(within, &timed().0);
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
        tokio::spawn(async move { rejection.into_response() }).await.expect("it does not panic")
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
