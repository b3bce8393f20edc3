//! Does a limit hold on your Redis? 64 clients call one key through five limiters, and this program counts how many
//! calls each admits beyond the limit.
//!
//! It takes half a minute, writes only keys of a prefix of its own, and removes them. Do not run it on a server that
//! serves customers: the clients call as fast as the server replies.
//!
//! The limit is 100 calls in any second. In each round, one call comes first. 700 ms later, all clients call for
//! 600 ms: around the end of the first second, as clients that wait for a new window do.

mod history;
mod limiters;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, anyhow, ensure};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use self::history::{Call, Figures, Table};
use self::limiters::{Kind, Limiter};
use crate::Context;
use crate::connection::Redis;
use crate::text::{causes, note};

const CLIENTS: usize = 64;
const THRESHOLD: u64 = 100;
const PERIOD: Duration = Duration::from_secs(1);
const ROUNDS: u32 = 4;

/// The time from the first call of a round to the calls of all clients.
const BEFORE: Duration = Duration::from_millis(700);

/// How long all clients call.
const CALLING: Duration = Duration::from_millis(600);

const HINT: &str = "\
The URL of a server is redis://host:port or unix:///path, of a cluster redis+cluster://host,host, and of Sentinels
redis+sentinel://host,host/service. For TLS, write rediss instead of redis. RATELIMIT_ROOT_CERTIFICATES,
RATELIMIT_CLIENT_CERTIFICATE and RATELIMIT_CLIENT_KEY name files of certificates.
To start a Redis: redis-server --port 6380 --save ''";

/// Set by Ctrl-C. The clients end their calls before the keys are removed, so no call writes a key after that.
static IS_STOPPED: AtomicBool = AtomicBool::new(false);

/// Plays all limiters, and removes their keys.
pub(crate) async fn run(context: &Context) -> anyhow::Result<Table> {
    let connected = async { Redis::new(context)?.connect().await };
    let (connection, server) =
        connected.await.map_err(|error| anyhow!("{}\n\n{HINT}", causes(&error)))?;
    // Two runs at the same time share no key.
    let prefix = format!("prove-{}", SystemTime::UNIX_EPOCH.elapsed()?.as_nanos());
    context.confirm(&format!(
        "64 clients will call {server} as fast as it replies, for half a minute. They write only keys that begin with \
         `{prefix}`, and remove them"
    ))?;
    let limiter = |kind| Limiter::new(kind, context, connection.clone(), &prefix);
    let limiters = Kind::ALL.map(limiter).into_iter().collect::<Result<Vec<_>, _>>()?;
    tokio::spawn(async {
        if tokio::signal::ctrl_c().await.is_ok() {
            IS_STOPPED.store(true, Ordering::Relaxed);
        }
    });
    let played = play_all(&limiters).await;
    // Also after an error.
    for limiter in &limiters {
        for round in 0..ROUNDS {
            let removed = limiter.remove(round).await;
            removed.with_context(|| format!("keys of `{prefix}` may be left"))?;
        }
    }
    note(&format!("The keys of `{prefix}` are removed."));
    let period_ms = PERIOD.as_millis() as u64;
    Ok(Table { threshold: THRESHOLD, period_ms, limiters: played? })
}

async fn play_all(limiters: &[Limiter]) -> anyhow::Result<Vec<Figures>> {
    let mut figures = Vec::new();
    for limiter in limiters {
        let (kind, mut calls, mut fullest) = (limiter.kind(), Vec::new(), 0);
        note(&format!("64 clients call {} ..", kind.name()));
        for round in 0..ROUNDS {
            let played = play(limiter, round).await.with_context(|| kind.name())?;
            fullest = fullest.max(history::fullest(&played));
            calls.extend(played);
        }
        let within = CALLING * ROUNDS;
        figures.push(Figures::new(kind.name(), kind.is_ours(), &calls, fullest, within));
    }
    Ok(figures)
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
