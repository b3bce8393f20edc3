//! hyper without a framework: the layer around a service.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use ratelimit_runtime::web::{Client, RateLimitLayer};
use ratelimit_runtime::{Limit, RateLimiter, rate_limit};
use support::http::get;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};

use crate::{MINUTE, reported, timed};

#[rate_limit(period = "1m", threshold = 2, algo = "fixed", key = client, name = "handled")]
async fn handle(client: Client) -> Result<Response<Full<Bytes>>, Response<Full<Bytes>>> {
    Ok(Response::new(Full::from(client.to_string())))
}

async fn serve(listener: tokio::net::TcpListener, limiter: RateLimiter) {
    let limit = Limit::fixed("layered", 3, MINUTE);
    let layer = RateLimitLayer::new().limit(limit, Client::of).limiter(limiter.clone());
    loop {
        let (stream, peer) = listener.accept().await.expect("a connection");
        let (limiter, layer) = (limiter.clone(), layer.clone());
        let service = ServiceBuilder::new()
            .map_request(move |mut request: Request<Incoming>| {
                request.extensions_mut().insert::<SocketAddr>(peer);
                request
            })
            .layer(layer)
            .service(service_fn(move |request: Request<Incoming>| {
                let handled = limiter.scope(handle(Client::of(&request)));
                async move {
                    let (Ok(response) | Err(response)) = handled.await;
                    Ok::<_, Infallible>(response)
                }
            }));
        let service = TowerToHyperService::new(service);
        tokio::spawn(
            hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service),
        );
    }
}

/// A rejected request frees the permit that the service took when it became ready.
#[tokio::test]
async fn frees_the_inner_service_after_a_rejection() {
    let (limiter, _) = timed();
    let layer = RateLimitLayer::new().limit(Limit::fixed("one", 1, MINUTE), |_| ());
    let inner =
        service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new())));
    let permits = Arc::new(Semaphore::new(1));
    let mut service = ServiceBuilder::new().layer(layer.limiter(limiter)).service(PermitService {
        inner,
        permits: Arc::clone(&permits),
        permit: None,
    });
    for status in [200, 429] {
        let ready = service.ready().await.expect("infallible");
        assert_eq!(
            ready.call(Request::new(String::new())).await.expect("infallible").status(),
            status
        );
        assert_eq!(permits.available_permits(), 1);
    }
}

/// Takes a permit when it becomes ready, and gives it back when it is called.
struct PermitService<S> {
    inner: S,
    permits: Arc<Semaphore>,
    permit: Option<OwnedSemaphorePermit>,
}

impl<S: Clone> Clone for PermitService<S> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), permits: Arc::clone(&self.permits), permit: None }
    }
}

impl<S: Service<Request<String>>> Service<Request<String>> for PermitService<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        if self.permit.is_none() {
            self.permit = Some(Arc::clone(&self.permits).try_acquire_owned().expect("it is free"));
        }
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<String>) -> S::Future {
        self.permit = None;
        self.inner.call(request)
    }
}

#[test]
fn limits_a_service_and_reports_its_limits() {
    let (limiter, _) = timed();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"));
    let listener = listener.expect("a free port");
    let address = listener.local_addr().expect("bound");
    runtime.spawn(serve(listener, limiter));
    let ask = || get(address, "/", &["accept: application/json"]);

    let policy = r#""layered";q=3;w=60, "handled";q=2;w=60"#;
    let first = ask();
    assert_eq!((first.status, &*first.body), (200, "127.0.0.1"));
    assert_eq!(reported(&first), (policy, r#""layered";r=2;t=60, "handled";r=1;t=60"#));
    assert_eq!(ask().status, 200);
    let rejected = ask();
    let states = r#""handled";r=0;t=60, "layered";r=0;t=60"#;
    assert_eq!((rejected.status, reported(&rejected)), (429, (policy, states)));
    assert_eq!(rejected.header("content-type"), Some("application/problem+json"));
    let rejected = ask();
    assert_eq!(reported(&rejected), (r#""layered";q=3;w=60"#, r#""layered";r=0;t=60"#));
}
