//! A client that obeys an API: it sends as fast as the API admits, without being told how fast that is.
//!
//! ```sh
//! cargo run --example obedient_client
//! ```
//!
//! The program starts an API that admits ten requests a second, and says in each response what remains. It sends thirty
//! requests at once. The layer reads the responses: when few requests remain, it spreads them, and when none remains,
//! it waits. The API rejects none of them, or one or two. The program takes about three seconds. If
//! `RATELIMIT_REDIS_URL` is set, all programs that use that Redis obey together.

use std::error::Error;
use std::time::{Duration, Instant};

use anyhow::Context;
use axum::Router;
use axum::body::Bytes;
use axum::http::Request;
use axum::routing::get;
use http_body_util::Empty;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use ratelimit_runtime::web::{RateLimitLayer, ServiceLimits, host_key};
use ratelimit_runtime::{Limit, RateLimiter, Rejection};
use tokio::task::JoinSet;
use tower::{ServiceBuilder, ServiceExt};

/// More than the API admits. No request waits for more than ten seconds.
const EACH_HOST: Limit =
    Limit::leaky_bucket("each host", 50, Duration::from_secs(1)).wait(Duration::from_secs(10));

/// No response makes the client wait for longer.
const AT_MOST: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // Reads RATELIMIT_REDIS_URL now: a wrong URL ends the program before the first request.
    ratelimit_runtime::current().context("RATELIMIT_REDIS_URL")?;
    let url = api().await?;
    let layer = RateLimitLayer::outbound()
        .limit(EACH_HOST, |request: &Request<Empty<Bytes>>| request.uri().host().map(host_key))
        .obey(AT_MOST, |response: &hyper::Response<hyper::body::Incoming>| {
            ServiceLimits::read(response.status(), response.headers())
        });
    let http = Client::builder(TokioExecutor::new()).build_http();
    let client = ServiceBuilder::new().layer(layer).service(http);

    let (start, mut calls) = (Instant::now(), JoinSet::new());
    for _ in 0..30 {
        let response = client.clone().oneshot(Request::get(&url).body(Empty::new())?);
        calls.spawn(async move {
            let response: Result<_, Box<dyn Error + Send + Sync>> = response.await;
            (start.elapsed(), response)
        });
    }
    while let Some(call) = calls.join_next().await {
        let (at, response) = call?;
        let text = match &response {
            Ok(response) => response.status().to_string(),
            Err(error) => match error.downcast_ref::<Rejection>() {
                Some(rejection) => format!("not sent: {rejection}"),
                None => format!("failed: {error}"),
            },
        };
        println!("{:4.1} s  {text}", at.as_secs_f64());
    }
    Ok(())
}

/// The external API: rejects the eleventh request in any second. Its responses have `RateLimit`.
async fn api() -> anyhow::Result<String> {
    let theirs = Limit::fixed("their limit", 10, Duration::from_secs(1));
    let limits = RateLimitLayer::new().limit(theirs, |_| ()).limiter(RateLimiter::embedded());
    let router = Router::new().route("/weather", get(async || "fair")).layer(limits);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/weather", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(url)
}
