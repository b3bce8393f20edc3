//! The layer on a hyper server, without a framework. Each client address has a bucket, also behind trusted
//! proxies.
//!
//! ```sh
//! PORT=3000 TRUSTED_PROXIES=127.0.0.1 cargo run --example tower_layer
//! ```
//!
//! In another terminal, `curl` acts as a proxy on this machine:
//!
//! ```sh
//! # Three calls at once, then one in 10 seconds: the fourth call gets 429 with Retry-After.
//! for i in 1 2 3 4; do curl -i -H 'x-forwarded-for: 203.0.113.7' http://127.0.0.1:3000; echo; done
//! # The client forges an address in front of the one that the proxy adds. It is still the same client.
//! curl -i -H 'x-forwarded-for: 1.1.1.1, 203.0.113.7' http://127.0.0.1:3000
//! # Another client has its own bucket.
//! curl -i -H 'x-forwarded-for: 203.0.113.8' http://127.0.0.1:3000
//! ```
//!
//! Without `TRUSTED_PROXIES`, the server ignores the header: the client is the peer of the connection. If
//! `RATELIMIT_REDIS_URL` is set, all servers that use that Redis share the counts.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use ratelimit_runtime::Limit;
use ratelimit_runtime::web::{Client, Clients, RateLimitLayer};
use tokio::net::TcpListener;
use tower::{ServiceBuilder, service_fn};
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

const EACH_CLIENT: Limit = Limit::token_bucket("client", 6, Duration::from_secs(60)).burst(3);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // At DEBUG, each rejection is an event with the limit, a hash of the key, and the wait.
    let shown =
        Targets::new().with_default(Level::INFO).with_target("ratelimit_runtime", Level::DEBUG);
    tracing_subscriber::registry().with(tracing_subscriber::fmt::layer()).with(shown).init();
    // Reads RATELIMIT_REDIS_URL now: a wrong URL ends the program, and does not fail the first request.
    ratelimit_runtime::current().context("RATELIMIT_REDIS_URL")?;

    let limits = RateLimitLayer::new().clients(clients()?).limit(EACH_CLIENT, Client::of);
    let hello = service_fn(|request: Request<Incoming>| {
        let hello = format!("hi {}\n", Client::of(&request));
        async { Ok::<_, Infallible>(Response::new(hello)) }
    });

    let address = address()?;
    let listener = TcpListener::bind(&address)
        .await
        .with_context(|| format!("cannot listen on {}:{}", address.0, address.1))?;
    println!("listening on http://{}", listener.local_addr()?);
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // A temporary fault, for example too many open files.
                tracing::error!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        let service = ServiceBuilder::new()
            .map_request(move |mut request: Request<Incoming>| {
                // `Clients` reads the address of the peer from this extension.
                request.extensions_mut().insert::<SocketAddr>(peer);
                request
            })
            .layer(limits.clone())
            .service(hello);
        let service = TowerToHyperService::new(service);
        let serve = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        tokio::spawn(async move {
            if let Err(error) = serve.await {
                tracing::debug!(%error, "a connection broke");
            }
        });
    }
}

/// Trusts the networks in `TRUSTED_PROXIES`, separated by commas.
fn clients() -> anyhow::Result<Clients> {
    let proxies = std::env::var("TRUSTED_PROXIES").unwrap_or_default();
    let proxies = proxies.split(',').map(str::trim).filter(|proxy| !proxy.is_empty());
    Clients::behind_proxies(proxies).context("TRUSTED_PROXIES")
}

/// HOST and PORT. The default is a free port on 127.0.0.1.
fn address() -> anyhow::Result<(String, u16)> {
    let host = std::env::var("HOST").unwrap_or_else(|_| "127.0.0.1".to_owned());
    let port = std::env::var("PORT").unwrap_or_else(|_| "0".to_owned());
    let number = port.parse().with_context(|| format!("PORT is `{port}`, not a port"))?;
    Ok((host, number))
}
