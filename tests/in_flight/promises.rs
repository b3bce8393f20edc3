//! What admits, rejects and frees.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::time::Duration;

use futures::FutureExt;
use ratelimit_runtime::{
    Limit, Mistake, OnError, Part, Permit, RateLimiter, Rejection, Rule, RuleSet,
};
use support::limits::{MINUTE, SECOND};
use support::server::Server;
use tokio::time::{sleep, timeout};

use crate::{HOLD, TWO, TestLimiter, assert_busy};

#[tokio::test]
async fn a_call_holds_its_units_until_its_permit_ends_in_any_way() {
    let server = Server::start();
    for test in TestLimiter::each(&server) {
        let first = test.admit(&TWO, 1).await;
        assert_eq!(first.decision().remaining, 1);
        let ways: [fn(Permit); 5] = [
            drop,
            Permit::keep,
            Permit::refund,
            |permit| permit.settle(1),
            // More than the cost is no debt: the call held one unit.
            |permit| permit.settle(100),
        ];
        for end in ways {
            let second = test.admit(&TWO, 1).await;
            test.assert_busy(&TWO, 2).await;
            end(second);
            assert_eq!(test.in_flight(&TWO).await, 1);
        }
        let mut meter = test.admit(&TWO, 1).await.meter();
        meter.add(7);
        test.assert_busy(&TWO, 2).await;
        drop(meter);

        let panics = AssertUnwindSafe(async {
            let _permit = test.admit(&TWO, 1).await;
            panic!("the call fails");
        });
        panics.catch_unwind().await.expect_err("a panic");
        let held = test.admit(&TWO, 1).await;
        let task = tokio::spawn(async move {
            let _held = held;
            std::future::pending::<()>().await;
        });
        tokio::task::yield_now().await;
        test.assert_busy(&TWO, 2).await;
        task.abort();
        task.await.expect_err("aborted");
        assert_eq!(test.in_flight(&TWO).await, 1);
        drop(first);
        assert_eq!(test.in_flight(&TWO).await, 0);
    }
}

#[tokio::test]
async fn a_cost_is_the_weight_of_a_call() {
    const FIVE: Limit = Limit::in_flight("five", 5).hold(HOLD);
    let server = Server::start();
    for test in TestLimiter::each(&server) {
        let heavy = test.admit(&FIVE, 3).await;
        let rejection = test.acquire(&FIVE, 3).await.expect_err("busy");
        assert_busy(&rejection, 3);
        let light = test.admit(&FIVE, 2).await;
        test.assert_busy(&FIVE, 5).await;
        let nothing = test.admit(&FIVE, 0).await;
        drop(nothing);
        drop(heavy);
        assert_eq!(test.in_flight(&FIVE).await, 2);
        let too_heavy = test.acquire(&FIVE, 6).await.expect_err("too heavy");
        assert!(matches!(too_heavy, Rejection::CostExceedsCapacity { .. }), "{too_heavy:?}");
        drop(light);
    }
}

/// Nothing that they return could give the units back.
#[tokio::test]
async fn checks_of_calls_in_flight_are_refused() {
    const RATE: Limit = Limit::sliding("rate", 5, MINUTE);
    let is_refused = |error: &Rejection| {
        matches!(error, Rejection::Mistake { mistake: Mistake::NeedsPermit, .. })
    };
    let server = Server::start();
    for test in TestLimiter::each(&server) {
        let limiter = &test.limiter;
        let error = limiter.check(&TWO, "key", 1).await.expect_err("refused");
        assert!(is_refused(&error), "{error:?}");
        assert!(!limiter.admit(&TWO, "key", 1).await);
        for parts in [
            vec![Part::new(&RATE, &"key", 1), Part::new(&TWO, &"key", 1)],
            vec![Part::new(&TWO, &"key", 1)],
        ] {
            let error = limiter.check_all(&parts).await.expect_err("refused");
            assert!(is_refused(&error), "{error:?}");
        }
        let wait = TWO.wait(MINUTE);
        let error = limiter.check(&wait, "key", 1).await.expect_err("refused");
        assert!(is_refused(&error), "{error:?}");
        let mut rules = RuleSet::new();
        rules.set("two", Rule::new().in_flight(3)).expect("valid");
        limiter.set_rules(rules).expect("valid");
        let error = limiter.check(&TWO, "key", 1).await.expect_err("refused");
        assert!(is_refused(&error), "{error:?}");
        assert_eq!(test.in_flight(&TWO).await, 0);
        let left = limiter.peek(&RATE, "key", 1).await.expect("admitted").remaining;
        assert_eq!(left, 5);
    }
}

#[tokio::test]
async fn rates_and_calls_in_flight_are_one_decision() {
    const RATE: Limit = Limit::fixed("rate", 3, MINUTE);
    let server = Server::start();
    for test in TestLimiter::each(&server) {
        let (limiter, key) = (&test.limiter, "key");
        let parts = [Part::new(&RATE, &key, 1), Part::new(&TWO, &key, 1)];
        let left = async || limiter.peek(&RATE, key, 0).await.expect("admitted").remaining;
        let first = limiter.acquire_all(&parts).await.expect("admitted");
        let second = limiter.acquire_all(&parts).await.expect("admitted");
        // A missing slot charges no rate.
        let rejection = limiter.acquire_all(&parts).await.expect_err("busy");
        assert_busy(&rejection, 2);
        assert_eq!(left().await, 1);
        drop(first);
        let third = limiter.acquire_all(&parts).await.expect("admitted");
        assert_eq!(left().await, 0);
        // Both reject: the wait that is known is reported.
        let rejection = limiter.acquire_all(&parts).await.expect_err("limited");
        assert!(matches!(rejection, Rejection::Limited { .. }), "{rejection:?}");
        assert_eq!(rejection.retry_after(), Some(MINUTE));
        drop((second, third));
        // A rejected rate takes no slot.
        limiter.acquire_all(&parts).await.expect_err("limited");
        assert_eq!(test.in_flight(&TWO).await, 0);
        test.clock.advance(MINUTE);
        // The permit of the rate settles, the other one frees.
        let mut permits = limiter.acquire_all(&parts).await.expect("admitted");
        assert_eq!(test.in_flight(&TWO).await, 1);
        permits.remove(0).settle(0);
        limiter.flush().await.expect("settled");
        assert_eq!((left().await, test.in_flight(&TWO).await), (3, 1));
        drop(permits);
        assert_eq!(test.in_flight(&TWO).await, 0);
    }
}

/// Calls of many users take slots of one count, each beside a rate of its user. They share scripts, and each of them is
/// decided by its own limits: first come, first served, all or nothing.
#[tokio::test]
async fn calls_that_have_only_slots_in_common_share_scripts() {
    let server = Server::start();
    for (is_redis, test) in [false, true].into_iter().zip(TestLimiter::each(&server)) {
        let slots = Limit::in_flight("shared", 30).hold(HOLD);
        let rate = Limit::sliding("of a user", 2, MINUTE);
        drop(test.limiter.acquire(&slots, "connects", 1).await.expect("admitted"));
        let before = server.script_calls();
        // Of 60 calls of 20 users, each user has three.
        let users: Vec<u64> = (0..60).map(|call| call % 20).collect();
        let calls = users.iter().map(|user| {
            let parts = [Part::new(&slots, &"key", 1), Part::new(&rate, user, 1)];
            test.limiter.acquire_all(&parts)
        });
        let ended = futures::future::join_all(calls).await;
        let scripts = server.script_calls() - before;
        assert!(!is_redis || (2..10).contains(&scripts), "{scripts} scripts");
        // The first 30 have slots. The others find none, and the third of each user has no units either.
        let admitted: Vec<_> = ended.iter().map(Result::is_ok).collect();
        assert_eq!(admitted, (0..60).map(|call| call < 30).collect::<Vec<_>>());
        for user in 0..20 {
            let left = test.limiter.peek(&rate, user, 0).await.expect("admitted").remaining;
            assert_eq!(left, u64::from(user >= 10), "{user}");
        }
        let in_flight = async || {
            let peeked = test.limiter.peek(&slots, "key", 0).await.expect("admitted");
            peeked.limit - peeked.remaining
        };
        assert_eq!(in_flight().await, 30);
        // Rejected by its rate, a call holds no slot; with a slot, another one is admitted.
        let mut running: Vec<_> = ended.into_iter().filter_map(Result::ok).collect();
        running.truncate(10);
        test.limiter.flush().await.expect("stated");
        let calls = users[..20].iter().map(|user| {
            let parts = [Part::new(&slots, &"key", 1), Part::new(&rate, user, 1)];
            test.limiter.acquire_all(&parts)
        });
        let ended = futures::future::join_all(calls).await;
        let admitted: Vec<_> = ended.iter().map(Result::is_ok).collect();
        assert_eq!(admitted, (0..20).map(|user| user >= 10).collect::<Vec<_>>());
        for rejected in ended.iter().take(10) {
            assert!(matches!(rejected, Err(Rejection::Limited { .. })), "{rejected:?}");
        }
        assert_eq!(in_flight().await, 20);
        // A settlement finds the charge of its own call.
        for mut permits in ended.into_iter().flatten() {
            permits.remove(1).settle(0);
        }
        test.limiter.flush().await.expect("settled");
        for user in 10..20 {
            let left = test.limiter.peek(&rate, user, 0).await.expect("admitted").remaining;
            assert_eq!(left, 1, "{user}");
        }
        drop(running);
        test.limiter.flush().await.expect("stated");
        assert_eq!(in_flight().await, 0);
    }
}

/// A foreign value under the key of one user fails the calls of that user, and of no other.
#[tokio::test]
async fn a_foreign_value_fails_no_call_that_shares_its_script() {
    let server = Server::start();
    let builder = server.builder().deadline(MINUTE).on_error(OnError::Deny);
    let limiter = builder.build().expect("valid");
    let slots = Limit::in_flight("shared", 30).hold(HOLD);
    let rate = Limit::sliding("user", 2, MINUTE);
    drop(limiter.acquire(&slots, "connects", 1).await.expect("admitted"));
    let key = "rl:sliding:1m:user{3}";
    let set = redis::cmd("SET").arg(key).arg("foreign").arg("EX").arg(60).to_owned();
    set.exec(&mut server.connection()).expect("set");
    let before = server.script_calls();
    let users: Vec<u64> = (0..10).collect();
    let calls = users.iter().map(|user| {
        let parts = [Part::new(&slots, &"key", 1), Part::new(&rate, user, 1)];
        limiter.acquire_all(&parts)
    });
    let ended = futures::future::join_all(calls).await;
    assert!(server.script_calls() - before < 8);
    for (user, result) in ended.iter().enumerate() {
        let is_unavailable = matches!(result, Err(Rejection::Unavailable { .. }));
        assert_eq!((result.is_ok(), is_unavailable), (user != 3, user == 3), "{user}: {result:?}");
    }
    let peeked = limiter.peek(&slots, "key", 0).await.expect("admitted");
    assert_eq!(peeked.limit - peeked.remaining, 9);
    drop(ended);
    limiter.flush().await.expect("stated");
    assert_eq!(limiter.peek(&slots, "key", 0).await.expect("admitted").remaining, 30);
}

/// Parts with one limit and one key are one charge, whose units their permits share.
#[tokio::test]
async fn parts_of_one_count_are_freed_one_by_one() {
    let server = Server::start();
    for test in TestLimiter::each(&server) {
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
}

#[tokio::test]
async fn rules_and_amounts_change_how_many_run() {
    let server = Server::start();
    for test in TestLimiter::each(&server) {
        let limiter = &test.limiter;
        let set = |rule: Rule| {
            let mut rules = RuleSet::new();
            rules.set("two", rule).expect("valid");
            limiter.set_rules(rules).expect("valid");
        };
        set(Rule::new().in_flight(3));
        let mut running = Vec::new();
        for _ in 0..3 {
            running.push(test.admit(&TWO, 1).await);
        }
        assert_busy(&test.acquire(&TWO, 1).await.expect_err("busy"), 3);
        // Lowered below those that run: nobody is evicted, and nobody is admitted.
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

/// A call that ends while its key is blocked frees its units; a reset frees those of all calls, which free nothing
/// later.
#[tokio::test]
async fn blocked_keys_and_resets() {
    let server = Server::start();
    for test in TestLimiter::each(&server) {
        let limiter = &test.limiter;
        let [first, second] = [test.admit(&TWO, 1).await, test.admit(&TWO, 1).await];
        limiter.block(&TWO, "key", MINUTE).await.expect("blocked");
        let blocked = test.acquire(&TWO, 1).await.expect_err("blocked");
        assert!(matches!(blocked, Rejection::Blocked { .. }), "{blocked:?}");
        drop(first);
        test.clock.advance(MINUTE);
        assert_eq!(test.in_flight(&TWO).await, 1);
        let third = test.admit(&TWO, 1).await;
        assert!(!second.is_lost());

        assert!(limiter.reset(&TWO, "key").await.expect("reset"));
        assert!(second.is_lost() && third.is_lost());
        let after = [test.admit(&TWO, 1).await, test.admit(&TWO, 1).await];
        drop((second, third));
        test.assert_busy(&TWO, 2).await;
        drop(after);
        assert_eq!(test.in_flight(&TWO).await, 0);
    }
}

/// A store that is full of other keys evicts those, and never units in flight.
#[tokio::test]
async fn a_flood_of_keys_frees_nothing() {
    const RATE: Limit = Limit::sliding("rate", 3, MINUTE);
    let limiter = RateLimiter::builder().max_keys(2_000).build().expect("valid");
    let mut running = Vec::new();
    for key in 0..2_000_u64 {
        running.push(limiter.acquire(&TWO, key, 2).await.expect("admitted"));
    }
    for key in 0..20_000_u64 {
        limiter.check(&RATE, key, 1).await.expect("admitted");
    }
    limiter.block(&TWO, 7_u64, MINUTE).await.expect("blocked");
    for key in 0..20_000_u64 {
        limiter.block(&RATE, key, MINUTE).await.expect("blocked");
    }
    limiter.block(&TWO, 7_u64, Duration::ZERO).await.expect("opened");
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

/// A future that is dropped before it is polled, or after, holds nothing.
#[tokio::test]
async fn a_dropped_call_holds_nothing() {
    let server = Server::start();
    for test in TestLimiter::each(&server) {
        drop(test.limiter.acquire(&TWO, "key", 1));
        for wait in [TWO, TWO.wait(MINUTE)] {
            let mut call = pin!(test.limiter.acquire(&wait, "key", 1));
            let _ = call.as_mut().now_or_never();
        }
        // A call whose request was sent is counted until the reply comes.
        let is_free = async {
            while test.in_flight(&TWO).await > 0 {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(10 * SECOND, is_free).await.expect("no unit is held");
    }
}
