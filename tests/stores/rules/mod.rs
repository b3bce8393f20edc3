//! Rules that override limits at run time: what they change, and where a limiter reads them.

mod feeds;
mod in_force;
mod trials;
mod waiting;

use std::time::{Duration, SystemTime};

use ratelimit_runtime::{Decision, Rejection, Rule, RuleSet};
use support::limits::ruled;

use crate::TestLimiter;

fn of_limit(rule: Rule) -> RuleSet {
    ruled("ruled", rule)
}

impl TestLimiter {
    pub(crate) fn set_rules(&self, rules: RuleSet) {
        self.limiter.set_rules(rules).expect("valid rules");
    }

    fn in_time(&self, time: Duration) -> SystemTime {
        SystemTime::UNIX_EPOCH + self.clock.now() + time
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
