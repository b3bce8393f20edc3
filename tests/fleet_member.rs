//! A process of `tests/fleet.rs`. The test also builds it from the last release, so its arguments and its output stay
//! as they are: `fleet_member URL ALGORITHM MODE`, or `fleet_member URL in_flight held`.

use std::time::Duration;

use ratelimit_runtime::{Decision, Limit, RateLimiter, Rejection, Source};
use support::ALGORITHMS;
use support::fleet::{ESTIMATE, SLOTS, limit};
use support::history::{AdmittedCall, machine_time};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::sleep;

const CALLS: usize = 10;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, algorithm, mode] = &arguments[..] else { panic!("{arguments:?}") };
    let limiter = RateLimiter::builder().redis(&**url).deadline(Duration::from_secs(30));
    let limiter = limiter.build().expect("valid");
    Runtime::new().expect("a runtime").block_on(async {
        match ALGORITHMS.into_iter().find(|known| known.as_str() == algorithm) {
            Some(algorithm) => play(&limiter, limit(algorithm, mode), mode).await,
            None => hold(&limiter).await,
        }
        if mode == "killed" {
            std::process::abort();
        }
        limiter.shutdown().await.expect("the leases are returned, and all is settled");
    });
}

/// Calls from many tasks. With permits, settles each call that is admitted; a process that is `killed` forgets some of
/// its permits. Prints how many of the calls spent leased units, and the calls that were admitted.
async fn play(limiter: &RateLimiter, limit: Limit, mode: &str) {
    let (settles, dies) = (["settled", "killed"].contains(&mode), mode == "killed");
    let mut tasks = JoinSet::new();
    for task in 0..if settles { 16 } else { 64 } {
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
    let (calls, leased): (Vec<_>, Vec<u64>) = tasks.join_all().await.into_iter().unzip();
    println!("{}", leased.iter().sum::<u64>());
    for call in calls.concat() {
        println!("{call}");
    }
}

/// Calls from many tasks that hold a slot each. Prints when a call asked, and from when until when it certainly held
/// its slot.
async fn hold(limiter: &RateLimiter) {
    let slots = Limit::in_flight("fleet", SLOTS).wait(Duration::from_secs(30));
    let mut tasks = JoinSet::new();
    for _ in 0..16 {
        let limiter = limiter.clone();
        tasks.spawn(async move {
            for _ in 0..CALLS {
                let asked = machine_time();
                let permit = limiter.acquire(&slots, "one key", 1).await.expect("admitted");
                let from = machine_time();
                // The work of the call.
                sleep(Duration::from_millis(2)).await;
                let until = machine_time();
                assert!(!permit.is_lost(), "its hold is longer");
                drop(permit);
                println!("held {asked} {from} {until}");
            }
        });
    }
    tasks.join_all().await;
}
