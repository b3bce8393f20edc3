//! Rules that change while calls wait: the line changes, and the calls keep their order.
//!
//! The calls are polled by hand, the last one first, so the order of the polls is not the order of arrival.

use std::pin::Pin;
use std::time::Duration;

use futures::FutureExt;
use ratelimit_runtime::__private;
use ratelimit_runtime::{
    Algorithm, Check, Decision, Limit, Part, Rejection, Rule, RuleSet, StoreError,
};
use support::limits::{HOUR, MINUTE, SECOND, is_bucket, limit, limits};
use support::server::Server;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::{closed, of_limit};
use crate::waiting::{limiters, rest};
use crate::{TestLimiter, on_both_stores, wait_until_idle};

/// Calls that wait, in the order of their arrival.
#[derive(Default)]
struct Crowd {
    calls: Vec<Option<Pin<Box<Check>>>>,
    /// The numbers and the results of the calls that have ended, in the order of their ends.
    ended: Vec<(usize, Result<Decision, Rejection>)>,
}

impl Crowd {
    /// Starts a call, and lets it wait.
    async fn start(&mut self, test: &TestLimiter, limit: &Limit, cost: u32) {
        self.add(test, test.limiter.check(limit, "key", cost)).await;
    }

    async fn add(&mut self, test: &TestLimiter, call: Check) {
        let mut call = Box::pin(call);
        let result = call.as_mut().now_or_never();
        assert!(result.is_none(), "{result:?}");
        self.calls.push(Some(call));
        wait_until_idle(&test.limiter).await;
    }

    /// Polls the calls, the last one first, until the line waits for the clock.
    async fn poll(&mut self, test: &TestLimiter) {
        let mut ended = Vec::new();
        for _ in 0..3 {
            for (number, call) in self.calls.iter_mut().enumerate().rev() {
                let Some(waiting) = call else { continue };
                if let Some(result) = waiting.as_mut().now_or_never() {
                    ended.push((number, result));
                    *call = None;
                }
            }
            wait_until_idle(&test.limiter).await;
        }
        // Calls that end at the same time have no order.
        ended.sort_by_key(|(number, _)| *number);
        self.ended.extend(ended);
    }

    /// Moves the clock in steps, and polls the calls at each.
    async fn pass(&mut self, test: &TestLimiter, steps: u32, step: Duration) {
        for _ in 0..steps {
            test.clock.advance(step);
            self.poll(test).await;
        }
    }

    /// Returns the numbers of the calls that were admitted.
    fn admitted(&self) -> Vec<usize> {
        let admitted = self.ended.iter().filter(|(_, result)| result.is_ok());
        admitted.map(|(number, _)| *number).collect()
    }

    async fn set(&mut self, test: &TestLimiter, rules: RuleSet) {
        test.set_rules(rules);
        wait_until_idle(&test.limiter).await;
        self.poll(test).await;
    }
}

/// Amounts for each algorithm.
fn amounts(amount: u32) -> Rule {
    Rule::new().threshold(amount).burst(amount)
}

fn computed(limit: &Limit, amount: u32) -> Limit {
    let burst = is_bucket(limit.algorithm()).then_some(amount);
    limit.try_amounts(amount, burst).expect("valid")
}

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

    async fn an_exempt_line_is_admitted_without_a_charge(test: TestLimiter) {
        for limit in limits("ruled", 10, HOUR) {
            let waiting = limit.wait(9 * HOUR);
            test.limiter.check(&limit, "key", 8).await.expect("a new key");
            let mut crowd = Crowd::default();
            for _ in 0..5 {
                crowd.start(&test, &waiting, 5).await;
            }
            crowd.set(&test, of_limit(Rule::new().exempt(true))).await;
            assert_eq!(crowd.admitted(), [0, 1, 2, 3, 4], "{limit:?}");
            for (_, result) in &crowd.ended {
                assert_eq!(result.as_ref().expect("exempt").remaining, u32::MAX);
            }
            test.set_rules(RuleSet::new());
            let left = test.limiter.peek(&limit, "key", 0).await.expect("a decision").remaining;
            assert_eq!(left, 2, "{limit:?}");
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
            for rule in [Rule::new().exempt(true), Rule::new().closed(true), Rule::new()] {
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

    async fn a_closed_line_is_rejected_with_the_closing(test: TestLimiter) {
        for limit in limits("ruled", 10, HOUR) {
            let waiting = limit.wait(9 * HOUR);
            let before = test.limiter.check(&limit, "key", 8).await.expect("a new key");
            for (end, retry_after) in [(None, None), (Some(10 * HOUR), Some(10 * HOUR))] {
                let mut crowd = Crowd::default();
                for _ in 0..3 {
                    crowd.start(&test, &waiting, 5).await;
                }
                let rule = Rule::new().closed(true);
                let rule = end.map_or(rule, |end| rule.until(test.in_time(end)));
                crowd.set(&test, of_limit(rule)).await;
                assert_eq!(crowd.ended.len(), 3, "{limit:?}");
                for (_, result) in &crowd.ended {
                    assert_eq!(closed(result), retry_after, "{limit:?}");
                }
                test.set_rules(RuleSet::new());
            }
            let left = test.limiter.peek(&limit, "key", 0).await.expect("a decision").remaining;
            assert_eq!(left, before.remaining, "{limit:?}");
            test.limiter.reset(&limit, "key").await.expect("reset");
        }
    }

    /// The calls that wait keep their places until the opening, and later calls wait behind them.
    async fn the_order_survives_a_closing_that_ends_within_the_wait(test: TestLimiter) {
        for limit in limits("ruled", 1, SECOND) {
            let waiting = limit.wait(MINUTE);
            test.limiter.check(&limit, "key", 1).await.expect("a new key");
            let mut crowd = Crowd::default();
            for _ in 0..6 {
                crowd.start(&test, &waiting, 1).await;
            }
            let closing = Rule::new().closed(true).until(test.in_time(5 * SECOND));
            crowd.set(&test, of_limit(closing)).await;
            for _ in 0..4 {
                crowd.start(&test, &waiting, 1).await;
            }
            let impatient = test.limiter.check(&limit.wait(SECOND), "key", 1).await;
            assert_eq!(closed(&impatient), Some(5 * SECOND), "{limit:?}");
            crowd.pass(&test, 49, SECOND / 10).await;
            assert_eq!(crowd.ended.len(), 0, "{limit:?}: {:?}", crowd.ended);
            crowd.pass(&test, 200, SECOND / 10).await;
            assert_eq!(crowd.admitted(), (0..10).collect::<Vec<_>>(), "{limit:?}");
            test.set_rules(RuleSet::new());
            test.limiter.reset(&limit, "key").await.expect("reset");
        }
    }

    async fn a_line_of_a_shadow_is_decided_at_once(test: TestLimiter) {
        for limit in limits("ruled", 10, HOUR) {
            let waiting = limit.wait(9 * HOUR);
            test.limiter.check(&limit, "key", 8).await.expect("a new key");
            let mut crowd = Crowd::default();
            for cost in [5, 5, 2] {
                crowd.start(&test, &waiting, cost).await;
            }
            test.set_rules(of_limit(Rule::new().shadow(true)));
            while crowd.ended.len() < 3 {
                crowd.poll(&test).await;
            }
            let allowed = |ended: &(usize, Result<Decision, Rejection>)| {
                ended.1.as_ref().expect("a shadow").allowed
            };
            let allowed: Vec<_> = crowd.ended.iter().map(allowed).collect();
            // The last call fits beside the first charge. A bucket of Redis may still hold a moment of the first call.
            let fits = allowed[2] || is_bucket(limit.algorithm());
            assert_eq!((&allowed[..2], fits), (&[false, false][..], true), "{limit:?}");
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

    /// A call whose turn has come keeps the grant of the old amounts.
    async fn a_call_whose_turn_has_come_keeps_its_grant(test: TestLimiter) {
        for limit in limits("ruled", 2, MINUTE) {
            let waiting = limit.wait(HOUR);
            test.limiter.check(&limit, "key", 2).await.expect("a new key");
            let mut crowd = Crowd::default();
            for _ in 0..2 {
                crowd.start(&test, &waiting, 2).await;
            }
            let is_estimate = limit.algorithm() == Algorithm::SlidingCounter;
            test.clock.advance(if is_estimate { 2 * MINUTE } else { MINUTE });
            // On the embedded store, the second call drives the line of the first.
            let behind = crowd.calls[1].as_mut().expect("waits");
            assert!(behind.as_mut().now_or_never().is_none());
            wait_until_idle(&test.limiter).await;
            test.set_rules(of_limit(amounts(1)));
            crowd.poll(&test).await;
            assert_eq!(crowd.admitted(), [0], "{limit:?}: {:?}", crowd.ended);
            assert_eq!(crowd.ended[0].1.as_ref().expect("admitted").limit, 2, "{limit:?}");
            // The call behind it costs more than the new capacity.
            let behind = &crowd.ended[1].1;
            assert!(matches!(behind, Err(Rejection::CostExceedsCapacity { .. })), "{behind:?}");
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

    async fn a_shutdown_ends_calls_whose_line_changes(test: TestLimiter) {
        let limit = Limit::token_bucket("ruled", 10, SECOND).burst(10);
        let waiting = limit.wait(MINUTE);
        test.limiter.check(&limit, "key", 10).await.expect("a new key");
        let mut crowd = Crowd::default();
        for _ in 0..5 {
            crowd.start(&test, &waiting, 1).await;
        }
        test.set_rules(of_limit(Rule::new().threshold(20)));
        test.limiter.shutdown().await.expect("given back");
        crowd.poll(&test).await;
        assert_eq!(crowd.ended.len(), 5);
        for (_, result) in &crowd.ended {
            let is_shut = matches!(
                result,
                Err(Rejection::Unavailable { error: StoreError::ShuttingDown, .. })
            );
            assert!(is_shut, "{result:?}");
        }
        // A later change finds no call. All reserved moments are free again.
        test.set_rules(RuleSet::new());
        assert_eq!(__private::lines(&test.limiter), 0);
        test.advance(100_000);
        test.limiter.check(&limit, "key", 1).await.expect("the next token");
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
