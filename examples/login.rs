//! Failed logins, limited by user and by address at once: 5 for a user in 15 minutes, wherever they come
//! from, and 20 from an address in a minute, whomever they are for. What a login takes it gives back when
//! it succeeds, so that only failures count.
//!
//! ```sh
//! PORT=3000 cargo run --example login
//! ```
//!
//! and in another terminal:
//!
//! ```sh
//! # Whoever knows the password comes in, as often as they like,
//! for i in 1 2 3 4 5 6 7; do curl -i -d 'user=ann&password=opensesame' http://127.0.0.1:3000/login; done
//! # and whoever guesses has five guesses: the sixth is 429, with Retry-After,
//! for i in 1 2 3 4 5 6; do curl -i -d "user=ann&password=$i" http://127.0.0.1:3000/login; done
//! # also if it were right, or nothing would be gained. Other users are not affected.
//! curl -i -d 'user=ann&password=opensesame' http://127.0.0.1:3000/login
//! curl -i -d 'user=bob&password=letmein' http://127.0.0.1:3000/login
//! ```
//!
//! With `RATELIMIT_REDIS_URL` set, any number of these servers share the counts.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::extract::{Form, FromRef, State};
use axum::http::StatusCode;
use axum::routing::post;
use ratelimit_runtime::web::{Client, Clients};
use ratelimit_runtime::{Limit, Part, RateLimiter, Rejection};
use tokio::net::TcpListener;
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

const BY_USER: Limit = Limit::sliding("login.user", 5, Duration::from_secs(900));
const BY_ADDRESS: Limit = Limit::sliding("login.address", 20, Duration::from_secs(60));

#[derive(Clone, FromRef)]
struct Server {
    clients: Clients,
    limiter: RateLimiter,
}

#[derive(serde::Deserialize)]
struct Login {
    user: String,
    password: String,
}

async fn login(
    client: Client,
    State(limiter): State<RateLimiter>,
    Form(login): Form<Login>,
) -> Result<(StatusCode, String), Rejection> {
    // Before the password is looked at: of guesses that come all at once, no more pass either.
    let parts = [Part::new(&BY_USER, &login.user, 1), Part::new(&BY_ADDRESS, &client, 1)];
    limiter.check_all(&parts).await?;
    if !is_right(&login) {
        return Ok((StatusCode::UNAUTHORIZED, "wrong user or password\n".to_owned()));
    }
    let given_back = [
        limiter.refund(&BY_USER, &login.user, 1).await,
        limiter.refund(&BY_ADDRESS, client, 1).await,
    ];
    for error in given_back.into_iter().filter_map(Result::err) {
        // A login too many is counted, which is no reason to refuse this one.
        tracing::warn!(%error, "cannot give back what a login took");
    }
    Ok((StatusCode::OK, format!("hi {}\n", login.user)))
}

/// In place of a database with hashes of passwords.
fn is_right(login: &Login) -> bool {
    [("ann", "opensesame"), ("bob", "letmein")].contains(&(&login.user, &login.password))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // At this level, each refusal is an event: the limit, a hash of the key, the wait.
    let shown =
        Targets::new().with_default(Level::INFO).with_target("ratelimit_runtime", Level::DEBUG);
    tracing_subscriber::registry().with(tracing_subscriber::fmt::layer()).with(shown).init();
    // Now, so that a wrong RATELIMIT_REDIS_URL ends the program and not the first request.
    let limiter = ratelimit_runtime::current().context("RATELIMIT_REDIS_URL")?;

    // Behind proxies it would be `Clients::behind([..])`.
    let server = Server { clients: Clients::direct(), limiter };
    let router = Router::new().route("/login", post(login)).with_state(server);
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
