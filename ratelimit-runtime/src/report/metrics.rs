//! What is counted and measured, for whatever recorder the application has installed.

use std::collections::HashMap;
use std::sync::atomic::AtomicIsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{PoisonError, RwLock};
use std::time::Instant;

use ::metrics::{Key, Label, Level, Metadata, Unit, with_recorder};
use once_cell::sync::Lazy;

use super::name_of;
use crate::decision::{Source, Verdict};
use crate::question::Finding;
use crate::rejection::Rejection;

const DECISIONS: &str = "ratelimit_decisions_total";
const DURATION: &str = "ratelimit_decision_duration_seconds";
const KEYS: &str = "ratelimit_keys";
const BREAKER: &str = "ratelimit_breaker_open";

static METADATA: Metadata<'static> =
    Metadata::new("ratelimit_runtime", Level::INFO, Some("ratelimit_runtime"));

/// Says what the metrics are. That is repeated by each limiter: the recorder may be a new one.
pub(crate) fn describe() {
    with_recorder(|recorder| {
        let checks = "Calls checked against a rate limit, by what became of them and who decided";
        recorder.describe_counter(DECISIONS.into(), Some(Unit::Count), checks.into());
        let duration =
            "Time from the call to the decision of a rate limit, waiting for it included";
        recorder.describe_histogram(DURATION.into(), Some(Unit::Seconds), duration.into());
        let breaker = "1 while a Redis server is not asked because it does not answer, else 0";
        recorder.describe_gauge(BREAKER.into(), Some(Unit::Count), breaker.into());
        let keys = "Keys held by the embedded stores of this process";
        recorder.describe_gauge(KEYS.into(), Some(Unit::Count), keys.into());
    });
}

/// When a check began.
pub(crate) struct Began(Instant);

impl Began {
    #[inline]
    pub(crate) fn now() -> Self {
        Self(Instant::now())
    }
}

/// A check has ended.
pub(super) fn ended(began: &Began, finding: &Finding, shadow: bool) {
    let took = began.0.elapsed();
    let (limit, outcome, source) = what_became(finding, shadow);
    let series = Series::of(limit);
    let counter = &series.decisions[outcome as usize][column(source)];
    let histogram = &series.durations[column(source)];
    with_recorder(|recorder| {
        recorder.register_counter(counter, &METADATA).increment(1);
        recorder.register_histogram(histogram, &METADATA).record(took.as_secs_f64());
    });
}

/// The limit that spoke, what became of the call, and who decided.
fn what_became(finding: &Finding, shadow: bool) -> (&'static str, Outcome, Option<Source>) {
    let either = |seen, hidden| if shadow { hidden } else { seen };
    match finding {
        Ok(Verdict { name, decision, .. }) => {
            (name, either(Outcome::Allowed, Outcome::ShadowAllowed), Some(decision.source))
        }
        Err(Rejection::Limited { name, decision, .. }) => {
            (name, either(Outcome::Limited, Outcome::ShadowLimited), Some(decision.source))
        }
        Err(Rejection::CostExceedsCapacity { name, .. }) => {
            (name, either(Outcome::CostExceedsCapacity, Outcome::ShadowLimited), None)
        }
        Err(Rejection::Unavailable { name, .. }) => (name, Outcome::Unavailable, None),
    }
}

/// What became of a call.
#[derive(Clone, Copy)]
enum Outcome {
    Allowed,
    Limited,
    CostExceedsCapacity,
    Unavailable,
    ShadowAllowed,
    ShadowLimited,
}

impl Outcome {
    /// In the order of the variants.
    const NAMES: [&str; 6] = [
        "allowed",
        "limited",
        "cost_exceeds_capacity",
        "unavailable",
        "shadow_allowed",
        "shadow_limited",
    ];
}

/// A server is asked no more, or is asked again. There are as many as an operator has.
#[cfg(feature = "redis")]
pub(super) fn breaker(node: &str, open: bool) {
    let key = Key::from_parts(BREAKER, vec![Label::new("node", node.to_owned())]);
    let value = f64::from(u8::from(open));
    with_recorder(|recorder| recorder.register_gauge(&key, &METADATA).set(value));
}

/// The number of keys in an embedded store has changed. All stores of the process have one gauge.
pub(crate) fn keys_changed(by: isize) {
    static KEY: Key = Key::from_static_name(KEYS);
    static HELD: AtomicIsize = AtomicIsize::new(0);
    if by == 0 {
        return;
    }
    let mut held = HELD.fetch_add(by, SeqCst) + by;
    loop {
        with_recorder(|recorder| recorder.register_gauge(&KEY, &METADATA).set(held as f64));
        // Who has set an older number after a newer one sets it again.
        let now = HELD.load(SeqCst);
        if now == held {
            return;
        }
        held = now;
    }
}

/// The names and labels of all that is recorded about a limit; made once, so that a decision
/// allocates nothing.
struct Series {
    decisions: [[Key; SOURCES.len()]; Outcome::NAMES.len()],
    durations: [Key; SOURCES.len()],
}

impl Series {
    /// Those of the limit called `limit`. They are kept as long as the name is, which is forever.
    fn of(limit: &'static str) -> &'static Self {
        static ALL: Lazy<RwLock<HashMap<&'static str, &'static Series>>> =
            Lazy::new(RwLock::default);
        if let Some(series) = ALL.read().unwrap_or_else(PoisonError::into_inner).get(limit) {
            return series;
        }
        let mut all = ALL.write().unwrap_or_else(PoisonError::into_inner);
        all.entry(limit).or_insert_with(|| Box::leak(Box::new(Self::new(limit))))
    }

    fn new(limit: &'static str) -> Self {
        let limit = Label::from_static_parts("limit", limit);
        let label = Label::from_static_parts;
        let sources = SOURCES.map(|source| label("source", name_of(source)));
        let decision = |outcome| {
            let outcome = label("outcome", outcome);
            let labels = |source: &Label| vec![limit.clone(), outcome.clone(), source.clone()];
            sources.each_ref().map(|source| Key::from_parts(DECISIONS, labels(source)))
        };
        let duration =
            |source: &Label| Key::from_parts(DURATION, vec![limit.clone(), source.clone()]);
        Self {
            decisions: Outcome::NAMES.map(decision),
            durations: sources.each_ref().map(duration),
        }
    }
}

const SOURCES: [Option<Source>; 6] = [
    None,
    Some(Source::Embedded),
    Some(Source::Redis),
    Some(Source::Fallback),
    Some(Source::Cache),
    Some(Source::Lease),
];

/// The place of `source` among [`SOURCES`].
fn column(source: Option<Source>) -> usize {
    match source {
        None => 0,
        Some(Source::Embedded) => 1,
        Some(Source::Redis) => 2,
        Some(Source::Fallback) => 3,
        Some(Source::Cache) => 4,
        Some(Source::Lease) => 5,
    }
}
