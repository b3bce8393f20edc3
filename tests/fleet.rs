//! A fleet: for each algorithm, four processes with 64 tasks each call one key on one Redis. Together they admit
//! exactly the threshold. With leases, the admitted and the returned units add up to it.
//!
//! Without arguments, this program is the test. With arguments, it is one process of the fleet.

use std::process::{Command, Stdio};
use std::time::Duration;

use ratelimit_runtime::{Algorithm, Limit, RateLimiter, Rejection};
use support::ALGORITHMS;
use support::server::Server;

const PROCESSES: usize = 4;
const TASKS: usize = 64;
const CALLS: usize = 10;
const THRESHOLD: u32 = 1_000;
const LEASE: u32 = 50;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [process, url, algorithm, leases] if process == "process" => {
            member(url, &limit(algorithm, leases == "leased"));
        }
        // `cargo test -- <filter>` passes a filter for other tests.
        _ => test(),
    }
}

fn test() {
    let server = Server::start();
    let program = std::env::current_exe().expect("this program has a path");
    println!("\nrunning {} tests", 2 * ALGORITHMS.len());
    let runs = ALGORITHMS
        .into_iter()
        .flat_map(|algorithm| [(algorithm, "unleased"), (algorithm, "leased")]);
    for (algorithm, leases) in runs {
        let processes: Vec<_> = (0..PROCESSES)
            .map(|_| {
                Command::new(&program)
                    .args(["process", &server.url, algorithm.as_str(), leases])
                    .stdout(Stdio::piped())
                    .spawn()
                    .expect("a process")
            })
            .collect();
        let admitted: Vec<u32> = processes
            .into_iter()
            .map(|process| {
                let output = process.wait_with_output().expect("its output");
                assert!(output.status.success(), "a process failed");
                String::from_utf8_lossy(&output.stdout).trim().parse().expect("a count")
            })
            .collect();
        let mut sum = admitted.iter().sum::<u32>();
        let mut available = THRESHOLD;
        if leases == "leased" {
            // With leases, a bucket keeps the units that refill in a second, rounded up.
            let limit = limit(algorithm.as_str(), true);
            let is_bucket = matches!(algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket);
            available -= u32::from(is_bucket);
            assert!(
                (available - PROCESSES as u32 * LEASE..=available).contains(&sum),
                "{algorithm}: {admitted:?}"
            );
            // The processes have returned their unspent units.
            sum += call(&server.url, &limit);
        }
        assert_eq!(sum, available, "{algorithm}, {leases}: {admitted:?}");
        server.assert_all_keys_expire();
        redis::cmd("FLUSHALL").exec(&mut server.connection()).expect("FLUSHALL");
        println!("test fleet::{algorithm}_{leases} ... ok, by process: {admitted:?}");
    }
    println!("\ntest result: ok. {} passed; 0 failed; 0 ignored\n", 2 * ALGORITHMS.len());
}

/// Calls from many tasks and prints how many calls were admitted.
fn member(url: &str, limit: &Limit) {
    println!("{}", call(url, limit));
}

fn limit(algorithm: &str, is_leased: bool) -> Limit {
    let algorithm = ALGORITHMS.into_iter().find(|known| known.as_str() == algorithm);
    let algorithm = algorithm.expect("the name of an algorithm");
    // So long that nothing refills or expires during the test. The sliding counter stays in one window, from 2010
    // to 2050.
    let period = Duration::from_secs(40 * 365 * 86_400);
    let mut limit = Limit::new("fleet", algorithm, THRESHOLD, period).expect("valid");
    if algorithm == Algorithm::LeakyBucket {
        limit = limit.burst(THRESHOLD);
    }
    if is_leased { limit.lease(LEASE) } else { limit }
}

/// Calls from many tasks, returns the leases, and returns how many calls were admitted.
fn call(url: &str, limit: &Limit) -> u32 {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let limiter = RateLimiter::builder().redis(url).deadline(Duration::from_secs(30));
    let limiter = limiter.build().expect("valid");
    runtime.block_on(async {
        let tasks: Vec<_> = (0..TASKS)
            .map(|_| {
                let (limiter, limit) = (limiter.clone(), limit.clone());
                tokio::spawn(async move {
                    let mut admitted = 0;
                    for _ in 0..CALLS {
                        match limiter.check(&limit, "one key", 1).await {
                            Ok(_) => admitted += 1,
                            Err(Rejection::Limited { .. }) => {}
                            Err(other) => panic!("{other:?}"),
                        }
                    }
                    admitted
                })
            })
            .collect();
        let mut sum = 0;
        for task in tasks {
            sum += task.await.expect("no panic");
        }
        limiter.shutdown().await.expect("the leases are returned");
        sum
    })
}
