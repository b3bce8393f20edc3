//! Rules that change while calls wait: each call obeys at once, the line changes, and the calls keep their order. A
//! rule admits or rejects a whole line, a grant stays, and a shutdown ends all.

use std::pin::Pin;

use ratelimit_runtime::__private::lines;
use ratelimit_runtime::Check;
use tokio::task::JoinSet;

use super::*;
use crate::waiting::{limiters, rest};
use crate::with_amount;

/// Calls that wait, in the order of their arrival. A test polls them by hand, the last one first, so the order of the
/// polls is not the order of arrival.
struct Crowd<'a> {
    test: &'a TestLimiter,
    calls: Vec<Option<Pin<Box<Check>>>>,
    /// The numbers and the results of the calls that have ended, in the order of their ends.
    ended: Vec<(usize, Result<Decision, Rejection>)>,
}

impl<'a> Crowd<'a> {
    fn new(test: &'a TestLimiter) -> Self {
        Self { test, calls: Vec::new(), ended: Vec::new() }
    }

    /// Uses up a limit, and lets calls of one unit wait for it.
    async fn behind(test: &'a TestLimiter, limit: &Limit, calls: usize) -> Self {
        test.limiter.check(limit, "key", limit.capacity()).await.expect("a new key");
        let mut crowd = Self::new(test);
        for _ in 0..calls {
            crowd.start(&limit.wait(MINUTE), 1).await;
        }
        crowd
    }

    /// Starts a call, and lets it wait.
    async fn start(&mut self, limit: &Limit, cost: u64) {
        self.add(self.test.limiter.check(limit, "key", cost)).await;
    }

    async fn add(&mut self, call: Check) {
        let mut call = Box::pin(call);
        let result = call.as_mut().now_or_never();
        assert!(result.is_none(), "{result:?}");
        self.calls.push(Some(call));
        wait_until_idle(&self.test.limiter).await;
    }

    /// Polls the calls, the last one first, until the line waits for the clock.
    async fn poll(&mut self) {
        let mut ended = Vec::new();
        for _ in 0..3 {
            for (number, call) in self.calls.iter_mut().enumerate().rev() {
                let Some(waiting) = call else { continue };
                if let Some(result) = waiting.as_mut().now_or_never() {
                    ended.push((number, result));
                    *call = None;
                }
            }
            wait_until_idle(&self.test.limiter).await;
        }
        // Calls that end at the same time have no order.
        ended.sort_by_key(|(number, _)| *number);
        self.ended.extend(ended);
    }

    /// Moves the clock in steps, and polls the calls at each.
    async fn pass(&mut self, steps: u64, step: Duration) {
        for _ in 0..steps {
            self.test.clock.advance(step);
            self.poll().await;
        }
    }

    async fn set(&mut self, rules: RuleSet) {
        self.test.set_rules(rules);
        wait_until_idle(&self.test.limiter).await;
        self.poll().await;
    }

    /// Returns the numbers of the calls that were admitted.
    fn admitted(&self) -> Vec<usize> {
        let admitted = self.ended.iter().filter(|(_, result)| result.is_ok());
        admitted.map(|(number, _)| *number).collect()
    }

    /// Asserts that as many calls were admitted, in the order of their arrival, and starts over.
    async fn end(self, limit: &Limit, admitted: usize) {
        assert_eq!(self.admitted(), (0..admitted).collect::<Vec<_>>(), "{limit:?}");
        self.test.start_over(limit).await;
    }
}

on_both_stores! {
    /// Later calls enter the line that a rule has made of both amounts, behind the calls that wait.
    async fn two_amounts_that_become_one_are_merged_by_arrival(test: TestLimiter) {
        for limit in limits("ruled", 4, SECOND) {
            let [two, four] = [2, 4].map(|amount| with_amount(&limit, amount).wait(MINUTE));
            let mut crowd = Crowd::behind(&test, &limit, 0).await;
            for number in 0..24 {
                if number == 20 {
                    crowd.set(of_limit(amounts(2).until(test.in_time(3 * SECOND)))).await;
                }
                crowd.start(if number % 2 == 0 { &two } else { &four }, 1).await;
            }
            crowd.pass(11, SECOND / 4).await;
            let merged = crowd.admitted();
            assert!((2..=8).contains(&merged.len()), "{limit:?}: {merged:?}");
            assert_eq!(merged, (0..merged.len()).collect::<Vec<_>>(), "{limit:?}");
            // The end of the rule separates them: each amount keeps its own order.
            crowd.pass(160, SECOND / 4).await;
            let separate = crowd.admitted();
            assert_eq!(separate.len(), 24, "{limit:?}: {separate:?}");
            for parity in 0..2 {
                let own = || separate.iter().filter(|number| *number % 2 == parity);
                assert!(own().is_sorted(), "{limit:?}: {separate:?}");
            }
            test.start_over(&limit).await;
        }
    }

    /// The rules that end a wait are those in force when the call is polled. Otherwise it goes back to its place.
    async fn a_call_that_is_polled_after_the_end_of_a_rule_keeps_its_place(test: TestLimiter) {
        for limit in limits("ruled", 1, SECOND) {
            let mut crowd = Crowd::behind(&test, &limit, 4).await;
            for rule in [Rule::new().exempt(true), Rule::new().blocked(true), Rule::new()] {
                test.set_rule(rule);
                wait_until_idle(&test.limiter).await;
            }
            crowd.poll().await;
            assert_eq!(crowd.ended.len(), 0, "{limit:?}: {:?}", crowd.ended);
            crowd.start(&limit.wait(MINUTE), 1).await;
            crowd.pass(40, SECOND / 4).await;
            crowd.end(&limit, 5).await;
        }
    }

    /// The calls that wait keep their places until the end of the block, and later calls wait behind them.
    async fn the_order_survives_a_block_that_ends_within_the_wait(test: TestLimiter) {
        for limit in limits("ruled", 1, SECOND) {
            let mut crowd = Crowd::behind(&test, &limit, 6).await;
            let block = Rule::new().blocked(true).until(test.in_time(5 * SECOND));
            crowd.set(of_limit(block)).await;
            for _ in 0..4 {
                crowd.start(&limit.wait(MINUTE), 1).await;
            }
            let impatient = test.check(&limit.wait(SECOND), 1).await;
            assert_eq!(blocked(&impatient), Some(5 * SECOND), "{limit:?}");
            crowd.pass(49, SECOND / 10).await;
            assert_eq!(crowd.ended.len(), 0, "{limit:?}: {:?}", crowd.ended);
            crowd.pass(200, SECOND / 10).await;
            crowd.end(&limit, 10).await;
        }
    }

    /// Calls that are dropped before they notice the change take nothing, and those behind them move up. Rules for
    /// other keys and other limits leave the calls their places as well.
    async fn a_call_can_be_dropped_while_its_line_changes(test: TestLimiter) {
        for limit in limits("ruled", 1, SECOND) {
            let mut crowd = Crowd::behind(&test, &limit, 8).await;
            for (dropped, amount) in [(0, 2), (2, 1), (5, 2)] {
                let mut rules = of_limit(amounts(amount));
                test.set_rules(rules.clone());
                crowd.calls[dropped] = None;
                crowd.poll().await;
                rules.set_key("ruled", "other", amounts(7)).expect("valid");
                rules.set("another", Rule::new().blocked(true)).expect("valid");
                crowd.set(rules).await;
            }
            crowd.pass(60, SECOND / 4).await;
            assert_eq!(crowd.admitted(), [1, 3, 4, 6, 7], "{limit:?}");
            crowd.pass(3, SECOND).await;
            assert_eq!(test.peek(&limit, 0).await.remaining, 2, "{limit:?}");
            test.start_over(&limit).await;
        }
    }

    /// A rule of one limit of two: an exempt one leaves the line, and comes back to it.
    async fn the_order_of_groups_survives(test: TestLimiter) {
        for own in limits("ruled", 1, SECOND) {
            let other = limit("other", own.algorithm(), 2, SECOND).wait(MINUTE);
            let waiting = own.wait(MINUTE);
            let parts = [Part::new(&waiting, &"key", 1), Part::new(&other, &"key", 1)];
            test.limiter.check_all(&parts).await.expect("a new key");
            test.check(&other, 1).await.expect("a second unit");
            let mut crowd = Crowd::new(&test);
            for _ in 0..9 {
                crowd.add(test.limiter.check_all(&parts)).await;
            }
            for rule in [Rule::new().exempt(true), Rule::new(), amounts(3), amounts(2)] {
                crowd.set(of_limit(rule)).await;
                crowd.pass(4, SECOND / 4).await;
            }
            crowd.pass(60, SECOND / 4).await;
            crowd.end(&own, 9).await;
            test.start_over(&other).await;
        }
    }

    /// The moments that were reserved for calls of a bucket are free again when a rule changes its amounts.
    async fn calls_that_wait_for_a_bucket_move_together(test: TestLimiter) {
        let limit = Limit::token_bucket("ruled", 10, SECOND).burst(10);
        let mut crowd = Crowd::behind(&test, &limit, 8).await;
        // Half of the time to the next token has passed at each change.
        let mut threshold = 10;
        for change in 0..6 {
            crowd.pass(1, SECOND / 2 / threshold).await;
            threshold = 30 - threshold;
            crowd.set(of_limit(Rule::new().threshold(threshold.into()))).await;
            crowd.pass(1, SECOND / 2 / threshold - SECOND / 1_000).await;
            assert_eq!(crowd.ended.len(), change);
            crowd.pass(1, Duration::from_micros(1_002)).await;
            assert_eq!(crowd.ended.len(), change + 1);
        }
        crowd.pass(1, SECOND / 5).await;
        crowd.end(&limit, 8).await;
    }

    async fn a_rule_decides_a_whole_line_at_once(test: TestLimiter) {
        for limit in limits("ruled", 10, HOUR) {
            let waiting = limit.wait(9 * HOUR);
            let before = test.check(&limit, 8).await.expect("a new key").remaining;
            let (exempts, blocks) = (Rule::new().exempt(true), Rule::new().blocked(true));
            let until = test.in_time(10 * HOUR);
            for (rule, retry_after) in
                [(exempts, None), (blocks, None), (blocks.until(until), Some(10 * HOUR))]
            {
                let mut crowd = Crowd::new(&test);
                for _ in 0..3 {
                    crowd.start(&waiting, 5).await;
                }
                crowd.set(of_limit(rule)).await;
                assert_eq!(crowd.ended.len(), 3, "{limit:?}");
                for (_, result) in &crowd.ended {
                    if rule == exempts {
                        assert_eq!(result.as_ref().expect("exempt").remaining, u64::MAX);
                    } else {
                        assert_eq!(blocked(result), retry_after, "{limit:?}");
                    }
                }
                test.set_rules(RuleSet::new());
                assert_eq!(test.peek(&limit, 0).await.remaining, before, "{limit:?}");
            }
            let mut crowd = Crowd::new(&test);
            for cost in [5, 5, 2] {
                crowd.start(&waiting, cost).await;
            }
            test.set_rule(Rule::new().shadow(true));
            while crowd.ended.len() < 3 {
                crowd.poll().await;
            }
            let results = crowd.ended.iter().map(|(_, result)| result.as_ref().expect("a shadow"));
            let allowed: Vec<_> = results.map(|decision| decision.allowed).collect();
            // The last call fits beside the first charge. A bucket of Redis may still hold a moment of the first call.
            let fits = allowed[2] || is_bucket(limit.algorithm());
            assert_eq!((&allowed[..2], fits), (&[false, false][..], true), "{limit:?}");
            test.start_over(&limit).await;
        }
    }

    async fn a_call_whose_turn_has_come_keeps_its_grant(test: TestLimiter) {
        for limit in limits("ruled", 2, MINUTE) {
            let mut crowd = Crowd::behind(&test, &limit, 0).await;
            for _ in 0..2 {
                crowd.start(&limit.wait(HOUR), 2).await;
            }
            let is_estimate = limit.algorithm() == Algorithm::SlidingCounter;
            test.clock.advance(if is_estimate { 2 * MINUTE } else { MINUTE });
            // On the embedded store, the second call drives the line of the first.
            let behind = crowd.calls[1].as_mut().expect("waits");
            assert!(behind.as_mut().now_or_never().is_none());
            wait_until_idle(&test.limiter).await;
            crowd.set(of_limit(amounts(1))).await;
            assert_eq!(crowd.ended[0].1.as_ref().expect("admitted").limit, 2, "{limit:?}");
            // The call behind it costs more than the new capacity.
            let behind = &crowd.ended[1].1;
            let costly = matches!(behind, Err(Rejection::CostExceedsCapacity { varies: true, .. }));
            assert!(costly, "{behind:?}");
            crowd.end(&limit, 1).await;
        }
    }

    async fn a_shutdown_ends_calls_whose_line_changes(test: TestLimiter) {
        let limit = Limit::token_bucket("ruled", 10, SECOND).burst(10);
        let mut crowd = Crowd::behind(&test, &limit, 5).await;
        test.set_rule(Rule::new().threshold(20));
        test.limiter.shutdown().await.expect("given back");
        crowd.poll().await;
        assert_eq!(crowd.ended.len(), 5);
        for (_, result) in &crowd.ended {
            let is_ended = matches!(
                result,
                Err(Rejection::Unavailable { error: StoreError::ShuttingDown, .. })
            );
            assert!(is_ended, "{result:?}");
        }
        // A later change finds no call. All reserved moments are free again.
        test.set_rules(RuleSet::new());
        assert_eq!(lines(&test.limiter), 0);
        test.advance(100_000);
        test.check(&limit, 1).await.expect("the next token");
    }
}

/// Calls that are not polled after a change do not hold up the calls behind them, nor do those of a runtime that
/// stands still.
#[test]
fn calls_that_are_not_polled_do_not_hold_up_a_changed_line() {
    let server = Server::start();
    for limiter in limiters(&server) {
        for limit in limits("ruled", 1, SECOND / 4) {
            let (still, moving) = (support::runtime(), support::runtime());
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
