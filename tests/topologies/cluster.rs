//! Redis Cluster: the nodes, how a limiter finds them, and which calls share a script.

use std::time::Duration;

use ratelimit_runtime::Limit;
use redis::Commands;
use support::ALGORITHMS;
use support::cluster::Cluster;
use support::limits::HOUR;
use support::server::stat;
use tokio::task::JoinSet;

use crate::{denying_builder, first_decision, is_admitted, start_cluster};

/// Returns how many scripts all nodes have received by their hash (`EVALSHA`). Probes send a text.
pub(crate) fn script_calls(cluster: &Cluster) -> u64 {
    let of = |node| stat(&mut cluster.connection(node), "cmdstat_evalsha:calls=");
    (0..cluster.len()).map(of).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_different_hash_slots_share_scripts() {
    let (cluster, limiter) = start_cluster();
    let known = redis::cmd("COMMAND").arg("INFO").arg("eval_ro").query(&mut cluster.connection(0));
    // Servers before Redis 7 execute no script without keys: only equal calls share a script.
    let has_flags = known != Ok(redis::Value::Array(vec![redis::Value::Nil]));
    for algorithm in ALGORITHMS {
        let limit = Limit::new("shared", algorithm, 1, HOUR).expect("valid");
        first_decision(&limiter, &limit, "first").await;
        let before = script_calls(&cluster);
        let mut calls = JoinSet::new();
        for call in 0..2_000 {
            let check = limiter.check(&limit, call / 2, 1);
            calls.spawn(async move { (call / 2, is_admitted(check.await)) });
        }
        let mut admitted = vec![0; 1_000];
        for (key, is_admitted) in calls.join_all().await {
            admitted[key] += u64::from(is_admitted);
        }
        assert!(admitted.iter().all(|admitted| *admitted == 1), "{algorithm}");
        let scripts = script_calls(&cluster) - before;
        let most = if has_flags { 400 } else { 2_000 };
        assert!((16..most).contains(&scripts), "{algorithm}: {scripts} scripts for 2,000 calls");
    }
}

#[tokio::test]
async fn a_ping_fails_if_any_node_is_down() {
    let mut cluster = Cluster::start(0);
    let limiter =
        denying_builder(&cluster.url()).deadline(Duration::from_secs(1)).build().expect("valid");
    while limiter.ping().await.is_err() {}
    cluster.kill(2);
    assert!(limiter.ping().await.is_err());
}

/// Valkey 9 has databases on a cluster. Other servers refuse them.
#[tokio::test]
async fn the_url_selects_a_database_of_a_cluster() {
    let cluster = Cluster::start_on_addresses();
    let limit = Limit::sliding("numbered", 10, HOUR);
    let limiter = denying_builder(&format!("{}/1", cluster.url())).build().expect("valid");
    let checked = limiter.check(&limit, "key", 1).await;
    let name = "rl:sliding:1h:numbered{key}";
    let mut connection = cluster.connection(cluster.owner(cluster.slot(name)));
    if redis::cmd("SELECT").arg(1).exec(&mut connection).is_ok() {
        assert_eq!(checked.expect("admitted").remaining, 9);
        let keys: Vec<String> = connection.keys("*").expect("KEYS");
        assert_eq!(keys, [name]);
        assert!((0..3).all(|node| cluster.keys(node).is_empty()));
        return;
    }
    let rejection = checked.expect_err("no such database");
    assert!(format!("{rejection:?}").contains("path of the Redis URL"), "{rejection:?}");
}

#[tokio::test]
async fn the_error_of_a_cluster_that_refuses_the_login_says_so() {
    let cluster = Cluster::start(0);
    let url = cluster.url().replace("://", "://:wrong@");
    let limiter = denying_builder(&url).build().expect("valid");
    let limit = Limit::sliding("refused", 10, HOUR);
    let rejection = limiter.check(&limit, "key", 1).await.expect_err("no login");
    assert!(format!("{rejection:?}").contains("password of the Redis URL"), "{rejection:?}");
}

/// The nodes differ by their address alone, which only the metadata of `CLUSTER SLOTS` has.
#[tokio::test]
async fn nodes_that_announce_no_host_are_found() {
    let cluster = Cluster::start_on_addresses();
    if !cluster.hide_hosts() {
        return;
    }
    let limiter = denying_builder(&cluster.url()).build().expect("valid");
    let limit = Limit::sliding("unnamed", 10, HOUR);
    for key in 0..20 {
        assert_eq!(limiter.check(&limit, key, 1).await.expect("admitted").remaining, 9);
    }
    assert!((0..3).all(|node| !cluster.keys(node).is_empty()));
}

/// A redirect to `?` tells neither the node that a slot has moved to, nor the node that it is moving to.
#[tokio::test]
async fn a_redirect_to_no_host_leads_to_the_node_of_the_slot() {
    let cluster = Cluster::start_on_addresses();
    if !cluster.hide_hosts() {
        return;
    }
    let limiter = denying_builder(&cluster.url()).build().expect("valid");
    let limit = Limit::sliding("unnamed", 10, HOUR);
    let remaining = async || limiter.check(&limit, "one", 1).await.expect("admitted").remaining;
    assert_eq!(remaining().await, 9);
    let name = "rl:sliding:1h:unnamed{one}";
    let slot = cluster.slot(name);
    cluster.begin_move(slot, name);
    // The key has moved already, and no node tells where to.
    let check = tokio::spawn(limiter.check(&limit, "one", 1));
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!check.is_finished());
    cluster.move_slot(slot, Duration::ZERO);
    assert_eq!(check.await.expect("no panic").expect("admitted").remaining, 8);
    assert_eq!(remaining().await, 7);
    // This process has read the slots before, so its next call is redirected.
    cluster.move_slot(slot, Duration::ZERO);
    assert_eq!(remaining().await, 6);
}
