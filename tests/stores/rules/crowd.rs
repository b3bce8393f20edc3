//! Calls that wait under rules that change. A test polls them by hand, the last one first, so the order of the polls is
//! not the order of arrival.

use std::pin::Pin;
use std::time::Duration;

use futures::FutureExt;
use ratelimit_runtime::{Check, Decision, Limit, Rejection, Rule, RuleSet};
use support::limits::is_bucket;

use crate::{TestLimiter, wait_until_idle};

/// Calls that wait, in the order of their arrival.
#[derive(Default)]
pub(super) struct Crowd {
    pub(super) calls: Vec<Option<Pin<Box<Check>>>>,
    /// The numbers and the results of the calls that have ended, in the order of their ends.
    pub(super) ended: Vec<(usize, Result<Decision, Rejection>)>,
}

impl Crowd {
    /// Starts a call, and lets it wait.
    pub(super) async fn start(&mut self, test: &TestLimiter, limit: &Limit, cost: u64) {
        self.add(test, test.limiter.check(limit, "key", cost)).await;
    }

    pub(super) async fn add(&mut self, test: &TestLimiter, call: Check) {
        let mut call = Box::pin(call);
        let result = call.as_mut().now_or_never();
        assert!(result.is_none(), "{result:?}");
        self.calls.push(Some(call));
        wait_until_idle(&test.limiter).await;
    }

    /// Polls the calls, the last one first, until the line waits for the clock.
    pub(super) async fn poll(&mut self, test: &TestLimiter) {
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
    pub(super) async fn pass(&mut self, test: &TestLimiter, steps: u64, step: Duration) {
        for _ in 0..steps {
            test.clock.advance(step);
            self.poll(test).await;
        }
    }

    /// Returns the numbers of the calls that were admitted.
    pub(super) fn admitted(&self) -> Vec<usize> {
        let admitted = self.ended.iter().filter(|(_, result)| result.is_ok());
        admitted.map(|(number, _)| *number).collect()
    }

    pub(super) async fn set(&mut self, test: &TestLimiter, rules: RuleSet) {
        test.set_rules(rules);
        wait_until_idle(&test.limiter).await;
        self.poll(test).await;
    }
}

/// Amounts for each algorithm.
pub(super) fn amounts(amount: u64) -> Rule {
    Rule::new().threshold(amount).burst(amount)
}

pub(super) fn computed(limit: &Limit, amount: u64) -> Limit {
    let burst = is_bucket(limit.algorithm()).then_some(amount);
    limit.try_amounts(amount, burst).expect("valid")
}
