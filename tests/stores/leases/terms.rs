//! The terms of leases: on random traces, several holders charge units in advance, spend them within their term
//! or return them, and never spend more than the limit. The traces run on the embedded store, on a virtual
//! clock.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use ratelimit_runtime::__private::{leased, return_units};
use ratelimit_runtime::{Algorithm, Align, Limit};
use support::operations::{OperationKind, assert_plays};

use crate::TestLimiter;

const HOLDERS: usize = 3;
const PERIOD: Duration = Duration::from_secs(900);

#[derive(Clone, Copy, Debug)]
enum Step {
    Charge {
        holder: usize,
        units: u64,
    },
    Spend {
        holder: usize,
        units: u64,
    },
    /// Returns the unspent units of the oldest lease.
    Return {
        holder: usize,
    },
    /// Advances the clock by eighths of the period, quarters of a term, and microseconds.
    Wait {
        eighths: i64,
        quarters: i64,
        micros: i64,
    },
}

/// The implementation of leases that plays a trace. With a wrong one, the tests have to find a trace that exceeds
/// the limit.
#[derive(Clone, Copy, PartialEq)]
enum Implementation {
    Correct,
    /// Wrong: refunds units instead of returning them to their charge.
    Refunds,
    /// Wrong: charges units under the limit itself, not under the stricter limit of leases.
    WithoutTerm,
}

/// Units that a holder charged and can spend.
struct Lease {
    at: u64,
    until: u64,
    /// The end of the fixed window that counts the units.
    window_end: u64,
    units: u64,
}

/// Units that a holder spent.
#[derive(Clone, Copy, Debug)]
struct Spending {
    at: u64,
    window_end: u64,
    units: u64,
}

impl Step {
    fn kinds(&self) -> &'static [OperationKind] {
        use OperationKind as K;
        match self {
            Self::Charge { .. } | Self::Spend { .. } => &[K::Lease],
            Self::Return { .. } => &[K::Return],
            Self::Wait { .. } => &[K::Advance],
        }
    }
}

fn step() -> impl Strategy<Value = Step> {
    let holder = 0..HOLDERS;
    let units = prop_oneof![1_u64..5, Just(10)];
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

#[test]
fn plays_leases() {
    assert_plays(&step(), Step::kinds, |kind| {
        use OperationKind::*;
        match kind {
            Lease | Return | Advance => true,
            Check | Burst | Acquire | Wait | Drop | Pause | Settle | Debt | Keep | Refund
            | Peek | Reset | Block | Unblock | Change | Rule | Free | Several | Idle | Step
            | Retry | Evict | LostReply | Crash | MoveSlot => false,
        }
    });
}

/// Plays a trace, and returns what the holders spent.
async fn play(limit: &Limit, steps: &[Step], implementation: Implementation) -> Vec<Spending> {
    let test = TestLimiter::embedded();
    let (stricter, term) = leased(limit);
    let counted = if implementation == Implementation::WithoutTerm { *limit } else { stricter };
    let mut holders: Vec<Vec<Lease>> = (0..HOLDERS).map(|_| Vec::new()).collect();
    let mut spent = Vec::new();
    for step in steps {
        let now = test.clock.now().as_micros() as u64;
        match *step {
            Step::Wait { eighths, quarters, micros } => {
                let period = limit.period().as_micros() as i64;
                let wait = eighths * period / 8 + quarters * term as i64 / 4 + micros;
                test.advance(wait.max(0) as u64);
            }
            Step::Charge { units, .. } if units > counted.capacity() => {}
            Step::Charge { holder, units } => {
                let decision = test.decide(&counted, units).await;
                if decision.allowed {
                    let reset = decision.reset_after.as_micros() as u64;
                    let is_fixed = limit.algorithm() == Algorithm::Fixed;
                    let lasts = if is_fixed { term.min(reset) } else { term };
                    // The end of the term is included. The end of a fixed window is not: the next begins there.
                    let until = now + lasts + u64::from(lasts < reset || !is_fixed);
                    holders[holder].push(Lease { at: now, until, window_end: now + reset, units });
                }
            }
            Step::Spend { holder, mut units } => {
                for lease in holders[holder].iter_mut().filter(|lease| now < lease.until) {
                    let taken = units.min(lease.units);
                    lease.units -= taken;
                    units -= taken;
                    if taken > 0 {
                        spent.push(Spending {
                            at: now,
                            window_end: lease.window_end,
                            units: taken,
                        });
                    }
                }
            }
            Step::Return { holder } if !holders[holder].is_empty() => {
                let Lease { at, units, .. } = holders[holder].remove(0);
                let limiter = &test.limiter;
                let result = match implementation {
                    Implementation::Refunds => limiter.credit(&counted, "key", units).await,
                    _ => return_units(limiter, &counted, "key", units, at).await,
                };
                result.expect("embedded");
            }
            Step::Return { .. } => {}
        }
    }
    spent
}

/// Returns whether the spent units are within the limit.
fn is_within(limit: &Limit, aligned: bool, spent: &[Spending]) -> bool {
    let (threshold, period) = (limit.threshold(), limit.period().as_micros() as u64);
    let sum = |spent: &[Spending]| spent.iter().map(|it| it.units).sum::<u64>();
    match limit.algorithm() {
        Algorithm::Sliding => (0..spent.len()).all(|last| {
            let first = spent.partition_point(|it| it.at + period <= spent[last].at);
            sum(&spent[first..=last]) <= threshold
        }),
        Algorithm::Fixed => {
            let mut windows = BTreeMap::<u64, u64>::new();
            for it in spent {
                let end = if aligned { (it.at / period + 1) * period } else { it.window_end };
                if it.at >= end || it.at + period < end {
                    return false;
                }
                *windows.entry(end).or_default() += it.units;
            }
            let ends: Vec<u64> = windows.keys().copied().collect();
            ends.windows(2).all(|pair| pair[0] + period <= pair[1])
                && windows.values().all(|units| *units <= threshold)
        }
        _ => (0..spent.len()).all(|first| {
            (first..spent.len()).all(|last| {
                let refilled = (spent[last].at - spent[first].at) * threshold;
                sum(&spent[first..=last]) * period <= limit.capacity() * period + refilled
            })
        }),
    }
}

/// The tested limits, and whether their windows are aligned.
fn limits() -> Vec<(Limit, bool)> {
    let bucket =
        |threshold, burst| Limit::token_bucket("lease_terms", threshold, PERIOD).burst(burst);
    vec![
        (Limit::sliding("lease_terms", 10, PERIOD), false),
        (Limit::fixed("lease_terms", 10, PERIOD), false),
        (Limit::fixed("lease_terms", 10, PERIOD).align(Align::UTC), true),
        (bucket(10, 10), false),
        (bucket(2_000, 9), false),
    ]
}

/// Plays random traces. Returns an error if a trace exceeds the limit.
fn run_traces(
    limit: &Limit,
    aligned: bool,
    implementation: Implementation,
) -> Result<(), TestError<Vec<Step>>> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    // A wrong implementation is tested with a fixed seed, and its trace is not shrunk.
    let (cases, max_shrink_iters) =
        if implementation == Implementation::Correct { (1_500, 1_000) } else { (30_000, 0) };
    let config = Config { cases, max_shrink_iters, failure_persistence: None, ..Config::default() };
    let mut runner = match implementation {
        Implementation::Correct => TestRunner::new(config),
        _ => TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha)),
    };
    runner.run(&prop::collection::vec(step(), 1..120), |steps| {
        let spent = runtime.block_on(play(limit, &steps, implementation));
        prop_assert!(is_within(limit, aligned, &spent), "{:?}", spent);
        Ok(())
    })
}

#[test]
fn spent_units_are_within_the_limit() {
    for (limit, aligned) in limits() {
        if let Err(error) = run_traces(&limit, aligned, Implementation::Correct) {
            panic!("{limit:?}: {error}");
        }
    }
}

/// A refund gives back the newest units, also if older units were charged in advance.
#[test]
fn refunds_instead_of_returns_would_exceed_the_limit() {
    for limit in
        [Limit::sliding("lease_terms", 10, PERIOD), Limit::fixed("lease_terms", 10, PERIOD)]
    {
        assert!(run_traces(&limit, false, Implementation::Refunds).is_err(), "{limit:?}");
    }
}

/// Units are spent up to a term after their charge, so leases need a stricter limit.
#[test]
fn leases_under_the_limit_itself_would_exceed_it() {
    let bucket = Limit::token_bucket("lease_terms", 2_000, PERIOD).burst(9);
    for limit in [Limit::sliding("lease_terms", 10, PERIOD), bucket] {
        assert!(run_traces(&limit, false, Implementation::WithoutTerm).is_err(), "{limit:?}");
    }
}
