//! The limiters that decide on Redis: this library, scripts from tutorials, and limiters from crates.io. Each has
//! a server of its own, and the connections that its documentation recommends.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ratelimit_runtime::{Limit, OnError, RateLimiter};
use redis::Script;
use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use support::server::Server;
use throttle_kit::{RateLimitBackend, RedisBackend};
use tokio::runtime::Runtime;
use trypema::redis::{RedisKey, RedisRateLimiterProvider};
use trypema::{BucketSize, RateLimit, RateLimitDecision, RateLimiterBuilder};

use crate::peers::{trypema_rate, trypema_window};
use crate::table::{Column, Kind};
use crate::{FLOWING, PERIOD, UNITS};

const LIMIT: Limit = Limit::token_bucket("bench", UNITS, PERIOD);

/// With leases, a process spends millions of units in a second.
const HOT: Limit = Limit::token_bucket("hot", 4_000_000_000, PERIOD);

pub(crate) struct Contender {
    pub(crate) column: Column,
    pub(crate) server: Server,
    who: Who,
}

type Failed = Box<dyn Error + Send + Sync>;

#[derive(Clone)]
pub(crate) enum Who {
    Ours(RateLimiter, Limit),
    /// The token bucket of tutorials.
    Script(MultiplexedConnection, Arc<Script>),
    ClusterScript(ClusterConnection, Arc<Script>),
    Count(MultiplexedConnection),
    ThrottleKit(Arc<RedisBackend>, throttle_kit::Quota),
    Trypema(Arc<RedisRateLimiterProvider>, RateLimit),
    Actix(Box<actix_limitation::Limiter>),
}

/// Decisions per second; the 50th and 99th percentile of the duration of one decision, and the processor time of
/// the client and of the server for one decision, all in µs. NaN if a decision failed.
pub(crate) type Figures = [f64; 5];

impl Who {
    /// Connects this library, or the script of tutorials, to a cluster.
    pub(crate) async fn connect_to_cluster(name: &str, url: &str) -> Self {
        if name == "ours" {
            return Self::ours(url, LIMIT);
        }
        let client = ClusterClient::new([url.replace("redis+cluster:", "redis:")]);
        let client = client.expect("an address");
        Self::ClusterScript(client.get_async_connection().await.expect("it answers"), textbook())
    }

    fn ours(url: &str, limit: Limit) -> Self {
        // The deadline is long, as it is for all others here, so that no call falls back.
        let limiter = RateLimiter::builder().redis(url).deadline(Duration::from_secs(10));
        let limiter = limiter.max_pending(100_000).on_error(OnError::Deny);
        Self::Ours(limiter.build().expect("valid"), limit)
    }

    async fn connect(name: &str, url: &str) -> Self {
        let client = redis::Client::open(url).expect("an address");
        let connection = client.get_multiplexed_async_connection().await.expect("it answers");
        match name {
            "ours" => Self::ours(url, LIMIT),
            "ours, `lease = 50`" => Self::ours(url, HOT.lease(50)),
            "ours, `lease = \"auto\"`" => Self::ours(url, HOT.auto_lease()),
            "`EVALSHA`" => Self::Script(connection, textbook()),
            "throttle-kit" => {
                let quota = throttle_kit::Quota::from_parts(PERIOD / FLOWING, FLOWING);
                let backend = RedisBackend::connect(url).await.expect("it answers");
                Self::ThrottleKit(Arc::new(backend), quota)
            }
            "trypema" => {
                let connections = client.get_connection_manager().await.expect("it answers");
                let provider = RedisRateLimiterProvider::builder(connections);
                let provider = provider.window_size(trypema_window());
                let provider = provider.bucket_size(BucketSize::milliseconds_or_panic(10));
                Self::Trypema(provider.build().expect("valid"), trypema_rate(FLOWING))
            }
            "actix-limitation" => {
                let mut limiter = actix_limitation::Limiter::builder(url);
                let limiter = limiter.limit(FLOWING as usize).period(PERIOD);
                Self::Actix(Box::new(limiter.build().expect("valid")))
            }
            _ => Self::Count(connection),
        }
    }

    /// Decides a call. Fails if the call is not admitted, because every call should be.
    async fn decide(&mut self, index: u32) -> Result<(), Failed> {
        // Trypema rejects keys with colons.
        let between = if matches!(self, Self::Trypema(..)) { '-' } else { ':' };
        let key = format!("user{between}{index}");
        match self {
            Self::Ours(limiter, limit) => {
                limiter.check(limit, &key, 1).await?;
            }
            Self::Script(connection, script) => {
                let mut call = script.key(key);
                call.arg(FLOWING).arg(PERIOD.as_micros() as u64);
                let (admitted, ..): (bool, u32, u64) = call.invoke_async(connection).await?;
                assert!(admitted, "refused");
            }
            Self::ClusterScript(connection, script) => {
                let mut call = script.key(key);
                call.arg(FLOWING).arg(PERIOD.as_micros() as u64);
                let (admitted, ..): (bool, u32, u64) = call.invoke_async(connection).await?;
                assert!(admitted, "refused");
            }
            Self::Count(connection) => {
                let mut count = redis::cmd("INCR");
                let _: i64 = count.arg(key).query_async(connection).await?;
            }
            Self::ThrottleKit(backend, quota) => {
                // If it fails, it admits the call and reports 0 remaining units.
                let result = backend.check(&key, quota).await;
                if !result.allowed || result.remaining == 0 {
                    return Err(format!("{result:?}").into());
                }
            }
            Self::Trypema(provider, rate) => {
                let key = RedisKey::new_or_panic(key);
                let decision = provider.absolute().inc(&key, rate, 1).await?;
                assert!(matches!(decision, RateLimitDecision::Allowed), "refused");
            }
            Self::Actix(limiter) => {
                limiter.count(key).await.map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }
}

impl Who {
    /// Lets `tasks` tasks decide the keys of the list. Returns how long each decision took, sorted, and all of them
    /// together; `None` if one failed.
    pub(crate) fn run(
        &self,
        runtime: &Runtime,
        name: &str,
        tasks: usize,
        keys: &Arc<[u32]>,
        lasts: Duration,
    ) -> Option<(Vec<u32>, Duration)> {
        let next = Arc::new(AtomicUsize::new(0));
        let start = Instant::now();
        let waits = runtime.block_on(async {
            let tasks: Vec<_> = (0..tasks)
                .map(|_| {
                    let (mut who, keys, next) = (self.clone(), Arc::clone(keys), Arc::clone(&next));
                    tokio::spawn(async move {
                        let mut waits = Vec::new();
                        while start.elapsed() < lasts {
                            let index = keys[next.fetch_add(1, Ordering::Relaxed) % keys.len()];
                            let asked = Instant::now();
                            who.decide(index).await?;
                            waits.push(asked.elapsed().as_nanos() as u32);
                        }
                        Ok::<_, Failed>(waits)
                    })
                })
                .collect();
            let (mut waits, mut failed) = (Vec::new(), None);
            for task in tasks {
                match task.await.expect("no panic") {
                    Ok(taken) => waits.extend(taken),
                    Err(error) => failed = Some(error),
                }
            }
            failed.map_or(Ok(waits), Err)
        });
        let took = start.elapsed();
        match waits {
            Ok(mut waits) => {
                waits.sort_unstable();
                Some((waits, took))
            }
            Err(error) => {
                println!("{name} failed with {tasks} tasks: {error}\n");
                None
            }
        }
    }
}

impl Contender {
    /// Starts a limiter on a server of its own.
    pub(crate) fn start(runtime: &Runtime, name: &'static str, kind: Kind) -> Self {
        let server = Server::start();
        let who = runtime.block_on(Who::connect(name, &server.url));
        Self { column: Column::new(name, kind), server, who }
    }

    /// Decides one call, for the state that the call leaves in Redis.
    pub(crate) fn decide(&self, runtime: &Runtime, index: u32) {
        runtime.block_on(self.who.clone().decide(index)).expect("an idle server answers");
    }

    pub(crate) fn round(
        &self,
        runtime: &Runtime,
        tasks: usize,
        keys: &Arc<[u32]>,
        lasts: Duration,
    ) -> Figures {
        let before = (client_time(), server_time(&self.server));
        let Some((waits, took)) = self.who.run(runtime, &self.column.name, tasks, keys, lasts)
        else {
            return [f64::NAN; 5];
        };
        let count = waits.len() as f64;
        let rate = count / took.as_secs_f64();
        let client = (client_time() - before.0) / count;
        let server = (server_time(&self.server) - before.1) / count;
        let [half, late] = [50, 99].map(|part| f64::from(waits[waits.len() * part / 100]) / 1e3);
        [rate, half, late, client, server]
    }
}

/// Returns the token bucket of tutorials.
pub(crate) fn textbook() -> Arc<Script> {
    Arc::new(Script::new(include_str!("../textbook/token_bucket.lua")))
}

/// Returns the processor time of the threads of this process, in microseconds.
fn client_time() -> f64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux");
    let run = tasks.filter_map(|task| {
        // The thread may end between the two calls.
        let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    });
    run.sum::<f64>() / 1e3
}

/// Returns the processor time of a server, in microseconds.
pub(crate) fn server_time(server: &Server) -> f64 {
    let info: String = redis::cmd("INFO").arg("cpu").query(&mut server.connection()).expect("INFO");
    let seconds = info.lines().filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        matches!(name, "used_cpu_user" | "used_cpu_sys")
            .then(|| value.trim().parse::<f64>().ok())?
    });
    seconds.sum::<f64>() * 1e6
}
