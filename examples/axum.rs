//! axum: a layer for all routes, annotated handlers whose keys come from extractors, a body of one's own
//! for refusals, events of each refusal, and metrics for Prometheus.
//!
//! ```sh
//! PORT=3000 cargo run --example axum --features metrics
//! ```
//!
//! and in another terminal:
//!
//! ```sh
//! # Two greetings of one user by one client in 30 seconds; the third is 429 with Retry-After.
//! for i in 1 2 3; do curl -i http://127.0.0.1:3000/hi/7; echo; done
//! # Another user is not affected.
//! curl -i http://127.0.0.1:3000/hi/8
//! # A bucket of 5 pages for each API key, refilled at one a second; more than 5 at once never pass: 413.
//! curl -i -H 'x-api-key: secret' 'http://127.0.0.1:3000/search?pages=4'
//! curl -i -H 'x-api-key: secret' 'http://127.0.0.1:3000/search?pages=4'
//! curl -i -H 'x-api-key: secret' 'http://127.0.0.1:3000/search?pages=6'
//! # What became of all these, and how long it took to decide.
//! curl http://127.0.0.1:3000/metrics
//! ```
//!
//! With `RATELIMIT_REDIS_URL` set, any number of these servers share the counts.

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

/// Of each client, on each route.
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
    pages: u32,
}

struct ApiKey(String);

impl<S: Sync> FromRequestParts<S> for ApiKey {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let key = parts.headers.get("x-api-key").and_then(|key| key.to_str().ok());
        // In place of a database. Keys that anybody can invent would limit nobody.
        match key.filter(|key| ["secret", "other"].contains(key)) {
            Some(key) => Ok(Self(key.to_owned())),
            None => Err((StatusCode::UNAUTHORIZED, "send a known x-api-key\n")),
        }
    }
}

/// Returns the content type and the body for a request that the layer or a handler rejects.
fn rejection_body(request: &RejectedRequest<'_>) -> (&'static str, String) {
    let rejection = request.rejection();
    let body = json!({"error": rejection.to_string(), "retry_after": request.retry_after()});
    ("application/json", format!("{body}\n"))
}

/// A page for Prometheus: of the limiters that are made after it.
fn metrics() -> anyhow::Result<Router> {
    let buckets = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1];
    let recorder = PrometheusBuilder::new().set_buckets(&buckets)?.install_recorder()?;
    let upkeep = recorder.clone();
    tokio::spawn(async move {
        // What is measured piles up while nobody fetches the page.
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
    // At this level, each refusal is an event: the limit, a hash of the key, the wait.
    let shown =
        Targets::new().with_default(Level::INFO).with_target("ratelimit_runtime", Level::DEBUG);
    tracing_subscriber::registry().with(tracing_subscriber::fmt::layer()).with(shown).init();
    let metrics = metrics()?;
    // Now, so that a wrong RATELIMIT_REDIS_URL ends the program and not the first request.
    ratelimit_runtime::current().context("RATELIMIT_REDIS_URL")?;

    // Behind proxies it would be `Clients::behind_proxies([..])`.
    let clients = Clients::direct();
    let layer_clients = clients.clone();
    let limits = RateLimitLayer::new()
        .limit(ALL, move |request| (route(request), layer_clients.identify(request)))
        .rejection_body(rejection_body);
    let router = Router::new()
        .route("/hi/{user_id}", get(hi))
        .route("/search", get(search))
        .layer(limits)
        .with_state(clients)
        .merge(metrics);

    let address = address()?;
    let listener = TcpListener::bind(&address)
        .await
        .with_context(|| format!("cannot listen on {}:{}", address.0, address.1))?;
    println!("listening on http://{}", listener.local_addr()?);
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}

/// HOST and PORT; unless set, a free port that this machine alone reaches.
fn address() -> anyhow::Result<(String, u16)> {
    let host = std::env::var("HOST").unwrap_or_else(|_| "127.0.0.1".to_owned());
    let port = std::env::var("PORT").unwrap_or_else(|_| "0".to_owned());
    let number = port.parse().with_context(|| format!("PORT is `{port}`, not a port"))?;
    Ok((host, number))
}
