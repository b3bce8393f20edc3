//! Compares states whose charges are settled with a plain list of what each call has really used.

use std::time::Duration;

use proptest::prelude::*;

use super::bucket::Bucket;
use super::fixed::Window;
use super::sliding::Log;
use super::sliding_counter::Counters;
use super::{Correction, Op, Receipt, State};
use crate::limit::{Align, Limit};

const PERIOD: u64 = 1_000;
const THRESHOLD: u64 = 20;

#[derive(Clone, Copy, Debug)]
enum TraceStep {
    Wait(u64),
    Acquire(u64),
    /// A plain call.
    Decide(u64),
    /// The index of an open charge, and the units that its call has used.
    Settle(usize, u64),
    /// Removes the state, as a reset does.
    Reset,
}

fn step() -> impl Strategy<Value = TraceStep> {
    prop_oneof![
        3 => prop_oneof![Just(0), 1_u64..200, Just(PERIOD / 2), Just(PERIOD)].prop_map(TraceStep::Wait),
        4 => (1_u64..9).prop_map(TraceStep::Acquire),
        1 => (1_u64..5).prop_map(TraceStep::Decide),
        4 => (any::<usize>(), 0_u64..14).prop_map(|(which, used)| TraceStep::Settle(which, used)),
        1 => Just(TraceStep::Reset),
    ]
}

/// What counts at a time, by the rule of an algorithm. A charge is its time, the place that its receipt names, and its
/// units.
type LeftRule = fn(charges: &[(u64, u64, u64)], now: u64) -> u64;

fn sliding(charges: &[(u64, u64, u64)], now: u64) -> u64 {
    charges.iter().filter(|(at, ..)| at + PERIOD > now).map(|(_, _, units)| units).sum()
}

fn fixed(charges: &[(u64, u64, u64)], now: u64) -> u64 {
    charges.iter().filter(|(_, start, _)| start + PERIOD > now).map(|(_, _, units)| units).sum()
}

/// The level of a bucket, in units of `1 / PERIOD` of a unit.
fn bucket(charges: &[(u64, u64, u64)], now: u64) -> u64 {
    let (mut level, mut since) = (0_u64, 0);
    for (at, _, units) in charges {
        level = level.saturating_sub((at - since) * THRESHOLD) + units * PERIOD;
        since = *at;
    }
    level.saturating_sub((now - since) * THRESHOLD)
}

/// Runs a trace. After each step, the state admits no more than `left` returns for the real costs, and exactly that
/// where `is_exact`.
fn run<S: State>(
    limit: &Limit,
    steps: &[TraceStep],
    left: impl Fn(&[(u64, u64, u64)], u64) -> u64,
    is_exact: impl Fn(&[(u64, u64, u64)]) -> bool,
) -> Result<(), TestCaseError> {
    let terms = limit.terms();
    let (mut state, mut now, mut births) = (S::default(), 10 * PERIOD, 0);
    let mut charges: Vec<(u64, u64, u64)> = Vec::new();
    let mut open: Vec<(Option<usize>, Receipt, u64)> = Vec::new();
    for step in steps {
        births += 1;
        let before = state.apply(Op::Peek, 0, terms, now, 0).0.remaining;
        match *step {
            TraceStep::Wait(time) => now += time,
            TraceStep::Acquire(cost) => {
                let (outcome, receipt) = state.apply(Op::ACQUIRE, births, terms, now, cost);
                prop_assert_eq!(outcome.is_allowed(), cost <= before);
                prop_assert_eq!(receipt.birth != 0, outcome.is_allowed());
                if outcome.is_allowed() {
                    // The place of a charge in a window is the start of the window.
                    charges.push((now, receipt.place, cost));
                    open.push((Some(charges.len() - 1), receipt, cost));
                }
            }
            TraceStep::Decide(cost) => {
                if state.apply(Op::TAKE, 0, terms, now, cost).0.is_allowed() {
                    charges.push((now, u64::MAX, cost));
                }
            }
            TraceStep::Settle(which, used) if !open.is_empty() => {
                let (index, receipt, cost) = open.swap_remove(which % open.len());
                let settled = Correction::settled(receipt, cost, used);
                state.apply(Op::Correct(settled), 0, terms, now, 0);
                if let Some(index) = index {
                    charges[index].2 -= settled.less();
                }
                if settled.more() > 0 {
                    charges.push((now, u64::MAX, settled.more()));
                }
            }
            TraceStep::Settle(..) => {}
            TraceStep::Reset => {
                state = S::default();
                charges.clear();
                // Charges of a state that is gone give nothing back.
                for (index, ..) in &mut open {
                    *index = None;
                }
            }
        }
        let (seen, admitted) =
            (state.apply(Op::Peek, 0, terms, now, 0).0.remaining, left(&charges, now));
        prop_assert!(seen <= admitted, "{step:?}: {seen} of {admitted}: {charges:?} at {now}");
        if is_exact(&charges) {
            prop_assert_eq!(seen, admitted, "{:?}: {:?} at {}", step, charges, now);
        }
    }
    Ok(())
}

fn limit(kind: fn(&'static str, u64, Duration) -> Limit) -> Limit {
    kind("settled", THRESHOLD, Duration::from_micros(PERIOD))
}

fn left_of(rule: LeftRule) -> impl Fn(&[(u64, u64, u64)], u64) -> u64 {
    move |charges, now| THRESHOLD.saturating_sub(rule(charges, now))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn a_sliding_log_counts_what_was_used(steps in prop::collection::vec(step(), 1..150)) {
        run::<Log>(&limit(Limit::sliding), &steps, left_of(sliding), |_| true)?;
    }

    #[test]
    fn a_fixed_window_counts_what_was_used(steps in prop::collection::vec(step(), 1..150)) {
        // All windows begin at multiples of the period.
        let aligned = limit(Limit::fixed).try_align(Align::UTC).unwrap_or_else(|_| limit(Limit::fixed));
        let start = |charges: &[(u64, u64, u64)]| -> Vec<(u64, u64, u64)> {
            charges.iter().map(|(at, _, units)| (*at, at - at % PERIOD, *units)).collect()
        };
        run::<Window>(&aligned, &steps, move |charges, now| {
            left_of(fixed)(&start(charges), now)
        }, |_| true)?;
    }

    #[test]
    fn a_bucket_never_gives_back_too_much(steps in prop::collection::vec(step(), 1..150)) {
        let full = THRESHOLD * PERIOD;
        run::<Bucket>(&limit(Limit::token_bucket), &steps, move |charges, now| {
            full.saturating_sub(bucket(charges, now)) / PERIOD
        }, |charges| charges.len() <= 8)?;
    }
}

/// The counts of the two windows, and their weights.
#[test]
fn a_sliding_counter_lowers_the_window_that_counted_the_charge() {
    let limit = limit(Limit::sliding_counter);
    let terms = limit.terms();
    let mut counters = Counters::default();
    let (_, first) = counters.apply(Op::ACQUIRE, 7, terms, 10 * PERIOD, 12);
    let (_, second) = counters.apply(Op::ACQUIRE, 8, terms, 10 * PERIOD + 500, 8);
    assert_eq!(second.birth, first.birth);
    let settle = |receipt, charged, used| Op::Correct(Correction::settled(receipt, charged, used));
    // In the window after, the charge weighs half.
    let now = 11 * PERIOD + 500;
    assert_eq!(counters.apply(Op::Peek, 0, terms, now, 0).0.remaining, 10);
    counters.apply(settle(first, 12, 2), 0, terms, now, 0);
    assert_eq!(counters.apply(Op::Peek, 0, terms, now, 0).0.remaining, 15);
    // A debt counts in the window of its settlement.
    let (debt, _) = counters.apply(settle(second, 8, 100), 0, terms, now, 0);
    assert_eq!((debt.remaining, debt.reset_us), (0, 1_500));
    let wait = counters.apply(Op::Peek, 0, terms, now, 1).0;
    assert!(!wait.is_allowed() && wait.retry_us > 500, "{wait:?}");
    assert!(counters.apply(Op::Peek, 0, terms, now + wait.retry_us, 1).0.is_allowed());
    assert!(!counters.apply(Op::Peek, 0, terms, now + wait.retry_us - 1, 1).0.is_allowed());
    // Two windows later, nothing is given back.
    counters.apply(Op::ACQUIRE, 9, terms, 20 * PERIOD, 20);
    counters.apply(settle(first, 12, 0), 0, terms, 20 * PERIOD, 0);
    assert_eq!(counters.apply(Op::Peek, 0, terms, 20 * PERIOD, 0).0.remaining, 0);
}
