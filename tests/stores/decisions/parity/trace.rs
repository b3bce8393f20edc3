//! Traces of one algorithm: random limits and steps.

use std::fmt;
use std::time::Duration;

use proptest::prelude::*;
use ratelimit_runtime::{Algorithm, Align, Limit};
use support::operations::OperationKind;

/// The steps of a trace.
const STEPS: std::ops::Range<usize> = 1..700;
pub(super) const KEYS: usize = 2;

#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Check {
        key: usize,
        cost: u64,
    },
    /// Makes `count` equal calls at the same time: on Redis, most of them share scripts.
    Burst {
        key: usize,
        cost: u64,
        count: usize,
    },
    Peek {
        key: usize,
        cost: u64,
    },
    Refund {
        key: usize,
        cost: u64,
    },
    /// Returns units that were charged some eighths of a period and some microseconds ago.
    Return {
        key: usize,
        cost: u64,
        eighths: u64,
        micros: u64,
    },
    Reset {
        key: usize,
    },
    /// Moves the clock by eighths of a period and microseconds, backwards if they are negative.
    Wait {
        eighths: i64,
        micros: i64,
    },
    /// Moves the clock by years.
    Idle {
        years: i64,
    },
    /// Waits for the `retry_after` of the last rejection, or a microsecond less, and repeats the call.
    Retry {
        early: bool,
    },
    /// Applies another threshold, burst and align to the steps after this one.
    Change(usize),
    /// Applies another threshold and burst by a rule for the limit or for each key, and not by the limit of the calls.
    Rule {
        amounts: usize,
        for_keys: bool,
    },
}

impl Step {
    pub(super) fn kinds(&self) -> &'static [OperationKind] {
        use OperationKind as K;
        match self {
            Self::Check { .. } => &[K::Check],
            Self::Burst { .. } => &[K::Burst],
            Self::Peek { .. } => &[K::Peek],
            Self::Refund { .. } => &[K::Refund],
            Self::Return { .. } => &[K::Return],
            Self::Reset { .. } => &[K::Reset],
            Self::Wait { .. } => &[K::Advance, K::Step],
            Self::Idle { .. } => &[K::Idle],
            Self::Retry { .. } => &[K::Retry],
            Self::Change(_) => &[K::Change],
            Self::Rule { .. } => &[K::Rule],
        }
    }
}

/// A limit, and the offset of its aligned windows from UTC in minutes.
#[derive(Clone, Copy)]
pub(super) struct AlignedLimit {
    pub(super) limit: Limit,
    pub(super) align: Option<i64>,
}

#[derive(Clone)]
pub(super) struct Trace {
    /// Limits of one algorithm and period. Those of one align share a count.
    pub(super) limits: Vec<AlignedLimit>,
    pub(super) steps: Vec<Step>,
}

fn period() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(7),
        Just(1_000),
        Just(1_000_000),
        Just(60_000_000),
        Just(3_599_999_999),
        Just(30 * 86_400_000_000),
        1_u64..10_000_000,
    ]
}

/// How much larger the amounts of some traces are: at this multiple, the rates of a minute are whole.
const LARGE: u64 = 900_000_000;

impl Step {
    /// Returns this step with a larger cost.
    fn scaled(mut self, scale: u64) -> Self {
        if let Self::Check { cost, .. }
        | Self::Burst { cost, .. }
        | Self::Peek { cost, .. }
        | Self::Refund { cost, .. }
        | Self::Return { cost, .. } = &mut self
        {
            *cost *= scale;
        }
        self
    }
}

fn threshold() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 1_u64..12, 2 => 50_u64..2_000, 1 => Just(999), 1 => Just(1_000_000)]
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    let key = 0..KEYS;
    let cost = prop_oneof![6 => Just(1_u64), 1 => Just(0_u64), 2 => 1_u64..12, 1 => 1_u64..2_000];
    let keyed = (key.clone(), cost);
    let eighths = prop_oneof![6 => Just(0_i64), 3 => 1_i64..8, 2 => Just(8_i64), 1 => -8_i64..17];
    let micros = prop_oneof![3 => Just(0_i64), 1 => -1_i64..10];
    prop_oneof![
        10 => keyed.clone().prop_map(|(key, cost)| Step::Check { key, cost }),
        1 => (keyed.clone(), 2_usize..40).prop_map(|((key, cost), count)| {
            Step::Burst { key, cost, count }
        }),
        1 => keyed.clone().prop_map(|(key, cost)| Step::Peek { key, cost }),
        1 => keyed.clone().prop_map(|(key, cost)| Step::Refund { key, cost }),
        2 => (keyed, 0_u64..17, 0_u64..3).prop_map(|((key, cost), eighths, micros)| {
            Step::Return { key, cost, eighths, micros }
        }),
        6 => (eighths, micros).prop_map(|(eighths, micros)| Step::Wait { eighths, micros }),
        1 => (1_i64..11).prop_map(|years| Step::Idle { years }),
        3 => any::<bool>().prop_map(|early| Step::Retry { early }),
        1 => (0_usize..3).prop_map(Step::Change),
        1 => (0_usize..3, any::<bool>()).prop_map(|(amounts, for_keys)| {
            Step::Rule { amounts, for_keys }
        }),
        1 => key.prop_map(|key| Step::Reset { key }),
    ]
}

/// The parts of a trace are independent of each other, so proptest can shrink a failing trace part by part.
pub(super) fn trace(algorithm: Algorithm) -> impl Strategy<Value = Trace> {
    let offset = prop_oneof![Just(0), Just(480), -14_i32 * 60..=14 * 60].prop_map(Some);
    let aligns = prop_oneof![
        Just(vec![None; 3]),
        offset.clone().prop_map(|align| vec![align; 3]),
        prop::collection::vec(prop_oneof![Just(None), offset], 3),
    ];
    let days = prop_oneof![Just(900_000_000_u64), Just(86_400_000_000), Just(7 * 86_400_000_000)];
    let sizes = prop::collection::vec((threshold(), prop::option::of(1_u64..50)), 3);
    let steps = prop::collection::vec(step(), STEPS);
    // Amounts above 32 bits. The model has no grain, in which a counter measures such windows.
    let is_counter = algorithm == Algorithm::SlidingCounter;
    let scale = if is_counter {
        Just(1).boxed()
    } else {
        prop_oneof![5 => Just(1), 1 => Just(LARGE)].boxed()
    };
    (period(), days, aligns, sizes, steps, scale).prop_map(
        move |(period, days, mut aligns, sizes, steps, scale)| {
            if algorithm != Algorithm::Fixed {
                aligns.fill(None);
            }
            let exact = sizes.iter().all(|(threshold, burst)| {
                let capacity = u128::from(burst.map_or(*threshold, |burst| burst.max(*threshold)));
                capacity * u128::from(period) <= 1 << 52
            });
            let period = match aligns.iter().any(Option::is_some) {
                true => days,
                // The model counts exactly. `very_fine_rates_are_rounded_down` tests rates that are too fine.
                false if !exact || scale > 1 => 60_000_000,
                false => period,
            };
            let limits =
                sizes.into_iter().zip(aligns).map(|((threshold, burst), align)| AlignedLimit {
                    limit: limit(
                        algorithm,
                        threshold * scale,
                        period,
                        align,
                        burst.map(|burst| burst * scale),
                    ),
                    align: align.map(i64::from),
                });
            let steps = steps.into_iter().map(|step| step.scaled(scale));
            Trace { limits: limits.collect(), steps: steps.collect() }
        },
    )
}

/// Prints each step on a line.
impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for AlignedLimit { limit, align } in &self.limits {
            let (threshold, period, capacity) =
                (limit.threshold(), limit.period(), limit.capacity());
            writeln!(f, "{threshold} per {period:?}, capacity {capacity}, align {align:?}")?;
        }
        self.steps.iter().enumerate().try_for_each(|(index, step)| writeln!(f, "{index} {step:?}"))
    }
}

fn limit(
    algorithm: Algorithm,
    threshold: u64,
    period: u64,
    align: Option<i32>,
    burst: Option<u64>,
) -> Limit {
    let mut limit =
        Limit::new("parity", algorithm, threshold, Duration::from_micros(period)).expect("valid");
    if let Some(minutes) = align {
        limit = limit.align(Align::offset_minutes(minutes));
    }
    if let (Algorithm::TokenBucket | Algorithm::LeakyBucket, Some(burst)) = (algorithm, burst) {
        limit = limit.burst(burst);
    }
    limit
}
