//! A fleet: for each algorithm, four processes with 64 tasks each call one key on one Redis. Together they admit
//! exactly the threshold. With leases, also automatic ones, the admitted and the returned units add up to it. With
//! permits, exactly what the calls have used is charged, or up to the estimates of processes that are killed. Each
//! process writes the calls that were admitted, and the judge decides about the calls of all of them.
//!
//! Without arguments, this program is the test. With arguments, it is one process of the fleet.

use std::process::{Command, Stdio};
use std::time::Duration;

use ratelimit_runtime::{Algorithm, Limit, RateLimiter, Rejection, Source};
use support::ALGORITHMS;
use support::history::{AdmittedCall, machine_time};
use support::judge::Judge;
use support::limits::is_bucket;
use support::server::Server;

const PROCESSES: usize = 4;
const TASKS: usize = 64;
const CALLS: usize = 10;
const THRESHOLD: u64 = 1_000;
const LEASE: u64 = 50;
const ESTIMATE: u64 = 3;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [process, url, algorithm, mode] if process == "process" => match &**mode {
            "settled" => print(&settle(url, &limit(algorithm, "unleased"), false)),
            "killed" => {
                print(&settle(url, &limit(algorithm, "unleased"), true));
                std::process::abort();
            }
            leases => member(url, &limit(algorithm, leases)),
        },
        // `cargo test -- <filter>` passes a filter for other tests.
        _ => test(),
    }
}

fn test() {
    let server = Server::start();
    let program = std::env::current_exe().expect("this program has a path");
    println!("\nrunning {} tests", 4 * ALGORITHMS.len());
    let runs = ALGORITHMS
        .into_iter()
        .flat_map(|algorithm| ["unleased", "leased", "auto"].map(|leases| (algorithm, leases)));
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
        let mut calls = Vec::new();
        // By process, and how many of them spent leased units.
        let admitted: Vec<[u64; 2]> = processes
            .into_iter()
            .map(|process| {
                let output = process.wait_with_output().expect("its output");
                assert!(output.status.success(), "a process failed");
                let text = String::from_utf8_lossy(&output.stdout);
                let own = AdmittedCall::parse_all(&text);
                let leased = text.lines().next().expect("the leased units");
                let counts = [own.len() as u64, leased.parse().expect("a count")];
                calls.extend(own);
                counts
            })
            .collect();
        let leased = admitted.iter().map(|[_, leased]| leased).sum::<u64>();
        let mut sum = calls.len() as u64;
        assert_eq!(leased > 0, leases != "unleased", "{algorithm}, {leases}: {admitted:?}");
        let units = match leases {
            "leased" => LEASE,
            "auto" => THRESHOLD / 100,
            _ => 0,
        };
        // While a bucket is leased, it keeps the units that refill in a second, rounded up.
        let is_bucket = is_bucket(algorithm);
        let least = THRESHOLD - u64::from(is_bucket && units > 0);
        let most = if leases == "leased" { least } else { THRESHOLD };
        if units > 0 {
            let held = PROCESSES as u64 * units;
            assert!((least - held..=most).contains(&sum), "{algorithm}, {leases}: {admitted:?}");
            // The processes have returned their unspent units.
            calls.extend(call(&server.url, &limit(algorithm.as_str(), leases)).0);
            sum = calls.len() as u64;
        }
        judge(&limit(algorithm.as_str(), leases), &calls);
        assert!((least..=most).contains(&sum), "{algorithm}, {leases}: {admitted:?}");
        server.assert_all_keys_expire();
        redis::cmd("FLUSHALL").exec(&mut server.connection()).expect("FLUSHALL");
        println!("test fleet::{algorithm}_{leases} ... ok, by process: {admitted:?}");
    }
    for algorithm in ALGORITHMS {
        settled_by_all(&server, algorithm, ["settled"; 4]);
        settled_by_all(&server, algorithm, ["settled", "killed", "settled", "killed"]);
        println!("test fleet::{algorithm}_settled ... ok");
    }
    println!("\ntest result: ok. {} passed; 0 failed; 0 ignored\n", 4 * ALGORITHMS.len());
}

/// Asserts that the judge does not object to the calls of all processes, and that it would object to a unit more.
fn judge(limit: &Limit, calls: &[AdmittedCall]) {
    let mut judge = Judge::new(limit, None);
    judge.admitted_all(calls);
    let breaches = judge.breaches();
    assert!(breaches.is_empty(), "{limit:?}: {:?}", breaches[0]);
    let left = THRESHOLD - calls.iter().map(|call| call.used).sum::<u64>();
    assert!(judge.objects_to_more(limit, left + 1), "{limit:?}: the judge does not see all calls");
}

/// Prints the calls that a process was admitted.
fn print(calls: &[AdmittedCall]) {
    for call in calls {
        println!("{call}");
    }
}

/// Four processes settle their calls at the same time. A process of the mode `killed` dies before it has settled all.
fn settled_by_all(server: &Server, algorithm: Algorithm, modes: [&str; 4]) {
    let program = std::env::current_exe().expect("this program has a path");
    let start = |mode| {
        let arguments = ["process", &server.url, algorithm.as_str(), mode];
        Command::new(&program).args(arguments).stdout(Stdio::piped()).spawn().expect("a process")
    };
    let processes = modes.map(start);
    let ([mut settled, mut killed], mut calls) = ([0, 0], Vec::new());
    for (process, mode) in processes.into_iter().zip(modes) {
        let output = process.wait_with_output().expect("its output");
        assert_eq!(output.status.success(), mode == "settled");
        let own = AdmittedCall::parse_all(&String::from_utf8_lossy(&output.stdout));
        *(if mode == "settled" { &mut settled } else { &mut killed }) += own.len() as u64;
        calls.extend(own);
    }
    judge(&limit(algorithm.as_str(), "unleased"), &calls);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let limiter = RateLimiter::builder().redis(&server.url).build().expect("valid");
    let limit = limit(algorithm.as_str(), "unleased");
    let charged = THRESHOLD
        - runtime.block_on(limiter.peek(&limit, "one key", 1)).expect("a reply").remaining;
    // A call has used one unit. A call that was not settled is charged its estimate. A bucket gets back a little less
    // of calls that overlap.
    let is_bucket = is_bucket(algorithm);
    let kept = if is_bucket { (ESTIMATE - 1) * settled / 5 } else { 0 };
    let range = settled + killed..=settled + ESTIMATE * killed + kept;
    assert!(range.contains(&charged), "{algorithm}: {charged} of {range:?}");
    assert!(settled + killed > THRESHOLD / ESTIMATE, "{algorithm}: {settled} and {killed} calls");
    server.assert_all_keys_expire();
    redis::cmd("FLUSHALL").exec(&mut server.connection()).expect("FLUSHALL");
}

/// Calls from many tasks, and settles each call that is admitted. A process that `dies` forgets some of its permits,
/// and does not wait for the others. Returns the calls that were admitted.
fn settle(url: &str, limit: &Limit, dies: bool) -> Vec<AdmittedCall> {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let limiter = RateLimiter::builder().redis(url).deadline(Duration::from_secs(30));
    let limiter = limiter.build().expect("valid");
    runtime.block_on(async {
        let tasks: Vec<_> = (0..TASKS / 4)
            .map(|task| {
                let (limiter, limit) = (limiter.clone(), *limit);
                tokio::spawn(async move {
                    let mut admitted = Vec::new();
                    for call in 0..CALLS {
                        let from = machine_time();
                        match limiter.acquire(&limit, "one key", ESTIMATE).await {
                            Ok(permit) if dies && (task + call) % 3 == 0 => {
                                std::mem::forget(permit);
                                admitted.push(AdmittedCall::since(from, &limit, ESTIMATE));
                            }
                            Ok(permit) => {
                                let charged = AdmittedCall::since(from, &limit, ESTIMATE);
                                permit.settle(1);
                                admitted.push(AdmittedCall { used: 1, ..charged });
                            }
                            Err(Rejection::Limited { .. }) => {}
                            Err(other) => panic!("{other:?}"),
                        }
                    }
                    admitted
                })
            })
            .collect();
        let mut admitted = Vec::new();
        for task in tasks {
            admitted.extend(task.await.expect("no panic"));
        }
        if !dies {
            limiter.shutdown().await.expect("all is settled");
        }
        admitted
    })
}

/// Calls from many tasks and prints how many calls spent leased units, and the calls that were admitted.
fn member(url: &str, limit: &Limit) {
    let (admitted, leased) = call(url, limit);
    println!("{leased}");
    print(&admitted);
}

fn limit(algorithm: &str, leases: &str) -> Limit {
    let algorithm = ALGORITHMS.into_iter().find(|known| known.as_str() == algorithm);
    let algorithm = algorithm.expect("the name of an algorithm");
    // So long that nothing refills or expires during the test. The sliding counter stays in one window, from 2010
    // to 2050.
    let period = Duration::from_secs(40 * 365 * 86_400);
    let limit = support::limits::limit("fleet", algorithm, THRESHOLD, period);
    match leases {
        "leased" => limit.lease(LEASE),
        "auto" => limit.auto_lease(),
        _ => limit,
    }
}

/// Calls from many tasks, and returns the leases. Returns the calls that were admitted, and how many of them spent
/// leased units.
fn call(url: &str, limit: &Limit) -> (Vec<AdmittedCall>, u64) {
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
                let (limiter, limit) = (limiter.clone(), *limit);
                tokio::spawn(async move {
                    let (mut admitted, mut leased) = (Vec::new(), 0);
                    for _ in 0..CALLS {
                        let from = machine_time();
                        match limiter.check(&limit, "one key", 1).await {
                            Ok(decision) => {
                                admitted.push(AdmittedCall::since(from, &limit, 1));
                                leased += u64::from(decision.source == Source::Lease);
                            }
                            Err(Rejection::Limited { .. }) => {}
                            Err(other) => panic!("{other:?}"),
                        }
                    }
                    (admitted, leased)
                })
            })
            .collect();
        let (mut all, mut all_leased) = (Vec::new(), 0);
        for task in tasks {
            let (admitted, leased) = task.await.expect("no panic");
            all.extend(admitted);
            all_leased += leased;
        }
        limiter.shutdown().await.expect("the leases are returned");
        (all, all_leased)
    })
}
