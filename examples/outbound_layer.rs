//! Two HTTP clients that share the limit of an API, through a layer: their requests wait, first come, first served, so
//! that the API never rejects them.
//!
//! ```sh
//! cargo run --example outbound_layer
//! ```
//!
//! The program starts an API that admits ten requests a second. It sends six requests by reqwest and six by the client
//! of hyper-util, all at once. The API rejects none of them. The program takes about two seconds. If
//! `RATELIMIT_REDIS_URL` is set, all programs that use that Redis share the limit.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use axum::Router;
use axum::body::Bytes;
use axum::extract::Path;
use axum::http::Request;
use axum::routing::get;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use ratelimit_runtime::web::{RateLimitLayer, host_key};
use ratelimit_runtime::{Limit, RateLimiter, Rejection};
use tokio::task::JoinSet;
use tower::{ServiceBuilder, ServiceExt};

/// Five requests a second to each host, evenly spaced. This is less than the API admits, because network delays move
/// requests closer together. A request that would wait for more than ten seconds is rejected at once.
const EACH_HOST: Limit =
    Limit::leaky_bucket("each host", 5, Duration::from_secs(1)).wait(Duration::from_secs(10));

type BoxError = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // Reads RATELIMIT_REDIS_URL now: a wrong URL ends the program before the first request.
    ratelimit_runtime::current().context("RATELIMIT_REDIS_URL")?;
    let url = api().await?;

    let by_host = |request: &reqwest::Request| request.url().host_str().map(host_key);
    let by_reqwest = ServiceBuilder::new()
        .layer(RateLimitLayer::outbound().limit(EACH_HOST, by_host))
        .service(reqwest::Client::new());

    let by_host = |request: &Request<Empty<Bytes>>| request.uri().host().map(host_key);
    let by_hyper = ServiceBuilder::new()
        .layer(RateLimitLayer::outbound().limit(EACH_HOST, by_host))
        .service(Client::builder(TokioExecutor::new()).build_http());

    let start = Instant::now();
    let mut calls = JoinSet::<Result<String, BoxError>>::new();
    for number in 1..=6 {
        let url = format!("{url}/weather/city-{number}");
        let request = reqwest::Request::new(reqwest::Method::GET, url.parse()?);
        let response = by_reqwest.clone().oneshot(request);
        calls.spawn(async {
            Ok(format!("reqwest: {}", response.await?.error_for_status()?.text().await?))
        });

        let response = by_hyper.clone().oneshot(Request::get(&url).body(Empty::new())?);
        calls.spawn(async {
            let body = response.await?.into_body().collect().await?.to_bytes();
            Ok(format!("hyper: {}", String::from_utf8_lossy(&body)))
        });
    }
    while let Some(call) = calls.join_next().await {
        let text = call?.unwrap_or_else(|error| match error.downcast_ref::<Rejection>() {
            Some(rejection) => format!("not sent: {rejection}"),
            None => format!("failed: {error}"),
        });
        println!("{:4.1} s  {text}", start.elapsed().as_secs_f64());
    }
    Ok(())
}

/// The external API: rejects the eleventh request in any second, from any client.
async fn api() -> anyhow::Result<String> {
    let theirs = Limit::sliding("their limit", 10, Duration::from_secs(1));
    let limits = RateLimitLayer::new().limit(theirs, |_| ()).limiter(RateLimiter::embedded());
    let requests = Arc::new(AtomicU32::new(0));
    let weather = async move |Path(city): Path<String>| {
        let number = requests.fetch_add(1, Ordering::Relaxed) + 1;
        format!("fair in {city} (request {number})")
    };
    let router = Router::new().route("/weather/{city}", get(weather)).layer(limits);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(url)
}
