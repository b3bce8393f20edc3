//! A client of an external API that stays within the limit of the API: its calls wait, first come, first served,
//! so that the API never rejects them.
//!
//! ```sh
//! cargo run --example outbound_client
//! ```
//!
//! The program starts an API that admits ten calls a second, and sends it twelve calls at once. The API
//! rejects none of them. The program takes about two seconds. If `RATELIMIT_REDIS_URL` is set, all clients that
//! use that Redis share the limit: to see it, start the program twice. If `API_URL=http://..` is set, the program
//! calls that API instead of starting one.

use std::time::{Duration, Instant};

use anyhow::Context;
use axum::Router;
use axum::extract::Path;
use axum::routing::get;
use ratelimit_runtime::web::RateLimitLayer;
use ratelimit_runtime::{Limit, RateLimiter, rate_limit};
use tokio::task::JoinSet;
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

struct Weather {
    http: reqwest::Client,
    url: String,
}

impl Weather {
    /// Five calls a second, evenly spaced. This is less than the API admits, because network delays move
    /// calls closer together. A call that would wait for more than ten seconds is rejected at once.
    #[rate_limit(
        period = "1s",
        threshold = 5,
        algo = "leaky_bucket",
        wait = "10s",
        name = "weather"
    )]
    async fn of(&self, city: &str) -> anyhow::Result<String> {
        let answer = self.http.get(format!("{}/weather/{city}", self.url)).send().await?;
        Ok(answer.error_for_status()?.text().await?)
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
    let weather = std::sync::Arc::new(Weather { http: reqwest::Client::new(), url });

    let start = Instant::now();
    let mut calls = JoinSet::new();
    for number in 1..=12 {
        let weather = std::sync::Arc::clone(&weather);
        calls.spawn(async move { (number, weather.of(&format!("city-{number}")).await) });
    }
    let mut failed = 0;
    while let Some(call) = calls.join_next().await {
        let (number, answer) = call?;
        let at = start.elapsed().as_secs_f64();
        match answer {
            Ok(answer) => println!("{at:4.1} s  call {number:2}: {answer}"),
            Err(error) => {
                failed += 1;
                println!("{at:4.1} s  call {number:2} failed: {error:#}");
            }
        }
    }
    anyhow::ensure!(failed == 0, "{failed} calls failed");
    Ok(())
}

/// The external API: rejects the eleventh call in any second, from any client.
async fn api() -> anyhow::Result<String> {
    let theirs = Limit::sliding("their limit", 10, Duration::from_secs(1));
    let limits = RateLimitLayer::new().limit(theirs, |_| ()).limiter(RateLimiter::embedded());
    let weather = async |Path(city): Path<String>| format!("fair in {city}");
    let router = Router::new().route("/weather/{city}", get(weather)).layer(limits);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(url)
}
