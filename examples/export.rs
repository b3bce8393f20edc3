//! Calls in flight of two processes: two exports of a tenant at the same time, in the whole fleet. This program starts
//! a second process, which runs two exports and is then killed.
//!
//! ```sh
//! redis-server --port 6380 --save '' &
//! RATELIMIT_REDIS_URL=redis://127.0.0.1:6380 cargo run --example export
//! ```
//!
//! A process that is killed cannot give its slots back. Redis frees them 30 seconds after the last statement of the
//! process, so the program takes up to 40 seconds.

use std::future::pending;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use ratelimit_runtime::{Rejection, Source, rate_limit};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::try_join;

/// At most 100 a minute, and two at the same time, in one decision. A call waits for a slot for up to 5 seconds.
#[rate_limit(
    limit(period = "1m", threshold = 100, key = tenant),
    limit(in_flight = 2, hold = "30s", key = tenant),
    wait = "5s"
)]
async fn export(tenant: &str, work: impl Future<Output = ()>) -> Result<(), Rejection> {
    work.await;
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let limiter = ratelimit_runtime::current().context("RATELIMIT_REDIS_URL")?;
    ensure!(
        limiter.source() == Source::Redis,
        "processes share limits on Redis: set RATELIMIT_REDIS_URL, say to redis://127.0.0.1:6379"
    );
    match std::env::args().nth(1) {
        Some(_) => work().await,
        None => watch().await,
    }
}

/// The second process: two exports that do not end.
async fn work() -> anyhow::Result<()> {
    let exporting = async || {
        println!("exports the data of acme");
        pending::<()>().await;
    };
    try_join!(export("acme", exporting()), export("acme", exporting()))?;
    Ok(())
}

/// The first process: starts the second one, kills it, and exports as soon as a slot is free.
async fn watch() -> anyhow::Result<()> {
    let start = Instant::now();
    let say = |line: &str| println!("{:4.1} s  {line}", start.elapsed().as_secs_f64());
    let mut other = Command::new(std::env::current_exe()?)
        .arg("work")
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines = BufReader::new(other.stdout.take().context("it is piped")?).lines();
    for _ in 0..2 {
        let line = lines.next_line().await?.context("the other process failed")?;
        say(&format!("the other process {line}"));
    }
    export("globex", async {}).await?;
    say("exported the data of globex, which has slots of its own");
    try_export(say).await?;

    other.kill().await?;
    let killed = Instant::now();
    say("the other process was killed");
    while !try_export(say).await? {
        ensure!(killed.elapsed() < Duration::from_secs(40), "no slot became free");
    }
    say(&format!("a slot was free {:.1} s after the kill", killed.elapsed().as_secs_f64()));
    Ok(())
}

/// Returns whether a slot was free within 5 seconds.
async fn try_export(say: impl Fn(&str)) -> Result<bool, Rejection> {
    match export("acme", async {}).await {
        Ok(()) => say("exported the data of acme"),
        Err(busy @ Rejection::Busy { .. }) => {
            say(&format!("rejected: {busy}"));
            return Ok(false);
        }
        Err(other) => return Err(other),
    }
    Ok(true)
}
