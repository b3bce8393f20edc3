//! Rules that change while calls wait: the line changes, and the calls keep their order.

use futures::FutureExt;
use ratelimit_runtime::{Part, Rule, RuleSet};
use support::limits::{MINUTE, SECOND, limit, limits};
use support::server::Server;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::crowd::{Crowd, amounts, computed};
use super::{blocked, of_limit};
use crate::waiting::{limiters, rest};
use crate::{on_both_stores, wait_until_idle};

on_both_stores! {
    async fn the_order_survives_a_change_of_the_amounts(test: TestLimiter) {
        for limit in limits("ruled", 1, SECOND) {
            let waiting = limit.wait(MINUTE);
            test.limiter.check(&limit, "key", 1).await.expect("a new key");
            let mut crowd = Crowd::default();
            for _ in 0..10 {
                crowd.start(&test, &waiting, 1).await;
            }
            for amount in [2, 1, 3, 1] {
                crowd.set(&test, of_limit(amounts(amount))).await;
                crowd.pass(&test, 10, SECOND / 10).await;
            }
            crowd.pass(&test, 10, SECOND).await;
            assert_eq!(crowd.admitted(), (0..10).collect::<Vec<_>>(), "{limit:?}");
            test.set_rules(RuleSet::new());
            test.limiter.reset(&limit, "key").await.expect("reset");
        }
    }

    async fn two_amounts_that_become_one_are_merged_by_arrival(test: TestLimiter) {
        for limit in limits("ruled", 4, SECOND) {
            let [two, four] = [2, 4].map(|amount| computed(&limit, amount).wait(MINUTE));
            test.limiter.check(&limit, "key", 4).await.expect("a new key");
            let mut crowd = Crowd::default();
            for number in 0..20 {
                crowd.start(&test, if number % 2 == 0 { &two } else { &four }, 1).await;
            }
            let until = test.in_time(3 * SECOND);
            let merging = amounts(2).until(until);
            crowd.set(&test, of_limit(merging)).await;
            crowd.pass(&test, 11, SECOND / 4).await;
            let merged = crowd.admitted();
            assert!((2..=8).contains(&merged.len()), "{limit:?}: {merged:?}");
            assert_eq!(merged, (0..merged.len()).collect::<Vec<_>>(), "{limit:?}");
            // The end of the rule separates them: each amount keeps its own order.
            crowd.pass(&test, 160, SECOND / 4).await;
            let separate = crowd.admitted();
            assert_eq!(separate.len(), 20, "{limit:?}: {separate:?}");
            for parity in 0..2 {
                let own = || separate.iter().filter(|number| *number % 2 == parity);
                assert!(own().is_sorted(), "{limit:?}: {separate:?}");
            }
            test.set_rules(RuleSet::new());
            test.limiter.reset(&limit, "key").await.expect("reset");
        }
    }

    /// A call with other amounts enters the line that a rule has made of both, behind the calls that wait.
    async fn later_calls_join_behind(test: TestLimiter) {
        for limit in limits("ruled", 4, SECOND) {
            let [two, four] = [2, 4].map(|amount| computed(&limit, amount).wait(MINUTE));
            test.limiter.check(&limit, "key", 4).await.expect("a new key");
            let mut crowd = Crowd::default();
            for _ in 0..3 {
                crowd.start(&test, &two, 2).await;
            }
            test.set_rules(of_limit(amounts(3)));
            wait_until_idle(&test.limiter).await;
            for _ in 0..3 {
                crowd.start(&test, &four, 1).await;
            }
            crowd.pass(&test, 40, SECOND / 4).await;
            assert_eq!(crowd.admitted(), (0..6).collect::<Vec<_>>(), "{limit:?}");
            test.set_rules(RuleSet::new());
            test.limiter.reset(&limit, "key").await.expect("reset");
        }
    }

    /// The rules that end a wait are those in force when the call is polled. Otherwise it goes back to its place.
    async fn a_call_that_is_polled_after_the_end_of_a_rule_keeps_its_place(test: TestLimiter) {
        for limit in limits("ruled", 1, SECOND) {
            let waiting = limit.wait(MINUTE);
            test.limiter.check(&limit, "key", 1).await.expect("a new key");
            let mut crowd = Crowd::default();
            for _ in 0..4 {
                crowd.start(&test, &waiting, 1).await;
            }
            for rule in [Rule::new().exempt(true), Rule::new().blocked(true), Rule::new()] {
                test.set_rules(of_limit(rule));
                wait_until_idle(&test.limiter).await;
            }
            crowd.poll(&test).await;
            assert_eq!(crowd.ended.len(), 0, "{limit:?}: {:?}", crowd.ended);
            crowd.start(&test, &waiting, 1).await;
            crowd.pass(&test, 40, SECOND / 4).await;
            assert_eq!(crowd.admitted(), (0..5).collect::<Vec<_>>(), "{limit:?}");
            test.limiter.reset(&limit, "key").await.expect("reset");
        }
    }

    /// The calls that wait keep their places until the end of the block, and later calls wait behind them.
    async fn the_order_survives_a_block_that_ends_within_the_wait(test: TestLimiter) {
        for limit in limits("ruled", 1, SECOND) {
            let waiting = limit.wait(MINUTE);
            test.limiter.check(&limit, "key", 1).await.expect("a new key");
            let mut crowd = Crowd::default();
            for _ in 0..6 {
                crowd.start(&test, &waiting, 1).await;
            }
            let block = Rule::new().blocked(true).until(test.in_time(5 * SECOND));
            crowd.set(&test, of_limit(block)).await;
            for _ in 0..4 {
                crowd.start(&test, &waiting, 1).await;
            }
            let impatient = test.limiter.check(&limit.wait(SECOND), "key", 1).await;
            assert_eq!(blocked(&impatient), Some(5 * SECOND), "{limit:?}");
            crowd.pass(&test, 49, SECOND / 10).await;
            assert_eq!(crowd.ended.len(), 0, "{limit:?}: {:?}", crowd.ended);
            crowd.pass(&test, 200, SECOND / 10).await;
            assert_eq!(crowd.admitted(), (0..10).collect::<Vec<_>>(), "{limit:?}");
            test.set_rules(RuleSet::new());
            test.limiter.reset(&limit, "key").await.expect("reset");
        }
    }

    /// Calls that are dropped before they notice the change take nothing, and those behind them move up.
    async fn a_call_can_be_dropped_while_its_line_changes(test: TestLimiter) {
        for limit in limits("ruled", 1, SECOND) {
            let waiting = limit.wait(MINUTE);
            test.limiter.check(&limit, "key", 1).await.expect("a new key");
            let mut crowd = Crowd::default();
            for _ in 0..8 {
                crowd.start(&test, &waiting, 1).await;
            }
            for (dropped, amount) in [(0, 2), (2, 1), (5, 2)] {
                test.set_rules(of_limit(amounts(amount)));
                crowd.calls[dropped] = None;
                crowd.poll(&test).await;
            }
            crowd.pass(&test, 60, SECOND / 4).await;
            assert_eq!(crowd.admitted(), [1, 3, 4, 6, 7], "{limit:?}");
            crowd.pass(&test, 3, SECOND).await;
            let left = test.limiter.peek(&limit, "key", 1).await.expect("a decision").remaining;
            assert_eq!(left, 2, "{limit:?}");
            test.set_rules(RuleSet::new());
            test.limiter.reset(&limit, "key").await.expect("reset");
        }
    }

    /// A rule of one limit of two: an exempt one leaves the line, and comes back to it.
    async fn the_order_of_groups_survives(test: TestLimiter) {
        for own in limits("ruled", 1, SECOND) {
            let other = limit("other", own.algorithm(), 2, SECOND).wait(MINUTE);
            let own = own.wait(MINUTE);
            let start = || {
                let parts = [Part::new(&own, &"key", 1), Part::new(&other, &"key", 1)];
                test.limiter.check_all(&parts)
            };
            start().await.expect("a new key");
            test.limiter.check(&other, "key", 1).await.expect("a second unit");
            let mut crowd = Crowd::default();
            for _ in 0..9 {
                crowd.add(&test, start()).await;
            }
            for rule in [Rule::new().exempt(true), Rule::new(), amounts(3), amounts(2)] {
                crowd.set(&test, of_limit(rule)).await;
                crowd.pass(&test, 4, SECOND / 4).await;
            }
            crowd.pass(&test, 60, SECOND / 4).await;
            assert_eq!(crowd.admitted(), (0..9).collect::<Vec<_>>(), "{own:?}");
            test.set_rules(RuleSet::new());
            for limit in [&own, &other] {
                test.limiter.reset(limit, "key").await.expect("reset");
            }
        }
    }
}

/// Calls that are not polled after a change do not hold up the calls behind them, nor do those of a runtime that
/// stands still.
#[test]
fn calls_that_are_not_polled_do_not_hold_up_a_changed_line() {
    let server = Server::start();
    let runtime = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime")
    };
    for limiter in limiters(&server) {
        for limit in limits("ruled", 1, SECOND / 4) {
            let (still, moving) = (runtime(), runtime());
            let waiting = limit.wait(20 * SECOND);
            let mut kept = Vec::new();
            still.block_on(async {
                limiter.check(&limit, "key", 1).await.expect("a new key");
                for _ in 0..3 {
                    let mut call = Box::pin(limiter.check(&waiting, "key", 1));
                    assert!(call.as_mut().now_or_never().is_none());
                    kept.push(call);
                    tokio::spawn(limiter.check(&waiting, "key", 1));
                }
                tokio::task::yield_now().await;
            });
            moving.block_on(async {
                let calls: JoinSet<_> = (0..2).map(|_| limiter.check(&waiting, "key", 1)).collect();
                sleep(SECOND / 20).await;
                limiter.set_rules(of_limit(amounts(2))).expect("valid");
                for result in timeout(8 * SECOND, calls.join_all()).await.expect("in time") {
                    result.expect("admitted");
                }
                drop(kept);
                still.shutdown_background();
                limiter.set_rules(RuleSet::new()).expect("valid");
                rest(&limiter).await;
                limiter.reset(&limit, "key").await.expect("reset");
            });
        }
    }
}
