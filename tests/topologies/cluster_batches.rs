//! Many calls at a time on a cluster: one script decides those of a node, whatever their hash slots.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ratelimit_runtime::{Limit, Rejection};
use support::ALGORITHMS;
use support::cluster::Cluster;
use support::limits::HOUR;
use tokio::task::JoinSet;

use crate::cluster::script_calls;
use crate::{admits, denying_builder, first_decision};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_different_hash_slots_share_scripts() {
    let cluster = Cluster::start(0);
    let known = redis::cmd("COMMAND").arg("INFO").arg("eval_ro").query(&mut cluster.connection(0));
    // Servers before Redis 7 execute no script without keys: each batch is of one hash slot.
    let has_flags = known != Ok(redis::Value::Array(vec![redis::Value::Nil]));
    let limiter = denying_builder(&cluster.url()).build().expect("valid");
    for algorithm in ALGORITHMS {
        let limit = Limit::new("shared", algorithm, 1, HOUR).expect("valid");
        first_decision(&limiter, &limit, "first").await;
        let before = script_calls(&cluster);
        let mut calls = JoinSet::new();
        for call in 0..2_000 {
            let check = limiter.check(&limit, call / 2, 1);
            calls.spawn(async move { (call / 2, check.await) });
        }
        let mut admitted = vec![0; 1_000];
        while let Some(call) = calls.join_next().await {
            let (key, result) = call.expect("no panic");
            match result {
                Ok(_) => admitted[key] += 1,
                Err(Rejection::Limited { .. }) => {}
                Err(other) => panic!("{other:?}"),
            }
        }
        assert!(admitted.iter().all(|admitted| *admitted == 1), "{algorithm}");
        let scripts = script_calls(&cluster) - before;
        let most = if has_flags { 400 } else { 2_000 };
        assert!((16..most).contains(&scripts), "{algorithm}: {scripts} scripts for 2,000 calls");
    }
}

/// Hash slots move from node to node while scripts over many slots decide their keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_are_exact_while_slots_move_under_load() {
    let cluster = Cluster::start(0);
    let limiter = denying_builder(&cluster.url()).build().expect("valid");
    let limit = Limit::sliding("moved", 40, HOUR);
    let slots: Vec<_> =
        (0..6).map(|key| cluster.slot(&format!("rl:sliding:1h:moved{{{key}}}"))).collect();
    first_decision(&limiter, &limit, "first").await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for task in 0..48 {
        let (limiter, stop) = (limiter.clone(), Arc::clone(&stop));
        tasks.spawn(async move {
            let mut admitted = 0_u64;
            for call in 0_u64.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                // Half of the calls are of keys that move.
                let key = if call % 2 == 0 { (task + call) % 6 } else { (task + call) % 30 };
                admitted += u64::from(admits(&limiter, &limit, &key.to_string()).await);
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
            admitted
        });
    }
    let moves = tokio::task::spawn_blocking(move || {
        for (index, slot) in slots.into_iter().enumerate() {
            // The servers of today can move a slot with all its keys in one step.
            if index % 2 == 0 || !cluster.move_slot_at_once(slot) {
                cluster.move_slot(slot, Duration::from_millis(40));
            }
        }
        cluster
    });
    let cluster = moves.await.expect("no panic");
    tokio::time::sleep(Duration::from_millis(500)).await;
    stop.store(true, Ordering::Relaxed);
    let admitted: u64 = tasks.join_all().await.into_iter().sum();
    assert_eq!(admitted, 30 * 40);
    drop(cluster);
}
