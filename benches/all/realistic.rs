//! Measures a load as services have it: buckets of 100 a minute and of 10 a second, a million users of whom a few come
//! often, some calls rejected, and keys that expire.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ratelimit_runtime::{Limit, OnError, RateLimiter, Rejection};
use redis::Script;
use redis::aio::MultiplexedConnection;
use support::server::Server;
use throttle_kit::{RateLimitBackend, RedisBackend};
use tokio::runtime::Runtime;

use crate::contender::{Failed, server_time, textbook};
use crate::table::{Better, Block, Column, Kind, Row, Table};
use crate::turns::in_turns;
use crate::{Scale, keys};

const USERS: u32 = 1_000_000;
const TASKS: usize = 256;

/// The quotas: units, period, and what a table calls them.
const QUOTAS: [(u32, Duration, &str); 2] =
    [(100, Duration::from_secs(60), "100 a minute"), (10, Duration::from_secs(1), "10 a second")];

const ALL: [(&str, Kind); 3] =
    [("ours", Kind::Ours), ("`EVALSHA`", Kind::Peer), ("throttle-kit", Kind::Peer)];

/// Decisions per second, in thousands; the share of rejected calls, in percent; the processor time of the server for a
/// decision, in µs; and the bytes of the server for each key. NaN if a decision failed.
type Figures = [f64; 4];

struct Contender {
    column: Column,
    server: Server,
    /// The memory of the server without keys.
    empty: f64,
    who: Who,
}

#[derive(Clone)]
enum Who {
    Ours(RateLimiter, Limit),
    Script(MultiplexedConnection, Arc<Script>, u32, Duration),
    ThrottleKit(Arc<RedisBackend>, throttle_kit::Quota),
}

impl Who {
    async fn connect(name: &str, url: &str, units: u32, period: Duration) -> Self {
        match name {
            "ours" => {
                let limiter = RateLimiter::builder().redis(url).deadline(Duration::from_secs(10));
                let limiter = limiter.max_pending(100_000).on_error(OnError::Deny);
                let limit = Limit::token_bucket("bench", units.into(), period);
                Self::Ours(limiter.build().expect("valid"), limit)
            }
            "`EVALSHA`" => {
                let client = redis::Client::open(url).expect("an address");
                let connection = client.get_multiplexed_async_connection().await;
                Self::Script(connection.expect("it answers"), textbook(), units, period)
            }
            _ => {
                let backend = RedisBackend::connect(url).await.expect("it answers");
                let quota = throttle_kit::Quota::from_parts(period / units, units);
                Self::ThrottleKit(Arc::new(backend), quota)
            }
        }
    }

    /// Decides a call. Returns whether it is admitted.
    async fn admits(&mut self, index: u32) -> Result<bool, Failed> {
        let key = format!("user:{index}");
        Ok(match self {
            Self::Ours(limiter, limit) => match limiter.check(limit, &key, 1).await {
                Ok(_) => true,
                Err(Rejection::Limited { .. }) => false,
                Err(failed) => return Err(failed.into()),
            },
            Self::Script(connection, script, units, period) => {
                let mut call = script.key(key);
                call.arg(*units).arg(period.as_micros() as u64);
                let (admitted, ..): (bool, u32, u64) = call.invoke_async(connection).await?;
                admitted
            }
            Self::ThrottleKit(backend, quota) => backend.check(&key, quota).await.allowed,
        })
    }
}

impl Contender {
    fn round(&self, runtime: &Runtime, keys: &Arc<[u32]>, lasts: Duration) -> Figures {
        let (next, before, start) =
            (Arc::new(AtomicUsize::new(0)), server_time(&self.server), Instant::now());
        let decided = runtime.block_on(async {
            let tasks: Vec<_> = (0..TASKS)
                .map(|_| {
                    let (mut who, keys, next) =
                        (self.who.clone(), Arc::clone(keys), Arc::clone(&next));
                    tokio::spawn(async move {
                        let mut decided = [0_u32; 2];
                        while start.elapsed() < lasts {
                            let index = keys[next.fetch_add(1, Ordering::Relaxed) % keys.len()];
                            decided[usize::from(who.admits(index).await?)] += 1;
                        }
                        Ok::<_, Failed>(decided)
                    })
                })
                .collect();
            let mut all = [0.0, 0.0];
            for task in tasks {
                let [rejected, admitted] = task.await.expect("no panic")?;
                all = [all[0] + f64::from(rejected), all[1] + f64::from(admitted)];
            }
            Ok::<_, Failed>(all)
        });
        let took = start.elapsed().as_secs_f64();
        match decided {
            Ok([rejected, admitted]) => {
                let calls = rejected + admitted;
                let server = (server_time(&self.server) - before) / calls;
                let (used, held) = (memory(&self.server), held(&self.server));
                [calls / took / 1e3, rejected / calls * 100.0, server, (used - self.empty) / held]
            }
            Err(error) => {
                println!("{} failed: {error}\n", self.column.name);
                [f64::NAN; 4]
            }
        }
    }
}

fn memory(server: &Server) -> f64 {
    let info: String =
        redis::cmd("INFO").arg("memory").query(&mut server.connection()).expect("INFO");
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
    used.and_then(|used| used.trim().parse().ok()).expect("a figure")
}

fn held(server: &Server) -> f64 {
    let held: u32 = redis::cmd("DBSIZE").query(&mut server.connection()).expect("DBSIZE");
    f64::from(held.max(1))
}

/// Returns the users of the calls. Four calls of five pick any user. The fifth picks by Zipf, so a few users call
/// often.
fn picked() -> Vec<u32> {
    let (any, often) = (keys::uniform(USERS, 1 << 20), keys::zipf(USERS, 1 << 20));
    let picked = any.into_iter().zip(often).enumerate();
    picked.map(|(index, (any, often))| if index % 5 == 0 { often } else { any }).collect()
}

pub(crate) fn measure(scale: &Scale) -> Vec<Block> {
    let runtime = Runtime::new().expect("a runtime");
    let keys: Arc<[u32]> = picked().into();
    let measured = QUOTAS.map(|(units, period, name)| {
        let all = ALL.map(|(who, kind)| {
            let server = Server::start();
            let empty = memory(&server);
            let who_connected = runtime.block_on(Who::connect(who, &server.url, units, period));
            Contender { column: Column::new(who, kind), server, empty, who: who_connected }
        });
        (name, in_turns(scale.rounds, &all, |who| who.round(&runtime, &keys, 3 * scale.round)))
    });
    let table = |id, title, unit, better, figure: usize| {
        let row = |(name, all): &(&str, Vec<Figures>)| {
            Row::of((*name).to_owned(), all.iter().map(|figures| figures[figure]))
        };
        let columns = ALL.map(|(name, kind)| Column::new(name, kind)).into();
        let rows = measured.iter().map(row).collect();
        Block::table(id, Table { title, unit, better, by: "limit", columns, rows, chart: None })
    };
    for (name, all) in &measured {
        let shares: Vec<_> = ALL.iter().zip(all).map(|(who, of)| (who.0, of[1].round())).collect();
        println!("{name}: rejected, in percent: {shares:?}\n");
    }
    let less = Better::Less;
    vec![
        table(
            "realistic",
            "Decisions on Redis under the load of a service",
            "thousand a second, a million users, 256 tasks",
            Better::More,
            0,
        ),
        table(
            "realistic-server",
            "Processor time of the server for a decision under the load of a service",
            "microseconds",
            less,
            2,
        ),
        table(
            "realistic-memory",
            "Memory of the server for a key under the load of a service",
            "bytes",
            less,
            3,
        ),
    ]
}
