//! hyper, with no framework: the layer around a service of one's own.

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use ratelimit_runtime::web::{Client, Clients, RateLimitLayer};
use ratelimit_runtime::{Limit, RateLimiter, rate_limit};
use support::http::get;
use tower::{ServiceBuilder, service_fn};

use crate::{MINUTE, timed, told};

#[rate_limit(period = "1m", threshold = 2, algo = "fixed", key = client, name = "handled")]
async fn handle(client: Client) -> Result<Response<Full<Bytes>>, Response<Full<Bytes>>> {
    Ok(Response::new(Full::from(client.to_string())))
}

async fn serve(listener: tokio::net::TcpListener, limiter: RateLimiter) {
    let limit = Limit::fixed("layered", 3, MINUTE);
    let layer = RateLimitLayer::new()
        .limit(limit, |request| Clients::direct().of(request))
        .limiter(limiter.clone());
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
                let handled = limiter.scope(handle(Clients::direct().of(&request)));
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

#[test]
fn a_service_is_limited_and_tells() {
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
    assert_eq!(told(&first), (policy, r#""layered";r=2;t=60, "handled";r=1;t=60"#));
    assert_eq!(ask().status, 200);
    let refused = ask();
    assert_eq!((refused.status, told(&refused)), (429, (policy, r#""handled";r=0;t=60"#)));
    assert_eq!(refused.header("content-type"), Some("application/problem+json"));
    let refused = ask();
    assert_eq!(told(&refused), (r#""layered";q=3;w=60"#, r#""layered";r=0;t=60"#));
}
