//! Calls of several limits whose keys are in different hash slots of a cluster: charged all or none.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use ratelimit_runtime::{Check, Limit, Part, RateLimiter, Rejection};
use support::cluster::Cluster;
use support::limits::HOUR;
use tokio::task::JoinSet;

use crate::cluster::script_calls;
use crate::denying_builder;

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
    let admitted: u64 = tasks.join_all().await.into_iter().sum();
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
    const TEAMS: u64 = 2;
    const USERS: u64 = 3;
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
                (team_id, user_id, u64::from(call(&limiter, team_id, user_id).await))
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
    let total: u64 = admitted.values().sum();
    assert_eq!(total, 40, "{admitted:?}");
    let left = async |check: Check| check.await.expect("a decision").remaining;
    assert_eq!(left(fleet[1].peek(&organisation, "acme", 1)).await, 0);
    for team_id in 0..TEAMS {
        let users = (0..USERS).map(|user_id| admitted[&(team_id, user_id)]);
        let of_team: u64 = users.sum();
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
                    return u64::from(limiter.check_all(&parts).await.is_err());
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
        rolled_back += tasks.join_all().await.into_iter().sum::<u64>();
        let left = limiter.peek(&first, a, 1).await.expect("a reply").remaining;
        let next = limiter.check(&first, a, 1).await;
        wrongly_rejected += u64::from(left > 0 && next.is_err());
    }
    assert!(rolled_back > 100, "{rolled_back}");
    assert_eq!(wrongly_rejected, 0);
}
