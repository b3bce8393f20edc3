//! Measures calls of several limits. This library charges all of them or none; the others decide them one after the
//! other.

use std::hint::black_box;
use std::time::Instant;

use governor::DefaultKeyedRateLimiter;
use ratelimit_runtime::{Algorithm, Limit, Part, RateLimiter};
use redis::Script;
use redis::aio::MultiplexedConnection;
use support::server::Server;
use tokio::runtime::Runtime;

use crate::peers::{quota, ready};
use crate::table::{Better, Block, Column, Kind, Row, Table};
use crate::turns::in_turns;
use crate::{FLOWING, PERIOD, Scale, UNITS, keys};

/// The names of the limits of a call.
const NAMES: [&str; 8] = ["one", "two", "three", "four", "five", "six", "seven", "eight"];

/// The keys that are decided in turn.
const KEYS: u32 = 10_000;

type Call<'a> = Box<dyn Fn(&String) -> bool + 'a>;

pub(crate) fn measure(scale: &Scale) -> Vec<Block> {
    vec![in_process(scale), on_redis(scale)]
}

fn limits<const N: usize>() -> [Limit; N] {
    std::array::from_fn(|index| {
        Limit::new(NAMES[index], Algorithm::TokenBucket, UNITS, PERIOD).expect("valid")
    })
}

fn in_process(scale: &Scale) -> Block {
    fn row<const N: usize>(scale: &Scale) -> Row {
        let (limiter, limits) = (RateLimiter::embedded(), limits::<N>());
        let governors: [_; N] =
            std::array::from_fn(|_| DefaultKeyedRateLimiter::<String>::keyed(quota(FLOWING)));
        let all: [Call<'_>; 2] = [
            Box::new(|key| {
                let parts = limits.each_ref().map(|limit| Part::new(limit, key, 1));
                ready(limiter.check_all(&parts)).is_ok()
            }),
            Box::new(|key| governors.iter().all(|governor| governor.check_key(key).is_ok())),
        ];
        let names: Vec<String> = (0..KEYS).map(|index| format!("user:{index}")).collect();
        let ids = keys::uniform(KEYS, scale.decisions / N);
        let took = in_turns(scale.rounds, &all, |call| {
            let start = Instant::now();
            for id in &ids {
                black_box(call(&names[*id as usize]));
            }
            [start.elapsed().as_nanos() as f64 / ids.len() as f64]
        });
        Row::of(N.to_string(), took.iter().map(|[nanos]| *nanos))
    }
    Block::table(
        "together",
        Table {
            title: "A call of several limits in one process",
            unit: "nanoseconds, on 10,000 keys",
            better: Better::Less,
            by: "limits",
            columns: vec![
                Column::new("ours", Kind::Ours),
                Column::new("governor, one after the other", Kind::Peer),
            ],
            rows: vec![row::<1>(scale), row::<2>(scale), row::<4>(scale), row::<8>(scale)],
        },
    )
}

fn on_redis(scale: &Scale) -> Block {
    let (server, runtime) = (Server::start(), Runtime::new().expect("a runtime"));
    let limiter = server.builder().build().expect("valid");
    let client = redis::Client::open(&*server.url).expect("an address");
    let connection = runtime.block_on(client.get_multiplexed_async_connection()).expect("it runs");
    let script = Script::new(include_str!("../textbook/token_bucket.lua"));
    let each = async |key: &str, count: usize, mut connection: MultiplexedConnection| {
        for name in &NAMES[..count] {
            let mut call = script.key(format!("{name}:{key}"));
            call.arg(FLOWING).arg(PERIOD.as_micros() as u64);
            let (admitted, ..): (bool, u32, u64) =
                call.invoke_async(&mut connection).await.expect("it runs");
            assert!(admitted, "refused");
        }
        true
    };
    let limits = limits::<8>();
    let calls = if scale.quick { 100 } else { 2_000 };
    let rows = [1, 2, 4, 8].map(|count| {
        let all: [Call<'_>; 2] = [
            Box::new(|key| {
                let parts: Vec<_> =
                    limits[..count].iter().map(|limit| Part::new(limit, key, 1)).collect();
                runtime.block_on(limiter.check_all(&parts)).is_ok()
            }),
            Box::new(|key| runtime.block_on(each(key, count, connection.clone()))),
        ];
        let took = in_turns(scale.rounds, &all, |call| {
            let start = Instant::now();
            for id in 0..calls {
                assert!(call(&format!("user:{id}")), "refused");
            }
            [start.elapsed().as_secs_f64() * 1e6 / f64::from(calls)]
        });
        Row::of(count.to_string(), took.iter().map(|[micros]| *micros))
    });
    Block::table(
        "together-redis",
        Table {
            title: "A call of several limits on Redis",
            unit: "microseconds, one task",
            better: Better::Less,
            by: "limits",
            columns: vec![
                Column::new("ours", Kind::Ours),
                Column::new("`EVALSHA`, one after the other", Kind::Peer),
            ],
            rows: rows.into(),
        },
    )
}
