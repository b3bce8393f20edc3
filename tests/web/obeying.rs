//! The layer in front of clients obeys the limits of a service: it reads what the responses say, and plays against a
//! service that limits by itself.

use std::future::ready;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderName};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use ratelimit_runtime::web::{Obeyed, OutboundLayer, ServiceLimits};
use tokio::task::JoinSet;
use tower::{BoxError, ServiceBuilder};

use crate::prelude::*;

/// Requests that remain, of how many, and for how many seconds.
type Requests = (u64, Option<u64>, f64);

/// Returns the pause in seconds and the requests that remain, as a response with these fields says.
fn read(status: u16, fields: &[(&'static str, &str)]) -> (Option<f64>, Option<Requests>) {
    let fields = fields.iter().map(|(name, value)| {
        (HeaderName::from_static(name), value.parse().expect("a header value"))
    });
    let status = StatusCode::from_u16(status).expect("a status");
    let limits = ServiceLimits::read(status, &fields.collect::<HeaderMap>());
    let requests = limits.requests.map(|it| (it.remaining, it.limit, it.reset.as_secs_f64()));
    (limits.pause.map(|pause| pause.as_secs_f64()), requests)
}

/// The time at which the responses below were sent, in seconds since 1970: 1,736,951,040.
const DATE: (&str, &str) = ("date", "Wed, 15 Jan 2025 14:24:00 GMT");

#[test]
fn reads_what_services_send() {
    let github = |remaining: &'static str| {
        let reset = ("x-ratelimit-reset", "1736951100");
        [DATE, ("x-ratelimit-limit", "5000"), ("x-ratelimit-remaining", remaining), reset]
    };
    assert_eq!(read(200, &github("4987")), (None, Some((4_987, Some(5_000), 60.0))));
    assert_eq!(read(403, &github("0")), (Some(60.0), None));
    // The secondary limit.
    assert_eq!(read(403, &[("retry-after", "30")]), (Some(30.0), None));
    // A redirect, or a service that starts, asks for another wait.
    assert_eq!(read(301, &[("retry-after", "30")]), (None, None));

    let openai = [
        ("x-ratelimit-limit-requests", "60"),
        ("x-ratelimit-limit-tokens", "150000"),
        ("x-ratelimit-remaining-requests", "59"),
        ("x-ratelimit-remaining-tokens", "149984"),
        ("x-ratelimit-reset-requests", "1s"),
        ("x-ratelimit-reset-tokens", "6m0s"),
    ];
    assert_eq!(read(200, &openai), (None, Some((59, Some(60), 1.0))));
    for (remaining, reset, pause) in [
        ("0", "6m0s", Some(360.0)),
        ("0", "20ms", Some(0.02)),
        ("0", "1h0m0.5s", Some(3_600.5)),
        // Tokens that remain are no number of requests.
        ("7", "6m0s", None),
    ] {
        let tokens =
            [("x-ratelimit-remaining-tokens", remaining), ("x-ratelimit-reset-tokens", reset)];
        assert_eq!(read(200, &tokens), (pause, None), "{remaining} {reset}");
    }

    let anthropic = [
        DATE,
        ("anthropic-ratelimit-requests-limit", "50"),
        ("anthropic-ratelimit-requests-remaining", "49"),
        ("anthropic-ratelimit-requests-reset", "2025-01-15T14:24:02Z"),
        ("anthropic-ratelimit-output-tokens-limit", "8000"),
        ("anthropic-ratelimit-output-tokens-remaining", "0"),
        ("anthropic-ratelimit-output-tokens-reset", "2025-01-15T15:24:59.25+01:00"),
    ];
    assert_eq!(read(200, &anthropic), (Some(59.25), Some((49, Some(50), 2.0))));

    let discord = [
        DATE,
        ("x-ratelimit-limit", "5"),
        ("x-ratelimit-remaining", "1"),
        ("x-ratelimit-reset", "1736951041.250"),
        ("x-ratelimit-reset-after", "1.25"),
        ("x-ratelimit-bucket", "abcd1234"),
    ];
    assert_eq!(read(200, &discord), (None, Some((1, Some(5), 1.25))));
    let global = [("retry-after", "65"), ("x-ratelimit-global", "true")];
    assert_eq!(read(429, &global), (Some(65.0), None));
}

#[test]
fn reads_the_fields_of_the_drafts() {
    let policy = ("ratelimit-policy", r#""burst";q=100;w=60, "day";q=1000;w=86400"#);
    // Less than a fifth of the limit of a day remains, so it is the tighter one.
    let day = [policy, ("ratelimit", r#""burst";r=50;t=30, "day";r=20;t=7200"#)];
    assert_eq!(read(200, &day), (None, Some((20, Some(1_000), 7_200.0))));
    let burst = [policy, ("ratelimit", r#""burst";r=2;t=30, "day";r=900;t=86400"#)];
    assert_eq!(read(200, &burst), (None, Some((2, Some(100), 30.0))));
    let named = [("ratelimit", r#""a;r=7,b";r=0;t=5;pk=:cHsdsRa894==:"#)];
    assert_eq!(read(200, &named), (Some(5.0), None));
    let apart = [("ratelimit-remaining", "3"), ("ratelimit-reset", "9")];
    assert_eq!(read(200, &apart), (None, Some((3, None, 9.0))));
    // Calls in flight have no reset.
    assert_eq!(read(200, &[("ratelimit", r#""slots";r=0"#)]), (None, None));
}

#[test]
fn ignores_what_it_cannot_read() {
    let (long, longer) = ("10000000000000000000", "99999999999999999999999999");
    let wrong = ["", "soon", "-5", "nan", "inf", "5x", "-5s", "5m ago", "2025-13", long, longer];
    for reset in wrong.into_iter().chain(["2025-01-15T14:24:00"]) {
        let fields = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", reset)];
        assert_eq!(read(200, &fields), (None, None), "{reset:?}");
    }
    let many = [("x-ratelimit-remaining", "many"), ("x-ratelimit-reset", "5")];
    assert_eq!(read(200, &many), (None, None));
    assert_eq!((read(429, &[]), read(503, &[])), ((Some(1.0), None), (None, None)));
}

/// A service that admits 100 requests in each second, and says so.
struct Windows {
    /// The beginning of the window, and the requests in it.
    window: (Instant, u64),
    admitted: u64,
    rejected: u64,
}

async fn count(State(windows): State<Arc<Mutex<Windows>>>) -> impl IntoResponse {
    let mut windows = windows.lock().expect("no panic");
    if windows.window.0.elapsed() >= SECOND {
        windows.window = (Instant::now(), 0);
    }
    windows.window.1 += 1;
    let (start, requests) = windows.window;
    let reset = SECOND.saturating_sub(start.elapsed()).as_secs_f64();
    let is_admitted = requests <= 100;
    *(if is_admitted { &mut windows.admitted } else { &mut windows.rejected }) += 1;
    let status = if is_admitted { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS };
    let fields = [
        ("x-ratelimit-limit", "100".to_owned()),
        ("x-ratelimit-remaining", 100_u64.saturating_sub(requests).to_string()),
        ("x-ratelimit-reset-after", format!("{reset:.3}")),
    ];
    (status, fields)
}

type ObeyedClient =
    tower::util::BoxCloneSyncService<Request<Empty<Bytes>>, Response<Incoming>, BoxError>;

fn process(redis: &Server) -> RateLimiter {
    redis.builder().deadline(SECOND).build().expect("valid")
}

fn client(limiter: &RateLimiter, limit: Limit, obeys: bool) -> ObeyedClient {
    let http = Client::builder(TokioExecutor::new()).build_http();
    let layer = RateLimitLayer::outbound().limit(limit, |_: &_| "token").limiter(limiter.clone());
    if !obeys {
        return ObeyedClient::new(ServiceBuilder::new().layer(layer).service(http));
    }
    let layer = layer.obey(MINUTE, |response: &Response<Incoming>| {
        ServiceLimits::read(response.status(), response.headers())
    });
    ObeyedClient::new(ServiceBuilder::new().layer(layer).service(http))
}

async fn send(client: &ObeyedClient, address: SocketAddr) -> Result<StatusCode, Rejection> {
    let request = Request::get(format!("http://{address}/")).body(Empty::new()).expect("a request");
    match client.clone().oneshot(request).await {
        Ok(response) => Ok(response.status()),
        Err(error) => Err(*error.downcast().expect("a rejection")),
    }
}

/// Three processes send as much as a limit admits that is too high for the service. Returns the part that it rejects.
async fn rejected_part(limiters: &[RateLimiter], obeys: bool) -> f64 {
    let windows = Windows { window: (Instant::now(), 0), admitted: 0, rejected: 0 };
    let windows = Arc::new(Mutex::new(windows));
    let address = listen(Router::new().fallback(count).with_state(Arc::clone(&windows))).await;
    let limit = Limit::leaky_bucket("api", 143, SECOND).wait(30 * SECOND);
    let (mut calls, end) = (JoinSet::new(), Instant::now() + 4 * SECOND);
    for limiter in limiters {
        let client = client(limiter, limit, obeys);
        for _ in 0..10 {
            let client = client.clone();
            calls.spawn(async move {
                while Instant::now() < end {
                    let _ = send(&client, address).await;
                }
            });
        }
    }
    calls.join_all().await;
    let Windows { admitted, rejected, .. } = *windows.lock().expect("no panic");
    // Not by sending little.
    assert!(admitted > 240, "{admitted}");
    rejected as f64 / (admitted + rejected) as f64
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_rejects_few_requests_of_a_fleet_that_obeys_it() {
    let redis = Server::start();
    let limiters = [process(&redis), process(&redis), process(&redis)];
    let without = rejected_part(&limiters, false).await;
    assert!(without > 0.2, "{without}");
    let with = rejected_part(&limiters, true).await;
    assert!(with <= 0.01, "{with}, and {without} without it");
}

/// After a pause, one request of all processes tries the service. The others follow its answer.
#[tokio::test(flavor = "multi_thread")]
async fn one_request_of_a_fleet_tries_a_service_after_its_pause() {
    /// The requests, and how many there are at the end of the second one.
    type Probed = Arc<(AtomicU32, AtomicU32)>;
    async fn answer(State(probed): State<Probed>) -> axum::response::Response {
        match probed.0.fetch_add(1, SeqCst) {
            0 => return (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "2")]).into_response(),
            1 => {
                tokio::time::sleep(Duration::from_millis(400)).await;
                probed.1.store(probed.0.load(SeqCst), SeqCst);
            }
            _ => {}
        }
        StatusCode::OK.into_response()
    }
    let (redis, probed) = (Server::start(), Probed::default());
    let address = listen(Router::new().fallback(answer).with_state(Arc::clone(&probed))).await;
    let limit = Limit::sliding("api", 1_000, SECOND).wait(20 * SECOND);
    let clients = [(); 3].map(|()| client(&process(&redis), limit, true));
    assert_eq!(send(&clients[0], address).await, Ok(StatusCode::TOO_MANY_REQUESTS));
    let calls = clients.iter().cycle().take(30).cloned();
    let calls = calls.map(|client| async move { send(&client, address).await });
    let sent = calls.collect::<JoinSet<_>>().join_all().await;
    assert!(sent.iter().all(|it| *it == Ok(StatusCode::OK)), "{sent:?}");
    assert_eq!(probed.1.load(SeqCst), 2);
}

type ObeyedLayer = OutboundLayer<Request<()>, Obeyed<Response<()>>>;

/// Returns a layer that obeys a service for as long as `most`.
fn obeying(limiter: &RateLimiter, limit: Limit, most: Duration) -> ObeyedLayer {
    let layer = RateLimitLayer::outbound().limit(limit, |_: &Request<()>| "token");
    layer.limiter(limiter.clone()).obey(most, |response: &Response<()>| {
        ServiceLimits::read(response.status(), response.headers())
    })
}

/// Sends a request to a service with this response. Returns its status, or why the request was not sent.
async fn answered(
    layer: &ObeyedLayer,
    status: u16,
    fields: &[(&str, &str)],
) -> Result<u16, Rejection> {
    let response = fields.iter().fold(Response::builder().status(status), |response, field| {
        response.header(field.0, field.1)
    });
    let response = response.body(()).expect("a response");
    let service = service_fn(move |_: Request<()>| ready(Ok::<_, BoxError>(response.clone())));
    let sent = layer.layer(service).oneshot(Request::new(())).await;
    sent.map(|response| response.status().as_u16())
        .map_err(|error| *error.downcast().expect("a rejection"))
}

#[tokio::test]
async fn a_limit_without_a_wait_rejects_what_comes_before_the_pace() {
    let (limiter, clock) = timed();
    let limit = Limit::sliding("api", 100, SECOND);
    let layer = |limit| obeying(&limiter, limit, 5 * SECOND);
    let obeyed = layer(limit);
    assert_eq!(answered(&obeyed, 429, &[("retry-after", "100")]).await, Ok(429));
    // It obeys no longer than it is told.
    let blocked = answered(&obeyed, 200, &[]).await.expect_err("paused");
    assert!(matches!(blocked, Rejection::Blocked { .. }), "{blocked}");
    assert_eq!(blocked.retry_after(), Some(5 * SECOND));
    // Others who share the limit are blocked as well, and a shadow obeys nothing.
    assert!(limiter.check(&limit, "token", 1).await.is_err());
    assert_eq!(answered(&layer(limit.shadow(true)), 429, &[]).await, Ok(429));

    let other = layer(limit);
    assert!(answered(&other, 200, &[]).await.is_err());

    clock.advance(5 * SECOND);
    // Its request fails, which tells nothing, so the next one of all processes comes a second later.
    let failing =
        service_fn(|_: Request<()>| ready(Err::<Response<()>, _>(BoxError::from("broken"))));
    let failed = other.layer(failing).oneshot(Request::new(())).await.expect_err("broken");
    assert_eq!(failed.to_string(), "broken");
    let paced = answered(&obeyed, 200, &[]).await.expect_err("too early");
    let is_paced = matches!(&paced, Rejection::Limited { name, .. } if *name == "api pace");
    assert!(is_paced, "{paced}");
    assert_eq!(paced.retry_after(), Some(SECOND));
    clock.advance(SECOND);
    // The second request follows the answer of the first.
    for _ in 0..2 {
        assert_eq!(answered(&obeyed, 200, &[]).await, Ok(200));
    }
    clock.advance(SECOND);

    let few = [
        ("x-ratelimit-limit", "20"),
        ("x-ratelimit-remaining", "4"),
        ("x-ratelimit-reset-after", "4"),
    ];
    for _ in 0..2 {
        assert_eq!(answered(&obeyed, 200, &few).await, Ok(200));
    }
    let wait = answered(&obeyed, 200, &few).await.expect_err("too early").retry_after();
    assert_eq!(wait, Some(SECOND));
    clock.advance(4 * SECOND);
    for _ in 0..3 {
        assert_eq!(answered(&obeyed, 200, &[]).await, Ok(200));
    }
}

#[tokio::test]
async fn an_unblocked_key_is_tried_at_once() {
    let (limiter, _clock) = timed();
    let limit = Limit::sliding("api", 100, SECOND).wait(10 * SECOND);
    let obeyed = obeying(&limiter, limit, MINUTE);
    assert_eq!(answered(&obeyed, 429, &[("retry-after", "60")]).await, Ok(429));
    assert!(answered(&obeyed, 200, &[]).await.is_err());
    assert!(limiter.unblock(&limit, "token").await.expect("unblocked"));
    for _ in 0..3 {
        assert_eq!(answered(&obeyed, 200, &[]).await, Ok(200));
    }
}

#[tokio::test]
async fn a_block_of_another_limit_pauses_nobody() {
    let (limiter, _clock) = timed();
    let customer = Limit::sliding("customer", 100, SECOND);
    let obeyed = obeying(&limiter, Limit::sliding("api", 100, SECOND), MINUTE)
        .limit(customer, |request: &Request<()>| request.uri().path().to_owned());
    limiter.block(&customer, "/x", MINUTE).await.expect("blocked");
    let service = service_fn(|_: Request<()>| ready(Ok::<_, BoxError>(Response::new(()))));
    let send =
        |path: &str| obeyed.layer(service).oneshot(Request::get(path).body(()).expect("a request"));
    for _ in 0..3 {
        assert!(send("/x").await.is_err());
        assert!(send("/y").await.is_ok());
    }
}
