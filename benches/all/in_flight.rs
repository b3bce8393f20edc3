//! Measures calls in flight: in this process beside a semaphore for each key, and the time of the server beside a
//! sorted set of holders, with eight processes.

use std::hint::black_box;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use dashmap::DashMap;
use ratelimit_runtime::{Limit, Permit, RateLimiter};
use redis::{Connection, Script};
use support::server::Server;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::peers::ready;
use crate::table::{Better, Block, Column, Kind, Row, Table};
use crate::turns::in_turns;
use crate::{Scale, keys};

/// The processes of the fleet.
const PROCESSES: usize = 8;

/// How many slots a key has. All but one for each process are held; calls take and free the others.
const SLOTS: [u32; 2] = [10, 1_000];

const HOLD: Duration = Duration::from_secs(30);

pub(crate) fn measure(scale: &Scale) -> Vec<Block> {
    vec![in_process(scale), on_redis(scale)]
}

#[derive(Clone, Copy)]
enum Slots {
    Ours,
    Semaphore,
}

fn in_process(scale: &Scale) -> Block {
    const LIMIT: Limit = Limit::in_flight("bench", 10);
    let rows = [1_000, 100_000].map(|count| {
        let ids = keys::uniform(count, scale.decisions);
        let (limiter, semaphores) = (RateLimiter::embedded(), DashMap::new());
        let took = in_turns(scale.rounds, &[Slots::Ours, Slots::Semaphore], |who| {
            let start = Instant::now();
            for id in &ids {
                match who {
                    Slots::Ours => drop(black_box(ready(limiter.acquire(&LIMIT, *id, 1)))),
                    Slots::Semaphore => {
                        let semaphore = semaphores.entry(*id);
                        let semaphore = semaphore.or_insert_with(|| Arc::new(Semaphore::new(10)));
                        let semaphore = Arc::clone(&semaphore);
                        drop(black_box(semaphore.try_acquire_owned()));
                    }
                }
            }
            [start.elapsed().as_nanos() as f64 / ids.len() as f64]
        });
        let label = format!("{} keys", crate::figure::grouped(count.into()));
        Row::of(label, took.iter().map(|[nanos]| *nanos))
    });
    let columns = [("ours", Kind::Ours), ("`Semaphore` in a `DashMap`", Kind::Peer)];
    Block::table(
        "in-flight-embedded",
        Table {
            title: "A call that takes a slot and frees it",
            unit: "nanoseconds",
            better: Better::Less,
            by: "keys",
            columns: columns.map(|(name, kind)| Column::new(name, kind)).into(),
            rows: rows.into(),
        },
    )
}

/// How the calls of the fleet end.
#[derive(Clone, Copy)]
enum Ends {
    /// All processes make calls at the same time, and drop each permit.
    Dropped,
    /// One call at a time, which waits until its slot is free for other processes.
    Awaited,
}

fn on_redis(scale: &Scale) -> Block {
    let (server, runtime) = (Server::start(), Runtime::new().expect("a runtime"));
    let fleet: Vec<RateLimiter> =
        (0..PROCESSES).map(|_| server.builder().build().expect("valid")).collect();
    let calls = if scale.quick { 25 } else { 250 };
    let rows = [Ends::Dropped, Ends::Awaited].into_iter().flat_map(|ends| {
        SLOTS.map(|slots| {
            let took = in_turns(scale.rounds, &[Slots::Ours, Slots::Semaphore], |who| {
                redis::cmd("FLUSHALL").exec(&mut server.connection()).expect("FLUSHALL");
                match who {
                    Slots::Ours => [runtime.block_on(ours(&server, &fleet, slots, calls, ends))],
                    Slots::Semaphore => [sorted_set(&server, slots, calls, ends)],
                }
            });
            let slots = format!("{} slots", crate::figure::grouped(slots.into()));
            let label = match ends {
                Ends::Dropped => format!("{slots}, eight calls at a time, dropped"),
                Ends::Awaited => format!("{slots}, one call at a time, `release` awaited"),
            };
            Row::of(label, took.iter().map(|[micros]| *micros))
        })
    });
    let columns = [("ours", Kind::Ours), ("sorted set", Kind::Peer)];
    Block::table(
        "in-flight-redis",
        Table {
            title: "Time of the server for a slot that is taken and freed",
            unit: "microseconds in scripts, with the heartbeats; eight processes, all but eight slots held",
            better: Better::Less,
            by: "slots",
            columns: columns.map(|(name, kind)| Column::new(name, kind)).into(),
            rows: rows.collect(),
        },
    )
}

/// Returns the time that the server spends for each call.
async fn ours(server: &Server, fleet: &[RateLimiter], slots: u32, calls: usize, ends: Ends) -> f64 {
    let limit = Limit::try_in_flight("bench", slots.into()).and_then(|limit| limit.try_hold(HOLD));
    let limit = limit.expect("valid");
    let mut held: Vec<Permit> = Vec::new();
    for slot in PROCESSES..slots as usize {
        let limiter = &fleet[slot % fleet.len()];
        held.push(limiter.acquire(&limit, "key", 1).await.expect("admitted"));
    }
    let before = server.script_micros();
    match ends {
        Ends::Dropped => {
            let mut processes = JoinSet::new();
            for limiter in fleet {
                let limiter = limiter.clone();
                processes.spawn(async move {
                    for _ in 0..calls {
                        // The slot of the call before can be on its way back.
                        while limiter.acquire(&limit, "key", 1).await.is_err() {}
                    }
                });
            }
            processes.join_all().await;
        }
        Ends::Awaited => {
            for call in 0..calls * PROCESSES {
                let limiter = &fleet[call % fleet.len()];
                let permit = limiter.acquire(&limit, "key", 1).await.expect("admitted");
                permit.release().await.expect("a reply");
            }
        }
    }
    for limiter in fleet {
        limiter.flush().await.expect("a reply");
    }
    (server.script_micros() - before) / (calls * PROCESSES) as f64
}

fn sorted_set(server: &Server, slots: u32, calls: usize, ends: Ends) -> f64 {
    let take = Script::new(include_str!("../textbook/semaphore.lua"));
    let free = Script::new("return redis.call('ZREM', KEYS[1], ARGV[1])");
    let acquire = |connection: &mut Connection, holder: usize| -> bool {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
        let now = now.as_millis() as u64;
        let mut call = take.key("key");
        call.arg(now).arg(now + HOLD.as_millis() as u64).arg(slots).arg(holder);
        call.invoke(connection).expect("a reply")
    };
    let mut connection = server.connection();
    for holder in PROCESSES..slots as usize {
        assert!(acquire(&mut connection, holder));
    }
    let process = |holder: usize, calls: usize| {
        let (mut connection, mut other) = (server.connection(), server.connection());
        for _ in 0..calls {
            assert!(acquire(&mut connection, holder));
            let freed: u32 = free.key("key").arg(holder).invoke(&mut other).expect("a reply");
            assert_eq!(freed, 1);
        }
    };
    let before = server.script_micros();
    match ends {
        Ends::Dropped => thread::scope(|scope| {
            for holder in 0..PROCESSES {
                scope.spawn(move || process(holder, calls));
            }
        }),
        Ends::Awaited => process(0, calls * PROCESSES),
    }
    (server.script_micros() - before) / (calls * PROCESSES) as f64
}
