//! actix-web: the middleware, annotated handlers behind it, and the headers that report the limits of both.

use std::net::SocketAddr;

use actix_web::body::{BoxBody, EitherBody};
use actix_web::dev::{Service, ServiceRequest, ServiceResponse};
use actix_web::http::StatusCode;
use actix_web::http::header::{HeaderValue, SET_COOKIE};
use actix_web::middleware::{ErrorHandlerResponse, ErrorHandlers};
use actix_web::test::TestRequest;
use actix_web::{App, HttpRequest, HttpResponse, HttpServer, Responder, ResponseError, web};
use ratelimit_runtime::web::actix::{RateLimits, route};
use ratelimit_runtime::web::{Client, Clients, Route};
use ratelimit_runtime::{Decision, Limit, OnError, RateLimiter, Rejection, rate_limit};
use support::http::get;
use support::server::Server;

use crate::settings::assert_hidden;
use crate::{CACHED, MINUTE, limiters, reported, timed};

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

#[actix_web::get("/costly")]
#[rate_limit(period = 1, threshold = 2, cost = crate::three(), name = "costly")]
async fn costly() -> Result<&'static str, Rejection> {
    Ok("")
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

/// A status of a success, which no rejection has.
#[actix_web::get("/created")]
#[rate_limit(period = "1h", threshold = 1, key = ())]
async fn created() -> Result<(String, StatusCode), Rejection> {
    Ok(("hi".to_owned(), StatusCode::CREATED))
}

#[actix_web::get("/any")]
#[rate_limit(period = "1h", threshold = 1, key = ())]
async fn any() -> actix_web::Result<impl Responder> {
    Ok("hi".customize().with_status(StatusCode::CREATED))
}

/// An error of the application, which knows no headers.
#[derive(Debug)]
struct TooMany;

impl From<Rejection> for TooMany {
    fn from(_: Rejection) -> Self {
        Self
    }
}

impl std::fmt::Display for TooMany {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("later")
    }
}

impl ResponseError for TooMany {
    fn status_code(&self) -> StatusCode {
        StatusCode::TOO_MANY_REQUESTS
    }
}

#[actix_web::get("/own")]
#[rate_limit(period = "1h", threshold = 1, key = ())]
async fn own() -> Result<(String, StatusCode), TooMany> {
    Ok(("hi".to_owned(), StatusCode::CREATED))
}

async fn left(decision: Option<web::ReqData<Decision>>) -> String {
    decision.map_or("none".to_owned(), |decision| decision.remaining.to_string())
}

/// Responds with the headers in the query.
async fn cached(request: HttpRequest) -> HttpResponse {
    let mut response = HttpResponse::Ok();
    for line in request.query_string().split('&') {
        response.append_header(line.split_once(':').expect("a header"));
    }
    response.finish()
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

/// Starts a server with `limits`, whose handlers use `limiter`.
fn serve(limits: RateLimits, limiter: &RateLimiter) -> SocketAddr {
    let (tell, address) = std::sync::mpsc::channel();
    let limiter = limiter.clone();
    std::thread::spawn(move || {
        let server = HttpServer::new(move || {
            let limiter = limiter.clone();
            App::new()
                .wrap(limits.clone())
                .wrap_fn(move |request, service| limiter.scope(service.call(request)))
                .service((hi, once, costly, direct))
                .service((created, any, own))
                .service(
                    web::resource("/page")
                        .wrap(ErrorHandlers::new().handler(StatusCode::TOO_MANY_REQUESTS, page))
                        .route(web::get().to(paged)),
                )
                .route("/plain", web::get().to(async || "plain"))
                .route("/left", web::get().to(left))
                .route("/cached", web::get().to(cached))
        });
        let server = server.workers(1).disable_signals().bind("127.0.0.1:0").expect("a free port");
        tell.send(server.addrs()[0]).expect("the test waits for it");
        actix_web::rt::System::new().block_on(server.run()).expect("it is served");
    });
    address.recv().expect("an address")
}

#[test]
fn reports_all_limits_on_every_response() {
    let (limiter, clock) = timed();
    let limits = RateLimits::new().limit(ALL, |_| ()).legacy_headers();
    let address = serve(limits, &limiter);
    let ask = |path| get(address, path, &[]);

    let policy = r#""all";q=4;w=60, "hi";q=2;w=30"#;
    let first = ask("/hi/1");
    assert_eq!((first.status, &*first.body), (200, "hi 1"));
    assert_eq!(reported(&first), (policy, r#""all";r=3;t=60, "hi";r=1;t=30"#));
    assert_eq!(first.header("x-ratelimit-remaining"), Some("1"));
    clock.advance(std::time::Duration::from_millis(9_001));
    assert_eq!(reported(&ask("/hi/1")), (policy, r#""all";r=2;t=51, "hi";r=0;t=21"#));

    let rejected = ask("/hi/1");
    assert_eq!((rejected.status, rejected.header("retry-after")), (429, Some("21")));
    assert_eq!(reported(&rejected), (policy, r#""hi";r=0;t=21, "all";r=1"#));
    assert_eq!(rejected.header("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(rejected.body, "too many requests, try again in 21 seconds");

    assert_eq!(reported(&ask("/plain")), (r#""all";q=4;w=60"#, r#""all";r=0;t=51"#));
    let rejected = ask("/hi/2");
    assert_eq!((rejected.status, rejected.header("retry-after")), (429, Some("51")));
    assert_eq!(reported(&rejected), (r#""all";q=4;w=60"#, r#""all";r=0;t=51"#));
}

#[test]
fn rejects_with_problem_details_or_the_body_that_is_set() {
    let (limiter, _) = timed();
    let address = serve(RateLimits::new(), &limiter);
    let json = |path| get(address, path, &["accept: application/json"]);
    assert_eq!((json("/hi/1").status, json("/hi/1").status), (200, 200));
    let rejected = json("/hi/1");
    assert_eq!(reported(&rejected), (r#""hi";q=2;w=30"#, r#""hi";r=0;t=30"#));
    assert_eq!(rejected.header("content-type"), Some("application/problem+json"));
    assert_eq!(
        rejected.body,
        concat!(
            r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","#,
            r#""title":"Quota Exceeded","status":429,"#,
            r#""detail":"too many requests, try again in 30 seconds","violated-policies":["hi"]}"#
        )
    );
    assert_eq!((json("/direct").status, json("/direct").status), (200, 429));
    let never = json("/costly");
    assert_eq!((never.status, never.header("retry-after")), (413, None));

    let page =
        RateLimits::new().rejection_body(|request| ("text/html", request.status().to_string()));
    let address = serve(page, &limiter);
    let rejected = get(address, "/hi/1", &["accept: application/json"]);
    assert_eq!((&*rejected.body, rejected.header("content-type")), ("429", Some("text/html")));
    reported(&rejected);

    let away = RateLimiter::builder().redis("redis://127.0.0.1:1").on_error(OnError::Deny);
    let away = away.deadline(std::time::Duration::from_secs(5)).build().expect("a URL");
    let blocked = RateLimits::new().limit(ALL, |_| ()).limiter(away);
    let blocked = get(serve(blocked, &limiter), "/plain", &[]);
    assert_eq!((blocked.status, blocked.header("ratelimit")), (503, None));
}

#[test]
fn keeps_the_changes_of_the_application_to_a_rejection() {
    let (limiter, _) = timed();
    let address = serve(RateLimits::new(), &limiter);
    let ask = || get(address, "/page", &["accept: application/json"]);
    assert_eq!(ask().status, 200);
    let rejected = ask();
    assert_eq!((rejected.status, &*rejected.body), (429, "a page"));
    assert_eq!(reported(&rejected), (r#""paged";q=1;w=3600"#, r#""paged";r=0;t=3600"#));
    assert_eq!(rejected.headers.iter().filter(|(name, _)| name == "set-cookie").count(), 2);
}

/// An error that is a status has no headers. The middleware adds those of the rejection.
#[test]
fn a_status_keeps_when_to_come_back() {
    let (limiter, _) = timed();
    let address = serve(RateLimits::new(), &limiter);
    let reason = "too many requests, try again in 1 hour";
    for (path, text) in [("/created", reason), ("/any", reason), ("/own", "later")] {
        let first = get(address, path, &[]);
        assert_eq!((first.status, &*first.body), (201, "hi"), "{path}");
        let rejected = get(address, path, &[]);
        assert_eq!((rejected.status, &*rejected.body), (429, text), "{path}");
        assert_eq!(rejected.header("retry-after"), Some("3600"), "{path}");
        reported(&rejected);
    }
}

#[test]
fn reports_only_the_limits_of_the_handler_to_exempt_requests() {
    let (limiter, _) = timed();
    let limits = RateLimits::new().limit(ALL, |_| ()).exempt(|_| true);
    let address = serve(limits, &limiter);
    assert_eq!(get(address, "/plain", &[]).header("ratelimit-policy"), None);
    assert_eq!(reported(&get(address, "/hi/1", &[])).0, r#""hi";q=2;w=30"#);
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
    let limits = RateLimits::new()
        .clients(Clients::behind_proxies(["127.0.0.1"]).expect("an address"))
        .limit(Limit::fixed("routes", 2, MINUTE), |request| (route(request), Client::of(request)))
        .exempt(|request| request.path() == "/plain");
    let address = serve(limits, &limiter);
    let ask = |path, client| {
        let header = format!("x-forwarded-for: {client}");
        get(address, path, &[&header]).status
    };
    assert_eq!((ask("/hi/1", "1.1.1.1"), ask("/hi/2", "6.6.6.6, 1.1.1.1")), (200, 200));
    assert_eq!((ask("/hi/3", "1.1.1.1"), ask("/hi/3", "2.2.2.2")), (429, 200));
    assert_eq!((ask("/x", "1.1.1.1"), ask("/y", "1.1.1.1"), ask("/z", "1.1.1.1")), (404, 404, 429));
    assert!((0..3).all(|_| ask("/plain", "1.1.1.1") == 200));

    // Elsewhere in the application, `web::Data` sets the `Clients`.
    let request = TestRequest::default().peer_addr(([127, 0, 0, 1], 4711).into());
    let request = request.insert_header(("x-forwarded-for", "1.1.1.1"));
    let clients = Clients::behind_proxies(["127.0.0.1"]).expect("an address");
    let request = request.app_data(web::Data::new(clients)).to_http_request();
    assert_eq!(Client::of(&request).to_string(), "1.1.1.1");

    let answer = get(address, "/once", &["x-forwarded-for: 2001:db8::1:2"]);
    assert_eq!((answer.status, &*answer.body), (200, "2001:db8::/64"));
    let other = get(address, "/once", &["x-forwarded-for: 2001:db8::3:4"]);
    let states = r#""once";r=0;t=3600, "routes";r=0;t=60"#;
    assert_eq!((other.status, reported(&other).1), (429, states));
}

#[test]
fn a_request_takes_the_units_of_its_cost() {
    let (limiter, _) = timed();
    let cost = |request: &ServiceRequest| request.query_string().len() as u64;
    let limits = RateLimits::new().limit_with_cost(ALL, |_| (), cost).limiter(limiter.clone());
    let address = serve(limits, &limiter);
    assert_eq!(reported(&get(address, "/plain?abc", &[])).1, r#""all";r=1;t=60"#);
    let ask = |path| get(address, path, &[]).status;
    assert_eq!((ask("/plain?abcde"), ask("/plain?ab"), ask("/plain")), (413, 429, 200));
}

/// On the embedded store the decision is there at once, with Redis later.
#[test]
fn the_handler_finds_the_decision_in_the_extensions() {
    let redis = Server::start();
    for (limiter, _) in limiters(&redis) {
        let limits = RateLimits::new().limit(ALL, |_| ()).limiter(limiter.clone());
        let exposing = serve(limits.clone().expose_decision(), &limiter);
        assert_eq!(get(exposing, "/left", &[]).body, "3");
        assert_eq!(get(serve(limits, &limiter), "/left", &[]).body, "none");
    }
}

/// The route has one type in all frameworks.
#[test]
fn a_route_is_a_key_and_a_text() {
    let (limiter, _) = timed();
    let limits = RateLimits::new().limit(ALL, |request| {
        let route: Route = route(request);
        assert_eq!(route.as_str(), "/hi/{id}");
        route
    });
    let address = serve(limits.limiter(limiter.clone()), &limiter);
    assert_eq!(get(address, "/hi/1", &[]).status, 200);
    let peeked = limiter.peek(&ALL, "/hi/{id}", 1);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    assert_eq!(runtime.block_on(peeked).expect("embedded").remaining, 3);
}

#[test]
fn no_header_and_no_body_shows_a_hidden_limit() {
    let (limiter, _) = timed();
    let secret = Limit::fixed("secret", 4, MINUTE).hidden(true);
    let limits = RateLimits::new().limit(secret, |_| ()).legacy_headers().limiter(limiter.clone());
    let address = serve(limits, &limiter);
    for status in [200, 200, 200, 200, 429, 429] {
        let answer = get(address, "/plain", &["accept: application/json"]);
        assert_eq!(answer.status, status);
        assert_hidden(&answer);
    }
}

/// As in axum.
#[test]
fn reports_nothing_in_responses_that_shared_caches_store() {
    let (limiter, _) = timed();
    let limit = Limit::fixed("cached", 99, MINUTE);
    let limits = RateLimits::new().legacy_headers().limit(limit, |_| ()).limiter(limiter.clone());
    let address = serve(limits, &limiter);
    for (query, is_reported) in CACHED {
        let answer = get(address, &format!("/cached?{query}"), &[]);
        for name in ["ratelimit", "ratelimit-policy", "x-ratelimit-remaining"] {
            assert_eq!(answer.header(name).is_some(), is_reported, "{name} beside {query}");
        }
    }
}
