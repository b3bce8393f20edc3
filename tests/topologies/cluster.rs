//! Redis Cluster: keys spread over the nodes and survive the loss of a node, and each count stays exact.

use std::time::Duration;

use ratelimit_runtime::{Limit, Part, Rejection, Rule, Rules};
use redis::Commands;
use support::ALGORITHMS;
use support::cluster::Cluster;
use support::limits::HOUR;
use support::server::is_replicated;
use tokio::task::JoinSet;

use crate::{admits, denying_builder, first_decision};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_spread_over_the_nodes_and_counts_are_exact() {
    let cluster = Cluster::start(0);
    let fleet: Vec<_> =
        (0..3).map(|_| denying_builder(&cluster.url()).build().expect("valid")).collect();
    let mut tasks = JoinSet::new();
    for algorithm in ALGORITHMS {
        let mut limit = Limit::new("spread", algorithm, 20, HOUR).expect("valid");
        if limit.capacity() == 1 {
            limit = limit.burst(20);
        }
        for key in 0..12 {
            for limiter in fleet.clone() {
                tasks.spawn(async move {
                    let mut admitted = 0;
                    for _ in 0..20 {
                        admitted += u64::from(admits(&limiter, &limit, &key.to_string()).await);
                    }
                    admitted
                });
            }
        }
    }
    let admitted: u64 = tasks.join_all().await.into_iter().sum();
    // Buckets refill during the test, at 20 tokens an hour by less than one token.
    assert_eq!(admitted, 20 * 12 * ALGORITHMS.len() as u64);
    for node in 0..3 {
        let keys = cluster.keys(node);
        assert!(keys.len() > 5, "{keys:?}");
        let mut connection = cluster.connection(node);
        for key in keys {
            let ttl: i64 = connection.pttl(&key).expect("PTTL");
            assert!(ttl > 0, "{key} has no TTL");
        }
    }
}

/// The keys of such limits have no hash tag, which would put all of them on one node.
#[tokio::test]
async fn limits_without_a_key_spread_over_the_nodes() {
    let cluster = Cluster::start(0);
    let limiter = denying_builder(&cluster.url()).build().expect("valid");
    let names: Vec<String> = (0..20).map(|index| format!("limit {index}")).collect();
    for name in &names {
        let name: &'static str = Box::leak(name.clone().into_boxed_str());
        limiter.check(&Limit::fixed(name, 1, HOUR), (), 1).await.expect("admitted");
    }
    let used = (0..3).filter(|node| !cluster.keys(*node).is_empty()).count();
    assert_eq!(used, 3);
}

/// Blocks keys in different hash slots. The other process obeys, and a decision of several slots is rolled back.
#[tokio::test]
async fn blocked_keys_are_blocked_for_all_processes() {
    let cluster = Cluster::start(0);
    let [here, there] = [(); 2].map(|()| denying_builder(&cluster.url()).build().expect("valid"));
    let (one, other) =
        (Limit::sliding("cluster.one", 100, HOUR), Limit::token_bucket("cluster.other", 100, HOUR));
    for key in 0..20 {
        for limit in [&one, &other] {
            here.check(limit, key, 1).await.expect("admitted");
            here.block(limit, key, HOUR).await.expect("blocked");
            let rejection = there.check(limit, key, 1).await.expect_err("blocked");
            assert!(matches!(rejection, Rejection::Blocked { .. }), "{rejection:?}");
        }
        let parts = [Part::new(&one, &"open", 1), Part::new(&other, &key, 1)];
        let rejection = there.check_all(&parts).await.expect_err("blocked");
        assert!(matches!(rejection, Rejection::Blocked { .. }), "{rejection:?}");
        assert!(there.unblock(&other, key).await.expect("unblocked"));
        here.check(&other, key, 1).await.expect("open");
    }
    let left = here.peek(&one, "open", 1).await.expect("a decision").remaining;
    assert_eq!(left, 100, "what was charged in another hash slot is rolled back");
}

/// Concurrent calls with different amounts on one count: batches keep them apart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_are_decided_by_their_own_amounts() {
    let cluster = Cluster::start(0);
    let limiter = denying_builder(&cluster.url()).build().expect("valid settings");
    let limit = Limit::sliding("amounts", 1, HOUR);
    let limits = [30, 60, 90].map(|threshold| limit.try_amounts(threshold, None).expect("valid"));
    for key in 0..10 {
        let mut calls = JoinSet::new();
        for call in 0..300 {
            let check = limiter.check(&limits[call % 3], key, 1);
            calls.spawn(async move { (call % 3, check.await.is_ok()) });
        }
        let mut admitted = [0; 3];
        for (index, is_admitted) in calls.join_all().await {
            admitted[index] += u64::from(is_admitted);
        }
        assert_eq!(admitted.iter().sum::<u64>(), 90, "{admitted:?}");
        assert!(admitted[0] <= 30 && admitted[0] + admitted[1] <= 60, "{admitted:?}");
    }
}

/// Rules, announcements and the keys of a limit, which are on all nodes.
#[tokio::test]
async fn rules_are_shared_in_a_cluster() {
    let cluster = Cluster::start(0);
    let builder = denying_builder(&cluster.url()).rules(Rules::redis());
    let limiter = builder.build().expect("valid");
    let mut shared = limiter.operator().shared_rules().await.expect("read");
    shared.rules.set_key("ruled", "7", Rule::new().threshold(50)).expect("valid");
    limiter.operator().share_rules(shared, "alice").await.expect("written");
    while limiter.rules().is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let limit = Limit::sliding("ruled", 10, HOUR);
    let mut expected: Vec<String> = (0..40).map(|key: u64| key.to_string()).collect();
    for key in &expected {
        let decision = limiter.check(&limit, key, 1).await.expect("admitted");
        assert_eq!(decision.limit, if key == "7" { 50 } else { 10 });
    }
    assert_eq!(limiter.operator().rule_changes(10).await.expect("read").len(), 1);
    limiter.operator().fleet().await.expect("read");
    let (mut found, mut next) = (Vec::new(), None);
    loop {
        let page = limiter.operator().keys(&limit, next).await.expect("read");
        found.extend(page.keys.iter().map(ToString::to_string));
        let Some(cursor) = page.next else { break };
        next = Some(cursor);
    }
    found.sort();
    found.dedup();
    expected.sort();
    assert_eq!(found, expected);
}

/// Returns how many scripts all nodes have received by their hash (`EVALSHA`). Probes send a text.
pub(crate) fn script_calls(cluster: &Cluster) -> u64 {
    let of = |node: usize| {
        let mut info = redis::cmd("INFO");
        let stats: String =
            info.arg("commandstats").query(&mut cluster.connection(node)).expect("INFO");
        let lines = stats.lines().filter(|line| line.starts_with("cmdstat_evalsha:"));
        let counts = lines.filter_map(|line| line.split_once("calls=")?.1.split(',').next());
        counts.map(|count| count.parse::<u64>().expect("a count")).sum::<u64>()
    };
    (0..cluster.len()).map(of).sum()
}

/// When a node is killed, its replica becomes the primary.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_survive_the_loss_of_a_node() {
    let mut cluster = Cluster::start(1);
    let limiter = denying_builder(&cluster.url()).build().expect("valid");
    let limit = Limit::sliding("lost", 3, HOUR);
    let keys: Vec<String> = (0..30).map(|index| format!("key {index}")).collect();
    for key in &keys {
        first_decision(&limiter, &limit, key).await;
        while admits(&limiter, &limit, key).await {}
    }
    let primaries: Vec<_> = (0..6).filter(|node| cluster.is_primary(*node)).collect();
    for node in &primaries {
        while !is_replicated(&mut cluster.connection(*node)) {}
    }
    // This node is in the URL of the limiter.
    cluster.kill(primaries[0]);
    let mut slowest = Duration::ZERO;
    for key in &keys {
        let (decision, took) = first_decision(&limiter, &limit, key).await;
        assert!(!decision.allowed, "the count of {key} was lost");
        slowest = slowest.max(took);
    }
    println!("a killed node was replaced after {slowest:?}");
    assert!(slowest > Duration::from_millis(500), "no key was on the lost node");
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
    assert_eq!(limiter.check(&limit, "one", 1).await.expect("admitted").remaining, 9);
    let name = "rl:sliding:1h:unnamed{one}";
    let slot = cluster.slot(name);
    cluster.begin_move(slot, name);
    // The key has moved already, and no node tells where to.
    let check = tokio::spawn(limiter.check(&limit, "one", 1));
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!check.is_finished());
    cluster.move_slot(slot, Duration::ZERO);
    assert_eq!(check.await.expect("no panic").expect("admitted").remaining, 8);
    assert_eq!(limiter.check(&limit, "one", 1).await.expect("admitted").remaining, 7);
    // This process has read the slots before, so its next call is redirected.
    cluster.move_slot(slot, Duration::ZERO);
    assert_eq!(limiter.check(&limit, "one", 1).await.expect("admitted").remaining, 6);
}
