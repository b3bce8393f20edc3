//! Metrics, for the recorder that the application has installed.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicIsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{PoisonError, RwLock};

use ::metrics::{Key, Label, Level, Metadata, Recorder, Unit};
use once_cell::sync::Lazy;

use super::{PartEnd, WaitEnd, source_name};
use crate::clock::Stopwatch;
use crate::limit::{LimitLabel, Name};
use crate::reply::{Decision, Rejection, Source};

const DECISIONS: &str = "ratelimit_decisions_total";
const DURATION: &str = "ratelimit_decision_duration_seconds";
const KEYS: &str = "ratelimit_keys";
const BREAKER: &str = "ratelimit_breaker_open";
#[cfg(feature = "rules")]
const RULES_LOST: &str = "ratelimit_rules_lost";
const WAITING: &str = "ratelimit_waiting_calls";
const WAIT: &str = "ratelimit_wait_duration_seconds";
const DEBT: &str = "ratelimit_debt_units_total";
const LOST: &str = "ratelimit_settlements_lost_total";
const IN_FLIGHT: &str = "ratelimit_in_flight";
const IN_FLIGHT_LOST: &str = "ratelimit_in_flight_lost_total";

static METADATA: Metadata<'static> =
    Metadata::new("ratelimit_runtime", Level::INFO, Some("ratelimit_runtime"));

/// Describes the metrics. Each new limiter calls this again, because the recorder may be a new one.
pub(crate) fn describe() {
    with_recorder(|recorder| {
        let checks =
            "Calls checked against a rate limit, by limit, outcome and source of the decision";
        recorder.describe_counter(DECISIONS.into(), Some(Unit::Count), checks.into());
        let duration = "Time from the call of a check to its decision, waiting included";
        recorder.describe_histogram(DURATION.into(), Some(Unit::Seconds), duration.into());
        let breaker = "1 while the circuit breaker of a Redis server is open, else 0";
        recorder.describe_gauge(BREAKER.into(), Some(Unit::Count), breaker.into());
        #[cfg(feature = "rules")]
        {
            let lost =
                "1 while Redis has lost the rules that this process has read from it, else 0";
            recorder.describe_gauge(RULES_LOST.into(), Some(Unit::Count), lost.into());
        }
        let waiting = "Calls that wait to be admitted, by limit";
        recorder.describe_gauge(WAITING.into(), Some(Unit::Count), waiting.into());
        let wait = "Time that a call has waited, by limit and the end of its wait";
        recorder.describe_histogram(WAIT.into(), Some(Unit::Seconds), wait.into());
        let debt = "Units that calls have used beyond their charges, by limit";
        recorder.describe_counter(DEBT.into(), Some(Unit::Count), debt.into());
        let lost = "Charges that could not be corrected after their calls, by limit";
        recorder.describe_counter(LOST.into(), Some(Unit::Count), lost.into());
        let in_flight = "Units that calls of this process hold while they run, by limit";
        recorder.describe_gauge(IN_FLIGHT.into(), Some(Unit::Count), in_flight.into());
        let lost =
            "Units in flight that calls of this process have lost before their end, by limit";
        recorder.describe_counter(IN_FLIGHT_LOST.into(), Some(Unit::Count), lost.into());
        let keys = "Keys in the embedded stores of this process";
        recorder.describe_gauge(KEYS.into(), Some(Unit::Count), keys.into());
    });
}

/// The time at which a check started.
pub(crate) struct Started(Stopwatch);

impl Started {
    #[inline]
    pub(crate) fn now() -> Self {
        Self(Stopwatch::start())
    }
}

/// Passes the recorder of the program to `work`. A panic of it reaches no caller, which may hold units; the panic hook
/// reports it.
fn with_recorder(work: impl FnOnce(&dyn Recorder)) {
    let _ = catch_unwind(AssertUnwindSafe(|| ::metrics::with_recorder(work)));
}

/// Records a check that has ended.
pub(super) fn record(started: &Started, label: &LimitLabel, result: &Result<Decision, Rejection>) {
    let (outcome, source) = MetricOutcome::of(result, label.shadow);
    record_outcome(started, label, outcome, source);
}

/// Records the part of a limit in a check that reports another limit.
pub(super) fn record_part(started: &Started, label: &LimitLabel, part: PartEnd) {
    let either = |plain, shadowed| if label.shadow { shadowed } else { plain };
    let (outcome, source) = match part {
        PartEnd::Charged(source) => {
            (either(MetricOutcome::Allowed, MetricOutcome::ShadowAllowed), Some(source))
        }
        PartEnd::Blocked(source) => {
            (either(MetricOutcome::Blocked, MetricOutcome::ShadowLimited), Some(source))
        }
        PartEnd::Busy(source) => {
            (either(MetricOutcome::Busy, MetricOutcome::ShadowLimited), Some(source))
        }
        PartEnd::Rejecting(source) => {
            (either(MetricOutcome::Limited, MetricOutcome::ShadowLimited), Some(source))
        }
        PartEnd::NotCharged(source) => (MetricOutcome::RejectedByAnother, Some(source)),
        PartEnd::Undecided => (MetricOutcome::Unavailable, None),
    };
    record_outcome(started, label, outcome, source);
}

fn record_outcome(
    started: &Started,
    label: &LimitLabel,
    outcome: MetricOutcome,
    source: Option<Source>,
) {
    let took = started.0.elapsed();
    let [counter, histogram] = decision_keys(label.name, outcome, source);
    with_recorder(|recorder| {
        recorder.register_counter(counter, &METADATA).increment(1);
        recorder.register_histogram(histogram, &METADATA).record(took.as_secs_f64());
    });
}

/// The values of the label `outcome`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum MetricOutcome {
    Allowed,
    Limited,
    Blocked,
    Busy,
    CostExceedsCapacity,
    Unavailable,
    Mistake,
    ShadowAllowed,
    ShadowLimited,
    RejectedByAnother,
}

impl MetricOutcome {
    /// The texts of the values, in the order of the variants.
    const NAMES: [&str; 10] = [
        "allowed",
        "limited",
        "blocked",
        "busy",
        "cost_exceeds_capacity",
        "unavailable",
        "mistake",
        "shadow_allowed",
        "shadow_limited",
        "rejected_by_another",
    ];

    /// Returns the outcome of a check, and where the decision was made.
    fn of(result: &Result<Decision, Rejection>, shadow: bool) -> (Self, Option<Source>) {
        let either = |plain, shadowed| if shadow { shadowed } else { plain };
        match result {
            Ok(decision) => (either(Self::Allowed, Self::ShadowAllowed), Some(decision.source)),
            Err(Rejection::Limited { decision, .. }) => {
                (either(Self::Limited, Self::ShadowLimited), Some(decision.source))
            }
            Err(Rejection::Blocked { decision, .. }) => {
                (either(Self::Blocked, Self::ShadowLimited), Some(decision.source))
            }
            Err(Rejection::Busy { decision, .. }) => {
                (either(Self::Busy, Self::ShadowLimited), Some(decision.source))
            }
            Err(Rejection::CostExceedsCapacity { .. }) => {
                (either(Self::CostExceedsCapacity, Self::ShadowLimited), None)
            }
            Err(Rejection::Unavailable { .. }) => (Self::Unavailable, None),
            Err(Rejection::Mistake { .. }) => (Self::Mistake, None),
        }
    }
}

/// Records that a call waits. Returns the time.
pub(crate) fn wait_started(name: &Name) -> Started {
    let key = waiting_key(name);
    with_recorder(|recorder| recorder.register_gauge(&key, &METADATA).increment(1.0));
    Started::now()
}

/// Records that a call no longer waits.
pub(crate) fn wait_ended(name: &Name, started: &Started, end: WaitEnd) {
    let took = started.0.elapsed();
    let waiting = waiting_key(name);
    let labels = vec![limit_label(name), Label::new("outcome", end.word())];
    let wait = Key::from_parts(WAIT, labels);
    with_recorder(|recorder| {
        recorder.register_gauge(&waiting, &METADATA).decrement(1.0);
        recorder.register_histogram(&wait, &METADATA).record(took.as_secs_f64());
    });
}

/// Records a charge that was corrected, and the units that the call has used beyond it.
pub(crate) fn settled(name: &Name, more: u64) {
    if more > 0 {
        count(DEBT, name, more);
    }
}

/// Records units that calls hold from now on, or no longer if the number is negative.
pub(crate) fn in_flight_changed(name: &Name, units: i64) {
    let key = Key::from_parts(IN_FLIGHT, vec![limit_label(name)]);
    with_recorder(|recorder| recorder.register_gauge(&key, &METADATA).increment(units as f64));
}

/// Records units in flight that were lost before their calls have ended.
pub(super) fn in_flight_lost(name: &Name, units: u64) {
    count(IN_FLIGHT_LOST, name, units);
}

/// Records a charge that could not be corrected.
pub(crate) fn settlement_lost(name: &Name) {
    count(LOST, name, 1);
}

fn count(counter: &'static str, name: &Name, by: u64) {
    let key = Key::from_parts(counter, vec![limit_label(name)]);
    with_recorder(|recorder| recorder.register_counter(&key, &METADATA).increment(by));
}

fn waiting_key(name: &Name) -> Key {
    Key::from_parts(WAITING, vec![limit_label(name)])
}

fn limit_label(name: &Name) -> Label {
    Label::new("limit", name.as_str())
}

/// Records that the breaker of a server opened or closed.
#[cfg(feature = "redis")]
pub(super) fn breaker(node: &str, open: bool) {
    let key = Key::from_parts(BREAKER, vec![Label::new("node", node.to_owned())]);
    let value = f64::from(u8::from(open));
    with_recorder(|recorder| recorder.register_gauge(&key, &METADATA).set(value));
}

/// Records that Redis has lost the rules, or has rules again.
#[cfg(feature = "rules")]
pub(super) fn rules_lost(is_lost: bool) {
    static KEY: Key = Key::from_static_name(RULES_LOST);
    let value = f64::from(u8::from(is_lost));
    with_recorder(|recorder| recorder.register_gauge(&KEY, &METADATA).set(value));
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
        with_recorder(|recorder| recorder.register_gauge(&KEY, &METADATA).set(keys as f64));
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
fn decision_keys(name: Name, outcome: MetricOutcome, source: Option<Source>) -> &'static [Key; 2] {
    type AllKeys = HashMap<(Name, MetricOutcome, Option<Source>), &'static [Key; 2]>;
    static ALL: Lazy<RwLock<AllKeys>> = Lazy::new(RwLock::default);

    let decision = (name, outcome, source);
    if let Some(keys) = ALL.read().unwrap_or_else(PoisonError::into_inner).get(&decision) {
        return keys;
    }
    let (limit, source) = (limit_label(&name), Label::new("source", source_name(source)));
    let outcome = Label::new("outcome", MetricOutcome::NAMES[outcome as usize]);
    let keys = [
        Key::from_parts(DECISIONS, vec![limit.clone(), outcome, source.clone()]),
        Key::from_parts(DURATION, vec![limit, source]),
    ];
    let mut all = ALL.write().unwrap_or_else(PoisonError::into_inner);
    all.entry(decision).or_insert_with(|| Box::leak(Box::new(keys)))
}
