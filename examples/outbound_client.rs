//! A client of an external API that stays within the limit of the API: its calls wait, first come, first served,
//! so that the API never rejects them. When the API says `Retry-After`, no process calls it until then.
//!
//! ```sh
//! cargo run --example outbound_client
//! ```
//!
//! The program starts an API that admits ten calls a second, and sends it twelve calls at once. The fourth call finds
//! the API unavailable for three seconds, and the calls behind it wait. The program takes about six seconds. If
//! `RATELIMIT_REDIS_URL` is set, all clients that use that Redis share the limit, and stop together. If
//! `API_URL=http://..` is set, the program calls that API instead of starting one: to see two processes stop, start the
//! program, and start it again with the URL that it prints.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::Context;
use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use ratelimit_runtime::web::{RateLimitLayer, retry_after};
use ratelimit_runtime::{Limit, RateLimiter, Rejection, rate_limit};
use tokio::task::JoinSet;
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

struct Weather {
    http: reqwest::Client,
    url: String,
}

#[derive(Debug)]
enum WeatherError {
    /// The API says when to call again.
    Later(Duration),
    Http(reqwest::Error),
    Rejected(Rejection),
}

impl Weather {
    /// Five calls a second, evenly spaced. This is less than the API admits, because network delays move
    /// calls closer together. A call that would wait for more than ten seconds is rejected at once. Whatever time the
    /// API says, the calls stop for a minute at most.
    #[rate_limit(
        period = "1s",
        threshold = 5,
        algo = "leaky_bucket",
        wait = "10s",
        name = "weather",
        block = |result| result.as_ref().err().and_then(WeatherError::retry_after),
        block_at_most = "1m"
    )]
    async fn of(&self, city: &str) -> Result<String, WeatherError> {
        let response = self.http.get(format!("{}/weather/{city}", self.url)).send().await?;
        // With any other status, the header does not ask for a pause.
        if matches!(response.status().as_u16(), 429 | 503)
            && let Some(wait) = retry_after(response.headers())
        {
            return Err(WeatherError::Later(wait));
        }
        Ok(response.error_for_status()?.text().await?)
    }

    /// Calls the API until it is available. In between, the call waits for its turn.
    async fn of_available(&self, city: &str) -> Result<String, WeatherError> {
        loop {
            match self.of(city).await {
                Err(WeatherError::Later(wait)) => println!("the API is unavailable for {wait:?}"),
                result => return result,
            }
        }
    }
}

impl WeatherError {
    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Later(wait) => Some(*wait),
            Self::Http(_) | Self::Rejected(_) => None,
        }
    }
}

impl From<reqwest::Error> for WeatherError {
    fn from(error: reqwest::Error) -> Self {
        Self::Http(error)
    }
}

impl From<Rejection> for WeatherError {
    fn from(rejection: Rejection) -> Self {
        Self::Rejected(rejection)
    }
}

impl fmt::Display for WeatherError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Later(wait) => write!(f, "the API is unavailable for {wait:?}"),
            Self::Http(error) => error.fmt(f),
            Self::Rejected(rejection) => rejection.fmt(f),
        }
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let shown =
        Targets::new().with_default(Level::INFO).with_target("ratelimit_runtime", Level::DEBUG);
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    tracing_subscriber::registry().with(log).with(shown).init();
    // Reads RATELIMIT_REDIS_URL now: a wrong URL ends the program before the first call.
    ratelimit_runtime::current().context("RATELIMIT_REDIS_URL")?;
    let url = match std::env::var("API_URL") {
        Ok(url) => url,
        Err(_) => api().await?,
    };
    println!("API_URL={url}");
    let weather = Arc::new(Weather { http: reqwest::Client::new(), url });

    let start = Instant::now();
    let mut calls = JoinSet::new();
    for number in 1..=12 {
        let weather = Arc::clone(&weather);
        calls.spawn(async move { (number, weather.of_available(&format!("city-{number}")).await) });
    }
    let mut failed = 0;
    while let Some(call) = calls.join_next().await {
        let (number, answer) = call?;
        let at = start.elapsed().as_secs_f64();
        match answer {
            Ok(answer) => println!("{at:4.1} s  call {number:2}: {answer}"),
            Err(error) => {
                failed += 1;
                println!("{at:4.1} s  call {number:2} failed: {error}");
            }
        }
    }
    anyhow::ensure!(failed == 0, "{failed} calls failed");
    Ok(())
}

/// How long the API is unavailable, in seconds.
const OUTAGE: u64 = 3;

#[derive(Default)]
struct Api {
    calls: AtomicU32,
    /// When the API became unavailable.
    outage: OnceLock<Instant>,
}

/// The external API: rejects the eleventh call in any second, from any client. Its fourth call finds it unavailable.
async fn api() -> anyhow::Result<String> {
    let theirs = Limit::sliding("their limit", 10, Duration::from_secs(1));
    let limits = RateLimitLayer::new().limit(theirs, |_| ()).limiter(RateLimiter::embedded());
    let router = Router::new().route("/weather/{city}", get(weather)).layer(limits);
    let router = router.with_state(Arc::<Api>::default());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(url)
}

async fn weather(State(api): State<Arc<Api>>, Path(city): Path<String>) -> Response {
    if api.calls.fetch_add(1, Ordering::Relaxed) == 3 {
        let _ = api.outage.set(Instant::now());
    }
    let left =
        api.outage.get().and_then(|since| Duration::from_secs(OUTAGE).checked_sub(since.elapsed()));
    match left {
        Some(left) => {
            let seconds = left.as_secs_f64().ceil().to_string();
            (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", seconds)]).into_response()
        }
        None => format!("fair in {city}").into_response(),
    }
}
