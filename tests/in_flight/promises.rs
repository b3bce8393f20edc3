//! What admits, rejects and frees.

use std::ops::Range;

use futures::future::join_all;
use ratelimit_runtime::{Limit, Mistake, Part, Permit, RateLimiter, Rejection, Rule, RuleSet};
use support::limits::{MINUTE, ruled};
use support::on_both_stores;
use support::server::Server;

use crate::{HOLD, TWO, TestLimiter, assert_busy};

on_both_stores! {
    async fn a_call_holds_its_units_until_its_permit_ends_in_any_way(test: TestLimiter) {
        let first = test.admit(&TWO, 1).await;
        assert_eq!(first.decision().remaining, 1);
        let ways: [fn(Permit); 6] = [
            drop,
            Permit::keep,
            Permit::refund,
            |permit| permit.settle(1),
            // More than the cost is no debt: the call held one unit.
            |permit| permit.settle(100),
            |permit| permit.meter().add(7),
        ];
        for end in ways {
            let second = test.admit(&TWO, 1).await;
            test.assert_busy(&TWO, 2).await;
            end(second);
            test.limiter.flush().await.expect("released");
            assert_eq!(test.in_flight(&TWO).await, 1);
        }
        drop(first);
        test.limiter.flush().await.expect("released");
        assert_eq!(test.in_flight(&TWO).await, 0);
    }

    async fn checks_of_calls_in_flight_are_refused(test: TestLimiter) {
        const RATE: Limit = Limit::sliding("rate", 5, MINUTE);
        let limiter = &test.limiter;
        let both = [Part::new(&RATE, &"key", 1), Part::new(&TWO, &"key", 1)];
        for rules in [RuleSet::new(), ruled("two", Rule::new().in_flight(3))] {
            limiter.set_rules(rules).expect("valid");
            assert!(limiter.check(&TWO, "key", 1).await.is_err());
            for check in [
                limiter.check(&TWO, "key", 1),
                limiter.check(&TWO.wait(MINUTE), "key", 1),
                limiter.check_all(&both),
                limiter.check_all(&both[1..]),
            ] {
                let Err(Rejection::Mistake { mistake, .. }) = check.await else {
                    panic!("decided")
                };
                assert_eq!(mistake, Mistake::NeedsPermit);
            }
        }
        assert_eq!(test.in_flight(&TWO).await, 0);
        assert_eq!(limiter.peek(&RATE, "key", 1).await.expect("admitted").remaining, 5);
    }

    async fn parts_of_one_count_are_freed_one_by_one(test: TestLimiter) {
        let parts = [Part::new(&TWO, &"key", 1), Part::new(&TWO, &"key", 1)];
        let mut permits = test.limiter.acquire_all(&parts).await.expect("admitted");
        test.assert_busy(&TWO, 2).await;
        for left in [1, 0] {
            permits.pop();
            // While a statement is pending, a peek tells what the store has.
            test.limiter.flush().await.expect("stated");
            assert_eq!(test.in_flight(&TWO).await, left);
        }
    }

    async fn rules_and_amounts_change_how_many_run(test: TestLimiter) {
        let limiter = &test.limiter;
        let set = |rule: Rule| limiter.set_rules(ruled("two", rule)).expect("valid");
        set(Rule::new().in_flight(3));
        let mut running = join_all([1; 3].map(|cost| test.admit(&TWO, cost))).await;
        assert_busy(&test.acquire(&TWO, 1).await.expect_err("busy"), 3);
        // A limit below the number of running calls evicts no call and admits no call.
        set(Rule::new().in_flight(1));
        for left in [2, 1] {
            running.pop();
            test.acquire(&TWO, 1).await.expect_err("busy");
            assert_eq!(running.len(), left);
        }
        running.pop();
        drop(test.admit(&TWO, 1).await);
        // The rules of rates are for rates.
        set(Rule::new().threshold(50).burst(9));
        let both = [test.admit(&TWO, 1).await, test.admit(&TWO, 1).await];
        test.assert_busy(&TWO, 2).await;
        // Exempt, and rejected by a shadow: they run, and hold nothing.
        set(Rule::new().exempt(true));
        let exempt = test.admit(&TWO, 1).await;
        set(Rule::new().shadow(true));
        let shadow = test.admit(&TWO, 1).await;
        assert!(!shadow.decision().allowed);
        set(Rule::new());
        drop((exempt, shadow));
        test.assert_busy(&TWO, 2).await;
        drop(both);
        set(Rule::new().blocked(true));
        let blocked = test.acquire(&TWO, 1).await.expect_err("blocked");
        assert!(matches!(blocked, Rejection::Blocked { .. }), "{blocked:?}");
        set(Rule::new());
        // Amounts of the call, on the same count.
        let wide = TWO.try_amounts(4, None).expect("valid");
        let running = [test.admit(&TWO, 2).await, test.admit(&wide, 2).await];
        assert_busy(&test.acquire(&wide, 1).await.expect_err("busy"), 4);
        drop(running);
        assert_eq!(test.in_flight(&TWO).await, 0);
        // What a shadow admits holds units like any other call.
        let shadow = TWO.shadow(true);
        let held = test.admit(&shadow, 1).await;
        assert_eq!(test.in_flight(&TWO).await, 1);
        drop(held);
        assert_eq!(test.in_flight(&TWO).await, 0);
    }
}

/// A count that calls of many users share, and the rate of each user.
const SHARED: Limit = Limit::in_flight("shared", 30).hold(HOLD);
const OF_A_USER: Limit = Limit::sliding("user", 2, MINUTE);

/// Calls of users at the same time: each takes a slot of one count, beside the rate of its user.
async fn call_together(
    limiter: &RateLimiter,
    users: Range<u64>,
) -> Vec<Result<Vec<Permit>, Rejection>> {
    join_all(users.map(|call| {
        let user = call % 20;
        limiter.acquire_all(&[Part::new(&SHARED, &"key", 1), Part::new(&OF_A_USER, &user, 1)])
    }))
    .await
}

/// Returns how many shared slots are free once Redis knows what this process holds.
async fn slots_left(limiter: &RateLimiter) -> u64 {
    limiter.flush().await.expect("stated");
    limiter.peek(&SHARED, "key", 0).await.expect("admitted").remaining
}

/// They share scripts, and each of them is decided by its own limits: first come, first served, all or nothing.
#[tokio::test]
async fn calls_that_have_only_slots_in_common_share_scripts() {
    let server = Server::start();
    for (is_redis, test) in [false, true].into_iter().zip(TestLimiter::each(&server)) {
        let limiter = &test.limiter;
        drop(limiter.acquire(&SHARED, "connects", 1).await.expect("admitted"));
        let units_left =
            async |user: u64| limiter.peek(&OF_A_USER, user, 0).await.expect("admitted").remaining;
        let before = server.script_calls();
        // Each user has three calls.
        let mut ended = call_together(limiter, 0..60).await;
        let scripts = server.script_calls() - before;
        assert!(!is_redis || (2..10).contains(&scripts), "{scripts} scripts");
        // The first 30 have slots. The others find none, and the third of each user has no units either.
        for (call, result) in ended.iter().enumerate() {
            assert_eq!(result.is_ok(), call < 30, "{call}: {result:?}");
        }
        assert_busy(ended[30].as_ref().expect_err("busy"), 30);
        // If both reject, the wait that is known is reported.
        let rejection = ended[40].as_ref().expect_err("limited");
        assert_eq!(rejection.retry_after(), Some(MINUTE));
        for user in 0..20 {
            assert_eq!(units_left(user).await, u64::from(user >= 10), "{user}");
        }
        assert_eq!(slots_left(limiter).await, 0);
        // Rejected by its rate, a call holds no slot; with a slot, another one is admitted.
        ended.truncate(10);
        assert_eq!(slots_left(limiter).await, 20);
        let later = call_together(limiter, 0..20).await;
        for (user, result) in later.iter().enumerate() {
            let is_limited = matches!(result, Err(Rejection::Limited { .. }));
            assert_eq!((result.is_ok(), is_limited), (user >= 10, user < 10), "{user}: {result:?}");
        }
        assert_eq!(slots_left(limiter).await, 10);
        // A settlement finds the charge of its own call.
        for mut permits in later.into_iter().flatten() {
            permits.remove(1).settle(0);
        }
        drop(ended);
        assert_eq!(slots_left(limiter).await, 30);
        for user in 10..20 {
            assert_eq!(units_left(user).await, 1, "{user}");
        }
    }
}

#[tokio::test]
async fn a_foreign_value_fails_no_call_that_shares_its_script() {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid");
    drop(limiter.acquire(&SHARED, "connects", 1).await.expect("admitted"));
    let key = "rl:sliding:1m:user{3}";
    let set = redis::cmd("SET").arg(key).arg("foreign").arg("EX").arg(60).to_owned();
    set.exec(&mut server.connection()).expect("set");
    let before = server.script_calls();
    let ended = call_together(&limiter, 0..10).await;
    assert!(server.script_calls() - before < 8);
    for (user, result) in ended.iter().enumerate() {
        let is_unavailable = matches!(result, Err(Rejection::Unavailable { .. }));
        assert_eq!((result.is_ok(), is_unavailable), (user != 3, user == 3), "{user}: {result:?}");
    }
    assert_eq!(slots_left(&limiter).await, 21);
    drop(ended);
    assert_eq!(slots_left(&limiter).await, 30);
}

#[tokio::test]
async fn a_flood_of_keys_frees_nothing() {
    let rate = Limit::sliding("rate", 3, MINUTE);
    let limiter = RateLimiter::builder().max_keys(2_000).build().expect("valid");
    let running = join_all((0..2_000_u64).map(|key| limiter.acquire(&TWO, key, 2))).await;
    assert!(running.iter().all(Result::is_ok));
    limiter.block(&TWO, 7_u64, MINUTE).await.expect("blocked");
    for key in 0..20_000_u64 {
        limiter.check(&rate, key, 1).await.expect("admitted");
        limiter.block(&rate, key, MINUTE).await.expect("blocked");
    }
    limiter.unblock(&TWO, 7_u64).await.expect("opened");
    for key in 0..2_000_u64 {
        limiter.acquire(&TWO, key, 1).await.expect_err("busy");
    }
    drop(running);
    for key in (0..2_000_u64).filter(|key| *key != 7) {
        drop(limiter.acquire(&TWO, key, 2).await.expect("admitted"));
    }
}

/// Units of calls in flight take twice the room of a store. Then calls of other keys are busy, until units go back.
#[tokio::test]
async fn a_store_that_is_full_of_held_units_admits_no_call_of_another_key() {
    let limiter = RateLimiter::builder().max_keys(64).build().expect("valid");
    let mut running = Vec::new();
    for key in 0..10_000_u64 {
        match limiter.acquire(&TWO, key, 1).await {
            Ok(permit) => running.push((key, permit)),
            Err(rejection) => assert!(matches!(rejection, Rejection::Busy { .. }), "{rejection:?}"),
        }
    }
    assert_eq!(running.len(), 128);
    let other = Limit::in_flight("other", 5);
    let parts = [Part::new(&other, &"key", 1), Part::new(&TWO, &running[0].0, 1)];
    let rejection = limiter.acquire_all(&parts).await.expect_err("no place for the first part");
    assert!(matches!(rejection, Rejection::Busy { .. }), "{rejection:?}");
    // What takes nothing needs no place.
    drop(limiter.acquire(&TWO, "another", 0).await.expect("a cost of 0"));
    assert!(!limiter.peek(&TWO, "another", 1).await.expect("a decision").allowed, "no place");
    for (key, _) in &running {
        drop(limiter.acquire(&TWO, *key, 1).await.expect("a key that has its place"));
    }
    running.clear();
    for key in 10_000..10_100_u64 {
        drop(limiter.acquire(&TWO, key, 1).await.expect("there is room"));
    }
}
