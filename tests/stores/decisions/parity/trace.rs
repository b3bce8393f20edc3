//! Traces of one algorithm: random limits and steps.

use std::time::Duration;

use proptest::prelude::*;
use ratelimit_runtime::{Algorithm, Align, Calendar, Limit};
use support::limits::is_bucket;

pub(super) const KEYS: usize = 2;

/// How much larger the amounts of some traces are: at this multiple, the rates of a minute are whole.
const LARGE: u64 = 900_000_000;

#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) key: usize,
    pub(super) cost: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Check(Call),
    /// A call whose charge can be settled.
    Acquire(Call),
    /// Makes so many equal calls at the same time: on Redis, most of them share scripts.
    Burst(Call, usize),
    Peek(Call),
    Refund(Call),
    /// Returns units that were charged some eighths of a period and some microseconds ago.
    Return(Call, u64, u64),
    /// Settles one of the open permits: its index, and the units that its call has used.
    Settle(usize, u64),
    Drop(usize),
    /// Blocks a key by eighths of a period and microseconds.
    Block(usize, u64, u64),
    Unblock(usize),
    Reset(usize),
    /// Moves the clock by eighths of a period and microseconds, backwards if they are negative.
    Wait(i64, i64),
    Idle(i64),
    /// Waits for the `retry_after` of the last rejection, or a microsecond less, and repeats the call.
    Retry(bool),
    /// Applies another threshold, burst and align to the steps after this one.
    Change(usize),
    /// Applies another threshold and burst by a rule, for the limit or for each key, and not by the limit of the calls.
    Rule(usize, bool),
}

#[derive(Clone, Debug)]
pub(super) struct Trace {
    /// Limits of one algorithm and period. Those of one align share a count.
    pub(super) limits: Vec<Limit>,
    pub(super) steps: Vec<Step>,
}

fn step() -> impl Strategy<Value = Step> {
    let cost = prop_oneof![6 => Just(1_u64), 1 => Just(0_u64), 2 => 1_u64..12, 1 => 1_u64..2_000];
    let call = (0..KEYS, cost).prop_map(|(key, cost)| Call { key, cost });
    let eighths = prop_oneof![6 => Just(0_i64), 3 => 1_i64..8, 2 => Just(8_i64), 1 => -8_i64..17];
    let micros = prop_oneof![3 => Just(0_i64), 1 => -1_i64..10];
    prop_oneof![
        10 => call.clone().prop_map(Step::Check),
        1 => (call.clone(), 2_usize..40).prop_map(|(call, count)| Step::Burst(call, count)),
        1 => call.clone().prop_map(Step::Peek),
        1 => call.clone().prop_map(Step::Refund),
        2 => (call, 0_u64..17, 0_u64..3).prop_map(|(call, ago, us)| Step::Return(call, ago, us)),
        6 => (eighths, micros).prop_map(|(eighths, micros)| Step::Wait(eighths, micros)),
        1 => (1_i64..11).prop_map(Step::Idle),
        3 => any::<bool>().prop_map(Step::Retry),
        1 => (0_usize..3).prop_map(Step::Change),
        1 => (0_usize..3, any::<bool>()).prop_map(|(index, for_keys)| Step::Rule(index, for_keys)),
        1 => (0..KEYS).prop_map(Step::Reset),
    ]
}

/// Returns traces of one key whose charges are settled, on a clock that does not step back.
pub(super) fn settled(algorithm: Algorithm) -> impl Strategy<Value = Trace> {
    let call = || {
        let cost = prop_oneof![3 => 1_u64..4, 3 => 1_u64..12, 1 => Just(0), 1 => 1_u64..2_000];
        cost.prop_map(|cost| Call { key: 0, cost })
    };
    let used = prop_oneof![3 => Just(0_u64), 6 => 0_u64..12, 1 => 0_u64..3_000];
    let eighths = prop_oneof![6 => Just(0_i64), 3 => 1_i64..8, 1 => Just(8_i64), 1 => 0_i64..17];
    let step = prop_oneof![
        8 => call().prop_map(Step::Acquire),
        2 => call().prop_map(Step::Check),
        8 => (any::<usize>(), used).prop_map(|(which, used)| Step::Settle(which, used)),
        1 => any::<usize>().prop_map(Step::Drop),
        1 => call().prop_map(Step::Peek),
        1 => (0_u64..12, 0_u64..10).prop_map(|(eighths, micros)| Step::Block(0, eighths, micros)),
        1 => Just(Step::Unblock(0)),
        1 => call().prop_map(Step::Refund),
        1 => Just(Step::Reset(0)),
        6 => (eighths, 0_i64..10).prop_map(|(eighths, micros)| Step::Wait(eighths, micros)),
        3 => any::<bool>().prop_map(Step::Retry),
        1 => (0_usize..2).prop_map(Step::Change),
    ];
    // Nearly the longest that a sliding window counts exactly, and a month.
    let longest = if algorithm == Algorithm::Sliding { 30 * 86_400_000_000 } else { 1_000_000 };
    let period = prop_oneof![
        Just(1_000_u64),
        Just(60_000_000),
        16_u64..10_000_000,
        Just(4_294_967_000),
        Just(longest),
    ];
    // A threshold above 1,000 counts by a thousandth of a period.
    let threshold = prop_oneof![3 => 4_u64..30, 1 => 50_u64..1_000, 1 => 1_001_u64..100_000];
    let sizes = prop::collection::vec((threshold, prop::option::of(1_u64..60)), 2);
    (period, sizes, prop::collection::vec(step, 1..450)).prop_map(move |(period, sizes, steps)| {
        let limits = sizes.into_iter().map(|(threshold, burst)| {
            let period = Duration::from_micros(period);
            let limit = support::limits::limit("settled", algorithm, threshold, period);
            let burst = burst.filter(|_| is_bucket(algorithm));
            burst.map_or(limit, |burst| limit.burst(burst))
        });
        Trace { limits: limits.collect(), steps }
    })
}

/// Limits of the calendar.
fn of_calendar(threshold: u64, kind: usize) -> Limit {
    let day = Limit::fixed("parity", threshold, Duration::from_secs(86_400));
    let unit = |unit| Limit::calendar("parity", threshold, unit);
    match kind {
        0 => day.align(Align::zone("Europe/Berlin")),
        1 => unit(Calendar::Month),
        2 => unit(Calendar::Month).align(Align::zone("America/Santiago").day(31)),
        _ => unit(Calendar::Quarter).align(Align::offset_minutes(-210)),
    }
}

/// The parts of a trace are independent of each other, so proptest can shrink a failing trace part by part.
pub(super) fn trace(algorithm: Algorithm) -> impl Strategy<Value = Trace> {
    use Step::{Burst, Check, Peek, Refund, Return};
    let offset = prop_oneof![Just(0), Just(480), -14_i32 * 60..=14 * 60].prop_map(Some);
    let aligns = prop_oneof![
        Just(vec![None; 3]),
        offset.clone().prop_map(|align| vec![align; 3]),
        prop::collection::vec(prop_oneof![Just(None), offset], 3),
    ];
    let period = prop_oneof![
        Just(7),
        Just(1_000),
        Just(1_000_000),
        Just(60_000_000),
        Just(3_599_999_999),
        Just(30 * 86_400_000_000),
        1_u64..10_000_000,
    ];
    let threshold =
        prop_oneof![4 => 1_u64..12, 2 => 50_u64..2_000, 1 => Just(999), 1 => Just(1_000_000)];
    let days = prop_oneof![Just(900_000_000_u64), Just(86_400_000_000), Just(7 * 86_400_000_000)];
    let sizes = prop::collection::vec((threshold, prop::option::of(1_u64..50)), 3);
    let steps = prop::collection::vec(step(), 1..700);
    // Amounts above 32 bits. The model has no grain, in which a counter measures such windows.
    let large = if algorithm == Algorithm::SlidingCounter { 1 } else { LARGE };
    let scale = prop_oneof![5 => Just(1), 1 => Just(large)];
    let kind = prop::option::weighted(0.3, 0_usize..4);
    (period, days, aligns, sizes, steps, (scale, kind)).prop_map(
        move |(period, days, mut aligns, sizes, mut steps, (scale, kind))| {
            if algorithm != Algorithm::Fixed {
                aligns.fill(None);
            }
            // The model counts exactly. `limit/terms.rs` rounds rates that are too fine, for both stores.
            let is_exact = scale == 1
                && sizes.iter().all(|(threshold, burst)| {
                    let capacity = burst.map_or(*threshold, |burst| burst.max(*threshold));
                    u128::from(capacity) * u128::from(period) <= 1 << 52
                });
            let period = match aligns.iter().any(Option::is_some) {
                true => days,
                false if is_exact => period,
                false => 60_000_000,
            };
            let limits = sizes.into_iter().zip(aligns).map(|((threshold, burst), align)| {
                let (threshold, period) = (threshold * scale, Duration::from_micros(period));
                if let Some(kind) = kind.filter(|_| algorithm == Algorithm::Fixed) {
                    return of_calendar(threshold, kind);
                }
                let limit = Limit::new("parity", algorithm, threshold, period).expect("valid");
                let limit = align.map_or(limit, |it| limit.align(Align::offset_minutes(it)));
                let burst = burst.filter(|_| is_bucket(algorithm));
                burst.map_or(limit, |burst| limit.burst(burst * scale))
            });
            let limits = limits.collect();
            for step in &mut steps {
                if let Check(call) | Burst(call, _) | Peek(call) | Refund(call) | Return(call, ..) =
                    step
                {
                    call.cost *= scale;
                }
            }
            Trace { limits, steps }
        },
    )
}
