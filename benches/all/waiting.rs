//! Measures calls that wait: how much of the rate of a leaky bucket they use, and how evenly processes share it.

use std::num::NonZeroU32;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use governor::{DefaultDirectRateLimiter, Quota};
use ratelimit_runtime::{Limit, RateLimiter};
use support::proxy::Proxy;
use support::server::Server;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::Scale;
use crate::child::program;
use crate::table::{Better, Block, Column, Kind, Row, Table};

/// The rate of the bucket, in calls a second.
const RATE: u32 = 1_000;

/// The tasks of a process. Each of them calls again when its call was admitted.
const TASKS: usize = 256;

const PROCESSES: usize = 4;

const FAR: Duration = Duration::from_millis(5);

const LIMIT: Limit =
    Limit::leaky_bucket("bench", RATE as u64, Duration::from_secs(1)).wait(Duration::from_secs(60));

pub(crate) fn measure(scale: &Scale) -> Vec<Block> {
    let time = if scale.quick { scale.round } else { Duration::from_secs(5) };
    vec![rate(time), fleet(time)]
}

fn rate(time: Duration) -> Block {
    let server = Server::start();
    let proxy = Proxy::with_latency(server.port(), FAR);
    let far = format!("redis://127.0.0.1:{}", proxy.port);
    let near = format!("redis://127.0.0.1:{}", server.port());
    let runtime = Runtime::new().expect("a runtime");
    let share = |calls: u32| f64::from(calls) / time.as_secs_f64() / f64::from(RATE) * 100.0;
    let ours =
        |limiter: RateLimiter| share(runtime.block_on(count(time, move || check(limiter.clone()))));
    let of_redis =
        |url: &str| ours(RateLimiter::builder().redis(url).build().expect("valid settings"));
    let embedded = ours(RateLimiter::embedded());
    let (near, far) = (of_redis(&near), of_redis(&far));
    let quota = Quota::per_second(NonZeroU32::new(RATE).expect("a rate"));
    let quota = quota.allow_burst(NonZeroU32::MIN);
    let governor = Arc::new(DefaultDirectRateLimiter::direct(quota));
    let governor = share(runtime.block_on(count(time, move || {
        let governor = Arc::clone(&governor);
        async move { governor.until_ready().await }
    })));
    let mut leaky = leaky_bucket::RateLimiter::builder();
    let leaky = leaky.initial(1).max(1).interval(Duration::from_millis(1)).refill(1).build();
    let leaky = Arc::new(leaky);
    let leaky = share(runtime.block_on(count(time, move || {
        let leaky = Arc::clone(&leaky);
        async move { leaky.acquire_one().await }
    })));
    let columns = [
        ("ours, embedded", Kind::Ours),
        ("ours, Redis", Kind::Ours),
        ("ours, Redis 5 ms away", Kind::Ours),
        ("governor", Kind::Peer),
        ("leaky-bucket", Kind::Peer),
    ];
    Block::table(
        "waiting-rate",
        Table {
            title: "The rate that waiting calls use of a leaky bucket",
            unit: "percent of 1,000 calls a second",
            better: Better::More,
            by: "tasks",
            columns: columns.map(|(name, kind)| Column::new(name, kind)).into(),
            rows: vec![Row::of(TASKS.to_string(), [embedded, near, far, governor, leaky])],
        },
    )
}

fn fleet(time: Duration) -> Block {
    let server = Server::start();
    let url = format!("redis://127.0.0.1:{}", server.port());
    let start = |_| {
        let mut child = program();
        let child = child.args(["waiting-of", &url, &time.as_millis().to_string()]);
        child.stdout(Stdio::piped()).spawn().expect("this program starts")
    };
    let children: Vec<_> = (0..PROCESSES).map(start).collect();
    let counts = children.into_iter().map(|child| {
        let output = child.wait_with_output().expect("it ends");
        let text = String::from_utf8(output.stdout).expect("text");
        text.trim().parse::<f64>().expect("a count")
    });
    let counts: Vec<f64> = counts.collect();
    let sum: f64 = counts.iter().sum();
    let rate = sum / time.as_secs_f64() / f64::from(RATE) * 100.0;
    let even = sum / PROCESSES as f64;
    let share = |count: f64| count / even * 100.0;
    let least = counts.iter().copied().fold(f64::INFINITY, f64::min);
    let most = counts.iter().copied().fold(0.0, f64::max);
    let columns = ["the rate in use", "the smallest share", "the largest share"];
    Block::table(
        "waiting-fleet",
        Table {
            title: "The rate of a leaky bucket that processes share",
            unit: "percent of the rate, and of an even share",
            better: Better::More,
            by: "processes",
            columns: columns.map(|name| Column::new(name, Kind::Beside)).into(),
            rows: vec![Row::of(PROCESSES.to_string(), [rate, share(least), share(most)])],
        },
    )
}

/// One process of the fleet. Prints how many of its calls were admitted.
pub(crate) fn child(url: &str, millis: u64) {
    let runtime = Runtime::new().expect("a runtime");
    let limiter = RateLimiter::builder().redis(url).build().expect("valid settings");
    let count = runtime.block_on(async {
        let check = move || check(limiter.clone());
        // All processes have started after a second.
        count(Duration::from_secs(1), check.clone()).await;
        count(Duration::from_millis(millis), check).await
    });
    println!("{count}");
}

async fn check(limiter: RateLimiter) {
    limiter.check(&LIMIT, (), 1).await.expect("admitted");
}

/// Calls from [`TASKS`] tasks for `time`. Returns how many calls were admitted.
async fn count<F: Future<Output = ()> + Send>(
    time: Duration,
    call: impl Fn() -> F + Clone + Send + 'static,
) -> u32 {
    let end = Instant::now() + time;
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let call = call.clone();
        tasks.spawn(async move {
            let mut calls = 0;
            loop {
                call().await;
                if Instant::now() >= end {
                    return calls;
                }
                calls += 1;
            }
        });
    }
    tasks.join_all().await.into_iter().sum()
}
