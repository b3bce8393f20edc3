//! A fleet: for each algorithm, four processes with up to 64 tasks each call one key on one Redis. Together they admit
//! exactly the threshold. With leases, also automatic ones, the admitted and the returned units add up to it. With
//! permits, exactly what the calls have used is charged, or up to the estimates of processes that are killed. Each
//! process writes the calls that were admitted, and the judge decides about the calls of all of them.
//!
//! Without arguments, this program is the test. With arguments, it is one process of the fleet.

use std::process::{Command, Stdio};
use std::time::Duration;

use ratelimit_runtime::{Algorithm, Decision, Limit, RateLimiter, Rejection, Source};
use support::ALGORITHMS;
use support::history::{AdmittedCall, machine_time};
use support::judge::Judge;
use support::limits::is_bucket;
use support::server::Server;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

const PROCESSES: usize = 4;
const CALLS: usize = 10;
const THRESHOLD: u64 = 1_000;
const LEASE: u64 = 50;
const ESTIMATE: u64 = 3;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [process, url, algorithm, mode] if process == "process" => {
            let algorithm = ALGORITHMS.into_iter().find(|known| known.as_str() == algorithm);
            let algorithm = algorithm.expect("the name of an algorithm");
            let (calls, leased) = play(url, algorithm, mode);
            println!("{leased}");
            for call in calls {
                println!("{call}");
            }
            if mode == "killed" {
                std::process::abort();
            }
        }
        // `cargo test -- <filter>` passes a filter for other tests.
        _ => test(),
    }
}

fn test() {
    let server = Server::start();
    println!("\nrunning {} tests", 4 * ALGORITHMS.len());
    for algorithm in ALGORITHMS {
        for leases in ["unleased", "leased", "auto"] {
            count(&server, algorithm, leases);
            println!("test fleet::{algorithm}_{leases} ... ok");
        }
        settle(&server, algorithm, ["settled"; PROCESSES]);
        settle(&server, algorithm, ["settled", "killed", "settled", "killed"]);
        println!("test fleet::{algorithm}_settled ... ok");
    }
    println!("\ntest result: ok. {} passed; 0 failed; 0 ignored\n", 4 * ALGORITHMS.len());
}

/// Runs processes of these modes at the same time. Returns the calls that each was admitted, and how many of them spent
/// leased units.
fn run(
    server: &Server,
    algorithm: Algorithm,
    modes: [&str; PROCESSES],
) -> Vec<(Vec<AdmittedCall>, u64)> {
    let program = std::env::current_exe().expect("this program has a path");
    let start = |mode| {
        let arguments = ["process", &server.url, algorithm.as_str(), mode];
        Command::new(&program).args(arguments).stdout(Stdio::piped()).spawn().expect("a process")
    };
    let processes = modes.map(|mode| (mode, start(mode)));
    let calls = processes.into_iter().map(|(mode, process)| {
        let output = process.wait_with_output().expect("its output");
        assert_eq!(output.status.success(), mode != "killed", "{algorithm}: a {mode} process");
        let text = String::from_utf8_lossy(&output.stdout);
        let leased = text.lines().next().expect("the leased units").parse().expect("a count");
        (AdmittedCall::parse_all(&text), leased)
    });
    calls.collect()
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

/// Four processes count their calls, with or without leases.
fn count(server: &Server, algorithm: Algorithm, leases: &str) {
    let processes = run(server, algorithm, [leases; PROCESSES]);
    let admitted: Vec<_> = processes.iter().map(|(calls, leased)| (calls.len(), *leased)).collect();
    let what = format!("{algorithm}, {leases}: {admitted:?}");
    assert_eq!(admitted.iter().any(|(_, leased)| *leased > 0), leases != "unleased", "{what}");
    let mut calls: Vec<_> = processes.into_iter().flat_map(|(calls, _)| calls).collect();
    let units = match leases {
        "leased" => LEASE,
        "auto" => THRESHOLD / 100,
        _ => 0,
    };
    // While a bucket is leased, it keeps the units that refill in a second, rounded up.
    let least = THRESHOLD - u64::from(is_bucket(algorithm) && units > 0);
    let most = if leases == "leased" { least } else { THRESHOLD };
    if units > 0 {
        let held = PROCESSES as u64 * units;
        assert!((least - held..=most).contains(&(calls.len() as u64)), "{what}");
        // The processes have returned their unspent units.
        calls.extend(play(&server.url, algorithm, leases).0);
    }
    judge(&limit(algorithm, leases), &calls);
    assert!((least..=most).contains(&(calls.len() as u64)), "{what}");
    server.assert_all_keys_expire();
    redis::cmd("FLUSHALL").exec(&mut server.connection()).expect("FLUSHALL");
}

/// Four processes settle their calls at the same time. A process of the mode `killed` dies before it has settled all.
fn settle(server: &Server, algorithm: Algorithm, modes: [&str; PROCESSES]) {
    let ([mut settled, mut killed], mut all) = ([0, 0], Vec::new());
    for ((calls, _), mode) in run(server, algorithm, modes).into_iter().zip(modes) {
        *(if mode == "settled" { &mut settled } else { &mut killed }) += calls.len() as u64;
        all.extend(calls);
    }
    let limit = limit(algorithm, "settled");
    judge(&limit, &all);
    let limiter = server.builder().build().expect("valid");
    let peek = Runtime::new().expect("a runtime").block_on(limiter.peek(&limit, "one key", 1));
    let charged = THRESHOLD - peek.expect("a reply").remaining;
    // A call has used one unit. A call that was not settled is charged its estimate. A bucket gets back a little less
    // of calls that overlap.
    let kept = if is_bucket(algorithm) { (ESTIMATE - 1) * settled / 5 } else { 0 };
    let range = settled + killed..=settled + ESTIMATE * killed + kept;
    assert!(range.contains(&charged), "{algorithm}: {charged} of {range:?}");
    assert!(settled + killed > THRESHOLD / ESTIMATE, "{algorithm}: {settled} and {killed} calls");
    server.assert_all_keys_expire();
    redis::cmd("FLUSHALL").exec(&mut server.connection()).expect("FLUSHALL");
}

fn limit(algorithm: Algorithm, mode: &str) -> Limit {
    // So long that nothing refills or expires during the test. The sliding counter stays in one window, from 2010
    // to 2050.
    let period = Duration::from_secs(40 * 365 * 86_400);
    let limit = support::limits::limit("fleet", algorithm, THRESHOLD, period);
    match mode {
        "leased" => limit.lease(LEASE),
        "auto" => limit.auto_lease(),
        _ => limit,
    }
}

/// Calls from many tasks, and returns the leases. With permits, settles each call that is admitted; a process that is
/// `killed` forgets some of its permits, and does not wait for the others. Returns the calls that were admitted, and
/// how many of them spent leased units.
fn play(url: &str, algorithm: Algorithm, mode: &str) -> (Vec<AdmittedCall>, u64) {
    let limit = limit(algorithm, mode);
    let limiter = RateLimiter::builder().redis(url).deadline(Duration::from_secs(30));
    let limiter = limiter.build().expect("valid");
    let (settles, dies) = (["settled", "killed"].contains(&mode), mode == "killed");
    let count = if settles { 16 } else { 64 };
    Runtime::new().expect("a runtime").block_on(async {
        let mut tasks = JoinSet::new();
        for task in 0..count {
            let limiter = limiter.clone();
            tasks.spawn(async move {
                let (mut admitted, mut leased) = (Vec::new(), 0);
                for call in 0..CALLS {
                    let from = machine_time();
                    let result = if settles {
                        limiter.acquire(&limit, "one key", ESTIMATE).await.map(|permit| {
                            let charged = AdmittedCall::since(from, &limit, ESTIMATE);
                            if dies && (task + call) % 3 == 0 {
                                std::mem::forget(permit);
                                return charged;
                            }
                            permit.settle(1);
                            AdmittedCall { used: 1, ..charged }
                        })
                    } else {
                        let decision = limiter.check(&limit, "one key", 1).await;
                        decision.map(|Decision { source, .. }| {
                            leased += u64::from(source == Source::Lease);
                            AdmittedCall::since(from, &limit, 1)
                        })
                    };
                    match result {
                        Ok(call) => admitted.push(call),
                        Err(Rejection::Limited { .. }) => {}
                        Err(other) => panic!("{other:?}"),
                    }
                }
                (admitted, leased)
            });
        }
        let (mut all, mut all_leased) = (Vec::new(), 0);
        for (admitted, leased) in tasks.join_all().await {
            all.extend(admitted);
            all_leased += leased;
        }
        if !dies {
            limiter.shutdown().await.expect("the leases are returned, and all is settled");
        }
        (all, all_leased)
    })
}
