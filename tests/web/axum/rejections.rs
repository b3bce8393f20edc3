//! The responses to rejected calls: their status and body, and what the application changes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderValue, StatusCode};
use axum::response::IntoResponse;
use axum::routing::get as route_get;
use futures::FutureExt;
use ratelimit_runtime::web::{RateLimitLayer, RejectedRequest};
use ratelimit_runtime::{Answer, Limit, OnError, RateLimiter, Rejection, rate_limit};
use support::http::get;

use super::{ALL, hi, router};
use crate::{MINUTE, reported, serve, timed};

struct Page(Rejection);

impl From<Rejection> for Page {
    fn from(rejection: Rejection) -> Self {
        Self(rejection)
    }
}

/// The response of the library with another status.
impl IntoResponse for Page {
    fn into_response(self) -> axum::response::Response {
        (StatusCode::FORBIDDEN, self.0).into_response()
    }
}

#[rate_limit(period = "1h", threshold = 1, name = "page")]
async fn page() -> Result<(), Page> {
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
    let (limiter, _) = timed();
    let server = serve(router().layer(RateLimitLayer::new()), &limiter);
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
    let redis_away = RateLimiter::builder()
        .redis("redis://127.0.0.1:1")
        .on_error(OnError::Deny)
        .deadline(Duration::from_secs(5))
        .build()
        .expect("a URL");
    let blocked = RateLimitLayer::new().limit(ALL, |_| ()).limiter(redis_away);
    let router = router()
        .layer(
            RateLimitLayer::new()
                .limit(Limit::fixed("a \"b\\\n\u{e9}", 2, MINUTE), |_| ())
                .limiter(limiter.clone()),
        )
        .route("/blocked", route_get(async || ()).layer(blocked));
    let server = serve(router, &limiter);
    let json = "accept: application/json";
    let costly = get(server.address, "/costly", &[json]);
    assert_eq!((costly.status, costly.header("retry-after")), (413, None));
    assert_eq!(costly.header("content-type"), Some("application/problem+json"));
    assert_eq!(
        costly.body,
        concat!(
            r#"{"type":"about:blank","title":"Content Too Large","status":413,"#,
            r#""detail":"this request is too large: it needs 3 units, and at most 2 are allowed at once"}"#
        )
    );

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

    let blocked = get(server.address, "/blocked", &[json]);
    assert_eq!((blocked.status, blocked.header("retry-after")), (503, None));
    assert_eq!(
        blocked.body,
        concat!(
            r#"{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","#,
            r#""title":"Temporary Reduced Capacity","status":503,"#,
            r#""detail":"the service cannot take this request right now, try again in a few minutes","#,
            r#""violated-policies":["all"]}"#
        )
    );
}

#[test]
fn responds_alike_to_rejections_of_layer_and_handler() {
    let (limiter, _) = timed();
    let mark = axum::middleware::map_response(async |mut response: axum::response::Response| {
        response.headers_mut().insert("x-mark", HeaderValue::from_static("kept"));
        response
    });
    let page = |request: &RejectedRequest<'_>| {
        let seconds = request.retry_after().unwrap_or_default();
        ("text/html", format!("{} {} {seconds}", request.status(), request.rejection().name()))
    };
    let server = serve(router().layer(mark).layer(RateLimitLayer::new()), &limiter);
    let ask = |accept| get(server.address, "/hi/1", &[accept]);
    let ours = serve(router().layer(RateLimitLayer::new().rejection_body(page)), &limiter);
    assert_eq!((ask("x: y").status, ask("x: y").status), (200, 200));

    let rejected = ask("accept: application/problem+json");
    assert_eq!(rejected.header("content-type"), Some("application/problem+json"));
    assert_eq!(reported(&rejected), (r#""hi";q=2;w=30"#, r#""hi";r=0;t=30"#));
    assert!(rejected.body.ends_with(r#""violated-policies":["hi"]}"#), "{}", rejected.body);
    assert_eq!(rejected.header("x-mark"), Some("kept"));
    assert_eq!(ask("x: y").body, "too many requests, try again in 30 seconds");

    let rejected = get(ours.address, "/hi/1", &["accept: application/json"]);
    assert_eq!((rejected.status, &*rejected.body), (429, "429 hi 30"));
    assert_eq!(rejected.header("content-type"), Some("text/html"));
    reported(&rejected);

    // The response of an error type of the application stays, and the headers are added.
    assert_eq!(get(ours.address, "/own", &[]).status, 200);
    let rejected = get(ours.address, "/own", &["accept: application/json"]);
    assert_eq!((rejected.status, &*rejected.body), (418, "own: own"));
    assert_eq!(reported(&rejected).1, r#""own";r=0;t=3600"#);
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

/// A spawned task does not know the request: the response is plain text with the headers of its limit.
#[test]
fn reports_a_rejection_that_becomes_a_response_in_a_spawned_task() {
    let (limiter, _) = timed();
    let handler = async |path: Path<u64>| {
        let Err(rejection) = hi(path).await else { return ().into_response() };
        let made = tokio::spawn(async move { rejection.into_response() });
        made.await.expect("it does not panic")
    };
    let router = Router::new().route("/{id}", route_get(handler));
    let server = serve(router.layer(RateLimitLayer::new()), &limiter);
    let ask = || get(server.address, "/1", &["accept: application/json"]);
    assert_eq!((ask().status, ask().status), (200, 200));
    let rejected = ask();
    assert_eq!(rejected.header("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(reported(&rejected), (r#""hi";q=2;w=30"#, r#""hi";r=0;t=30"#));
}

#[test]
fn rejects_before_the_body_is_read() {
    let (limiter, _) = timed();
    let layer = RateLimitLayer::new().limit(Limit::fixed("none", 1, MINUTE), |_| ());
    let server = serve(router().layer(layer.limiter(limiter.clone())), &limiter);
    assert_eq!(get(server.address, "/plain", &[]).status, 200);
    let mut stream = TcpStream::connect(server.address).expect("a connection");
    let head = "POST /upload HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n";
    stream.write_all(head.as_bytes()).expect("the head is sent, and nothing else");
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 429");
}

#[test]
fn reports_a_rejection_without_the_layer() {
    let (limiter, _) = timed();
    let server = serve(router(), &limiter);
    let ask = || get(server.address, "/hi/1", &["accept: application/json"]);
    assert_eq!((ask().header("ratelimit"), ask().header("ratelimit-policy")), (None, None));
    let rejected = ask();
    assert_eq!(reported(&rejected), (r#""hi";q=2;w=30"#, r#""hi";r=0;t=30"#));
    assert_eq!(rejected.header("content-type"), Some("text/plain; charset=utf-8"));
}
