//! The end of a trace. At rest, nothing is held: no unit is missing, and `retry_after` is true.

use std::time::Duration;

use ratelimit_runtime::__private::leases_are_idle;
use ratelimit_runtime::{Algorithm, Decision, Limit, Rejection, RuleSet};
use support::limits::decision;
use tokio::time::timeout;

use crate::calls::Verdict;
use crate::player::{A_SECOND, PATIENCE, Player};
use crate::trace::{Place, Setup};

impl Player<'_> {
    pub(crate) async fn end(mut self) -> Verdict {
        // All of them before one is awaited: a call that is dropped can pass its grant to another.
        let waiting = std::mem::take(&mut self.waiting);
        for waiting in &waiting {
            waiting.task.abort();
            self.except_dropped(&waiting.call);
        }
        for waiting in waiting {
            let _ = waiting.task.await;
        }
        if self.slot_moves {
            self.fleet.finish_move(&self.key);
        }
        self.rest().await;
        for process in &self.alive {
            process.limiter.set_rules(RuleSet::new()).expect("no rules");
        }
        self.permits.clear();
        self.verdict.breaches = self.judge.breaches();
        self.verdict.breaches.extend(self.beside.breaches());
        let missing = self.missing_beside().await;
        self.verdict.faults.extend(missing);
        // All clocks agree, and are after the latest time that one of them had.
        self.ahead_by.fill(0);
        self.pass(self.setup.skew * self.setup.tick);
        let limit = self.setup.limit(self.name, 0);
        // The end of a block wakes the lines of its count. Units must be back without that.
        if self.blocks.knows_any() {
            self.limiter(0).unblock(&limit, &self.key).await.expect("unblocked");
        }
        // Most of the units that calls have used must still count then.
        if self.setup.most_leased() > 0 {
            self.pass(2 * A_SECOND);
        }
        self.settle_processes().await;
        self.compare_remaining(&limit).await;
        // Moments that killed processes hold pass.
        self.pass(2 * A_SECOND);
        self.retry_at_the_end(&limit).await;
        for amounts in 0..self.setup.amounts.len() {
            let limit = self.setup.limit(self.name, amounts);
            self.is_empty_in_time(&limit).await;
        }
        let stopped = self.crashed.iter().flat_map(|crashed| &crashed.waiting);
        stopped.for_each(|waiting| waiting.task.abort());
        self.verdict
    }

    /// The processes give back what they have not used of leases that have ended.
    async fn settle_processes(&mut self) {
        let settled = async {
            while !self.alive.iter().all(|process| leases_are_idle(&process.limiter)) {
                tokio::time::sleep(Duration::from_micros(200)).await;
            }
        };
        if timeout(PATIENCE, settled).await.is_err() {
            self.verdict.faults.push("a process keeps leased units".to_owned());
        }
        for process in &self.alive {
            process.limiter.flush().await.expect("settled");
        }
    }

    /// A window has at least the units that its calls have left.
    async fn compare_remaining(&mut self, limit: &Limit) {
        if self.setup.is_bucket() || self.missing.is_excused {
            return;
        }
        let used = self.judge.used_within(counted_period(self.setup), self.now());
        let least = limit.threshold().saturating_sub(used + self.missing.units);
        let remaining = self.peek(limit, 1).await.remaining;
        if remaining < least {
            self.verdict.faults.push(format!("{remaining} units are left, not {least}"));
        }
    }

    /// Nobody else calls: a call that is rejected is admitted after its `retry_after`, and not earlier.
    async fn retry_at_the_end(&mut self, limit: &Limit) {
        for cost in [limit.capacity(), 1] {
            let Err(rejection) = self.limiter(0).check(limit, &self.key, cost).await else {
                continue;
            };
            let Rejection::Limited { decision, .. } = rejection else {
                self.verdict.faults.push(format!("at the end: {rejection:?}"));
                continue;
            };
            let wait = decision.retry_after.as_micros() as u64;
            self.pass(wait - 1);
            let early = self.limiter(0).check(limit, &self.key, cost).await;
            self.pass(1);
            let then = self.limiter(0).check(limit, &self.key, cost).await;
            if early.is_ok() || then.is_err() {
                let fault = format!("after {wait} us: {then:?}; a microsecond earlier: {early:?}");
                self.verdict.faults.push(fault);
            }
        }
    }

    /// After the time that is documented, the count has its whole capacity.
    async fn is_empty_in_time(&mut self, limit: &Limit) {
        let wait = self.peek(limit, limit.capacity()).await.retry_after.as_micros() as u64;
        let longest = self.longest_wait(limit);
        if wait > longest {
            self.verdict.faults.push(format!("{wait} us after the end, not {longest}"));
        }
        self.pass(wait);
        let left = self.peek(limit, limit.capacity()).await;
        if !left.allowed {
            self.verdict.faults.push(format!("{wait} us after the end: {left:?}"));
        }
    }

    fn longest_wait(&self, limit: &Limit) -> u64 {
        let period = counted_period(self.setup);
        match limit.algorithm() {
            Algorithm::SlidingCounter => 2 * period,
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                let most = self.setup.amounts.iter().map(|(_, capacity)| *capacity).max();
                let units = most.unwrap_or(0) + self.missing.units + self.missing.debts;
                let fills = u128::from(units) * u128::from(self.setup.period);
                fills.div_ceil(limit.threshold().into()) as u64
            }
            _ => period,
        }
    }

    async fn peek(&self, limit: &Limit, cost: u64) -> Decision {
        decision(self.limiter(0).peek(limit, &self.key, cost).await)
    }
}

/// Returns the period in which calls are counted: leased units count for longer.
fn counted_period(setup: &Setup) -> u64 {
    match setup.algorithm {
        Algorithm::SlidingCounter => 2 * setup.period,
        _ if setup.most_leased() > 0 => setup.period + A_SECOND,
        // Above 1,000, units leave up to a cell later, and two ticks of a sliding window.
        Algorithm::Sliding if setup.unit > 1 => setup.period + setup.period / 1_000 + 2,
        // Where clocks go back, a day has an hour more: a tick.
        _ if matches!(setup.align, Some(Place::Zone(_))) => setup.period + setup.tick,
        _ => setup.period,
    }
}
