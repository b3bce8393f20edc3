//! The layer in front of clients, with a client of hyper-util and a server on a socket.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{Request, Response, Version};
use axum::routing::get as route_get;
use bytes::Bytes;
use futures::FutureExt;
use http_body_util::Empty;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use ratelimit_runtime::__private::lines_are_idle;
use ratelimit_runtime::web::{
    OutboundLayer, OutboundService, RateLimitLayer, RequestLimits, host_key,
};
use ratelimit_runtime::{Decision, Limit, RateLimiter, Rejection};
use support::http::get;
use support::server::Server;
use tokio::sync::Semaphore;
use tower::limit::ConcurrencyLimit;
use tower::{Service, ServiceExt, service_fn};
use tower_layer::Layer;

use crate::{MINUTE, limiters, reported, serve, timed};

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
    let router = Router::new().fallback(count).with_state(Arc::clone(&requests));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move { axum::serve(listener, router).await });
    (address, requests)
}

/// Runs all other tasks until the waiting calls wait for the clock.
async fn settle(limiter: &RateLimiter) {
    while !lines_are_idle(limiter) {
        tokio::task::yield_now().await;
    }
}

fn rejection(error: Box<dyn Error + Send + Sync>) -> Rejection {
    *error.downcast().expect("a rejection")
}

#[tokio::test]
async fn spellings_of_one_host_share_its_count() {
    let (limiter, _) = timed();
    let by_host = |request: &Request<Empty<Bytes>>| request.uri().host().map(host_key);
    let limit = Limit::fixed("host", 3, MINUTE);
    let layer = RateLimitLayer::outbound().limit(limit, by_host).limiter(limiter);
    let sent =
        service_fn(async |_: Request<Empty<Bytes>>| Ok::<_, Box<dyn Error + Send + Sync>>(()));
    let mut service = layer.layer(sent);
    let mut call = async |url: &str| {
        let request = Request::get(url).body(Empty::new()).expect("a request");
        service.call(request).await.is_ok()
    };
    for url in ["http://example.com/", "https://Example.COM:8443/a", "http://example.com./"] {
        assert!(call(url).await, "{url}");
    }
    assert!(!call("http://EXAMPLE.com./b").await);
    assert!(call("http://another.example.com/").await);
}

#[tokio::test]
async fn a_rejected_request_is_not_sent() {
    let redis = Server::start();
    for (limiter, _) in limiters(&redis) {
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
    for (path, is_sent) in [
        ("/abc", true),
        ("/ab", false),
        ("/a", true),
        ("/", false),
        ("/free", true),
        ("/exempted", true),
    ] {
        let result = service.call(request(server, path)).await;
        assert_eq!(result.is_ok(), is_sent, "{path}");
    }
    let error = service.call(request(server, "/longer")).await.expect_err("above the capacity");
    assert!(matches!(rejection(error), Rejection::CostExceedsCapacity { cost: 7, .. }));
    let refused = service.call(request(server, "/refused")).await.expect_err("not sent");
    assert_eq!(refused.to_string(), "not there");
    assert_eq!(requests.load(Ordering::SeqCst), 4);
}

#[tokio::test]
async fn the_client_finds_the_decision_in_the_extensions() {
    let redis = Server::start();
    let remaining = service_fn(async |request: Request<()>| {
        let decision = request.extensions().get::<Decision>();
        Ok::<_, Box<dyn Error + Send + Sync>>(decision.map(|it| it.remaining))
    });
    for (limiter, _) in limiters(&redis) {
        let limit = Limit::fixed("exposed", 9, MINUTE);
        let layer = RateLimitLayer::outbound().limit(limit, |_| ()).limiter(limiter);
        let send = async |layer: OutboundLayer<_>| {
            let sent = layer.layer(remaining).oneshot(Request::new(())).await;
            sent.expect("admitted")
        };
        assert_eq!(send(layer.clone().expose_decision()).await, Some(8));
        assert_eq!(send(layer).await, None);
    }
}

/// An HTTP/2 connection has a bounded number of streams. A request that waits for its units has none yet.
#[tokio::test]
async fn a_thousand_waits_that_are_dropped_use_up_no_connection() {
    let redis = Server::start();
    for (limiter, clock) in limiters(&redis) {
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
            settle(&limiter).await;
        }
        settle(&limiter).await;
        for sent in 2..5 {
            let mut waiting = Box::pin(service.call(request(server, "/")));
            assert!(waiting.as_mut().now_or_never().is_none());
            settle(&limiter).await;
            clock.advance(Duration::from_secs(1));
            let response = waiting.await.expect("a response");
            assert_eq!(response.version(), Version::HTTP_2);
            assert_eq!(requests.load(Ordering::SeqCst), sent);
        }
    }
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
        let (policy, state) = reported(&answer);
        assert!(policy.starts_with("\"ours\"") && !policy.contains("upstream"), "{policy}");
        assert!(!state.contains("upstream"), "{state}");
    }
}

/// A rejected request frees the permit that the client took when it became ready.
#[tokio::test]
async fn frees_the_client_after_a_rejection() {
    let inner = service_fn(async |(): ()| Ok::<_, std::io::Error>(Response::new(())));
    let permits = Arc::new(Semaphore::new(1));
    let inner = ConcurrencyLimit::with_semaphore(inner, Arc::clone(&permits));
    let layer: OutboundLayer<()> = RateLimitLayer::outbound();
    let layer = layer.limit(Limit::fixed("one", 1, MINUTE), |()| ());
    let mut service = layer.limiter(RateLimiter::embedded()).layer(inner);
    service.ready().await.expect("ready").call(()).await.expect("a response");
    let error = service.ready().await.expect("ready").call(()).await.expect_err("rejected");
    assert_eq!(rejection(error).name(), "one");
    assert_eq!(permits.available_permits(), 1);
}
