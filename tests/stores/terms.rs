//! Units that are charged in advance, spent within their term or given back, never make it more than
//! the limit: on random traces of several holders, in virtual time, on the plain algorithms.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use ratelimit_runtime::__private::{leased, return_units};
use ratelimit_runtime::{Algorithm, Align, Limit};

use crate::Timed;

const HOLDERS: usize = 3;
const PERIOD: Duration = Duration::from_secs(900);

#[derive(Clone, Copy, Debug)]
enum Step {
    Charge {
        holder: usize,
        units: u32,
    },
    Spend {
        holder: usize,
        units: u32,
    },
    /// Gives back what is left of the oldest charge.
    Return {
        holder: usize,
    },
    /// Eighths of the period, quarters of a term, microseconds.
    Wait {
        eighths: i64,
        quarters: i64,
        micros: i64,
    },
}

/// How a trace is played; the others show that this test would see it.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    AsItIs,
    /// Units are given back as a refund.
    NewestFirst,
    /// Charged under the limit itself, not under the stricter one.
    Unstretched,
}

struct Held {
    at: u64,
    until: u64,
    window: u64,
    units: u32,
}

#[derive(Clone, Copy, Debug)]
struct Spent {
    at: u64,
    window: u64,
    units: u32,
}

fn step() -> impl Strategy<Value = Step> {
    let holder = 0..HOLDERS;
    let units = prop_oneof![1_u32..5, Just(10)];
    let eighths = prop_oneof![3 => Just(0_i64), 1 => 1_i64..9, 1 => Just(8_i64)];
    prop_oneof![
        4 => (holder.clone(), units.clone()).prop_map(|(holder, units)| Step::Charge { holder, units }),
        4 => (holder.clone(), units).prop_map(|(holder, units)| Step::Spend { holder, units }),
        2 => holder.prop_map(|holder| Step::Return { holder }),
        4 => (eighths, -4_i64..9, -1_i64..3).prop_map(|(eighths, quarters, micros)| {
            Step::Wait { eighths, quarters, micros }
        }),
    ]
}

async fn play(limit: &Limit, steps: &[Step], way: Way) -> Vec<Spent> {
    let timed = Timed::embedded();
    let (stricter, term) = leased(limit);
    let counted = if way == Way::Unstretched { limit.clone() } else { stricter };
    let mut holders: Vec<Vec<Held>> = (0..HOLDERS).map(|_| Vec::new()).collect();
    let mut spent = Vec::new();
    for step in steps {
        let now = timed.clock.now().as_micros() as u64;
        match *step {
            Step::Wait { eighths, quarters, micros } => {
                let period = limit.period().as_micros() as i64;
                let wait = eighths * period / 8 + quarters * term as i64 / 4 + micros;
                timed.advance(wait.max(0) as u64);
            }
            Step::Charge { units, .. } if units > counted.capacity() => {}
            Step::Charge { holder, units } => {
                let decision = timed.decide(&counted, units).await;
                if decision.allowed {
                    let reset = decision.reset_after.as_micros() as u64;
                    let is_fixed = limit.algorithm() == Algorithm::Fixed;
                    let lasts = if is_fixed { term.min(reset) } else { term };
                    // To the very end, but for a window: what comes then is the next one's.
                    let until = now + lasts + u64::from(lasts < reset || !is_fixed);
                    holders[holder].push(Held { at: now, until, window: now + reset, units });
                }
            }
            Step::Spend { holder, mut units } => {
                for held in holders[holder].iter_mut().filter(|held| now < held.until) {
                    let taken = units.min(held.units);
                    held.units -= taken;
                    units -= taken;
                    if taken > 0 {
                        spent.push(Spent { at: now, window: held.window, units: taken });
                    }
                }
            }
            Step::Return { holder } if !holders[holder].is_empty() => {
                let Held { at, units, .. } = holders[holder].remove(0);
                let limiter = &timed.limiter;
                let answer = match way {
                    Way::NewestFirst => limiter.refund(&counted, "key", units).await,
                    _ => return_units(limiter, &counted, "key", units, at).await,
                };
                answer.expect("embedded");
            }
            Step::Return { .. } => {}
        }
    }
    spent
}

/// Whether what was spent is within the limit.
fn is_within(limit: &Limit, aligned: bool, spent: &[Spent]) -> bool {
    let (threshold, period) = (u64::from(limit.threshold()), limit.period().as_micros() as u64);
    let sum = |spent: &[Spent]| spent.iter().map(|it| u64::from(it.units)).sum::<u64>();
    match limit.algorithm() {
        Algorithm::Sliding => (0..spent.len()).all(|last| {
            let first = spent.partition_point(|it| it.at + period <= spent[last].at);
            sum(&spent[first..=last]) <= threshold
        }),
        Algorithm::Fixed => {
            let mut windows = BTreeMap::<u64, u64>::new();
            for it in spent {
                let window = if aligned { (it.at / period + 1) * period } else { it.window };
                if it.at >= window || it.at + period < window {
                    return false;
                }
                *windows.entry(window).or_default() += u64::from(it.units);
            }
            let ends: Vec<u64> = windows.keys().copied().collect();
            ends.windows(2).all(|pair| pair[0] + period <= pair[1])
                && windows.values().all(|units| *units <= threshold)
        }
        _ => (0..spent.len()).all(|first| {
            (first..spent.len()).all(|last| {
                let refilled = (spent[last].at - spent[first].at) * threshold;
                sum(&spent[first..=last]) * period
                    <= u64::from(limit.capacity()) * period + refilled
            })
        }),
    }
}

fn limits() -> Vec<(Limit, bool)> {
    let bucket = |threshold, burst| Limit::token_bucket("terms", threshold, PERIOD).burst(burst);
    vec![
        (Limit::sliding("terms", 10, PERIOD), false),
        (Limit::fixed("terms", 10, PERIOD), false),
        (Limit::fixed("terms", 10, PERIOD).align(Align::UTC), true),
        (bucket(10, 10), false),
        (bucket(2_000, 9), false),
    ]
}

/// Whether all traces are within the limit when they are played in this way.
fn holds(limit: &Limit, aligned: bool, way: Way) -> Result<(), TestError<Vec<Step>>> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    // What has to be found is found each time, and need not be small.
    let (cases, max_shrink_iters) = if way == Way::AsItIs { (1_500, 1_000) } else { (30_000, 0) };
    let config = Config { cases, max_shrink_iters, failure_persistence: None, ..Config::default() };
    let mut runner = match way {
        Way::AsItIs => TestRunner::new(config),
        _ => TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha)),
    };
    runner.run(&prop::collection::vec(step(), 1..120), |steps| {
        let spent = runtime.block_on(play(limit, &steps, way));
        prop_assert!(is_within(limit, aligned, &spent), "{:?}", spent);
        Ok(())
    })
}

#[test]
fn what_is_spent_is_within_the_limit() {
    for (limit, aligned) in limits() {
        if let Err(error) = holds(&limit, aligned, Way::AsItIs) {
            panic!("{limit:?}: {error}");
        }
    }
}

/// The test sees what refunds would do.
#[test]
fn newest_first_would_be_too_much() {
    for limit in [Limit::sliding("terms", 10, PERIOD), Limit::fixed("terms", 10, PERIOD)] {
        assert!(holds(&limit, false, Way::NewestFirst).is_err(), "{limit:?}");
    }
}

/// The test sees why the limit is stretched.
#[test]
fn the_limit_itself_would_be_too_much() {
    let bucket = Limit::token_bucket("terms", 2_000, PERIOD).burst(9);
    for limit in [Limit::sliding("terms", 10, PERIOD), bucket] {
        assert!(holds(&limit, false, Way::Unstretched).is_err(), "{limit:?}");
    }
}
