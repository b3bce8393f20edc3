//! The limiters that decide on Redis: this library, scripts from tutorials, and limiters from crates.io. Each has
//! a server of its own, and the connections that its documentation recommends.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ratelimit_runtime::{Limit, OnError, RateLimiter};
use redis::Script;
use redis::aio::MultiplexedConnection;
use support::server::Server;
use throttle_kit::{RateLimitBackend, RedisBackend};
use tokio::runtime::Runtime;
use trypema::redis::{RedisKey, RedisRateLimiterProvider};
use trypema::{BucketSize, RateLimit, RateLimitDecision, RateLimiterBuilder};

use crate::peers::{trypema_rate, trypema_window};
use crate::table::{Column, Kind};
use crate::{FLOWING, PERIOD};

const LIMIT: Limit = Limit::token_bucket("bench", FLOWING, PERIOD);

/// With leases, a process spends millions of units in a second.
const HOT: Limit = Limit::token_bucket("hot", 4_000_000_000, PERIOD);

pub(crate) struct Contender {
    pub(crate) column: Column,
    pub(crate) server: Server,
    who: Who,
}

type Failed = Box<dyn Error + Send + Sync>;

#[derive(Clone)]
enum Who {
    Ours(RateLimiter, Limit),
    /// The token bucket of tutorials.
    Script(MultiplexedConnection, Arc<Script>),
    Count(MultiplexedConnection),
    ThrottleKit(Arc<RedisBackend>, throttle_kit::Quota),
    Trypema(Arc<RedisRateLimiterProvider>, RateLimit),
    Actix(Box<actix_limitation::Limiter>),
}

/// Decisions per second; the 50th and 99th percentile of the duration of one decision, and the processor time of
/// the client and of the server for one decision, all in µs. NaN if a decision failed.
pub(crate) type Figures = [f64; 5];

impl Who {
    async fn connect(name: &str, url: &str) -> Self {
        let client = redis::Client::open(url).expect("an address");
        let connection = client.get_multiplexed_async_connection().await.expect("it answers");
        match name {
            "ours" | "ours, `lease = 50`" | "ours, `lease = 1000`" => {
                // The deadline is long, as it is for all others here, so that no call falls back.
                let limiter = RateLimiter::builder().redis(url).deadline(Duration::from_secs(10));
                let limiter = limiter.max_in_flight(100_000).on_error(OnError::Deny);
                let limit = match name {
                    "ours" => LIMIT,
                    "ours, `lease = 50`" => HOT.lease(50),
                    _ => HOT.lease(1_000),
                };
                Self::Ours(limiter.build().expect("valid"), limit)
            }
            "`EVALSHA`" => {
                let script = Script::new(include_str!("../textbook/token_bucket.lua"));
                Self::Script(connection, Arc::new(script))
            }
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
        let next = Arc::new(AtomicUsize::new(0));
        let before = (client_time(), server_time(&self.server));
        let start = Instant::now();
        let waits = runtime.block_on(async {
            let tasks: Vec<_> = (0..tasks)
                .map(|_| {
                    let (mut who, keys, next) =
                        (self.who.clone(), Arc::clone(keys), Arc::clone(&next));
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
        let mut waits = match waits {
            Ok(waits) => waits,
            Err(error) => {
                println!("{} failed with {tasks} tasks: {error}\n", self.column.name);
                return [f64::NAN; 5];
            }
        };
        let count = waits.len() as f64;
        let rate = count / took.as_secs_f64();
        let client = (client_time() - before.0) / count;
        let server = (server_time(&self.server) - before.1) / count;
        waits.sort_unstable();
        let [half, late] = [50, 99].map(|part| f64::from(waits[waits.len() * part / 100]) / 1e3);
        [rate, half, late, client, server]
    }
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
fn server_time(server: &Server) -> f64 {
    let info: String = redis::cmd("INFO").arg("cpu").query(&mut server.connection()).expect("INFO");
    let seconds = info.lines().filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        matches!(name, "used_cpu_user" | "used_cpu_sys")
            .then(|| value.trim().parse::<f64>().ok())?
    });
    seconds.sum::<f64>() * 1e6
}
