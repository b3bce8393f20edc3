//! axum: a layer for all routes, annotated handlers with keys from extractors, a custom body for rejections,
//! an event for each rejection, and metrics for Prometheus.
//!
//! ```sh
//! PORT=3000 cargo run --example axum --features metrics
//! ```
//!
//! In another terminal:
//!
//! ```sh
//! # One client may greet one user twice in 30 seconds. The third call gets 429 with Retry-After.
//! for i in 1 2 3; do curl -i http://127.0.0.1:3000/hi/7; echo; done
//! # Another user is not affected.
//! curl -i http://127.0.0.1:3000/hi/8
//! # Each API key has a bucket of 5 pages that refills one page a second. A call for more than 5 pages
//! # always gets 413.
//! curl -i -H 'x-api-key: secret' 'http://127.0.0.1:3000/search?pages=4'
//! curl -i -H 'x-api-key: secret' 'http://127.0.0.1:3000/search?pages=4'
//! curl -i -H 'x-api-key: secret' 'http://127.0.0.1:3000/search?pages=6'
//! # The outcomes of all these calls, and how long the decisions took.
//! curl http://127.0.0.1:3000/metrics
//! ```
//!
//! If `RATELIMIT_REDIS_URL` is set, all servers that use that Redis share the counts.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::extract::{FromRequestParts, Path, Query};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusBuilder;
use ratelimit_runtime::web::axum::route;
use ratelimit_runtime::web::{Client, Clients, RateLimitLayer, RejectedRequest};
use ratelimit_runtime::{Limit, Rejection, rate_limit};
use serde_json::json;
use tokio::net::TcpListener;
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

/// Counted for each client on each route.
const ALL: Limit = Limit::token_bucket("all", 100, Duration::from_secs(60));

#[rate_limit(period = "30s", threshold = 2, key = (client, user_id))]
async fn hi(client: Client, Path(user_id): Path<u64>) -> Result<String, Rejection> {
    Ok(format!("hi {user_id}, from {client}\n"))
}

#[rate_limit(period = "5s", threshold = 5, algo = "token_bucket", key = key, cost = asked.pages.max(1))]
async fn search(ApiKey(key): ApiKey, Query(asked): Query<Asked>) -> Result<String, Rejection> {
    Ok(format!("{} pages found\n", asked.pages))
}

#[derive(serde::Deserialize)]
struct Asked {
    pages: u64,
}

struct ApiKey(String);

impl<S: Sync> FromRequestParts<S> for ApiKey {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let key = parts.headers.get("x-api-key").and_then(|key| key.to_str().ok());
        // Stands for a lookup in a database. Without it, a client could send a new key with each call, and
        // would never be limited.
        match key.filter(|key| ["secret", "other"].contains(key)) {
            Some(key) => Ok(Self(key.to_owned())),
            None => Err((StatusCode::UNAUTHORIZED, "send a known x-api-key\n")),
        }
    }
}

/// The body of a rejection, from the layer or from a handler.
fn rejection_body(request: &RejectedRequest<'_>) -> (&'static str, String) {
    let rejection = request.rejection();
    let body = json!({"error": rejection.to_string(), "retry_after": request.retry_after()});
    ("application/json", format!("{body}\n"))
}

/// Returns a page for Prometheus. Call it before a limiter is built: the limiter then describes its metrics there.
fn metrics() -> anyhow::Result<Router> {
    let buckets = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1];
    let recorder = PrometheusBuilder::new().set_buckets(&buckets)?.install_recorder()?;
    let upkeep = recorder.clone();
    tokio::spawn(async move {
        // Drains the histograms: without it, they grow as long as no client fetches the page.
        let mut interval = tokio::time::interval(Duration::from_secs(5));
        loop {
            interval.tick().await;
            upkeep.run_upkeep();
        }
    });
    let page = async move || ([(CONTENT_TYPE, "text/plain; version=0.0.4")], recorder.render());
    Ok(Router::new().route("/metrics", get(page)))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // At DEBUG, each rejection is an event with the limit, a hash of the key, and the wait.
    let shown =
        Targets::new().with_default(Level::INFO).with_target("ratelimit_runtime", Level::DEBUG);
    tracing_subscriber::registry().with(tracing_subscriber::fmt::layer()).with(shown).init();
    let metrics = metrics()?;
    // Reads RATELIMIT_REDIS_URL now: a wrong URL ends the program, and does not fail the first request.
    ratelimit_runtime::current().context("RATELIMIT_REDIS_URL")?;

    // Behind proxies, use `Clients::behind_proxies([..])`.
    let limits = RateLimitLayer::new()
        .clients(Clients::direct())
        .limit(ALL, |request| (route(request), Client::of(request)))
        .rejection_body(rejection_body);
    let router = Router::new()
        .route("/hi/{user_id}", get(hi))
        .route("/search", get(search))
        .layer(limits)
        .merge(metrics);

    let address = address()?;
    let listener = TcpListener::bind(&address)
        .await
        .with_context(|| format!("cannot listen on {}:{}", address.0, address.1))?;
    println!("listening on http://{}", listener.local_addr()?);
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}

/// HOST and PORT. The default is a free port on 127.0.0.1.
fn address() -> anyhow::Result<(String, u16)> {
    let host = std::env::var("HOST").unwrap_or_else(|_| "127.0.0.1".to_owned());
    let port = std::env::var("PORT").unwrap_or_else(|_| "0".to_owned());
    let number = port.parse().with_context(|| format!("PORT is `{port}`, not a port"))?;
    Ok((host, number))
}
