//! axum: the layer, annotated handlers behind it, and the headers that report the limits of both.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{AppendHeaders, IntoResponse};
use axum::routing::{get as route_get, post};
use futures::FutureExt;
use ratelimit_runtime::web::axum::route;
use ratelimit_runtime::web::{Client, Clients, RateLimitLayer, RejectedRequest};
use ratelimit_runtime::{Answer, Limit, OnError, RateLimiter, Rejection, rate_limit};
use support::http::get;

use crate::{MINUTE, items, reported, serve, timed};

const ALL: Limit = Limit::fixed("all", 4, MINUTE);

#[rate_limit(period = "30s", threshold = 2, algo = "fixed", key = id, name = "hi")]
async fn hi(Path(id): Path<u64>) -> Result<String, Rejection> {
    Ok(format!("hi {id}"))
}

#[rate_limit(period = "1m", threshold = size, algo = "fixed", cost = 5, name = "sized")]
async fn sized(Path(size): Path<u32>) -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = "1h", threshold = 1, key = client, name = "once")]
async fn once(client: Client) -> Result<String, Rejection> {
    Ok(client.to_string())
}

#[rate_limit(period = "1m", threshold = 4, algo = "fixed", key = (), name = "all")]
async fn again() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = "1m", threshold = 1, key = (), name = "trial", shadow = true)]
async fn tried() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(
    limit(period = 1.5, threshold = 5, algo = "token_bucket", burst = 9, name = "wide"),
    limit(period = "1d", threshold = 3, name = "narrow", key = ())
)]
async fn both() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = 1, threshold = 2, cost = crate::three(), name = "costly")]
async fn costly() -> Result<(), Rejection> {
    Ok(())
}

struct Own(Rejection);

impl From<Rejection> for Own {
    fn from(rejection: Rejection) -> Self {
        Self(rejection)
    }
}

impl IntoResponse for Own {
    fn into_response(self) -> axum::response::Response {
        (StatusCode::IM_A_TEAPOT, format!("own: {}", self.0.name())).into_response()
    }
}

#[rate_limit(period = "1h", threshold = 1, name = "own")]
async fn own() -> Result<(), Own> {
    Ok(())
}

fn router() -> Router {
    Router::new()
        .route("/hi/{id}", route_get(hi))
        .route("/sized/{size}", route_get(sized))
        .route("/again", route_get(again))
        .route("/tried", route_get(tried))
        .route("/both", route_get(both))
        .route("/costly", route_get(costly))
        .route("/own", route_get(own))
        .route("/plain", route_get(async || "plain"))
        .route("/upload", post(async |body: String| body))
}

#[test]
fn reports_all_limits_on_every_response() {
    let (limiter, clock) = timed();
    let layer = RateLimitLayer::new().limit(ALL, |_| ()).limiter(limiter.clone());
    let server = serve(router().layer(layer), &limiter);
    let ask = |path| get(server.address, path, &[]);

    let policy = r#""all";q=4;w=60, "hi";q=2;w=30"#;
    let first = ask("/hi/1");
    assert_eq!((first.status, &*first.body), (200, "hi 1"));
    assert_eq!(reported(&first), (policy, r#""all";r=3;t=60, "hi";r=1;t=30"#));
    assert_eq!(first.header("retry-after"), None);
    clock.advance(Duration::from_millis(9_001));
    assert_eq!(reported(&ask("/hi/1")), (policy, r#""all";r=2;t=51, "hi";r=0;t=21"#));

    // Rejected by the handler: only the limit that rejected has a state.
    let rejected = ask("/hi/1");
    assert_eq!((rejected.status, rejected.header("retry-after")), (429, Some("21")));
    assert_eq!(reported(&rejected), (policy, r#""hi";r=0;t=21"#));
    assert_eq!(rejected.header("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(rejected.body, "too many requests, try again in 21 seconds");

    // A handler without a limit, and then a rejection by the layer.
    assert_eq!(reported(&ask("/plain")), (r#""all";q=4;w=60"#, r#""all";r=0;t=51"#));
    let rejected = ask("/hi/2");
    assert_eq!((rejected.status, rejected.header("retry-after")), (429, Some("51")));
    assert_eq!(reported(&rejected), (r#""all";q=4;w=60"#, r#""all";r=0;t=51"#));

    clock.advance(Duration::from_millis(50_998));
    assert_eq!(ask("/plain").header("retry-after"), Some("1"));
    clock.advance(Duration::from_millis(1));
    assert_eq!(ask("/plain").status, 200);
    assert_eq!(items(reported(&ask("/none")).1)[0].0, "all");
}

/// The capacity of another call can be larger, so 413 would be wrong. No wait helps.
#[test]
fn responds_429_to_amounts_that_are_too_small() {
    let (limiter, _) = timed();
    let server = serve(router().layer(RateLimitLayer::new()), &limiter);
    let ask = |size: u32| get(server.address, &format!("/sized/{size}"), &[]);
    let exceeding = ask(3);
    assert_eq!((exceeding.status, exceeding.header("retry-after")), (429, None));
    assert_eq!(
        exceeding.body,
        "this request needs 5 units, and no more than 3 are admitted at once"
    );
    let closed = ask(0);
    assert_eq!((closed.status, closed.header("retry-after")), (429, None));
    assert_eq!(closed.body, "no requests are admitted");
    assert_eq!(closed.header("ratelimit"), None);
    assert_eq!(reported(&ask(5)), (r#""sized";q=5;w=60"#, r#""sized";r=0;t=60"#));
}

/// A closed key of the handler, and then one of the layer.
#[test]
fn reports_closed_keys() {
    let (limiter, clock) = timed();
    let layer = RateLimitLayer::new().limit(ALL, |_| ()).limiter(limiter.clone());
    let server = serve(router().layer(layer), &limiter);
    let ask = || get(server.address, "/hi/1", &["accept: application/problem+json"]);
    let seconds = Duration::from_secs;
    let close = |closing: Answer<()>| closing.now_or_never().expect("at once").expect("closed");
    close(limiter.close(&Limit::fixed("hi", 2, seconds(30)), 1_u64, seconds(90)));
    let rejected = ask();
    assert_eq!((rejected.status, rejected.header("retry-after")), (429, Some("90")));
    assert_eq!(reported(&rejected), (r#""all";q=4;w=60, "hi";q=2;w=30"#, r#""hi";r=0;t=90"#));
    close(limiter.close(&ALL, (), seconds(600)));
    let rejected = ask();
    assert_eq!((rejected.status, rejected.header("retry-after")), (429, Some("600")));
    assert!(rejected.body.contains("quota-exceeded"), "{}", rejected.body);
    clock.advance(seconds(600));
    assert_eq!(ask().status, 200);
}

#[test]
fn shares_one_count_between_layer_and_handler() {
    let (limiter, _) = timed();
    let layer = RateLimitLayer::new().limit(ALL, |_| ()).limiter(limiter.clone());
    let server = serve(router().layer(layer), &limiter);
    let field = r#""all";r=2;t=60"#;
    assert_eq!(reported(&get(server.address, "/again", &[])), (r#""all";q=4;w=60"#, field));
    assert_eq!(get(server.address, "/again", &[]).status, 200);
    assert_eq!(get(server.address, "/again", &[]).status, 429);
}

#[test]
fn does_not_report_shadow_limits() {
    let (limiter, _) = timed();
    let server = serve(router().layer(RateLimitLayer::new()), &limiter);
    for _ in 0..2 {
        let answer = get(server.address, "/tried", &[]);
        assert_eq!((answer.status, answer.header("ratelimit-policy")), (200, None));
    }
    assert_eq!(get(server.address, "/plain", &[]).header("ratelimit"), None);
}

#[test]
fn reports_all_limits_that_are_decided_together() {
    let (limiter, clock) = timed();
    let (hour, day) =
        (Limit::sliding("same", 2, MINUTE * 60), Limit::sliding("same", 3, MINUTE * 1440));
    let layer = RateLimitLayer::new().limit(hour, |_| ()).limit(day, |_| "all");
    let server = serve(router().layer(layer.limiter(limiter.clone())), &limiter);
    let ask = |path| get(server.address, path, &[]);
    let (same, both) =
        (r#""same";q=2;w=3600, "same#2";q=3;w=86400"#, r#""wide";q=9;w=3, "narrow";q=3;w=86400"#);
    let policy = format!("{same}, {both}");
    assert_eq!(reported(&ask("/both")), (&*policy, r#""same";r=1;t=3600, "narrow";r=2;t=86400"#));
    assert_eq!(reported(&ask("/plain")), (same, r#""same";r=0;t=3600"#));
    assert_eq!(reported(&ask("/plain")), (same, r#""same";r=0;t=3600"#));
    clock.advance(MINUTE * 60);
    assert_eq!(reported(&ask("/plain")), (same, r#""same#2";r=0;t=86400"#));
    assert_eq!(reported(&ask("/plain")), (same, r#""same#2";r=0;t=82800"#));
    // The problem details use the same names as the headers.
    let rejected = get(server.address, "/plain", &["accept: application/json"]);
    assert!(rejected.body.ends_with(r#""violated-policies":["same#2"]}"#), "{}", rejected.body);
}

#[test]
fn joins_the_headers_of_several_layers() {
    let (limiter, _) = timed();
    let layer = |name, threshold| {
        let limit = Limit::fixed(name, threshold, MINUTE);
        RateLimitLayer::new().limit(limit, |_| ()).limiter(limiter.clone())
    };
    let router = router().layer(layer("inner", 1)).layer(layer("outer", 9).legacy_headers());
    let server = serve(router, &limiter);
    let ask = |path| get(server.address, path, &["accept: application/json"]);
    let policy = r#""outer";q=9;w=60, "inner";q=1;w=60"#;
    assert_eq!(reported(&ask("/hi/1")).0, r#""outer";q=9;w=60, "inner";q=1;w=60, "hi";q=2;w=30"#);
    let rejected = ask("/hi/1");
    assert_eq!((rejected.status, rejected.header("retry-after")), (429, Some("60")));
    assert_eq!(reported(&rejected), (policy, r#""outer";r=7;t=60, "inner";r=0;t=60"#));
    assert_eq!(rejected.header("x-ratelimit-remaining"), Some("7"));
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
    let closed = RateLimitLayer::new().limit(ALL, |_| ()).limiter(redis_away);
    let router = router()
        .layer(
            RateLimitLayer::new()
                .limit(Limit::fixed("a \"b\\\n\u{e9}", 2, MINUTE), |_| ())
                .limiter(limiter.clone()),
        )
        .route("/closed", route_get(async || ()).layer(closed));
    let server = serve(router, &limiter);
    let json = "accept: application/json";
    let costly = get(server.address, "/costly", &[json]);
    assert_eq!((costly.status, costly.header("retry-after")), (413, None));
    assert_eq!(costly.header("content-type"), Some("application/problem+json"));
    assert_eq!(
        costly.body,
        concat!(
            r#"{"type":"about:blank","title":"Content Too Large","status":413,"#,
            r#""detail":"this request needs 3 units, and no more than 2 are admitted at once"}"#
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
             \"detail\":\"too many requests, try again in 60 seconds\",\
             \"violated-policies\":[\"a \\\"b\\\\%0A%C3%A9\"]}"
        );
    }
    for accept in ["accept: */*", "accept: text/html,application/xml;q=0.9,*/*;q=0.8", "x: y"] {
        let rejected = get(server.address, "/plain", &[accept]);
        assert_eq!(rejected.header("content-type"), Some("text/plain; charset=utf-8"));
        assert_eq!(rejected.body, "too many requests, try again in 60 seconds");
    }

    let closed = get(server.address, "/closed", &[json]);
    assert_eq!((closed.status, closed.header("retry-after")), (503, None));
    assert_eq!(
        closed.body,
        concat!(
            r#"{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","#,
            r#""title":"Temporary Reduced Capacity","status":503,"#,
            r#""detail":"the service cannot take requests right now, try again later","#,
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

#[rate_limit(period = "1s", threshold = 1, algo = "fixed", key = (), name = "second")]
async fn second() -> Result<(), Rejection> {
    Ok(())
}

/// For limits of layers, and of a handler that continues after a rejection.
#[test]
fn reports_no_limit_that_ends_after_retry_after() {
    let (limiter, _) = timed();
    let handler = async || if again().await.is_err() { second().await } else { Ok(()) };
    let layer = |name| {
        let limit = Limit::fixed(name, 1000, MINUTE * 1440);
        RateLimitLayer::new().legacy_headers().limit(limit, |_| ()).limiter(limiter.clone())
    };
    let router = Router::new().route("/", route_get(handler));
    let server = serve(router.layer(layer("day")).layer(layer("outer")), &limiter);
    let ask = || get(server.address, "/", &[]);
    assert!((0..5).all(|_| ask().status == 200));
    let rejected = ask();
    assert_eq!((rejected.status, rejected.header("retry-after")), (429, Some("1")));
    let policies =
        r#""outer";q=1000;w=86400, "day";q=1000;w=86400, "all";q=4;w=60, "second";q=1;w=1"#;
    assert_eq!(reported(&rejected), (policies, r#""second";r=0;t=1"#));
    assert_eq!(rejected.header("x-ratelimit-limit"), Some("1"));
    assert_eq!(rejected.header("x-ratelimit-reset"), Some("1"));
}

#[test]
fn reports_the_limit_closest_to_reject_in_legacy_headers() {
    let (limiter, _) = timed();
    let layer = |name, threshold| {
        let limit = Limit::fixed(name, threshold, MINUTE);
        RateLimitLayer::new().legacy_headers().limit(limit, |_| ()).limiter(limiter.clone())
    };
    let plain = || Router::new().route("/", route_get(async || ()));
    for (outer, inner, nearest) in [("a", "b", "2"), ("c", "d", "2")] {
        let (wide, narrow) = if outer == "a" { (9, 2) } else { (2, 9) };
        let server = serve(plain().layer(layer(inner, narrow)).layer(layer(outer, wide)), &limiter);
        for (status, remaining) in [(200, "1"), (200, "0"), (429, "0")] {
            let answer = get(server.address, "/", &[]);
            assert_eq!(answer.status, status);
            assert_eq!(answer.header("x-ratelimit-limit"), Some(nearest));
            assert_eq!(answer.header("x-ratelimit-remaining"), Some(remaining));
        }
    }
}

#[test]
#[should_panic(expected = "`trial` disagrees about `scope`, `on_error`, `shadow` or `wait`")]
fn panics_if_the_limits_of_one_layer_disagree() {
    let trial = Limit::fixed("trial", 1, MINUTE).shadow(true);
    let _ = RateLimitLayer::new().limit(ALL, |_| ()).limit(trial, |_| ());
}

#[test]
fn reports_only_the_limits_of_the_handler_to_exempt_requests() {
    let (limiter, _) = timed();
    let layer = RateLimitLayer::new().limit(ALL, |_| ()).exempt(|_| true);
    let server = serve(router().layer(layer.limiter(limiter.clone())), &limiter);
    let answer = get(server.address, "/plain", &[]);
    assert_eq!((answer.header("ratelimit-policy"), answer.header("ratelimit")), (None, None));
    let hi = (r#""hi";q=2;w=30"#, r#""hi";r=1;t=30"#);
    assert_eq!(reported(&get(server.address, "/hi/1", &[])), hi);
}

#[test]
fn joins_headers_that_the_handler_sets() {
    let (limiter, _) = timed();
    let upstream = async || {
        let lines = [r#""x";r=1;t=1"#, r#""y";r=2;t=2"#];
        let policies = [r#""x";q=1;w=1"#, r#""y";q=2;w=2"#];
        let policies = policies.map(|line| ("ratelimit-policy", line));
        (AppendHeaders(lines.map(|line| ("ratelimit", line))), AppendHeaders(policies))
    };
    let layer = RateLimitLayer::new().limit(ALL, |_| ()).limiter(limiter.clone());
    let server = serve(Router::new().route("/", route_get(upstream)).layer(layer), &limiter);
    assert_eq!(
        reported(&get(server.address, "/", &[])),
        (
            r#""all";q=4;w=60, "x";q=1;w=1, "y";q=2;w=2"#,
            r#""all";r=3;t=60, "x";r=1;t=1, "y";r=2;t=2"#,
        )
    );
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

#[test]
fn sends_legacy_headers_if_they_are_set() {
    let (limiter, _) = timed();
    let layer = RateLimitLayer::new().legacy_headers().limit(ALL, |_| ()).limiter(limiter.clone());
    let server = serve(router().layer(layer), &limiter);
    let legacy = |path| {
        let answer = get(server.address, path, &[]);
        let names = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
        names.map(|name| answer.header(name).unwrap_or("none").to_owned())
    };
    assert_eq!(legacy("/plain"), ["4", "3", "60"]);
    for remaining in ["1", "0"] {
        assert_eq!(legacy("/hi/1"), ["2", remaining, "30"]);
    }
    // Rejected by the handler, and then by the layer.
    assert_eq!(legacy("/hi/1"), ["2", "0", "30"]);
    assert_eq!(legacy("/hi/1"), ["4", "0", "60"]);
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
fn takes_routes_and_clients_as_keys() {
    let (limiter, _) = timed();
    let limit = Limit::fixed("routes", 2, MINUTE);
    let layer = RateLimitLayer::new()
        .clients(Clients::behind_proxies(["127.0.0.1"]).expect("an address"))
        .limit(limit, |request| (route(request), Client::of(request)))
        .exempt(|request| request.uri.path() == "/tried")
        .limiter(limiter.clone());
    let router = router().route("/once", route_get(once)).layer(layer);
    let server = serve(router, &limiter);
    let ask = |path, client| {
        let header = format!("x-forwarded-for: {client}");
        get(server.address, path, &[&header]).status
    };
    // Neither the parameters in the path nor the hops that the client sends change the key.
    assert_eq!((ask("/hi/1", "1.1.1.1"), ask("/hi/2", "6.6.6.6, 1.1.1.1")), (200, 200));
    assert_eq!(ask("/hi/3", "1.1.1.1"), 429);
    assert_eq!((ask("/hi/3", "2.2.2.2"), ask("/plain", "1.1.1.1")), (200, 200));
    // All paths without a route share one key.
    assert_eq!((ask("/x", "1.1.1.1"), ask("/y", "1.1.1.1"), ask("/z", "1.1.1.1")), (404, 404, 429));
    assert!((0..3).all(|_| ask("/tried", "1.1.1.1") == 200));

    // The handler extracts the same client.
    let answer = get(server.address, "/once", &["x-forwarded-for: 2001:db8::1:2"]);
    assert_eq!((answer.status, &*answer.body), (200, "2001:db8::/64"));
    let other = get(server.address, "/once", &["x-forwarded-for: 2001:db8::3:4"]);
    assert_eq!(reported(&other).1, r#""once";r=0;t=3600"#);
}

/// The state of the router has no part in it. Without a layer of ours, an extension sets the `Clients`.
#[test]
fn extracts_the_client_beside_any_state() {
    struct State;
    let (limiter, _) = timed();
    let routes = || axum::Router::new().route("/", route_get(once)).with_state(Arc::new(State));
    let clients = Clients::behind_proxies(["127.0.0.1"]).expect("an address");
    let header = ["x-forwarded-for: 1.1.1.1"];
    let direct = get(serve(routes(), &limiter).address, "/", &header);
    assert_eq!(&*direct.body, "127.0.0.1");
    let set = serve(routes().layer(axum::Extension(clients)), &limiter);
    assert_eq!(&*get(set.address, "/", &header).body, "1.1.1.1");
}

/// A layer without a limiter of its own uses the limiter of the task.
#[test]
fn uses_the_current_limiter() {
    let (limiter, _) = timed();
    let layer = RateLimitLayer::new().limit(ALL, |_: &_| "current");
    let server = serve(router().layer(layer), &limiter);
    for left in [3, 2] {
        assert_eq!(items(reported(&get(server.address, "/plain", &[])).1)[0].1[0].1, left);
    }
    let decision = server.runtime.block_on(limiter.peek(&ALL, "current", 1)).expect("embedded");
    assert_eq!(decision.remaining, 2);
}
