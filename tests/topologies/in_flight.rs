//! Calls in flight in a cluster, while a hash slot moves, and through a failover.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

use ratelimit_runtime::{Limit, Part, Permit, RateLimiter, Rejection};
use support::cluster::Cluster;
use support::limits::{HOUR, SECOND};
use support::sentinel::Sentinels;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::denying_builder;

const MOST: u64 = 3;
const KEYS: usize = 12;
const HOLD: Duration = Duration::from_secs(2);
const SLOTS: Limit = Limit::in_flight("slots", MOST).hold(HOLD);
const RATE: Limit = Limit::token_bucket("rate", 1_000_000, HOUR);

async fn in_flight(limiter: &RateLimiter, key: usize) -> u64 {
    let started = Instant::now();
    loop {
        match limiter.peek(&SLOTS, key, 0).await {
            Ok(peeked) => return MOST - peeked.remaining,
            Err(error) => assert!(started.elapsed() < 30 * SECOND, "{error:?}"),
        }
        sleep(Duration::from_millis(20)).await;
    }
}

async fn wait_until_free(limiter: &RateLimiter, key: usize) {
    let started = Instant::now();
    while in_flight(limiter, key).await > 0 {
        assert!(started.elapsed() < 10 * SECOND, "key {key}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// The slots of a key and a rate beside them are one decision. A slot moves from node to node meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_more_calls_run_while_a_hash_slot_moves() {
    let cluster = Cluster::start(0);
    let fleet: Vec<_> =
        (0..3).map(|_| denying_builder(&cluster.url()).build().expect("valid")).collect();
    let running: Arc<[AtomicU32; KEYS]> = Arc::default();
    let (stop, admitted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let mut tasks = JoinSet::new();
    for task in 0..3 * 16 {
        let limiter = fleet[task % 3].clone();
        let (running, stop, admitted) =
            (Arc::clone(&running), Arc::clone(&stop), Arc::clone(&admitted));
        tasks.spawn(async move {
            let mut call = task;
            while !stop.load(SeqCst) {
                call += 1;
                // Most calls are of the key whose hash slot moves.
                let key = if call % 2 == 0 { 0 } else { call % KEYS };
                let parts = [Part::new(&RATE, &key, 1), Part::new(&SLOTS, &key, 1)];
                match limiter.acquire_all(&parts).await {
                    Ok(permits) => {
                        assert!(running[key].fetch_add(1, SeqCst) < MOST as u32, "key {key}");
                        admitted.fetch_add(1, SeqCst);
                        sleep(Duration::from_millis(5)).await;
                        running[key].fetch_sub(1, SeqCst);
                        drop(permits);
                    }
                    Err(Rejection::Busy { .. } | Rejection::Unavailable { .. }) => {
                        sleep(Duration::from_millis(2)).await;
                    }
                    Err(other) => panic!("{other:?}"),
                }
            }
        });
    }
    let slot = cluster.slot("{0}");
    let moves = tokio::task::spawn_blocking(move || {
        for _ in 0..6 {
            cluster.move_slot(slot, Duration::from_millis(60));
        }
        cluster
    });
    let cluster = moves.await.expect("no panic");
    sleep(Duration::from_millis(500)).await;
    stop.store(true, SeqCst);
    tasks.join_all().await;
    assert!(admitted.load(SeqCst) > 500, "{admitted:?}");
    for key in 0..KEYS {
        wait_until_free(&fleet[0], key).await;
    }
    drop(cluster);
}

/// Heartbeats go to each node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_on_all_nodes_are_kept_beyond_the_hold() {
    let cluster = Cluster::start(0);
    let one = denying_builder(&cluster.url()).build().expect("valid");
    let other = denying_builder(&cluster.url()).build().expect("valid");
    let mut permits: Vec<Permit> = Vec::new();
    for key in 0..KEYS {
        permits.push(one.acquire(&SLOTS, key, 2).await.expect("admitted"));
    }
    sleep(2 * HOLD).await;
    assert!(permits.iter().all(|permit| !permit.is_lost()));
    for key in 0..KEYS {
        assert_eq!(in_flight(&other, key).await, 2, "key {key}");
    }
    drop(permits);
    for key in 0..KEYS {
        wait_until_free(&other, key).await;
    }
}

/// The new primary counts the slots, and hears of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_survive_a_failover() {
    let mut sentinels = Sentinels::start();
    let long = SLOTS.hold(30 * SECOND);
    let one = denying_builder(&sentinels.url("master0")).build().expect("valid");
    let other = denying_builder(&sentinels.url("master0")).build().expect("valid");
    let mut permits = Vec::new();
    for limiter in [&one, &one, &other] {
        let started = Instant::now();
        permits.push(loop {
            match limiter.acquire(&long, 0_usize, 1).await {
                Ok(permit) => break permit,
                Err(error) => assert!(started.elapsed() < 30 * SECOND, "{error:?}"),
            }
            sleep(Duration::from_millis(20)).await;
        });
    }
    sentinels.wait_for_replication();
    let before = sentinels.primary();
    sentinels.kill_primary();
    let started = Instant::now();
    loop {
        // Never admitted: each process states what it holds with its call.
        match one.acquire(&long, 0_usize, 1).await {
            Err(Rejection::Busy { .. }) => break,
            Err(error) => assert!(started.elapsed() < 30 * SECOND, "{error:?}"),
            Ok(permit) => panic!("{permit:?}"),
        }
        sleep(Duration::from_millis(20)).await;
    }
    assert_ne!(sentinels.primary(), before);
    assert!(permits.iter().all(|permit| !permit.is_lost()));
    drop(permits);
    wait_until_free(&one, 0).await;
}
