//! Times, limits of each algorithm, their rules, and decisions.

use std::time::Duration;

use ratelimit_runtime::{Algorithm, Decision, Limit, Rejection, Rule, RuleSet};

use crate::ALGORITHMS;

pub const SECOND: Duration = Duration::from_secs(1);
pub const MINUTE: Duration = Duration::from_secs(60);
pub const HOUR: Duration = Duration::from_secs(3_600);
pub const DAY: Duration = Duration::from_secs(86_400);

/// How a limit of a random trace leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leasing {
    None,
    UpTo(u64),
    Auto,
}

/// Returns whether a limit has a burst: the algorithm is a token bucket or a leaky bucket.
pub const fn is_bucket(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket)
}

/// Returns a limit whose capacity is its threshold. The burst of a leaky bucket would be 1 otherwise.
pub fn limit(name: &'static str, algorithm: Algorithm, threshold: u64, period: Duration) -> Limit {
    let limit = Limit::new(name, algorithm, threshold, period).expect("valid");
    if algorithm == Algorithm::LeakyBucket { limit.burst(threshold) } else { limit }
}

pub fn limits(
    name: &'static str,
    threshold: u64,
    period: Duration,
) -> impl Iterator<Item = Limit> + Clone {
    ALGORITHMS.into_iter().map(move |algorithm| limit(name, algorithm, threshold, period))
}

/// Returns a set with one rule.
pub fn ruled(limit: &str, rule: Rule) -> RuleSet {
    let mut rules = RuleSet::new();
    rules.set(limit, rule).expect("valid");
    rules
}

/// Returns the decision of an admitted or a rejected call.
pub fn decision(result: Result<Decision, Rejection>) -> Decision {
    match result {
        Ok(decision)
        | Err(
            Rejection::Limited { decision, .. }
            | Rejection::Blocked { decision, .. }
            | Rejection::Busy { decision, .. },
        ) => decision,
        Err(other) => panic!("the store makes no decision: {other:?}"),
    }
}
