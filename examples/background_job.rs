//! Workers in several processes that share one limit on Redis. This program starts three workers, each a
//! process of itself, and merges their output.
//!
//! ```sh
//! redis-server --port 6380 --save '' &
//! RATELIMIT_REDIS_URL=redis://127.0.0.1:6380 cargo run --example background_job
//! ```
//!
//! The workers together send twelve mails at five a second, which takes about two seconds. They share only
//! Redis: they could run on different machines.

use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use ratelimit_runtime::{Rejection, Source, rate_limit};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::task::JoinSet;
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

const WORKERS: usize = 3;
const MAILS: usize = 12;

/// A call waits up to a minute. While Redis is down, it fails: with a limit per process, the workers would send too
/// fast.
#[rate_limit(
    period = "1s",
    threshold = 5,
    algo = "leaky_bucket",
    wait = "1m",
    name = "mails",
    on_error = "deny"
)]
async fn send(worker: usize, mail: usize) -> Result<(), Rejection> {
    println!("worker {worker} sends mail {mail}");
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let shown =
        Targets::new().with_default(Level::INFO).with_target("ratelimit_runtime", Level::DEBUG);
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    tracing_subscriber::registry().with(log).with(shown).init();
    let limiter = ratelimit_runtime::current().context("RATELIMIT_REDIS_URL")?;
    ensure!(
        limiter.source() == Source::Redis,
        "processes share limits on Redis: set RATELIMIT_REDIS_URL, say to redis://127.0.0.1:6379"
    );
    match std::env::args().nth(1) {
        Some(worker) => work(worker.parse().context("the number of a worker")?).await,
        None => watch().await,
    }
}

/// A worker: sends every third mail.
async fn work(worker: usize) -> anyhow::Result<()> {
    for mail in (worker..=MAILS).step_by(WORKERS) {
        send(worker, mail).await?;
    }
    Ok(())
}

/// Starts the workers, and prints each line of their output with its time.
async fn watch() -> anyhow::Result<()> {
    let start = Instant::now();
    let mut workers = JoinSet::new();
    for worker in 1..=WORKERS {
        workers.spawn(async move {
            let mut process = Command::new(std::env::current_exe()?)
                .arg(worker.to_string())
                .stdout(Stdio::piped())
                .kill_on_drop(true)
                .spawn()?;
            let mut lines = BufReader::new(process.stdout.take().context("it is piped")?).lines();
            while let Some(line) = lines.next_line().await? {
                println!("{:4.1} s  {line}", start.elapsed().as_secs_f64());
            }
            let status = process.wait().await?;
            if !status.success() {
                bail!("worker {worker} failed: {status}");
            }
            Ok(())
        });
    }
    while let Some(worker) = workers.join_next().await {
        worker??;
    }
    let took = start.elapsed().as_secs_f64();
    println!("{MAILS} mails by {WORKERS} processes in {took:.1} s");
    Ok(())
}
