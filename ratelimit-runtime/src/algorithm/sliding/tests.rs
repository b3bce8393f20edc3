//! Compares long logs with a plain list of entries.

use std::time::Duration;

use proptest::prelude::*;

use super::Log;
use crate::algorithm::{Expires, Op, State};
use crate::limit::Limit;

const PERIOD: u64 = 1_000;

/// The time and the cost of each admitted call.
#[derive(Default)]
struct List(Vec<(u64, u64)>);

impl List {
    /// Returns whether the call is admitted, the units that are left, the wait, and the time until the list is
    /// empty.
    fn apply(&mut self, op: Op, threshold: u64, clock: u64, cost: u64) -> (bool, u64, u64, u64) {
        let now = self.0.last().map_or(clock, |last| clock.max(last.0));
        let mut live = self.0.clone();
        live.retain(|(at, _)| at + PERIOD > now);
        let used = |list: &[(u64, u64)]| list.iter().map(|(_, cost)| cost).sum::<u64>();
        let allowed = op.gives_back() || cost == 0 || used(&live) + cost <= threshold;
        let mut retry = 0;
        if !allowed {
            let mut excess = used(&live) + cost - threshold;
            let blocker = live.iter().find(|(_, cost)| {
                excess = excess.saturating_sub(*cost);
                excess == 0
            });
            retry = blocker.expect("a blocker").0 + PERIOD - clock;
        } else if cost > 0 && op != Op::Peek {
            let mut rest = cost;
            let mut give = |units: &mut u64| {
                let given = rest.min(*units);
                *units -= given;
                rest -= given;
            };
            match op {
                Op::Decide => live.push((now, cost)),
                Op::Refund => live.iter_mut().rev().for_each(|(_, units)| give(units)),
                Op::Return { at } => {
                    let charges = live.iter_mut().filter(|(charged, _)| *charged == at);
                    charges.rev().for_each(|(_, units)| give(units));
                }
                Op::Peek => {}
            }
            live.retain(|(_, units)| *units > 0);
            self.0 = live.clone();
        }
        let reset = live.last().map_or(0, |last| last.0 + PERIOD - clock);
        (allowed, threshold.saturating_sub(used(&live)), retry, reset)
    }
}

#[derive(Clone, Debug)]
enum LogStep {
    Apply(Op, u32),
    /// Gives units back: how many entries before the last one their charge is, and the number of the units.
    Return(usize, u32),
    Wait(i64),
    Change(usize),
}

fn step() -> impl Strategy<Value = LogStep> {
    let cost = || prop_oneof![20 => 1_u32..4, 1 => Just(0_u32), 1 => 1_u32..300];
    prop_oneof![
        60 => cost().prop_map(|cost| LogStep::Apply(Op::Decide, cost)),
        2 => cost().prop_map(|cost| LogStep::Apply(Op::Peek, cost)),
        1 => cost().prop_map(|cost| LogStep::Apply(Op::Refund, cost)),
        6 => (prop_oneof![0..4_usize, 0..60_usize], cost()).prop_map(|(back, cost)| LogStep::Return(back, cost)),
        20 => (0_i64..20).prop_map(LogStep::Wait),
        1 => (-300_i64..1_100).prop_map(LogStep::Wait),
        1 => (0_usize..3).prop_map(LogStep::Change),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn a_log_decides_like_a_list(
        thresholds in prop::collection::vec(prop_oneof![1_u32..20, 20_u32..600], 3),
        steps in prop::collection::vec(step(), 1..1_500),
    ) {
        let limits: Vec<Limit> = thresholds
            .iter()
            .map(|threshold| Limit::sliding("list", *threshold, Duration::from_micros(PERIOD)))
            .collect();
        let (mut limit, mut clock) = (&limits[0], 1_000_000_u64);
        let (mut log, mut list) = (Log::default(), List::default());
        for step in steps {
            let (op, cost) = match step {
                LogStep::Wait(micros) => {
                    clock = clock.saturating_add_signed(micros);
                    continue;
                }
                LogStep::Change(index) => {
                    limit = &limits[index];
                    continue;
                }
                LogStep::Apply(op @ (Op::Decide | Op::Peek), cost) => (op, cost.min(limit.threshold())),
                LogStep::Apply(op, cost) => (op, cost),
                LogStep::Return(back, cost) => {
                    let charge = list.0.len().checked_sub(back + 1).map(|index| list.0[index].0);
                    (Op::Return { at: charge.unwrap_or(7) }, cost)
                }
            };
            let expected = list.apply(op, limit.threshold().into(), clock, cost.into());
            let got = log.apply(op, limit.terms(), clock, cost);
            let got = (got.is_allowed(), got.remaining.into(), got.retry_us, got.reset_us);
            prop_assert_eq!(got, expected, "{:?} at {}", op, clock);
            let expires = list.0.last().map_or(0, |last| last.0 + PERIOD);
            prop_assert_eq!(log.expires(), expires);
        }
    }
}
