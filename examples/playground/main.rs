//! A page on which the five algorithms decide the same calls, live.
//!
//! ```sh
//! cargo run --example playground                # prints the address to open
//! PORT=8080 cargo run --example playground      # uses this port
//! RATELIMIT_REDIS_URL=redis://127.0.0.1:6379 cargo run --example playground   # lets you choose Redis
//! ```
//!
//! The library makes every decision in this program; the page only draws. The page receives decisions as
//! Server-Sent Events, because axum supports them and browsers reconnect by themselves. Each action of a visitor
//! is a request. The counts of a visitor last as long as the stream of events.
//!
//! There is no login, and one visitor can take all 64 places. Set HOST (the default is 127.0.0.1) only in a
//! network that you trust.

mod operator;
mod page;
mod session;
mod settings;
mod traffic;

use std::convert::Infallible;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::StatusCode;
use axum::response::sse::{KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use futures_util::stream;
use ratelimit_runtime::RateLimiter;
use tokio::net::TcpListener;
use uuid::Uuid;

use operator::Operator;
use session::{Command, Full, Gone, Sessions, Stores};
use settings::{Complaint, Form, Settings};

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let Err(error) = serve().await else { return ExitCode::SUCCESS };
    eprintln!("error: {error}");
    ExitCode::FAILURE
}

async fn serve() -> Result<(), Box<dyn Error>> {
    let (host, port) = (variable("HOST"), variable("PORT"));
    let (host, port) = (host.as_deref().unwrap_or("127.0.0.1"), port.as_deref().unwrap_or("0"));
    let number: u16 =
        port.parse().map_err(|_| format!("PORT is `{port}`: set it to a number up to 65535"))?;
    // Nothing connects to Redis yet, so the playground also starts while Redis is down.
    let stores = Stores {
        embedded: RateLimiter::builder().max_keys(10_000).build()?,
        redis: variable("RATELIMIT_REDIS_URL")
            .map(|url| RateLimiter::builder().redis(url).key_prefix("playground").build())
            .transpose()
            .map_err(|error| format!("RATELIMIT_REDIS_URL: {error}"))?,
        operator: Operator::default(),
    };
    let router = Router::new()
        .route("/sessions/{id}/calls", post(call))
        .route("/sessions/{id}/counts", axum::routing::delete(forget))
        .route("/sessions/{id}/settings", put(change))
        .route("/events", get(watch))
        .with_state(Arc::new(Sessions::new(stores)))
        .layer(DefaultBodyLimit::max(4096))
        .merge(page::routes());
    let listener = TcpListener::bind((host, number))
        .await
        .map_err(|error| format!("cannot listen on {host}:{port}: {error}; set HOST and PORT"))?;
    println!("playing on http://{}", listener.local_addr()?);
    axum::serve(listener, router).await?;
    Ok(())
}

/// Returns the value of an environment variable, unless it is empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

async fn watch(State(sessions): State<Arc<Sessions>>) -> Result<impl IntoResponse, Full> {
    let events = sessions.open()?;
    let events = stream::unfold(events, |mut events| async {
        let event = events.recv().await?;
        Some((Ok::<_, Infallible>(event), events))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::default()))
}

async fn call(
    State(sessions): State<Arc<Sessions>>,
    Path(id): Path<Uuid>,
) -> Result<StatusCode, Gone> {
    sessions.tell(id, Command::Call).await
}

async fn forget(
    State(sessions): State<Arc<Sessions>>,
    Path(id): Path<Uuid>,
) -> Result<StatusCode, Gone> {
    sessions.tell(id, Command::Forget).await
}

async fn change(
    State(sessions): State<Arc<Sessions>>,
    Path(id): Path<Uuid>,
    Json(form): Json<Form>,
) -> Result<StatusCode, Refused> {
    let settings = Settings::read(&form, sessions.has_redis()).map_err(Refused::Form)?;
    sessions.tell(id, Command::Change(Box::new(settings))).await.map_err(|Gone| Refused::Gone)
}

enum Refused {
    Form(Vec<Complaint>),
    Gone,
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        match self {
            Self::Form(complaints) => {
                (StatusCode::UNPROCESSABLE_ENTITY, Json(complaints)).into_response()
            }
            Self::Gone => Gone.into_response(),
        }
    }
}
