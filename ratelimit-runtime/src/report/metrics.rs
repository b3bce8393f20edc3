//! Metrics, for the recorder that the application has installed.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicIsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{PoisonError, RwLock};
use std::time::Instant;

use ::metrics::{Key, Label, Level, Metadata, Recorder, Unit};
use once_cell::sync::Lazy;

use super::{
    DEBT, IN_FLIGHT, IN_FLIGHT_LOST, LOST, NOTIFIED, decision_of, outcome_of, source_name,
};
use crate::limit::{Limit, Name};
use crate::reply::{Decision, Rejection, Source};

const DECISIONS: &str = "ratelimit_decisions_total";
const DURATION: &str = "ratelimit_decision_duration_seconds";
const KEYS: &str = "ratelimit_keys";
const BREAKER: &str = "ratelimit_breaker_open";
const RULES_LOST: &str = "ratelimit_rules_lost";
const WAITING: &str = "ratelimit_waiting_calls";
const WAIT: &str = "ratelimit_wait_duration_seconds";

/// The time at which a check or a wait started.
pub(crate) type Started = Instant;

static METADATA: Metadata<'static> =
    Metadata::new("ratelimit_runtime", Level::INFO, Some("ratelimit_runtime"));

/// Describes the metrics. Each new limiter calls this again, because the recorder may be a new one.
pub(crate) fn describe() {
    with_recorder(|recorder| {
        let counter = |name: &'static str, text: &'static str| {
            recorder.describe_counter(name.into(), Some(Unit::Count), text.into());
        };
        counter(
            DECISIONS,
            "Calls checked against a rate limit, by limit, outcome and source of the decision",
        );
        counter(DEBT, "Units that calls have used beyond their charges, by limit");
        counter(NOTIFIED, "Calls that have reached the `notify_at` of a limit, by limit");
        counter(LOST, "Charges that could not be corrected after their calls, by limit");
        counter(
            IN_FLIGHT_LOST,
            "Units in flight that calls of this process have lost before their end, by limit",
        );
        let gauge = |name: &'static str, text: &'static str| {
            recorder.describe_gauge(name.into(), Some(Unit::Count), text.into());
        };
        gauge(BREAKER, "1 while the circuit breaker of a Redis server is open, else 0");
        gauge(
            RULES_LOST,
            "1 while Redis has lost the rules that this process has read from it, else 0",
        );
        gauge(WAITING, "Calls that wait to be admitted, by limit");
        gauge(IN_FLIGHT, "Units that calls of this process hold while they run, by limit");
        gauge(KEYS, "Keys in the embedded stores of this process");
        let histogram = |name: &'static str, text: &'static str| {
            recorder.describe_histogram(name.into(), Some(Unit::Seconds), text.into());
        };
        histogram(DURATION, "Time from the call of a check to its decision, waiting included");
        histogram(WAIT, "Time that a call has waited, by limit and the end of its wait");
    });
}

/// Passes the recorder of the program to `work`. A panic of it reaches no caller, which may hold units; the panic hook
/// reports it.
fn with_recorder(work: impl FnOnce(&dyn Recorder)) {
    let _ = catch_unwind(AssertUnwindSafe(|| ::metrics::with_recorder(work)));
}

/// Records a limit of a check that has ended. `is_by_another` is whether the limit would have admitted the call, but
/// another one rejected it.
pub(super) fn record(
    started: &Started,
    limit: &Limit,
    result: &Result<Decision, Rejection>,
    is_by_another: bool,
) {
    let took = started.elapsed();
    let result = result.as_ref();
    let outcome = if is_by_another {
        "rejected_by_another"
    } else {
        outcome_of(limit.policy().shadow, result)
    };
    let source = decision_of(result).map(|decision| decision.source);
    let [counter, histogram] = decision_keys(limit.name(), outcome, source);
    with_recorder(|recorder| {
        recorder.register_counter(counter, &METADATA).increment(1);
        recorder.register_histogram(histogram, &METADATA).record(took.as_secs_f64());
    });
}

/// Records that a call waits. Returns the time.
pub(crate) fn wait_started(name: Name) -> Started {
    change(WAITING, name, 1.0);
    Started::now()
}

/// Records that a call no longer waits. `end` is how its wait has ended.
pub(crate) fn wait_ended(name: Name, started: &Started, end: &'static str) {
    let took = started.elapsed();
    change(WAITING, name, -1.0);
    let wait = Key::from_parts(WAIT, vec![limit_label(name), Label::new("outcome", end)]);
    with_recorder(|recorder| {
        recorder.register_histogram(&wait, &METADATA).record(took.as_secs_f64());
    });
}

pub(crate) fn count(counter: &'static str, name: Name, by: u64) {
    if by == 0 {
        return;
    }
    let key = Key::from_parts(counter, vec![limit_label(name)]);
    with_recorder(|recorder| recorder.register_counter(&key, &METADATA).increment(by));
}

pub(crate) fn change(gauge: &'static str, name: Name, by: f64) {
    let key = Key::from_parts(gauge, vec![limit_label(name)]);
    with_recorder(|recorder| recorder.register_gauge(&key, &METADATA).increment(by));
}

fn limit_label(name: Name) -> Label {
    Label::new("limit", name)
}

/// Records that the breaker of a server opened or closed.
pub(super) fn breaker(node: &str, open: bool) {
    set(&Key::from_parts(BREAKER, vec![Label::new("node", node.to_owned())]), open.into());
}

/// Records that Redis has lost the rules, or has rules again.
pub(super) fn rules_lost(is_lost: bool) {
    set(&Key::from_static_name(RULES_LOST), is_lost.into());
}

fn set(gauge: &Key, value: f64) {
    with_recorder(|recorder| recorder.register_gauge(gauge, &METADATA).set(value));
}

/// Records a change in the number of keys of an embedded store. All stores of the process share a gauge.
pub(crate) fn keys_changed(by: isize) {
    static KEY: Key = Key::from_static_name(KEYS);
    static STORED: AtomicIsize = AtomicIsize::new(0);
    if by == 0 {
        return;
    }
    let mut keys = STORED.fetch_add(by, SeqCst) + by;
    loop {
        set(&KEY, keys as f64);
        // Another thread may have set the gauge before, to a newer number. Then this thread sets it again.
        let now = STORED.load(SeqCst);
        if now == keys {
            return;
        }
        keys = now;
    }
}

/// Returns the metric keys of a decision: its counter, and the histogram of its duration. The process keeps them, as it
/// keeps names: saves their allocations at each decision (`tests/allocations.rs`).
fn decision_keys(name: Name, outcome: &'static str, source: Option<Source>) -> &'static [Key; 2] {
    type AllKeys = HashMap<(Name, &'static str, Option<Source>), &'static [Key; 2]>;
    static ALL: Lazy<RwLock<AllKeys>> = Lazy::new(RwLock::default);

    let decision = (name, outcome, source);
    if let Some(keys) = ALL.read().unwrap_or_else(PoisonError::into_inner).get(&decision) {
        return keys;
    }
    let (limit, source) = (limit_label(name), Label::new("source", source_name(source)));
    let outcome = Label::new("outcome", outcome);
    let keys = [
        Key::from_parts(DECISIONS, vec![limit.clone(), outcome, source.clone()]),
        Key::from_parts(DURATION, vec![limit, source]),
    ];
    let mut all = ALL.write().unwrap_or_else(PoisonError::into_inner);
    all.entry(decision).or_insert_with(|| Box::leak(Box::new(keys)))
}
