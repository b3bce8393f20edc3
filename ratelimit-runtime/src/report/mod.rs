//! What can be seen of a limiter from outside: told of every check that ends, it emits `tracing`
//! events, and with feature `metrics` it counts and measures. Keys may be personal, and are many, so
//! no event and no label has one; events of refusals have a hash of it. The part of a Redis key that
//! names the limit is not personal.

#[cfg(feature = "metrics")]
mod metrics;
#[cfg(not(feature = "metrics"))]
#[path = "unmeasured.rs"]
mod metrics;

#[cfg(any(feature = "tower", feature = "actix"))]
pub(crate) mod request_log;
mod trace;

use std::fmt;
use std::sync::Arc;

pub(crate) use self::metrics::{Began, describe, keys_changed};
use self::trace::Trace;
pub(crate) use self::trace::tells;
use crate::decision::Source;
#[cfg(any(feature = "tower", feature = "actix"))]
use crate::decision::Verdict;
use crate::error::StoreError;
use crate::limit::Limit;
use crate::part::Charge;
use crate::question::Finding;
use crate::rejection::Rejection;

/// A check that has begun.
pub(crate) struct Report {
    began: Began,
    trace: Trace,
}

impl Report {
    pub(crate) fn begin() -> Self {
        Self::since(Began::now())
    }

    pub(crate) fn since(began: Began) -> Self {
        Self { began, trace: Trace::None }
    }

    /// The check is of the key at a place, which is looked up if an event would tell of it.
    pub(crate) fn about(mut self, limit: &Limit, cost: u32, place: impl FnOnce() -> u128) -> Self {
        self.trace = Trace::one(limit, cost, place);
        self
    }

    /// The check is of several keys.
    pub(crate) fn about_all(
        mut self,
        parts: &[Charge<'_>],
        place: impl Fn(&Charge<'_>) -> u128,
    ) -> Self {
        self.trace = Trace::several(parts, place);
        self
    }

    /// The check has ended; what was found is only made up for those who would hear of it.
    #[inline]
    pub(crate) fn end_if_heard(self, shadow: bool, finding: impl FnOnce() -> Finding) {
        if hears() || !matches!(self.trace, Trace::None) {
            self.end(&finding(), shadow);
        }
    }

    /// The check has ended; `shadow` when the call goes on whatever was found.
    pub(crate) fn end(self, finding: &Finding, shadow: bool) {
        if finding.is_err() {
            emit(finding, shadow, &self.trace);
        }
        noted(finding, shadow);
        metrics::ended(&self.began, finding, shadow);
    }
}

/// Whether anything is told of checks that have admitted or refused, whether or not events are.
#[inline]
pub(crate) fn hears() -> bool {
    #[cfg(any(feature = "tower", feature = "actix"))]
    if request_log::is_open() {
        return true;
    }
    cfg!(feature = "metrics")
}

/// Records the decision in the log of the request that the call is a part of, if any. Clients do not learn
/// of a shadow limit.
#[cfg_attr(
    not(any(feature = "tower", feature = "actix")),
    allow(unused_variables, reason = "there is no log of a request")
)]
#[inline]
fn noted(finding: &Finding, shadow: bool) {
    #[cfg(any(feature = "tower", feature = "actix"))]
    if !shadow
        && let Ok(Verdict { name, quota, decision })
        | Err(Rejection::Limited { name, quota, decision }) = finding
    {
        request_log::record(name, *quota, decision);
    }
}

/// Adds limits that are decided together to the log of the request, if any: only one of them reports the
/// decision.
#[cfg_attr(
    not(any(feature = "tower", feature = "actix")),
    allow(unused_variables, reason = "there is no log of a request")
)]
pub(crate) fn together(parts: &[Charge<'_>]) {
    #[cfg(any(feature = "tower", feature = "actix"))]
    request_log::expect(parts.iter().map(|part| part.limit));
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
fn emit(finding: &Finding, shadow: bool, trace: &Trace) {
    match finding {
        Ok(_) => {}
        Err(Rejection::Limited { name, decision, .. }) if shadow => tracing::info!(
            limit = name,
            key = trace.of(name),
            retry_after = ?decision.retry_after,
            source = name_of(Some(decision.source)),
            "would be refused"
        ),
        Err(Rejection::Limited { name, decision, .. }) => tracing::debug!(
            limit = name,
            key = trace.of(name),
            retry_after = ?decision.retry_after,
            source = name_of(Some(decision.source)),
            "refused"
        ),
        Err(Rejection::CostExceedsCapacity { name, cost, capacity }) if shadow => {
            let key = trace.of(name);
            tracing::info!(
                limit = name,
                key,
                cost,
                capacity,
                "would be refused, however long it waits"
            );
        }
        Err(Rejection::CostExceedsCapacity { name, cost, capacity }) => {
            let key = trace.of(name);
            tracing::info!(limit = name, key, cost, capacity, "refused, however long it waits");
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

/// An error without the caller's key that it may be about.
pub(crate) struct Keyless<'a>(pub(crate) &'a StoreError);

impl fmt::Display for Keyless<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            StoreError::ForeignKey { key } => {
                // The hash tag is the caller's key. Neither the prefix nor the name can have a brace.
                let key = match key.split_once('{') {
                    Some((limit, _)) => format!("{limit}{{…}}").into(),
                    None => Arc::clone(key),
                };
                StoreError::ForeignKey { key }.fmt(f)
            }
            StoreError::CircuitOpen { cause } => {
                write!(f, "Redis is not asked until it answers a probe, after: {}", Keyless(cause))
            }
            other => other.fmt(f),
        }
    }
}
