//! What can be seen of a limiter from outside: told of every check that ends, it emits `tracing`
//! events, and with feature `metrics` it counts and measures. Keys may be personal, and are many, so
//! no event and no label has one.

#[cfg(feature = "metrics")]
mod metrics;
#[cfg(not(feature = "metrics"))]
#[path = "unmeasured.rs"]
mod metrics;

use std::fmt;

use self::metrics::Began;
pub(crate) use self::metrics::{describe, keys_changed};
use crate::decision::Source;
use crate::error::StoreError;
use crate::question::Finding;
use crate::rejection::Rejection;

/// A check that has begun.
pub(crate) struct Report {
    began: Began,
}

impl Report {
    pub(crate) fn begin() -> Self {
        Self { began: Began::now() }
    }

    /// The check has ended; `shadow` when the call goes on whatever was found.
    #[inline]
    pub(crate) fn end(self, finding: &Finding, shadow: bool) {
        if finding.is_err() {
            emit(finding, shadow);
        }
        metrics::ended(&self.began, finding, shadow);
    }
}

/// A server is asked no more, or is asked again.
#[cfg(feature = "redis")]
pub(crate) fn breaker(node: &str, cause: Option<&StoreError>) {
    if let Some(cause) = cause {
        tracing::warn!(node, cause = %Keyless(cause), "Redis is not asked until it answers a probe");
    } else {
        tracing::info!(node, "Redis answers again");
    }
    metrics::breaker(node, cause.is_some());
}

/// A server may forget counts.
#[cfg(feature = "redis")]
pub(crate) fn may_evict(node: &str, policy: &str) {
    tracing::warn!(
        node,
        policy,
        "Redis may evict keys of rate limits, which then start anew: set `maxmemory-policy \
         noeviction`, or give the limiter a server of its own"
    );
}

/// Refusals are traffic, and clients decide how many there are: they are seen when looked for.
fn emit(finding: &Finding, shadow: bool) {
    match finding {
        Ok(_) => {}
        Err(Rejection::Limited { name, decision }) if shadow => tracing::info!(
            limit = name,
            retry_after = ?decision.retry_after,
            source = name_of(Some(decision.source)),
            "would be refused"
        ),
        Err(Rejection::Limited { name, decision }) => tracing::debug!(
            limit = name,
            retry_after = ?decision.retry_after,
            source = name_of(Some(decision.source)),
            "refused"
        ),
        Err(Rejection::CostExceedsCapacity { name, cost, capacity }) if shadow => {
            tracing::info!(limit = name, cost, capacity, "would be refused, however long it waits");
        }
        Err(Rejection::CostExceedsCapacity { name, cost, capacity }) => {
            tracing::info!(limit = name, cost, capacity, "refused, however long it waits");
        }
        Err(Rejection::Unavailable { name, error }) => {
            tracing::debug!(limit = name, error = %Keyless(error), "not decided");
        }
    }
}

/// The word for who decided.
fn name_of(source: Option<Source>) -> &'static str {
    match source {
        Some(Source::Embedded) => "embedded",
        Some(Source::Redis) => "redis",
        Some(Source::Fallback) => "fallback",
        Some(Source::Cache) => "cache",
        Some(Source::Lease) => "lease",
        None => "none",
    }
}

/// An error without the key that it may be about.
pub(crate) struct Keyless<'a>(pub(crate) &'a StoreError);

impl fmt::Display for Keyless<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            StoreError::ForeignKey { .. } => {
                f.write_str("the Redis key does not hold the state of a rate limit")
            }
            StoreError::CircuitOpen { cause } => {
                write!(f, "Redis is not asked until it answers a probe, after: {}", Keyless(cause))
            }
            other => other.fmt(f),
        }
    }
}
