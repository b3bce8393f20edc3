//! The reports of a limiter: `tracing` events and spans, metrics with feature `metrics`, and the log from which the
//! response to a web request reports limits. Keys can be personal and can have any number of values, so no event and
//! no label contains a key, unless the application asks for it. Events of rejections contain a hash of the key. The
//! part of a Redis key before the hash tag names the limit and is not personal.

#[cfg(feature = "metrics")]
mod metrics;
#[cfg(not(feature = "metrics"))]
#[path = "unmeasured.rs"]
mod metrics;
mod rejected_keys;
pub(crate) mod request_log;
mod trace;

use std::collections::HashSet;
use std::mem::{Discriminant, discriminant};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use once_cell::sync::Lazy;
use tracing::Span;
use tracing::field::Empty;

pub(crate) use self::metrics::{
    Started, change, count, describe, keys_changed, wait_ended, wait_started,
};
pub use self::rejected_keys::RejectedKey;
pub(crate) use self::rejected_keys::RejectedKeys;
pub use self::trace::RejectedCall;
pub(crate) use self::trace::{LogSecret, ReportSettings};
use self::trace::{RejectionHook, TracedKey};
use crate::key::{Key, KeyId};
use crate::limit::{Limit, Name, OnError, Terms};
use crate::one_or_many::OneOrMany;
use crate::reply::{Decision, Mistake, Rejection, Source, StoreError};

pub(crate) const DEBT: &str = "ratelimit_debt_units_total";
pub(crate) const LOST: &str = "ratelimit_settlements_lost_total";
pub(crate) const IN_FLIGHT: &str = "ratelimit_in_flight";
const NOTIFIED: &str = "ratelimit_notifications_total";
const IN_FLIGHT_LOST: &str = "ratelimit_in_flight_lost_total";

/// The report of a check that is not finished.
pub(crate) struct Report {
    started: Started,
    /// The keys of its limits, in their order. Empty if nothing records them.
    keys: OneOrMany<TracedKey>,
    on_rejected: Option<RejectionHook>,
}

impl Report {
    pub(crate) fn start() -> Self {
        Self::since(Started::now())
    }

    pub(crate) fn since(started: Started) -> Self {
        Self { started, keys: OneOrMany::new(), on_rejected: None }
    }

    /// Adds the keys of the check, if an event would contain them or the application listens to rejections.
    pub(crate) fn with_keys<'a>(
        mut self,
        settings: &ReportSettings,
        keys: impl Iterator<Item = (&'a Terms, KeyId, &'a dyn Key)>,
    ) -> Self {
        if settings.reports_rejections() {
            let traced = keys.map(|(terms, key_id, key)| settings.traced(terms, key_id, key));
            self.keys = traced.collect();
            self.on_rejected.clone_from(&settings.on_rejected);
        }
        self
    }

    /// Reports the limit with this index.
    pub(crate) fn about(mut self, index: usize) -> Self {
        if index < self.keys.len() {
            self.keys.swap(0, index);
        }
        self
    }

    /// Records a limit of a check. `is_admitted` is whether the check admits a call that this limit admits.
    pub(crate) fn record(
        &self,
        limit: &Limit,
        result: &Result<Decision, Rejection>,
        is_admitted: bool,
    ) {
        metrics::record(&self.started, limit, result, result.is_ok() && !is_admitted);
        request_log::with_current(|log| log.record_result(limit, result));
    }

    /// Reports the result of the check, as it is before a shadow admits the call.
    pub(crate) fn end(self, limit: &Limit, result: &Result<Decision, Rejection>) {
        if let Err(rejection) = result {
            let key = self.keys.first();
            emit(rejection, limit.policy().shadow, key);
            if let Some(on_rejected) = &self.on_rejected {
                let (key, is_shadow) = (key.map_or("", |key| &*key.text), limit.policy().shadow);
                on_rejected(&RejectedCall { key, rejection, is_shadow });
            }
        }
        self.record(limit, result, true);
    }
}

/// Returns whether metrics or the log of a request record checks. They also record checks without an event. The tests
/// of this crate have no metrics, so they also take the path of programs without them.
#[inline]
pub(crate) fn is_recorded() -> bool {
    cfg!(all(feature = "metrics", not(test))) || request_log::is_open()
}

/// Returns the decision of the store about a call; `None` if no store has decided it.
fn decision_of<'a>(result: Result<&'a Decision, &'a Rejection>) -> Option<&'a Decision> {
    match result {
        Ok(decision) => Some(decision),
        Err(rejection) => rejection.decided().map(|(_, _, decision)| decision),
    }
}

/// Returns the outcome of a call in metrics and spans.
fn outcome_of(is_shadow: bool, result: Result<&Decision, &Rejection>) -> &'static str {
    match result {
        // A shadow has admitted the call.
        Ok(decision) if !decision.allowed => "shadow_limited",
        Ok(_) if is_shadow => "shadow_allowed",
        Ok(_) => "allowed",
        Err(Rejection::Unavailable { .. }) => "unavailable",
        Err(Rejection::Mistake { .. }) => "mistake",
        Err(_) if is_shadow => "shadow_limited",
        Err(Rejection::Limited { .. }) => "limited",
        Err(Rejection::Blocked { .. }) => "blocked",
        Err(Rejection::Busy { .. }) => "busy",
        Err(Rejection::CostExceedsCapacity { .. }) => "cost_exceeds_capacity",
    }
}

/// Adds a limit that is about to be decided to the log of the current web request.
pub(crate) fn expect(limit: &Limit) {
    request_log::with_current(|log| log.expect(limit));
}

/// Returns the span of a call that goes to Redis or waits: `DEBUG`, because it says nothing that an operator must know,
/// and with a target of its own, for a program that exports spans and no `DEBUG` events.
pub(crate) fn call_span(limit: &str) -> Span {
    tracing::debug_span!(
        target: "ratelimit_runtime::span", "ratelimit.check",
        limit, outcome = Empty, source = Empty, wait = Empty
    )
}

/// Records in the span of a call what the caller receives, and how long a call that can wait has taken.
pub(crate) fn end_call(span: &Span, result: Result<&Decision, &Rejection>, wait: Option<Duration>) {
    let (outcome, decision) = (outcome_of(false, result), decision_of(result));
    span.record("outcome", outcome)
        .record("source", source_name(decision.map(|it| it.source)))
        .record("wait", wait.map(tracing::field::debug));
}

/// Reports that the shared store does not decide.
pub(crate) fn outage(limit: &str, on_error: OnError, error: &StoreError) {
    let error = keyless(error);
    tracing::warn!(limit, ?on_error, %error, "Redis does not decide");
}

/// Reports that the shared store decides again.
pub(crate) fn outage_ended() {
    tracing::info!("Redis decides again");
}

/// Reports that a settlement is dropped, because too many wait for Redis.
pub(crate) fn settlement_queue_full() {
    static REPORTED: OnceLock<()> = OnceLock::new();
    if REPORTED.set(()).is_ok() {
        tracing::warn!(
            "too many settlements wait for Redis: further charges stay as they are, until Redis has \
             replied to those that wait"
        );
    }
}

/// Reports that calls in flight hold units of so many keys of the embedded store that calls of other keys are rejected.
pub(crate) fn store_overfull() {
    static REPORTED: OnceLock<()> = OnceLock::new();
    if REPORTED.set(()).is_ok() {
        tracing::warn!(
            "a part of the store is full of keys whose calls in flight hold units: calls in flight of other keys are \
             rejected as busy; raise `max_keys`"
        );
    }
}

/// Reports that a result asked to block its key for longer than its ceiling. The limit bounds how often that happens.
pub(crate) fn block_cut(limit: Name, asked: Duration, blocked_for: Duration) {
    tracing::warn!(
        limit,
        ?asked,
        ?blocked_for,
        "the result of a call asked to block its key for longer than `block_at_most`"
    );
}

/// Reports that a charge has brought the units in use of a key to a percentage of its limit.
pub(crate) fn notify(terms: &Terms, key: &str, percent: u8, used: u64) {
    let (name, capacity) = (&terms.identity.name, terms.capacity);
    count(NOTIFIED, name, 1);
    let (limit, remaining) = (name, capacity.saturating_sub(used));
    tracing::warn!(limit, key = %key, percent, used, remaining, capacity, "a call has reached `notify_at`");
}

/// Reports that Redis has lost the rules that it had, or has rules again. `version` is the version in force here.
pub(crate) fn rules_lost(version: &str, is_lost: bool) {
    metrics::rules_lost(is_lost);
    if is_lost {
        tracing::warn!(
            version,
            "Redis has lost the rules of the rate limits: the rules in force stay in this process, and a process that \
             starts has none. Write them again, or restore them from a backup"
        );
    } else {
        tracing::info!("Redis has rules of the rate limits again");
    }
}

/// Reports that the breaker of a server opened or closed.
pub(crate) fn breaker(node: &str, cause: Option<&StoreError>) {
    metrics::breaker(node, cause.is_some());
    if let Some(cause) = cause {
        tracing::warn!(node, cause = %keyless(cause), "Redis receives no requests until it replies to a probe");
    } else {
        tracing::info!(node, "Redis replies again");
    }
}

/// Reports that many calls wait for one key. The caller calls this each time the number has doubled.
pub(crate) fn long_line(limit: &str, calls: usize) {
    tracing::warn!(
        limit,
        calls,
        "many calls wait for one key of a rate limit: shorten `wait`, or raise the limit"
    );
}

/// Reports units in flight that were lost before their calls have ended: others may be admitted in their place.
pub(crate) fn units_lost(name: Name, units: u64) {
    if units > 0 {
        count(IN_FLIGHT_LOST, name, units);
        tracing::warn!(
            limit = name,
            units,
            "calls have lost their units in flight, because Redis has not heard of this process for the hold of the \
             limit, or the count was reset"
        );
    }
}

/// Reports that a server may evict counts.
pub(crate) fn may_evict(node: &str, policy: &str) {
    tracing::warn!(
        node,
        policy,
        "Redis may evict keys of rate limits, and their counts then start at zero: set `maxmemory-policy \
         noeviction`, or give the limiter a server of its own"
    );
}

/// Emits the event of a rejection. The level is low, because clients can cause any number of rejections.
fn emit(rejection: &Rejection, shadow: bool, key: Option<&TracedKey>) {
    let (mut in_flight, mut cost, mut capacity) = (None, None, None);
    let reason = match rejection {
        Rejection::Limited { .. } => "",
        Rejection::Blocked { .. } => ": the key is blocked",
        Rejection::Busy { in_flight: held, .. } => {
            in_flight = Some(*held);
            ": too many calls are in flight"
        }
        Rejection::CostExceedsCapacity { cost: asked, capacity: most, .. } => {
            (cost, capacity) = (Some(*asked), Some(*most));
            ": the cost exceeds the capacity"
        }
        Rejection::Unavailable { name, error, .. } => {
            return tracing::debug!(limit = name, error = %keyless(error), "not decided");
        }
        Rejection::Mistake { name, mistake, .. } => return emit_mistake(name, mistake),
    };
    tracing::debug!(
        limit = rejection.name(),
        key = key.map(|key| tracing::field::display(&key.logged)),
        in_flight,
        cost,
        capacity,
        retry_after = rejection.retry_after().map(tracing::field::debug),
        source = decision_of(Err(rejection)).map(|it| source_name(Some(it.source))),
        "{}{reason}",
        if shadow { "would be rejected" } else { "rejected" }
    );
}

/// Emits the event of a mistake of the program: an error, once for each limit.
fn emit_mistake(name: Name, mistake: &Mistake) {
    type Reported = HashSet<(Name, Discriminant<Mistake>)>;
    static REPORTED: Lazy<Mutex<Reported>> = Lazy::new(Mutex::default);
    let (limit, reported) = (name, (name, discriminant(mistake)));
    // The lock ends with this statement: a subscriber can call limited functions.
    let is_new = REPORTED.lock().unwrap_or_else(PoisonError::into_inner).insert(reported);
    if is_new {
        tracing::error!(limit, error = %mistake, "not decided, because the program has a mistake");
    } else {
        tracing::debug!(limit, error = %mistake, "not decided");
    }
}

/// Returns the label of a source in events and metrics.
fn source_name(source: Option<Source>) -> &'static str {
    match source {
        Some(Source::Embedded) => "embedded",
        Some(Source::Redis) => "redis",
        Some(Source::Fallback) => "fallback",
        Some(Source::Cache) => "cache",
        Some(Source::Lease) => "lease",
        None => "none",
    }
}

/// Returns an error without the key of the caller that it may contain.
fn keyless(error: &StoreError) -> StoreError {
    match error {
        StoreError::ForeignKey { key } => {
            // The hash tag is the caller's key. Neither the prefix nor the name can have a brace.
            let limit = key.split_once('{').map(|(limit, _)| format!("{limit}{{…}}").into());
            StoreError::ForeignKey { key: limit.unwrap_or_else(|| Arc::clone(key)) }
        }
        StoreError::CircuitOpen { cause } => {
            StoreError::CircuitOpen { cause: Arc::new(keyless(cause)) }
        }
        other => other.clone(),
    }
}
