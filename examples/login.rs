//! Failed logins, limited in one decision: 5 in 15 minutes for a user from one client, 1,000 a day for a user, and 20 a
//! minute from a client. So a stranger who guesses does not lock the user out. With `count_if`, a login that succeeds
//! gives its units back, and it resets the failures of the user from this client. The guide `recipes.md` says what each
//! limit costs whom, adds devices that have logged in before, and shows lockouts that grow.
//!
//! ```sh
//! PORT=3000 cargo run --example login
//! ```
//!
//! In another terminal:
//!
//! ```sh
//! # A user with the right password can log in any number of times.
//! for i in 1 2 3 4 5 6 7; do curl -i -d 'user=ann&password=opensesame' http://127.0.0.1:3000/login; done
//! # A client can try five wrong passwords. The sixth gets 429 with Retry-After.
//! for i in 1 2 3 4 5 6; do curl -i -d "user=ann&password=$i" http://127.0.0.1:3000/login; done
//! # From this client, the right password gets 429, too: otherwise it could continue to guess. Other users, and Ann at
//! # another client, are not affected.
//! curl -i -d 'user=ann&password=opensesame' http://127.0.0.1:3000/login
//! curl -i -d 'user=bob&password=letmein' http://127.0.0.1:3000/login
//! ```
//!
//! If `RATELIMIT_REDIS_URL` is set, all servers that use that Redis share the counts.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::extract::Form;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use ratelimit_runtime::web::Client;
use ratelimit_runtime::{Limit, Rejection, rate_limit};
use tokio::net::TcpListener;
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

const GUESSES: Limit = Limit::sliding("login.guesses", 5, Duration::from_secs(900));
const BY_USER: Limit = Limit::sliding("login.user", 1_000, Duration::from_secs(24 * 3600));
const BY_CLIENT: Limit = Limit::sliding("login.client", 20, Duration::from_secs(60));

#[derive(serde::Deserialize)]
struct Login {
    user: String,
    password: String,
}

enum LoginError {
    Wrong,
    TooMany(Rejection),
}

impl From<Rejection> for LoginError {
    fn from(rejection: Rejection) -> Self {
        Self::TooMany(rejection)
    }
}

impl IntoResponse for LoginError {
    fn into_response(self) -> Response {
        match self {
            Self::Wrong => (StatusCode::UNAUTHORIZED, "wrong user or password\n").into_response(),
            Self::TooMany(rejection) => rejection.into_response(),
        }
    }
}

/// A login is charged before the password is checked: concurrent guesses cannot pass the limit either.
#[rate_limit(
    limit(limit = GUESSES, key = (&login.user, client)),
    limit(limit = BY_USER, key = login.user),
    limit(limit = BY_CLIENT, key = client),
    count_if = Result::is_err
)]
async fn log_in(client: Client, Form(login): Form<Login>) -> Result<String, LoginError> {
    if !is_right(&login) {
        return Err(LoginError::Wrong);
    }
    // A user who has mistyped the password begins anew. If Redis does not reply, the user is logged in all the same.
    if let Err(error) = forget_failures(&login.user, client).await {
        tracing::warn!(%error, "the failures of a user still count");
    }
    Ok(format!("hi {}\n", login.user))
}

/// Resets the count of the key that the attribute has.
async fn forget_failures(user: &str, client: Client) -> anyhow::Result<()> {
    ratelimit_runtime::current()?.reset(&GUESSES, (user, client)).await?;
    Ok(())
}

/// Stands for a database with password hashes.
fn is_right(login: &Login) -> bool {
    [("ann", "opensesame"), ("bob", "letmein")].contains(&(&login.user, &login.password))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // At DEBUG, each rejection is an event with the limit, a hash of the key, and the wait.
    let shown =
        Targets::new().with_default(Level::INFO).with_target("ratelimit_runtime", Level::DEBUG);
    tracing_subscriber::registry().with(tracing_subscriber::fmt::layer()).with(shown).init();
    // Reads RATELIMIT_REDIS_URL now: a wrong URL ends the program, and does not fail the first request.
    ratelimit_runtime::current().context("RATELIMIT_REDIS_URL")?;

    // Behind proxies, add `.layer(axum::Extension(Clients::behind_proxies([..])?))`.
    let router = Router::new().route("/login", post(log_in));
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
