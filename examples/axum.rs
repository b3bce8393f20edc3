//! An axum server with annotated handlers. Listens on 127.0.0.1:3000, or where `ADDRESS` says.
//!
//! ```sh
//! cargo run --example axum
//! ```
//!
//! and in another terminal:
//!
//! ```sh
//! # Two greetings per user in 30 seconds; the third is 429 with Retry-After.
//! for i in 1 2 3; do curl -i http://127.0.0.1:3000/hi/7; echo; done
//! # Another user is not affected.
//! curl -i http://127.0.0.1:3000/hi/8
//! # A bucket of 5 per API key, refilled at one a second.
//! for i in 1 2 3 4 5 6; do curl -i -H 'x-api-key: secret' http://127.0.0.1:3000/search; echo; done
//! # A search over many pages costs more; over more than 5, it is never admitted: 413.
//! curl -i -H 'x-api-key: other' 'http://127.0.0.1:3000/search?pages=4'
//! curl -i -H 'x-api-key: other' 'http://127.0.0.1:3000/search?pages=6'
//! ```
//!
//! With `RATELIMIT_REDIS_URL` set, any number of these servers share the counts.

use axum::Router;
use axum::extract::{Path, Query};
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use axum::routing::get;
use ratelimit_runtime::{Rejection, rate_limit};
use tokio::net::TcpListener;

#[rate_limit(period = "30s", threshold = 2, key = user_id)]
async fn hi(Path(user_id): Path<u64>) -> Result<String, Rejection> {
    Ok(format!("hi {user_id}\n"))
}

#[rate_limit(
    period = "5s",
    threshold = 5,
    algo = "token_bucket",
    key = api_key(&headers),
    cost = pages.0.count()
)]
async fn search(headers: HeaderMap, pages: Query<Pages>) -> impl IntoResponse {
    format!("{} pages found\n", pages.0.count())
}

#[derive(serde::Deserialize)]
struct Pages {
    pages: Option<u32>,
}

impl Pages {
    fn count(&self) -> u32 {
        self.pages.unwrap_or(1)
    }
}

/// All callers without a key share one bucket.
fn api_key(headers: &HeaderMap) -> &[u8] {
    headers.get("x-api-key").map_or(b"", |key| key.as_bytes())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().init();
    let router = Router::new().route("/hi/{user_id}", get(hi)).route("/search", get(search));
    let address = std::env::var("ADDRESS").unwrap_or_else(|_| "127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(&address)
        .await
        .map_err(|error| format!("cannot listen on {address}: {error}; set ADDRESS to another"))?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, router).await?;
    Ok(())
}
