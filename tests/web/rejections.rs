//! Rejections as axum responses, over a real socket.

use std::time::Duration;

use axum::Router;
use axum::extract::Path;
use axum::response::IntoResponse;
use axum::routing::get as route;
use ratelimit_runtime::{RateLimiter, Rejection, rate_limit, set_global};
use support::http::get;
use support::server::Server;

#[rate_limit(period = "1h", threshold = 2, key = id)]
async fn limited(Path(id): Path<u64>) -> Result<String, Rejection> {
    Ok(format!("{id}"))
}

#[rate_limit(period = "300ms", threshold = 1, key = "{id}")]
async fn hidden(Path(id): Path<u64>) -> impl IntoResponse {
    format!("{id}")
}

#[rate_limit(period = 1, threshold = 5, cost = cost)]
async fn costly(Path(cost): Path<u64>) -> Result<String, Rejection> {
    Ok(format!("{cost}"))
}

/// One test, because a process has one global limiter.
#[test]
fn rejects_over_http() {
    let redis = Server::start();
    let limiter = redis.builder().deadline(Duration::from_secs(5)).build().expect("valid");
    set_global(limiter).expect("the first");
    let again = set_global(RateLimiter::embedded()).expect_err("the second");
    assert!(again.to_string().contains("already set"), "{again}");

    let router = Router::new()
        .route("/limited/{id}", route(limited))
        .route("/hidden/{id}", route(hidden))
        .route("/costly/{cost}", route(costly));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"));
    let listener = listener.expect("a free port");
    let address = listener.local_addr().expect("bound");
    runtime.spawn(async move { axum::serve(listener, router).await });

    for _ in 0..2 {
        assert_eq!(get(address, "/limited/1", &[]).status, 200);
    }
    let rejected = get(address, "/limited/1", &[]);
    assert_eq!(rejected.status, 429);
    let wait: u64 = rejected.header("retry-after").expect("a wait").parse().expect("seconds");
    assert!((3590..=3600).contains(&wait), "{wait}");
    assert_eq!(rejected.header("cache-control"), Some("no-store"));
    assert_eq!(rejected.header("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(get(address, "/limited/2", &[]).status, 200);

    // A wait below a second is rounded up: 0 would cause a retry at once.
    let rejected = (0..100).map(|_| get(address, "/hidden/1", &[])).find(|it| it.status == 429);
    let rejected = rejected.expect("several requests in one window of 300 ms");
    assert_eq!(rejected.header("retry-after"), Some("1"));

    let never = get(address, "/costly/6", &[]);
    assert_eq!((never.status, never.header("retry-after")), (413, None));
    assert_eq!(get(address, "/costly/5", &[]).status, 200);

    drop(redis);
    let undecided = get(address, "/limited/3", &[]);
    assert_eq!((undecided.status, undecided.header("retry-after")), (503, None));
    assert!(!undecided.body.contains("Redis"), "not for clients: {}", undecided.body);
}
