//! Calls of several limits whose keys are in different hash slots of a cluster: charged all or none.

use std::collections::HashSet;
use std::time::Duration;

use ratelimit_runtime::{Algorithm, Clock, Key, Limit, Part, RateLimiter, Rejection, VirtualClock};
use support::limits::{HOUR, MINUTE};
use tokio::task::JoinSet;

use crate::cluster::script_calls;
use crate::{denying_builder, is_admitted, start_cluster};

async fn remaining(limiter: &RateLimiter, limit: &Limit, key: impl Key) -> u64 {
    limiter.peek(limit, key, 1).await.expect("a decision").remaining
}

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
    let other = denying_builder(&cluster.url()).build().expect("valid");
    assert_ne!(cluster.slot("a"), cluster.slot("b"));
    other.block(&second, "b", HOUR).await.expect("blocked");
    let parts = [Part::new(&first, &"a", 1), Part::new(&second, &"b", 1)];
    let rejection = limiter.check_all(&parts).await.expect_err("blocked");
    assert!(matches!(rejection, Rejection::Blocked { .. }), "{rejection:?}");
    assert_eq!(remaining(&limiter, &first, "a").await, 10);
    assert!(other.unblock(&second, "b").await.expect("unblocked"));
    limiter.check_all(&parts).await.expect("admitted");
}

/// An organisation, its teams and their users, in three hash slots, under load from three processes: no level admits
/// more than its limit, and what a rejected call has charged is given back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nested_limits_hold_and_rejected_calls_charge_nothing() {
    const USERS: [(u64, u64); 6] = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)];
    let (cluster, limiter) = start_cluster();
    let [other, third] = [(); 2].map(|()| denying_builder(&cluster.url()).build().expect("valid"));
    let fleet = [limiter, other, third];
    let organisation = Limit::sliding("nested.organisation", 40, HOUR);
    let team = Limit::sliding("nested.team", 25, HOUR);
    let user = Limit::fixed("nested.user", 10, HOUR);
    let slots = ["acme", "(acme:0)", "(acme:0:0)"].map(|key| cluster.slot(key));
    assert_eq!(HashSet::from(slots).len(), 3);
    let call = async move |limiter: &RateLimiter, (team_id, user_id): (u64, u64)| {
        let (team_key, user_key) = (("acme", team_id), ("acme", team_id, user_id));
        let parts = [
            Part::new(&user, &user_key, 1),
            Part::new(&team, &team_key, 1),
            Part::new(&organisation, &"acme", 1),
        ];
        is_admitted(limiter.check_all(&parts).await)
    };
    let mut tasks = JoinSet::new();
    for (index, ids) in USERS.into_iter().enumerate() {
        for process in 0..60 {
            let limiter = fleet[process % 3].clone();
            tasks.spawn(async move { (index, call(&limiter, ids).await) });
        }
    }
    let mut admitted = [0; USERS.len()];
    for (index, is_admitted) in tasks.join_all().await {
        admitted[index] += u64::from(is_admitted);
    }
    // Sequential calls take what concurrent calls were rejected for.
    for (index, ids) in USERS.into_iter().enumerate() {
        while call(&fleet[0], ids).await {
            admitted[index] += 1;
        }
    }
    assert_eq!(admitted.iter().sum::<u64>(), 40, "{admitted:?}");
    assert_eq!(remaining(&fleet[1], &organisation, "acme").await, 0);
    for team_id in 0..2 {
        let of_team: u64 = admitted[3 * team_id..][..3].iter().sum();
        let left = remaining(&fleet[1], &team, ("acme", team_id as u64)).await;
        assert_eq!(left, 25 - of_team);
    }
    for ((team_id, user_id), admitted) in USERS.into_iter().zip(admitted) {
        let left = remaining(&fleet[1], &user, ("acme", team_id, user_id)).await;
        assert_eq!(left, 10 - admitted);
    }
}

/// Limits whose keys are in two hash slots: a call that the calls ahead leave no time is rejected, and takes nothing.
#[tokio::test]
async fn a_call_rejected_by_its_line_charges_no_hash_slot() {
    let (cluster, limiter) = start_cluster();
    let [first, second] =
        ["line.first", "line.second"].map(|name| Limit::sliding(name, 5, HOUR).wait(MINUTE));
    let (a, b) = ("a", "b");
    assert_ne!(cluster.slot(a), cluster.slot(b));
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

/// Units that a rejected call of several keys has charged are available again as soon as they are rolled back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cache_does_not_reject_for_units_that_were_rolled_back() {
    let (cluster, _) = start_cluster();
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
        let left = remaining(&limiter, &first, a).await;
        let next = limiter.check(&first, a, 1).await;
        assert!(left == 0 || next.is_ok(), "{left} units are left: {next:?}");
    }
    assert!(rolled_back > 100, "{rolled_back}");
}

/// Calls of two limits in different hash slots charge the first limit, and are rejected by the second. All of that is
/// rolled back, although the clock of the process is behind the clock of another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_lags_does_not_prevent_a_rollback() {
    let (cluster, _) = start_cluster();
    // 5 ms before the beginning of a window, and at it.
    let [late, early] = [5, 0].map(|behind| {
        let time = Duration::from_millis(3_600_000 * 500_000 - behind);
        let builder = denying_builder(&cluster.url());
        builder.clock(Clock::Virtual(VirtualClock::at(time))).build().expect("valid settings")
    });
    for algorithm in [Algorithm::Sliding, Algorithm::Fixed, Algorithm::SlidingCounter] {
        let first = Limit::new("lagging.first", algorithm, 1_000, HOUR).expect("valid");
        let second = Limit::fixed("lagging.second", 1, HOUR);
        let mut rolled_back = 0;
        for round in 0..60_u64 {
            let (a, b) = (("a", round), ("b", algorithm.to_string(), round));
            early.check(&first, a, 1).await.expect("admitted");
            let calls: JoinSet<_> = (0..4)
                .map(|_| late.check_all(&[Part::new(&first, &a, 10), Part::new(&second, &b, 1)]))
                .collect();
            let results = calls.join_all().await;
            let admitted = results.iter().filter(|result| result.is_ok()).count() as u64;
            assert!(admitted <= 1, "{results:?}");
            rolled_back += 4 - admitted;
            let left = remaining(&early, &first, a).await;
            assert_eq!(left, 1_000 - 1 - 10 * admitted, "{algorithm}, round {round}");
        }
        assert!(rolled_back > 60, "{rolled_back}");
    }
}
