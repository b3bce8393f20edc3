//! actix-web: a middleware for all routes, annotated handlers with keys from extractors, a cost that depends
//! on the size of the body, and an event for each rejection.
//!
//! ```sh
//! PORT=3000 cargo run --example actix
//! ```
//!
//! In another terminal:
//!
//! ```sh
//! # One client may greet one user twice in 30 seconds. The third call gets 429 with Retry-After.
//! for i in 1 2 3; do curl -i http://127.0.0.1:3000/hi/7; echo; done
//! # A client that prefers JSON gets a problem document.
//! curl -i -H 'accept: application/json' http://127.0.0.1:3000/hi/7
//! # Ten kilobytes a minute. Of two notes of six kilobytes, the second gets 429. A note of eleven always gets 413.
//! for i in 1 2; do head -c 6000 /dev/zero | curl -i --data-binary @- http://127.0.0.1:3000/notes; done
//! head -c 11000 /dev/zero | curl -i --data-binary @- http://127.0.0.1:3000/notes
//! # The health check is exempt.
//! curl -i http://127.0.0.1:3000/health
//! ```
//!
//! If `RATELIMIT_REDIS_URL` is set, all servers that use that Redis share the counts.

use std::time::Duration;

use actix_web::{App, HttpServer, get, post, web};
use anyhow::Context;
use ratelimit_runtime::web::actix::{RateLimits, route};
use ratelimit_runtime::web::{Client, Clients};
use ratelimit_runtime::{Limit, Rejection, rate_limit};
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

/// Counted for each client on each route.
const ALL: Limit = Limit::token_bucket("all", 100, Duration::from_secs(60));

#[get("/hi/{user_id}")]
#[rate_limit(period = "30s", threshold = 2, key = (client, *user_id))]
async fn hi(client: Client, user_id: web::Path<u64>) -> Result<String, Rejection> {
    Ok(format!("hi {user_id}, from {client}\n"))
}

#[post("/notes")]
#[rate_limit(period = "1m", threshold = 10, key = client, cost = kilobytes(&note))]
async fn notes(client: Client, note: web::Bytes) -> Result<String, Rejection> {
    Ok(format!("{} bytes kept for {client}\n", note.len()))
}

/// Returns the size in kilobytes, rounded up, and at least 1: an empty note also costs a unit.
fn kilobytes(note: &[u8]) -> u64 {
    note.len().div_ceil(1000).max(1) as u64
}

#[get("/health")]
async fn health() -> &'static str {
    "well\n"
}

#[actix_web::main]
async fn main() -> anyhow::Result<()> {
    // At DEBUG, each rejection is an event with the limit, a hash of the key, and the wait.
    let shown =
        Targets::new().with_default(Level::INFO).with_target("ratelimit_runtime", Level::DEBUG);
    tracing_subscriber::registry().with(tracing_subscriber::fmt::layer()).with(shown).init();
    // Reads RATELIMIT_REDIS_URL now: a wrong URL ends the program, and does not fail the first request.
    ratelimit_runtime::current().context("RATELIMIT_REDIS_URL")?;

    // Behind proxies, use `Clients::behind_proxies([..])`.
    let limits = RateLimits::new()
        .clients(Clients::direct())
        .limit(ALL, |request| (route(request), Client::of(request)))
        .exempt(|request| request.path() == "/health");
    let app = move || App::new().wrap(limits.clone()).service((hi, notes, health));
    let address = address()?;
    let server = HttpServer::new(app)
        .bind(&address)
        .with_context(|| format!("cannot listen on {}:{}", address.0, address.1))?;
    for address in server.addrs() {
        println!("listening on http://{address}");
    }
    Ok(server.run().await?)
}

/// HOST and PORT. The default is a free port on 127.0.0.1.
fn address() -> anyhow::Result<(String, u16)> {
    let host = std::env::var("HOST").unwrap_or_else(|_| "127.0.0.1".to_owned());
    let port = std::env::var("PORT").unwrap_or_else(|_| "0".to_owned());
    let number = port.parse().with_context(|| format!("PORT is `{port}`, not a port"))?;
    Ok((host, number))
}
