//! The layer in front of clients, with a client of hyper-util and a server on a socket.

use std::sync::atomic::{AtomicU32, Ordering};

use axum::extract::State;
use axum::http::Version;
use http_body_util::Empty;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use ratelimit_runtime::web::{OutboundLayer, OutboundService, host_key};
use support::lines::wait_until_idle;
use tokio::sync::Semaphore;
use tower::limit::ConcurrencyLimit;
use tower::{BoxError, Service};

use crate::prelude::*;

type HyperClient = Client<HttpConnector, Empty<Bytes>>;

fn client() -> HyperClient {
    Client::builder(TokioExecutor::new()).build_http()
}

fn request(address: SocketAddr, path: &str) -> Request<Empty<Bytes>> {
    Request::get(format!("http://{address}{path}")).body(Empty::new()).expect("a request")
}

async fn counting() -> (SocketAddr, Arc<AtomicU32>) {
    async fn count(State(requests): State<Arc<AtomicU32>>) -> String {
        requests.fetch_add(1, Ordering::SeqCst).to_string()
    }
    let requests: Arc<AtomicU32> = Arc::default();
    (listen(Router::new().fallback(count).with_state(Arc::clone(&requests))).await, requests)
}

fn rejection(error: BoxError) -> Rejection {
    *error.downcast().expect("a rejection")
}

#[test]
fn spellings_of_one_host_share_its_count() {
    for spelling in ["example.com", "Example.COM", "example.com.", "EXAMPLE.com."] {
        assert_eq!(host_key(spelling), "example.com");
    }
    assert_eq!(host_key("another.example.com"), "another.example.com");
}

support::on_both_stores! {
    limiters;

    async fn a_rejected_request_is_not_sent((limiter, _)) {
        let (server, requests) = counting().await;
        let by_path = |request: &Request<_>| request.uri().path().to_owned();
        let layer = RateLimitLayer::outbound().limit(Limit::fixed("path", 1, MINUTE), by_path);
        let mut service = layer.limiter(limiter).layer(client());
        for path in ["/a", "/b"] {
            service.call(request(server, path)).await.expect("a response");
            let error = service.call(request(server, path)).await.expect_err("rejected");
            assert_eq!(rejection(error).name(), "path");
        }
        assert_eq!(requests.load(Ordering::SeqCst), 2);
        // No server listens on port 1.
        let nowhere = service.call(request(([127, 0, 0, 1], 1).into(), "/c"));
        let error = nowhere.await.expect_err("no connection");
        assert!(error.is::<hyper_util::client::legacy::Error>(), "{error:?}");
    }

    async fn the_client_finds_the_decision_in_the_extensions((limiter, _)) {
        let remaining = service_fn(async |request: Request<()>| {
            let decision = request.extensions().get::<Decision>();
            Ok::<_, BoxError>(decision.map(|it| it.remaining))
        });
        let layer: OutboundLayer<_> =
            RateLimitLayer::outbound().limit(Limit::fixed("exposed", 9, MINUTE), |_| ());
        let layer = layer.limiter(limiter);
        for (layer, expected) in [(layer.clone().expose_decision(), Some(8)), (layer, None)] {
            let sent = layer.layer(remaining).oneshot(Request::new(())).await;
            assert_eq!(sent.expect("admitted"), expected);
        }
    }

    /// An HTTP/2 connection has a bounded number of streams. A request that waits for its units has none yet.
    async fn a_thousand_waits_that_are_dropped_use_up_no_connection((limiter, clock)) {
        let (server, requests) = counting().await;
        let client: HyperClient =
            Client::builder(TokioExecutor::new()).http2_only(true).build_http();
        let limit = Limit::leaky_bucket("streams", 1, Duration::from_secs(1)).wait(MINUTE);
        let layer = RateLimitLayer::outbound().limit(limit, |_| ());
        let mut service = layer.limiter(limiter.clone()).layer(client);
        service.call(request(server, "/")).await.expect("a response");
        for _ in 0..20 {
            let mut waiting: Vec<_> =
                (0..50).map(|_| Box::pin(service.call(request(server, "/")))).collect();
            let is_ready = waiting.iter_mut().any(|call| call.now_or_never().is_some());
            assert!(!is_ready, "a call waits for its turn");
            wait_until_idle(&limiter).await;
        }
        for sent in 2..5 {
            let mut waiting = Box::pin(service.call(request(server, "/")));
            assert!(waiting.as_mut().now_or_never().is_none());
            wait_until_idle(&limiter).await;
            clock.advance(Duration::from_secs(1));
            assert_eq!(waiting.await.expect("a response").version(), Version::HTTP_2);
            assert_eq!(requests.load(Ordering::SeqCst), sent);
        }
    }
}

#[tokio::test]
async fn limits_are_chosen_for_each_request() {
    const LENGTHS: Limit = Limit::fixed("lengths", 6, MINUTE);
    let (server, requests) = counting().await;
    let choose = |request: &Request<_>, limits: &mut RequestLimits| match request.uri().path() {
        "/free" => Ok(()),
        "/refused" => Err("not there".into()),
        path => {
            limits.add(&LENGTHS, (), path.len() as u64);
            Ok(())
        }
    };
    let layer = RateLimitLayer::outbound().limits(choose).limiter(RateLimiter::embedded());
    let mut service = layer.exempt(|it| it.uri().path() == "/exempted").layer(client());
    for path in ["/abc", "/a", "/free", "/exempted"] {
        service.call(request(server, path)).await.expect(path);
    }
    let rejected = service.call(request(server, "/")).await.expect_err("7 of 6");
    assert_eq!(rejection(rejected).name(), "lengths");
    let error = service.call(request(server, "/longer")).await.expect_err("above the capacity");
    assert!(matches!(rejection(error), Rejection::CostExceedsCapacity { cost: 7, .. }));
    let refused = service.call(request(server, "/refused")).await.expect_err("not sent");
    assert_eq!(refused.to_string(), "not there");
    assert_eq!(requests.load(Ordering::SeqCst), 4);
}

#[test]
fn a_server_does_not_report_its_own_requests() {
    let redis = Server::start();
    for (limiter, _) in limiters(&redis) {
        let upstream = serve(Router::new().fallback(async || "hi"), &RateLimiter::embedded());
        let layer = RateLimitLayer::outbound().limit(Limit::fixed("upstream", 9, MINUTE), |_| ());
        let service: OutboundService<HyperClient, _> = layer.layer(client());
        let handler = async move || {
            let response = service.oneshot(request(upstream.address, "/")).await;
            response.expect("a response").status().to_string()
        };
        let ours = RateLimitLayer::new().limit(Limit::fixed("ours", 9, MINUTE), |_| ());
        let server = serve(Router::new().route("/", route_get(handler)).layer(ours), &limiter);
        let answer = get(server.address, "/", &[]);
        assert_eq!((answer.status, &*answer.body), (200, "200 OK"));
        assert_eq!(reported(&answer), (r#""ours";q=9;w=60"#, r#""ours";r=8;t=60"#));
    }
}

/// A rejected request frees the permit that the client, or the service, took when it became ready.
#[tokio::test]
async fn frees_what_is_inside_after_a_rejection() {
    let permits = Arc::new(Semaphore::new(1));
    let inner = service_fn(async |_: Request<String>| {
        Ok::<_, std::io::Error>(Response::new(String::new()))
    });
    let inner = ConcurrencyLimit::with_semaphore(inner, Arc::clone(&permits));
    let one = Limit::fixed("one", 1, MINUTE);
    let request = || Request::new(String::new());

    let layer: OutboundLayer<Request<String>> = RateLimitLayer::outbound().limit(one, |_| ());
    let mut client = layer.limiter(RateLimiter::embedded()).layer(inner.clone());
    client.ready().await.expect("ready").call(request()).await.expect("a response");
    let error = client.ready().await.expect("ready").call(request()).await.expect_err("rejected");
    assert_eq!((rejection(error).name(), permits.available_permits()), ("one", 1));

    let layer = RateLimitLayer::new().limit(one, |_| ()).limiter(RateLimiter::embedded());
    let mut service = layer.layer(inner);
    for status in [200, 429] {
        let ready = service.ready().await.expect("ready");
        let response = ready.call(request()).await.expect("a response");
        assert_eq!((response.status().as_u16(), permits.available_permits()), (status, 1));
    }
}
