//! Redis Cluster: the nodes, how a limiter finds them, which calls share a script, and limits in several hash slots.

use std::time::Duration;

use ratelimit_runtime::{Algorithm, Clock, Limit, Part, Rejection, VirtualClock};
use redis::Commands;
use support::ALGORITHMS;
use support::cluster::Cluster;
use support::limits::{HOUR, MINUTE};
use support::server::stat;
use tokio::task::JoinSet;

use crate::{
    denying, denying_builder, error_of, first_decision, is_admitted, remaining, start_cluster, take,
};

/// Returns how many scripts all nodes have received by their hash (`EVALSHA`). Probes send a text.
fn script_calls(cluster: &Cluster) -> u64 {
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
async fn the_url_selects_a_database_of_a_cluster_and_a_login_that_is_refused_is_named() {
    let cluster = Cluster::start_on_addresses();
    let limit = Limit::sliding("numbered", 10, HOUR);
    let error = error_of(&denying(&cluster.url().replace("://", "://:wrong@")), &limit).await;
    assert!(format!("{error:?}").contains("password of the Redis URL"), "{error:?}");
    let limiter = denying(&format!("{}/1", cluster.url()));
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

/// Nodes without a host differ by their address alone, which only the metadata of `CLUSTER SLOTS` has.
#[tokio::test]
async fn nodes_that_announce_no_host_or_only_names_are_found_and_redirect_to_them() {
    for (cluster, host) in [(Cluster::start_on_addresses(), ""), (Cluster::start(0), "localhost")] {
        if !cluster.announce(host) {
            continue;
        }
        let limiter = denying(&cluster.url());
        let limit = Limit::sliding("named", 10, HOUR);
        for key in 0..20 {
            assert_eq!(take(&limiter, &limit, key).await, 9);
        }
        assert!((0..3).all(|node| !cluster.keys(node).is_empty()));
        cluster.move_slot(cluster.slot("rl:sliding:1h:named{7}"), Duration::ZERO);
        assert_eq!(take(&limiter, &limit, 7).await, 8, "{host}");
    }
}

/// A redirect to `?` tells neither the node that a slot has moved to, nor the node that it is moving to.
#[tokio::test]
async fn a_redirect_to_no_host_leads_to_the_node_of_the_slot() {
    let cluster = Cluster::start_on_addresses();
    if !cluster.announce("") {
        return;
    }
    let limiter = denying(&cluster.url());
    let limit = Limit::sliding("unnamed", 10, HOUR);
    assert_eq!(take(&limiter, &limit, "one").await, 9);
    let name = "rl:sliding:1h:unnamed{one}";
    let slot = cluster.slot(name);
    cluster.begin_move(slot, name);
    // The key has moved already, and no node tells where to.
    let check = tokio::spawn(limiter.check(&limit, "one", 1));
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!check.is_finished());
    cluster.move_slot(slot, Duration::ZERO);
    assert_eq!(check.await.expect("no panic").expect("admitted").remaining, 8);
    assert_eq!(take(&limiter, &limit, "one").await, 7);
    // This process has read the slots before, so its next call is redirected.
    cluster.move_slot(slot, Duration::ZERO);
    assert_eq!(take(&limiter, &limit, "one").await, 6);
}

// Calls of several limits whose keys are in different hash slots of a cluster: charged all or none.

#[tokio::test]
async fn several_limits_are_charged_all_or_none() {
    let (cluster, limiter) = start_cluster();
    let first = Limit::sliding("several.first", 10, HOUR);
    let second = Limit::token_bucket("several.second", 4, HOUR);
    // Limits of one key share a hash slot, so each call is one script.
    let before = script_calls(&cluster);
    let parts = [Part::new(&first, &"ann", 1), Part::new(&second, &"ann", 1)];
    for _ in 0..4 {
        limiter.check_all(&parts).await.expect("admitted");
    }
    let rejected = limiter.check_all(&parts).await;
    assert_eq!(rejected.expect_err("rejected").name(), "several.second");
    assert_eq!(script_calls(&cluster) - before, 5);
    assert_eq!(remaining(&limiter, &first, "ann").await, 6);
    // Another process blocks a key in another hash slot.
    let other = denying(&cluster.url());
    assert_ne!(cluster.slot("a"), cluster.slot("b"));
    other.block(&second, "b", HOUR).await.expect("blocked");
    let parts = [Part::new(&first, &"a", 1), Part::new(&second, &"b", 1)];
    let rejection = limiter.check_all(&parts).await.expect_err("blocked");
    assert!(matches!(rejection, Rejection::Blocked { .. }), "{rejection:?}");
    assert_eq!(remaining(&limiter, &first, "a").await, 10);
    assert!(other.unblock(&second, "b").await.expect("unblocked"));
    limiter.check_all(&parts).await.expect("admitted");
}

#[tokio::test]
async fn a_call_rejected_by_its_line_charges_no_hash_slot() {
    let (_cluster, limiter) = start_cluster();
    let [first, second] =
        ["line.first", "line.second"].map(|name| Limit::sliding(name, 5, HOUR).wait(MINUTE));
    let (a, b) = ("a", "b");
    let filled = [Part::new(&first, &a, 2), Part::new(&second, &b, 2)];
    limiter.check_all(&filled).await.expect("admitted");
    // Waits in line: 5 units are too many for the window, which is longer than the wait of a call behind it.
    let patient = [first.wait(2 * HOUR), second.wait(2 * HOUR)];
    let ahead = [Part::new(&patient[0], &a, 5), Part::new(&patient[1], &b, 5)];
    let ahead = tokio::spawn(limiter.check_all(&ahead));
    tokio::time::sleep(Duration::from_millis(200)).await;
    for _ in 0..3 {
        let behind = [Part::new(&first, &a, 1), Part::new(&second, &b, 1)];
        let rejection = limiter.check_all(&behind).await.expect_err("no time");
        assert!(rejection.retry_after() > Some(MINUTE), "{rejection:?}");
    }
    assert_eq!(remaining(&limiter, &first, a).await, 3);
    assert_eq!(remaining(&limiter, &second, b).await, 3);
    ahead.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cache_does_not_reject_for_units_that_were_rolled_back() {
    let cluster = Cluster::start(0);
    let limiter = denying_builder(&cluster.url()).cache_rejections(true).build().expect("valid");
    let (first, second) = (Limit::sliding("first", 40, HOUR), Limit::sliding("second", 1, HOUR));
    let mut rolled_back = 0;
    for round in 0..100_u64 {
        // Four calls together cost the whole capacity of `a`, but `b` admits only one of them. Meanwhile, other
        // calls charge `a`.
        let (a, b) = (("a", round), ("b", round));
        let mut tasks = JoinSet::new();
        for call in 0..8 {
            let limiter = limiter.clone();
            tasks.spawn(async move {
                if call < 4 {
                    let parts = [Part::new(&first, &a, 10), Part::new(&second, &b, 1)];
                    return u64::from(limiter.check_all(&parts).await.is_err());
                }
                let mut calls = 0..20;
                while calls.next().is_some() && limiter.check(&first, a, 1).await.is_ok() {
                    tokio::task::yield_now().await;
                }
                0
            });
        }
        rolled_back += tasks.join_all().await.into_iter().sum::<u64>();
        let left = remaining(&limiter, &first, a).await;
        let next = limiter.check(&first, a, 1).await;
        assert!(left == 0 || next.is_ok(), "{left} units are left: {next:?}");
    }
    assert!(rolled_back > 100, "{rolled_back}");
}

/// A user, its team and their organisation are in three hash slots. No level admits more than its limit, and what a
/// rejected call has charged is given back, also if the clocks of its processes lag.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nested_limits_hold_and_rejected_calls_charge_nothing() {
    let cluster = Cluster::start(0);
    // 5 ms before the beginning of a window, and at it.
    let [late, other, early] = [5, 5, 0].map(|behind| {
        let time = Duration::from_millis(3_600_000 * 500_000 - behind);
        let builder = denying_builder(&cluster.url());
        builder.clock(Clock::Virtual(VirtualClock::at(time))).build().expect("valid settings")
    });
    for algorithm in [Algorithm::Sliding, Algorithm::Fixed, Algorithm::SlidingCounter] {
        let [user, team] = ["nested.user", "nested.team"]
            .map(|name| Limit::new(name, algorithm, 1_000, HOUR).expect("valid"));
        let organisation = Limit::fixed("nested.organisation", 1, HOUR);
        let mut rolled_back = 0;
        for round in 0..60_u64 {
            let (of_user, of_team) = (("user", round), ("team", round));
            let acme = ("acme", algorithm.to_string(), round);
            early.check(&user, of_user, 1).await.expect("admitted");
            early.check(&team, of_team, 1).await.expect("admitted");
            let parts = [
                Part::new(&user, &of_user, 10),
                Part::new(&team, &of_team, 20),
                Part::new(&organisation, &acme, 1),
            ];
            let calls = [&late, &other, &late, &other].map(|process| process.check_all(&parts));
            let results = JoinSet::from_iter(calls).join_all().await;
            let mut admitted: u64 = results.into_iter().map(is_admitted).map(u64::from).sum();
            rolled_back += 4 - admitted;
            // A sequential call takes what concurrent calls were rejected for.
            admitted += u64::from(is_admitted(late.check_all(&parts).await));
            assert_eq!(admitted, 1, "{algorithm}, round {round}");
            let of_user = remaining(&early, &user, of_user).await;
            let of_team = remaining(&early, &team, of_team).await;
            let left = [1_000 - 1 - 10, 1_000 - 1 - 20];
            assert_eq!([of_user, of_team], left, "{algorithm}, round {round}");
        }
        assert!(rolled_back > 60, "{rolled_back}");
    }
}

#[tokio::test]
async fn a_call_is_charged_once_over_hash_slots() {
    const SENT: Limit = Limit::once("sent", HOUR);
    let (_cluster, limiter) = start_cluster();
    let limit = Limit::sliding("orders", 1, HOUR);
    for key in 0..20_u64 {
        let check = async |id: u64| {
            let request = (key, id);
            let parts = [Part::new(&limit, &key, 1), Part::new(&SENT, &request, 1)];
            limiter.check_all(&parts).await
        };
        let used = async || limiter.operator().usage(&limit, key).await.expect("counted").used;
        for (id, is_admitted) in [(7, true), (7, true), (8, false), (7, true)] {
            assert_eq!(check(id).await.is_ok(), is_admitted, "{key} {id}");
        }
        assert_eq!(used().await, 1);
        // The call that was rejected is not remembered.
        limiter.reset(&limit, key).await.expect("reset");
        check(8).await.expect("admitted");
        assert_eq!(used().await, 1);
    }
}
