//! Redis Cluster: keys spread over the nodes and survive the loss of a node, and each count stays exact.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use ratelimit_runtime::{Check, Limit, Part, RateLimiter, Rejection, Rule, Rules};
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
                        admitted += u32::from(admits(&limiter, &limit, &key.to_string()).await);
                    }
                    admitted
                });
            }
        }
    }
    let admitted: u32 = tasks.join_all().await.into_iter().sum();
    // Buckets refill during the test, at 20 tokens an hour by less than one token.
    assert_eq!(admitted, 20 * 12 * ALGORITHMS.len() as u32);
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_limits_are_charged_all_or_none() {
    let cluster = Cluster::start(0);
    let limiter = denying_builder(&cluster.url()).build().expect("valid");
    let first = Limit::sliding("several.first", 10, HOUR);
    let second = Limit::token_bucket("several.second", 4, HOUR);
    let remaining = async |limit: &Limit, key: &str| {
        limiter.peek(limit, key, 1).await.expect("a decision").remaining
    };

    // Limits of one key share a hash slot, so each call is one script.
    let before = script_calls(&cluster);
    for _ in 0..4 {
        let parts = [Part::new(&first, &"ann", 1), Part::new(&second, &"ann", 1)];
        limiter.check_all(&parts).await.expect("admitted");
    }
    let parts = [Part::new(&first, &"ann", 1), Part::new(&second, &"ann", 1)];
    let rejected = limiter.check_all(&parts).await;
    assert_eq!(rejected.expect_err("rejected").name(), "several.second");
    assert_eq!(script_calls(&cluster) - before, 5);
    assert_eq!(remaining(&first, "ann").await, 6);

    // Concurrent calls of keys in three hash slots: no rejected call stays charged.
    let keys = ["a", "b", "c"];
    let slots: HashSet<_> = keys.map(|key| cluster.slot(key)).into();
    assert_eq!(slots.len(), 3);
    let mut tasks = JoinSet::new();
    for _ in 0..40 {
        let limiter = limiter.clone();
        tasks.spawn(async move {
            let third = Limit::fixed("several.third", 6, HOUR);
            let parts = [
                Part::new(&first, &"a", 1),
                Part::new(&second, &"b", 1),
                Part::new(&third, &"c", 1),
            ];
            match limiter.check_all(&parts).await {
                Ok(_) => 1,
                Err(Rejection::Limited { .. }) => 0,
                Err(other) => panic!("{other:?}"),
            }
        });
    }
    let admitted: u32 = tasks.join_all().await.into_iter().sum();
    assert!((1..=4).contains(&admitted), "{admitted}");
    assert_eq!(remaining(&first, "a").await, 10 - admitted);
    assert_eq!(remaining(&second, "b").await, 4 - admitted);
    // Sequential calls take all units that are left.
    for _ in admitted..4 {
        let parts = [Part::new(&first, &"a", 1), Part::new(&second, &"b", 1)];
        limiter.check_all(&parts).await.expect("admitted");
    }
    let parts = [Part::new(&first, &"a", 1), Part::new(&second, &"b", 1)];
    let rejected = limiter.check_all(&parts).await;
    assert_eq!(rejected.expect_err("rejected").name(), "several.second");
    assert_eq!(remaining(&first, "a").await, 6);
}

/// An organisation, its teams and their users, in three hash slots, under load from three processes: no level admits
/// more than its limit, and what a rejected call has charged is given back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nested_limits_hold_and_rejected_calls_charge_nothing() {
    const TEAMS: u32 = 2;
    const USERS: u32 = 3;
    let cluster = Cluster::start(0);
    let fleet = [(); 3].map(|()| denying_builder(&cluster.url()).build().expect("valid"));
    let organisation = Limit::sliding("nested.organisation", 40, HOUR);
    let team = Limit::sliding("nested.team", 25, HOUR);
    let user = Limit::fixed("nested.user", 10, HOUR);
    let slots = ["acme", "(acme:0)", "(acme:0:0)"].map(|key| cluster.slot(key));
    assert_eq!(HashSet::from(slots).len(), 3);
    let call = async move |limiter: &RateLimiter, team_id, user_id| {
        let (team_key, user_key) = (("acme", team_id), ("acme", team_id, user_id));
        let parts = [
            Part::new(&user, &user_key, 1),
            Part::new(&team, &team_key, 1),
            Part::new(&organisation, &"acme", 1),
        ];
        match limiter.check_all(&parts).await {
            Ok(_) => true,
            Err(Rejection::Limited { .. }) => false,
            Err(other) => panic!("{other:?}"),
        }
    };
    let mut tasks = JoinSet::new();
    for (team_id, user_id) in (0..TEAMS).flat_map(|team| (0..USERS).map(move |user| (team, user))) {
        for process in 0..60 {
            let limiter = fleet[process % 3].clone();
            tasks.spawn(async move {
                (team_id, user_id, u32::from(call(&limiter, team_id, user_id).await))
            });
        }
    }
    let mut admitted = HashMap::new();
    for (team_id, user_id, count) in tasks.join_all().await {
        *admitted.entry((team_id, user_id)).or_insert(0) += count;
    }
    // Sequential calls take what concurrent calls were rejected for.
    for team_id in 0..TEAMS {
        for user_id in 0..USERS {
            while call(&fleet[0], team_id, user_id).await {
                *admitted.entry((team_id, user_id)).or_insert(0) += 1;
            }
        }
    }
    let total: u32 = admitted.values().sum();
    assert_eq!(total, 40, "{admitted:?}");
    let left = async |check: Check| check.await.expect("a decision").remaining;
    assert_eq!(left(fleet[1].peek(&organisation, "acme", 1)).await, 0);
    for team_id in 0..TEAMS {
        let users = (0..USERS).map(|user_id| admitted[&(team_id, user_id)]);
        let of_team: u32 = users.sum();
        assert_eq!(left(fleet[1].peek(&team, ("acme", team_id), 1)).await, 25 - of_team);
        for user_id in 0..USERS {
            let peek = fleet[1].peek(&user, ("acme", team_id, user_id), 1);
            assert_eq!(left(peek).await, 10 - admitted[&(team_id, user_id)]);
        }
    }
}

/// Charges of several hash slots are settled slot by slot, also those of calls that have waited.
#[tokio::test]
async fn charges_of_several_hash_slots_are_settled() {
    let cluster = Cluster::start(0);
    let limiter = denying_builder(&cluster.url()).build().expect("valid settings");
    let (one, other) = (
        Limit::sliding("cluster.one", 100, HOUR),
        Limit::token_bucket("cluster.other", 100, 100 * HOUR),
    );
    let waiting = |limit: &Limit| limit.wait(HOUR);
    for limits in [[one, other], [waiting(&one), waiting(&other)]] {
        for key in 0..50 {
            let parts = [Part::new(&limits[0], &key, 40), Part::new(&limits[1], &"all", 2)];
            let permits = limiter.acquire_all(&parts).await.expect("admitted");
            for (permit, used) in permits.into_iter().zip([10, 0]) {
                permit.settle(used);
            }
        }
        limiter.flush().await.expect("a reply");
        for key in 0..50 {
            let left = limiter.peek(&limits[0], key, 1).await.expect("a reply").remaining;
            assert_eq!(left, 90, "{key}");
            limiter.reset(&limits[0], key).await.expect("a reply");
        }
        assert_eq!(limiter.peek(&limits[1], "all", 1).await.expect("a reply").remaining, 100);
    }
}

/// Closes keys in different hash slots. The other process obeys, and a decision of several slots is rolled back.
#[tokio::test]
async fn closed_keys_are_closed_for_all_processes() {
    let cluster = Cluster::start(0);
    let [here, there] = [(); 2].map(|()| denying_builder(&cluster.url()).build().expect("valid"));
    let (one, other) =
        (Limit::sliding("cluster.one", 100, HOUR), Limit::token_bucket("cluster.other", 100, HOUR));
    for key in 0..20 {
        for limit in [&one, &other] {
            here.check(limit, key, 1).await.expect("admitted");
            here.close(limit, key, HOUR).await.expect("closed");
            let rejection = there.check(limit, key, 1).await.expect_err("closed");
            assert!(matches!(rejection, Rejection::Closed { .. }), "{rejection:?}");
        }
        let parts = [Part::new(&one, &"open", 1), Part::new(&other, &key, 1)];
        let rejection = there.check_all(&parts).await.expect_err("closed");
        assert!(matches!(rejection, Rejection::Closed { .. }), "{rejection:?}");
        assert!(there.open(&other, key).await.expect("opened"));
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
            admitted[index] += u32::from(is_admitted);
        }
        assert_eq!(admitted.iter().sum::<u32>(), 90, "{admitted:?}");
        assert!(admitted[0] <= 30 && admitted[0] + admitted[1] <= 60, "{admitted:?}");
    }
}

/// Rules, announcements and the keys of a limit, which are on all nodes.
#[tokio::test]
async fn rules_are_shared_in_a_cluster() {
    let cluster = Cluster::start(0);
    let builder = denying_builder(&cluster.url()).rules(Rules::redis());
    let limiter = builder.build().expect("valid");
    let mut shared = limiter.shared_rules().await.expect("read");
    shared.rules.set_key("ruled", "7", Rule::new().threshold(50)).expect("valid");
    limiter.share_rules(shared, "alice").await.expect("written");
    while limiter.rules().is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let limit = Limit::sliding("ruled", 10, HOUR);
    let mut expected: Vec<String> = (0..40).map(|key: u32| key.to_string()).collect();
    for key in &expected {
        let decision = limiter.check(&limit, key, 1).await.expect("admitted");
        assert_eq!(decision.limit, if key == "7" { 50 } else { 10 });
    }
    assert_eq!(limiter.rule_changes(10).await.expect("read").len(), 1);
    limiter.fleet().await.expect("read");
    let (mut found, mut next) = (Vec::new(), None);
    loop {
        let page = limiter.keys(&limit, next).await.expect("read");
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
pub(crate) fn script_calls(cluster: &Cluster) -> u32 {
    let of = |node: usize| {
        let mut info = redis::cmd("INFO");
        let stats: String =
            info.arg("commandstats").query(&mut cluster.connection(node)).expect("INFO");
        let lines = stats.lines().filter(|line| line.starts_with("cmdstat_evalsha:"));
        let counts = lines.filter_map(|line| line.split_once("calls=")?.1.split(',').next());
        counts.map(|count| count.parse::<u32>().expect("a count")).sum::<u32>()
    };
    (0..cluster.len()).map(of).sum()
}

/// Limits whose keys are in two hash slots: a call that the calls ahead leave no time is rejected, and takes nothing.
#[tokio::test]
async fn a_call_rejected_by_its_line_charges_no_hash_slot() {
    let cluster = Cluster::start(0);
    let limiter = denying_builder(&cluster.url()).build().expect("valid");
    let wait = |limit: Limit| limit.wait(Duration::from_secs(60));
    let first = wait(Limit::sliding("line.first", 5, HOUR));
    let second = wait(Limit::sliding("line.second", 5, HOUR));
    let (a, b) = ("a", "b");
    assert_ne!(cluster.slot(a), cluster.slot(b));
    let remaining = async |limit: &Limit, key: &str| {
        limiter.peek(limit, key, 1).await.expect("a reply").remaining
    };
    let filled = [Part::new(&first, &a, 2), Part::new(&second, &b, 2)];
    limiter.check_all(&filled).await.expect("admitted");

    // Waits in line: 5 units are too many for the window, which is longer than the wait of a call behind it.
    let minute = |limit: &Limit| limit.wait(2 * HOUR);
    let (patient_first, patient_second) = (minute(&first), minute(&second));
    let ahead = [Part::new(&patient_first, &a, 5), Part::new(&patient_second, &b, 5)];
    let ahead = tokio::spawn(limiter.check_all(&ahead));
    tokio::time::sleep(Duration::from_millis(200)).await;
    for _ in 0..3 {
        let behind = [Part::new(&first, &a, 1), Part::new(&second, &b, 1)];
        let rejection = limiter.check_all(&behind).await.expect_err("no time");
        assert!(rejection.retry_after() > Some(Duration::from_secs(60)), "{rejection:?}");
    }
    assert_eq!((remaining(&first, a).await, remaining(&second, b).await), (3, 3));
    ahead.abort();
}

/// With a key, an empty key, or no key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_segments_of_a_long_log_share_its_hash_slot() {
    let cluster = Cluster::start(0);
    let limiter = denying_builder(&cluster.url()).build().expect("valid");
    let limit = Limit::sliding("long", 5_000, HOUR);
    let all = || (0..3).flat_map(|node| cluster.keys(node)).collect::<Vec<_>>();
    for key in [Some("ann"), Some(""), None] {
        let mut tasks = JoinSet::new();
        // With so few tasks, each call is one entry of the log.
        for task in 0..3 {
            let limiter = limiter.clone();
            tasks.spawn(async move {
                let mut admitted = 0;
                for _ in 0..1_700 {
                    let check = match key {
                        Some(key) => limiter.check(&limit, key, 1),
                        None => limiter.check(&limit, (), 1),
                    };
                    match check.await {
                        Ok(_) => admitted += 1,
                        Err(Rejection::Limited { .. }) => {}
                        Err(other) => panic!("{task}: {other:?}"),
                    }
                }
                admitted
            });
        }
        let admitted: u32 = tasks.join_all().await.into_iter().sum();
        assert_eq!(admitted, 5_000, "{key:?}");
        let keys = all();
        assert_eq!(keys.len(), 2, "{keys:?}");
        assert_eq!(cluster.slot(&keys[0]), cluster.slot(&keys[1]));
        assert!(limiter.reset(&limit, key).await.expect("a reply"));
        assert_eq!(all(), [""; 0]);
    }
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

/// Units that a rejected call of several keys has charged are available again as soon as they are rolled back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cache_does_not_reject_for_units_that_were_rolled_back() {
    let cluster = Cluster::start(0);
    let limiter = denying_builder(&cluster.url()).cache_rejections(true).build().expect("valid");
    let (first, second) = (Limit::sliding("first", 40, HOUR), Limit::sliding("second", 1, HOUR));
    let (mut rolled_back, mut wrongly_rejected) = (0, 0);
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
                    return u32::from(limiter.check_all(&parts).await.is_err());
                }
                for _ in 0..20 {
                    if limiter.check(&first, a, 1).await.is_err() {
                        return 0;
                    }
                    tokio::task::yield_now().await;
                }
                0
            });
        }
        rolled_back += tasks.join_all().await.into_iter().sum::<u32>();
        let left = limiter.peek(&first, a, 1).await.expect("a reply").remaining;
        let next = limiter.check(&first, a, 1).await;
        wrongly_rejected += u32::from(left > 0 && next.is_err());
    }
    assert!(rolled_back > 100, "{rolled_back}");
    assert_eq!(wrongly_rejected, 0);
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
