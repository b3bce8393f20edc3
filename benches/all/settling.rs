//! Measures what `settle` adds to a call: in this process, and with a Redis that is 5 milliseconds away.

use std::hint::black_box;
use std::time::{Duration, Instant};

use ratelimit_runtime::{Limit, RateLimiter, rate_limit};
use support::proxy::Proxy;
use support::server::Server;

use crate::peers::ready;
use crate::table::{Better, Block, Column, Kind, Row, Table};
use crate::turns::in_turns;
use crate::{Scale, UNITS, keys};

/// The time of a round trip to the distant Redis.
const ROUND_TRIP: Duration = Duration::from_millis(5);

/// The calls of a round on the distant Redis.
const DISTANT_CALLS: u32 = 40;

pub(crate) fn measure(scale: &Scale) -> Vec<Block> {
    vec![in_process(scale), on_redis(scale)]
}

macro_rules! calls {
    ($($plain:ident $settled:ident $algo:literal $(, $burst:ident)?;)*) => {
        $(
            #[rate_limit(
                period = "7300d", threshold = UNITS, algo = $algo, $(burst = $burst,)?
                key = key, cost = 2, on_limited = |_| 0
            )]
            async fn $plain(key: u32) -> u32 {
                black_box(key)
            }

            #[rate_limit(
                period = "7300d", threshold = UNITS, algo = $algo, $(burst = $burst,)?
                key = key, cost = 2, on_limited = |_| 0, settle = |_| 1
            )]
            async fn $settled(key: u32) -> u32 {
                black_box(key)
            }
        )*

        /// For each algorithm, a call that is charged 2 units, and one that is settled to 1.
        const CALLS: &[(&str, [fn(u32) -> u32; 2])] = &[
            $(($algo, [|key| ready($plain(key)), |key| ready($settled(key))])),*
        ];
    };
}

calls! {
    sliding sliding_settled "sliding";
    fixed fixed_settled "fixed";
    counter counter_settled "sliding_counter";
    token token_settled "token_bucket";
    leaky leaky_settled "leaky_bucket", UNITS;
}

fn in_process(scale: &Scale) -> Block {
    let ids = keys::uniform(10_000, scale.decisions);
    let rows = CALLS.iter().map(|(algorithm, calls)| {
        let took = in_turns(scale.rounds, calls, |call| {
            let start = Instant::now();
            for id in &ids {
                black_box(call(*id));
            }
            [start.elapsed().as_nanos() as f64 / ids.len() as f64]
        });
        Row::of(*algorithm, took.iter().map(|[nanos]| *nanos))
    });
    let columns = [("charged", Kind::Beside), ("charged and settled", Kind::Ours)];
    let table = Table {
        title: "A call that is settled",
        unit: "nanoseconds, on 10,000 keys",
        better: Better::Less,
        by: "algorithm",
        columns: columns.map(|(name, kind)| Column::new(name, kind)).into(),
        rows: rows.collect(),
    };
    Block::table("settling", table)
}

/// Measures the time until the caller has its decision, and after the call until it has settled.
fn on_redis(scale: &Scale) -> Block {
    let server = Server::start();
    let proxy = Proxy::with_latency(server.port(), ROUND_TRIP);
    let url = format!("redis://127.0.0.1:{}", proxy.port);
    let limiter = RateLimiter::builder().redis(url).deadline(Duration::from_secs(5));
    let limiter = limiter.build().expect("valid settings");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let limit = Limit::sliding("distant", UNITS, Duration::from_secs(3600));
    let calls: [fn(&RateLimiter, &Limit, &tokio::runtime::Runtime); 2] = [
        |limiter, limit, runtime| {
            runtime.block_on(limiter.check(limit, "key", 2)).expect("admitted");
        },
        |limiter, limit, runtime| {
            let permit = runtime.block_on(limiter.acquire(limit, "key", 2)).expect("admitted");
            permit.settle(1);
        },
    ];
    let took = in_turns(scale.rounds, &calls, |call| {
        let start = Instant::now();
        for _ in 0..DISTANT_CALLS {
            call(&limiter, &limit, &runtime);
        }
        [start.elapsed().as_secs_f64() * 1e6 / f64::from(DISTANT_CALLS)]
    });
    runtime.block_on(limiter.shutdown()).expect("all is settled");
    let columns = [("charged", Kind::Beside), ("charged and settled", Kind::Ours)];
    let table = Table {
        title: "A call that is settled, with a Redis that is 5 ms away",
        unit: "microseconds",
        better: Better::Less,
        by: "algorithm",
        columns: columns.map(|(name, kind)| Column::new(name, kind)).into(),
        rows: vec![Row::of("sliding", took.iter().map(|[micros]| *micros))],
    };
    Block::table("settling-redis", table)
}
