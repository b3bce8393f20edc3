//! The layer around a service, without a framework.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use ratelimit_runtime::web::{Client, RateLimitLayer};
use ratelimit_runtime::{Limit, rate_limit};
use tokio::sync::Semaphore;
use tower::limit::ConcurrencyLimit;
use tower::{Service, ServiceExt, service_fn};
use tower_layer::Layer;

use crate::{MINUTE, timed};

#[rate_limit(period = "1m", threshold = 2, algo = "fixed", key = client, name = "handled")]
async fn handle(client: Client) -> Result<Response<Full<Bytes>>, Response<Full<Bytes>>> {
    Ok(Response::new(Full::from(client.to_string())))
}

/// A rejected request frees the permit that the service took when it became ready.
#[tokio::test]
async fn frees_the_inner_service_after_a_rejection() {
    let inner =
        service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new())));
    let permits = Arc::new(Semaphore::new(1));
    let inner = ConcurrencyLimit::with_semaphore(inner, Arc::clone(&permits));
    let layer = RateLimitLayer::new().limit(Limit::fixed("one", 1, MINUTE), |_| ());
    let mut service = layer.limiter(timed().0).layer(inner);
    for status in [200, 429] {
        let ready = service.ready().await.expect("infallible");
        let response = ready.call(Request::new(String::new())).await.expect("infallible");
        assert_eq!((response.status().as_u16(), permits.available_permits()), (status, 1));
    }
}

#[tokio::test]
async fn limits_a_service_and_reports_its_limits() {
    let (limiter, _) = timed();
    let limit = Limit::fixed("layered", 3, MINUTE);
    let layer = RateLimitLayer::new().limit(limit, Client::of).limiter(limiter.clone());
    let service = layer.layer(service_fn(move |request: Request<String>| {
        let handled = limiter.scope(handle(Client::of(&request)));
        async move {
            let (Ok(response) | Err(response)) = handled.await;
            Ok::<_, Infallible>(response)
        }
    }));
    let json = "application/problem+json";
    let both = r#""layered";q=3;w=60, "handled";q=2;w=60"#;
    for (status, kind, policy, states) in [
        (200, None, both, r#""layered";r=2;t=60, "handled";r=1;t=60"#),
        (200, None, both, r#""layered";r=1;t=60, "handled";r=0;t=60"#),
        (429, Some(json), both, r#""handled";r=0;t=60, "layered";r=0;t=60"#),
        (429, Some(json), r#""layered";q=3;w=60"#, r#""layered";r=0;t=60"#),
    ] {
        let request = Request::get("/").header("accept", "application/json");
        let request = request.extension(SocketAddr::from(([127, 0, 0, 1], 4711)));
        let request = request.body(String::new()).expect("a request");
        let response = service.clone().oneshot(request).await.expect("infallible");
        assert_eq!(response.status().as_u16(), status);
        let header =
            |name| response.headers().get(name).map(|value| value.to_str().expect("ASCII"));
        assert_eq!((header("ratelimit-policy"), header("ratelimit")), (Some(policy), Some(states)));
        assert_eq!(header("content-type"), kind);
        let body = response.into_body().collect().await.expect("infallible").to_bytes();
        assert!(status == 429 || body == "127.0.0.1", "{body:?}");
    }
}
