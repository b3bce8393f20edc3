//! Rules that override limits at run time: what they change, and where a limiter reads them.

mod feeds;
mod in_force;
mod trials;
mod waiting;

use std::time::{Duration, SystemTime};

use futures::FutureExt;
use ratelimit_runtime::{
    Algorithm, Decision, Limit, OnError, Part, RateLimiter, Rejection, Rule, RuleSet, StoreError,
    rate_limit,
};
use support::limits::{HOUR, MINUTE, SECOND, is_bucket, limit, limits, ruled};
use support::proxy::{Network, Proxy};
use support::server::Server;
use tokio::time::{sleep, timeout};

use crate::{TestLimiter, on_both_stores, wait_until, wait_until_idle};

fn of_limit(rule: Rule) -> RuleSet {
    ruled("ruled", rule)
}

/// Amounts for each algorithm.
fn amounts(amount: u64) -> Rule {
    Rule::new().threshold(amount).burst(amount)
}

impl TestLimiter {
    pub(crate) fn set_rules(&self, rules: RuleSet) {
        self.limiter.set_rules(rules).expect("valid rules");
    }

    fn set_rule(&self, rule: Rule) {
        self.set_rules(of_limit(rule));
    }

    fn in_time(&self, time: Duration) -> SystemTime {
        SystemTime::UNIX_EPOCH + self.clock.now() + time
    }

    async fn check(&self, limit: &Limit, cost: u64) -> Result<Decision, Rejection> {
        self.limiter.check(limit, "key", cost).await
    }

    /// Removes the rules and the count.
    async fn start_over(&self, limit: &Limit) {
        self.set_rules(RuleSet::new());
        self.reset(limit).await;
    }
}

#[track_caller]
fn blocked(result: &Result<Decision, Rejection>) -> Option<Duration> {
    match result {
        Err(rejection @ Rejection::Blocked { decision, .. }) => {
            assert_eq!((decision.allowed, decision.limit, decision.remaining), (false, 0, 0));
            rejection.retry_after()
        }
        other => panic!("not blocked: {other:?}"),
    }
}
