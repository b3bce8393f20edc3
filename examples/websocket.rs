//! Each user has three open sockets (WebSocket). The request for a fourth gets 429 before the upgrade, and a socket
//! that is blocked gives its place back.
//!
//! ```sh
//! PORT=3000 cargo run --example websocket
//! ```
//!
//! In another terminal:
//!
//! ```sh
//! upgrade='-H connection:upgrade -H upgrade:websocket -H sec-websocket-version:13'
//! open() { curl -i --max-time 20 $upgrade -H 'sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==' "$@"; }
//! # Ann has three sockets for 20 seconds.
//! for i in 1 2 3; do open http://127.0.0.1:3000/socket?token=a1b2 & done; sleep 1
//! # The fourth gets 429 with Retry-After. Another user is not affected.
//! open http://127.0.0.1:3000/socket?token=a1b2
//! open http://127.0.0.1:3000/socket?token=c3d4
//! # The sockets of Ann are closed, so she has three places again.
//! wait; open http://127.0.0.1:3000/socket?token=a1b2
//! ```
//!
//! If `RATELIMIT_REDIS_URL` is set, a user has three sockets on all servers that use that Redis together.

use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Query, Request};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::any;
use ratelimit_runtime::web::{RateLimitLayer, RequestSlots};
use ratelimit_runtime::{Limit, Permit};
use tokio::net::TcpListener;
use tokio::time::timeout;
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

/// A server that is killed keeps its places for 30 seconds.
const SOCKETS: Limit = Limit::in_flight("sockets", 3).hold(Duration::from_secs(30));

/// A client that has vanished sends nothing, and no error either. After this time the server asks it, and after twice
/// this time it gives the place back.
const SILENCE: Duration = Duration::from_secs(30);

/// The user of a request, from the middleware that has verified the token.
#[derive(Clone)]
struct User(&'static str);

#[derive(serde::Deserialize)]
struct Credentials {
    token: String,
}

/// Browsers cannot set a header for a WebSocket, so the token is in the query.
async fn authenticate(
    Query(Credentials { token }): Query<Credentials>,
    mut request: Request,
    next: Next,
) -> Result<Response, StatusCode> {
    // Stands for a lookup in a database.
    let user = match &*token {
        "a1b2" => User("ann"),
        "c3d4" => User("bob"),
        _ => return Err(StatusCode::UNAUTHORIZED),
    };
    request.extensions_mut().insert(user);
    Ok(next.run(request).await)
}

/// The response to the upgrade ends at once. So the socket takes the slot with it.
async fn open(upgrade: WebSocketUpgrade, slots: RequestSlots) -> Response {
    let held = slots.take();
    upgrade.on_upgrade(move |socket| serve(socket, held))
}

/// Sends each message back. The permits are dropped in the end, however the socket ends.
async fn serve(mut socket: WebSocket, _held: Vec<Permit>) {
    let mut is_asked = false;
    loop {
        match timeout(SILENCE, socket.recv()).await {
            Ok(Some(Ok(message))) => {
                is_asked = false;
                if matches!(message, Message::Text(_) | Message::Binary(_))
                    && socket.send(message).await.is_err()
                {
                    return;
                }
            }
            Ok(Some(Err(_)) | None) => return,
            Err(_) if is_asked => return,
            Err(_) => {
                is_asked = true;
                if socket.send(Message::Ping("there?".into())).await.is_err() {
                    return;
                }
            }
        }
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // At DEBUG, each rejection is an event with the limit, a hash of the key, and the wait.
    let shown =
        Targets::new().with_default(Level::INFO).with_target("ratelimit_runtime", Level::DEBUG);
    tracing_subscriber::registry().with(tracing_subscriber::fmt::layer()).with(shown).init();
    // Reads RATELIMIT_REDIS_URL now: a wrong URL ends the program, and does not fail the first request.
    ratelimit_runtime::current().context("RATELIMIT_REDIS_URL")?;

    let sockets = RateLimitLayer::new()
        .limit(SOCKETS, |request| request.extensions.get::<User>().map(|user| user.0));
    let router =
        Router::new().route("/socket", any(open)).layer(sockets).layer(from_fn(authenticate));

    let address = address()?;
    let listener = TcpListener::bind(&address)
        .await
        .with_context(|| format!("cannot listen on {}:{}", address.0, address.1))?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, router).await?)
}

/// HOST and PORT. The default is a free port on 127.0.0.1.
fn address() -> anyhow::Result<(String, u16)> {
    let host = std::env::var("HOST").unwrap_or_else(|_| "127.0.0.1".to_owned());
    let port = std::env::var("PORT").unwrap_or_else(|_| "0".to_owned());
    let number = port.parse().with_context(|| format!("PORT is `{port}`, not a port"))?;
    Ok((host, number))
}
