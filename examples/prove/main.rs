//! Does a limit hold on your Redis? 64 clients call one key through four limiters, and this program counts how many
//! calls each admits beyond the limit.
//!
//! ```sh
//! redis-server --port 6380 --save '' &
//! cargo run --release --example prove -- redis://127.0.0.1:6380   # `--yes` asks nothing
//! ```
//!
//! The URL is one of the library: also of a cluster, of Sentinels, or with TLS. The files of certificates have the
//! options of `redis-cli`.
//!
//! ```sh
//! cargo run --release --example prove -- rediss+cluster://10.0.0.5,10.0.0.6 --cacert ca.pem --cert me.pem --key me.key
//! ```
//!
//! The program takes half a minute. It asks before it begins, writes only keys of a prefix of its own, and removes
//! them. Do not run it on a server that serves customers: the clients call as fast as the server replies.
//!
//! The limit is 100 calls in any second. In each round, one call comes first. 700 ms later, all clients call for
//! 600 ms: around the end of the first second, as clients that wait for a new window do.

mod connection;
mod history;
mod limiters;

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context, anyhow, bail, ensure};
use redis::{ClientTlsConfig, TlsCertificates};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use self::connection::Redis;
use self::history::{Call, Figures};
use self::limiters::{Kind, Limiter};

const CLIENTS: usize = 64;
const THRESHOLD: u64 = 100;
const PERIOD: Duration = Duration::from_secs(1);
const ROUNDS: u32 = 4;

/// The time from the first call of a round to the calls of all clients.
const BEFORE: Duration = Duration::from_millis(700);

/// How long all clients call.
const CALLING: Duration = Duration::from_millis(600);

const USAGE: &str = "\
Name one Redis: cargo run --release --example prove -- redis://127.0.0.1:6379
The URL of a server is redis://host:port or unix:///path, of a cluster redis+cluster://host,host, and of Sentinels
redis+sentinel://host,host/service. For TLS, write rediss instead of redis. The options --cacert FILE, --cert FILE and
--key FILE name certificates of your own, as those of redis-cli do.
To start a Redis: redis-server --port 6380 --save ''";

/// Set by Ctrl-C. The clients end their calls before the keys are removed, so no call writes a key after that.
static IS_STOPPED: AtomicBool = AtomicBool::new(false);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // Another crate of the build can bring a second cryptography, and then rustls chooses none.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (redis, yes) = arguments()?;
    let (connection, server) =
        redis.connect().await.map_err(|error| anyhow!("{error:#}\n\n{USAGE}"))?;
    // Two runs at the same time share no key.
    let prefix = format!("prove-{}", SystemTime::UNIX_EPOCH.elapsed()?.as_nanos());
    println!(
        "64 clients will call {server} as fast as it replies, for half a minute.\n\
         They write only keys that begin with `{prefix}`, and remove them.\n"
    );
    if !yes && !is_confirmed()? {
        println!("nothing was written");
        return Ok(());
    }
    let mut limiters = Vec::new();
    for kind in Kind::ALL {
        limiters.push(Limiter::new(kind, &redis, connection.clone(), &prefix)?);
    }
    tokio::spawn(async {
        if tokio::signal::ctrl_c().await.is_ok() {
            IS_STOPPED.store(true, Ordering::Relaxed);
        }
    });
    let shown = show(&limiters).await;
    // Also after an error.
    for limiter in &limiters {
        for round in 0..ROUNDS {
            limiter
                .remove(round)
                .await
                .with_context(|| format!("keys of `{prefix}` may be left"))?;
        }
    }
    println!("\nThe keys of `{prefix}` are removed.");
    shown
}

/// Returns the Redis of the command line, and whether `--yes` confirms the calls.
fn arguments() -> anyhow::Result<(Redis, bool)> {
    let mut words = std::env::args().skip(1);
    let (mut urls, mut yes) = (Vec::new(), false);
    let (mut root_cert, mut client_cert, mut client_key) = (None, None, None);
    while let Some(word) = words.next() {
        let mut file = || {
            let path = words.next().with_context(|| format!("name a file after {word}"))?;
            std::fs::read(&path).map(Some).with_context(|| format!("cannot read {path}"))
        };
        match &*word {
            "--yes" => yes = true,
            "--cacert" => root_cert = file()?,
            "--cert" => client_cert = file()?,
            "--key" => client_key = file()?,
            _ => urls.push(word),
        }
    }
    let Ok([url]) = <[String; 1]>::try_from(urls) else { bail!("no URL, or several. {USAGE}") };
    ensure!(client_cert.is_some() == client_key.is_some(), "--cert and --key need each other");
    let client_tls = client_cert
        .zip(client_key)
        .map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
    Ok((Redis { url, certificates: TlsCertificates { client_tls, root_cert } }, yes))
}

fn is_confirmed() -> anyhow::Result<bool> {
    print!("Begin? (y/n) ");
    std::io::stdout().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    println!();
    Ok(answer.trim().eq_ignore_ascii_case("y"))
}

/// Plays all limiters, and prints a line for each.
async fn show(limiters: &[Limiter]) -> anyhow::Result<()> {
    println!("The limit is {THRESHOLD} calls in any second.\n");
    println!("{}", history::head());
    for limiter in limiters {
        let mut calls = Vec::new();
        let mut fullest = 0;
        for round in 0..ROUNDS {
            let played = play(limiter, round).await.with_context(|| limiter.kind().name())?;
            fullest = fullest.max(history::fullest(&played));
            calls.extend(played);
        }
        let figures = Figures::new(&calls, fullest, CALLING * ROUNDS);
        println!("{}", figures.row(limiter.kind().name(), THRESHOLD as usize));
    }
    println!("\n{}", history::READING);
    Ok(())
}

/// Plays one round, and returns its calls.
async fn play(limiter: &Limiter, round: u32) -> anyhow::Result<Vec<Call>> {
    let begin = Instant::now();
    let mut calls = vec![call(limiter, round).await?];
    sleep_until(begin + BEFORE).await;
    let end = Instant::now() + CALLING;
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let limiter = limiter.clone();
        clients.spawn(async move {
            let mut calls = Vec::new();
            while Instant::now() < end && !IS_STOPPED.load(Ordering::Relaxed) {
                calls.push(call(&limiter, round).await?);
                // A limiter that decides without a round trip leaves the other clients their turns.
                tokio::task::yield_now().await;
            }
            anyhow::Ok(calls)
        });
    }
    // All clients end, also if one of them fails.
    for client in clients.join_all().await {
        calls.extend(client?);
    }
    ensure!(!IS_STOPPED.load(Ordering::Relaxed), "stopped");
    Ok(calls)
}

async fn call(limiter: &Limiter, round: u32) -> anyhow::Result<Call> {
    let sent = Instant::now();
    let is_admitted = limiter.admits(round).await?;
    Ok(Call { sent, decided: Instant::now(), is_admitted })
}
