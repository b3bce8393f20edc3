//! poem: a framework without a feature of its own. The feature `tower` identifies the client of a request by its peer
//! and its headers, and makes an HTTP response of a rejection.
//!
//! ```sh
//! PORT=3000 cargo run --example poem
//! ```
//!
//! In another terminal:
//!
//! ```sh
//! # One client may greet one user twice in 30 seconds. The third call gets 429 with Retry-After.
//! for i in 1 2 3; do curl -i http://127.0.0.1:3000/hi/7; echo; done
//! ```

use std::net::SocketAddr;

use anyhow::Context;
use http::HeaderValue;
use poem::listener::{Acceptor, Listener, TcpListener};
use poem::web::{Data, Path};
use poem::{EndpointExt, FromRequest, Request, RequestBody, Response, Route, Server, handler};
use ratelimit_runtime::rate_limit;
use ratelimit_runtime::web::{Client, Clients};
use tracing::Level;

#[rate_limit(period = "30s", threshold = 2, key = (client, user_id))]
async fn greet(client: Client, user_id: u64) -> Result<String, http::Response<String>> {
    Ok(format!("hi {user_id}, from {client}\n"))
}

#[handler]
async fn hi(Caller(client): Caller, Path(user_id): Path<u64>) -> poem::Result<String> {
    greet(client, user_id).await.map_err(rejected)
}

/// Identifies the client of a request.
struct Caller(Client);

impl<'a> FromRequest<'a> for Caller {
    async fn from_request(request: &'a Request, body: &mut RequestBody) -> poem::Result<Self> {
        let Data(clients) = Data::<&Clients>::from_request(request, body).await?;
        let peer = request.remote_addr().as_socket_addr().map(SocketAddr::ip);
        let lines = |name: &str| request.headers().get_all(name).iter().map(HeaderValue::as_bytes);
        Ok(Self(clients.identify_peer(peer, lines)))
    }
}

/// Keeps the status and the headers of a rejection, such as `Retry-After`.
fn rejected(rejection: http::Response<String>) -> poem::Error {
    let (parts, body) = rejection.into_parts();
    let mut response = Response::builder().status(parts.status).body(body);
    *response.headers_mut() = parts.headers;
    poem::Error::from_response(response)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_max_level(Level::INFO).init();
    // Reads RATELIMIT_REDIS_URL now: a wrong URL ends the program, and does not fail the first request.
    ratelimit_runtime::current().context("RATELIMIT_REDIS_URL")?;

    // Behind proxies, use `Clients::behind_proxies([..])`.
    let routes = Route::new().at("/hi/:user_id", poem::get(hi)).data(Clients::direct());

    let address = address()?;
    let acceptor = TcpListener::bind(address.clone())
        .into_acceptor()
        .await
        .with_context(|| format!("cannot listen on {}:{}", address.0, address.1))?;
    for address in acceptor.local_addr().iter().filter_map(|it| it.as_socket_addr()) {
        println!("listening on http://{address}");
    }
    Ok(Server::new_with_acceptor(acceptor).run(routes).await?)
}

/// HOST and PORT. The default is a free port on 127.0.0.1.
fn address() -> anyhow::Result<(String, u16)> {
    let host = std::env::var("HOST").unwrap_or_else(|_| "127.0.0.1".to_owned());
    let port = std::env::var("PORT").unwrap_or_else(|_| "0".to_owned());
    let number = port.parse().with_context(|| format!("PORT is `{port}`, not a port"))?;
    Ok((host, number))
}
