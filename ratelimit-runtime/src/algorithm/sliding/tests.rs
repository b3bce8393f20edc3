//! Compares logs of each form with a plain list of charges.

use std::time::Duration;

use proptest::prelude::*;

use super::low_bits::LowBits;
use super::ring::MOST;
use super::{Log, Narrow, Wide};
use crate::algorithm::{Expires, Op, Receipt, Settlement, State};
use crate::limit::Limit;

/// Periods at the bounds of each form, and between them.
const PERIODS: [u64; 6] =
    [1_000, Narrow::MASK, Narrow::MASK + 1, 3 * Narrow::MASK, Wide::MASK, Wide::MASK + 1];

fn limit(threshold: u32, period: u64) -> Limit {
    Limit::sliding("list", threshold, Duration::from_micros(period))
}

/// What an operation answers: whether the call is admitted, the units that are left, the wait, and the time until the
/// count is empty.
type ListAnswer = (bool, u64, u64, u64);

/// The time and the units of each charge that counts.
struct List {
    charges: Vec<(u64, u64)>,
    period: u64,
    /// How often the list became empty because units were given back. A receipt is valid for one list.
    births: u64,
}

impl List {
    fn used(&self) -> u64 {
        self.charges.iter().map(|(_, units)| units).sum()
    }

    fn now(&self, clock: u64) -> u64 {
        self.charges.last().map_or(clock, |last| clock.max(last.0))
    }

    /// Returns this list without the charges that have left the window.
    fn live(&self, clock: u64) -> Self {
        let (now, period) = (self.now(clock), self.period);
        let charges = self.charges.iter().copied().filter(|(at, _)| at + period > now).collect();
        Self { charges, ..*self }
    }

    /// Removes units of the newest charges that `counts` selects.
    fn lower(&mut self, mut units: u64, counts: impl Fn(u64) -> bool) {
        for (_, charged) in self.charges.iter_mut().rev().filter(|(at, _)| counts(*at)) {
            let removed = units.min(*charged);
            *charged -= removed;
            units -= removed;
        }
        self.charges.retain(|(_, units)| *units > 0);
        self.births += u64::from(self.charges.is_empty());
    }

    fn answer(&self, threshold: u64, clock: u64) -> ListAnswer {
        let reset = self.charges.last().map_or(0, |last| last.0 + self.period - clock);
        (true, threshold.saturating_sub(self.used()), 0, reset)
    }

    fn apply(&mut self, op: Op, threshold: u64, clock: u64, cost: u64) -> ListAnswer {
        let (now, mut live) = (self.now(clock), self.live(clock));
        if !(op.gives_back() || cost == 0 || live.used() + cost <= threshold) {
            let mut excess = live.used() + cost - threshold;
            let blocker = live.charges.iter().find(|(_, units)| {
                excess = excess.saturating_sub(*units);
                excess == 0
            });
            let retry = blocker.expect("a blocker").0 + self.period - clock;
            return (false, threshold.saturating_sub(live.used()), retry, live.answer(0, clock).3);
        }
        if op == Op::Measure {
            return (true, live.used(), 0, live.answer(0, clock).3);
        }
        if cost > 0 && op != Op::Peek {
            match op {
                Op::Decide => live.charges.push((now, cost)),
                Op::Refund => live.lower(cost, |_| true),
                Op::Return { at } => live.lower(cost, |charged| charged == at),
                Op::Peek | Op::Measure => {}
            }
            *self = live;
            return self.answer(threshold, clock);
        }
        live.answer(threshold, clock)
    }

    fn settle(
        &mut self,
        settlement: Settlement,
        births: u64,
        threshold: u64,
        clock: u64,
    ) -> ListAnswer {
        let now = self.now(clock);
        *self = self.live(clock);
        if births == self.births || settlement.less() == 0 {
            self.lower(settlement.less().into(), |at| at == settlement.receipt.place);
        }
        if settlement.more() > 0 {
            self.charges.push((now, settlement.more().into()));
        }
        self.answer(threshold, clock)
    }
}

#[derive(Clone, Debug)]
enum LogStep {
    Apply(Op, u32),
    /// Gives units back: how many charges before the last one theirs is, and the number of the units.
    Return(usize, u32),
    Acquire(u32),
    /// The index of an open charge, and the units that its call has used.
    Settle(usize, u32),
    /// Thousandths of a period, and microseconds.
    Wait(i64, i64),
    /// Until a rejected call is admitted, or a microsecond earlier.
    Retry(u64),
    Change(usize),
}

fn step() -> impl Strategy<Value = LogStep> {
    let cost = || prop_oneof![20 => 1_u32..4, 1 => Just(0_u32), 1 => 1_u32..300];
    prop_oneof![
        60 => cost().prop_map(|cost| LogStep::Apply(Op::Decide, cost)),
        2 => cost().prop_map(|cost| LogStep::Apply(Op::Peek, cost)),
        2 => Just(LogStep::Apply(Op::Measure, 0)),
        1 => cost().prop_map(|cost| LogStep::Apply(Op::Refund, cost)),
        6 => (prop_oneof![0..4_usize, 0..60_usize], cost()).prop_map(|(back, cost)| LogStep::Return(back, cost)),
        6 => cost().prop_map(LogStep::Acquire),
        6 => (any::<usize>(), prop_oneof![20 => 0_u32..6, 1 => 0_u32..2_000])
            .prop_map(|(which, used)| LogStep::Settle(which, used)),
        10 => (0_i64..20).prop_map(|part| LogStep::Wait(part, 0)),
        10 => (0_i64..3).prop_map(|micros| LogStep::Wait(0, micros)),
        1 => (-300_i64..1_100, -2_i64..3).prop_map(|(part, micros)| LogStep::Wait(part, micros)),
        1 => (0_i64..100_000).prop_map(|part| LogStep::Wait(part, 0)),
        4 => (0_u64..2).prop_map(LogStep::Retry),
        1 => (0_usize..3).prop_map(LogStep::Change),
    ]
}

fn threshold() -> impl Strategy<Value = u32> {
    let most = MOST as u32;
    prop_oneof![1_u32..20, 20_u32..600, most - 1..most + 2, most..5_000]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 250, ..ProptestConfig::default() })]
    #[test]
    fn a_log_decides_like_a_list(
        thresholds in prop::collection::vec(threshold(), 3),
        period in prop::sample::select(&PERIODS),
        steps in prop::collection::vec(step(), 1..1_500),
    ) {
        let limits: Vec<Limit> = thresholds.iter().map(|most| limit(*most, period)).collect();
        // A clock that steps back stays above zero.
        let (mut limit, mut clock) = (&limits[0], 1_000 * period);
        let (mut log, mut retry) = (Log::default(), 0);
        let mut list = List { charges: Vec::new(), period, births: 0 };
        let mut open: Vec<(u64, Settlement)> = Vec::new();
        for (birth, step) in (1..).step_by(2).zip(steps) {
            let (threshold, terms) = (u64::from(limit.threshold()), limit.terms());
            let (got, expected) = match step {
                LogStep::Wait(part, micros) => {
                    let wait = (i128::from(period) * i128::from(part) / 1_000) as i64 + micros;
                    clock = clock.saturating_add_signed(wait);
                    continue;
                }
                LogStep::Retry(early) => {
                    clock += std::mem::take(&mut retry).max(early) - early;
                    continue;
                }
                LogStep::Change(index) => {
                    limit = &limits[index];
                    continue;
                }
                LogStep::Apply(Op::Decide, cost) => {
                    let cost = cost.min(limit.threshold());
                    let admits = log.admits(terms, clock, cost);
                    let expected = list.apply(Op::Decide, threshold, clock, cost.into());
                    prop_assert_eq!(admits, expected.0);
                    (log.decide(terms, clock, cost), expected)
                }
                LogStep::Apply(op, cost) => {
                    let cost = if op == Op::Peek { cost.min(limit.threshold()) } else { cost };
                    let expected = list.apply(op, threshold, clock, cost.into());
                    (log.apply(op, terms, clock, cost), expected)
                }
                LogStep::Return(back, cost) => {
                    let charge = list.charges.len().checked_sub(back + 1);
                    let at = charge.map_or(7, |index| list.charges[index].0);
                    let op = Op::Return { at };
                    (log.apply(op, terms, clock, cost), list.apply(op, threshold, clock, cost.into()))
                }
                LogStep::Acquire(cost) => {
                    let cost = cost.min(limit.threshold());
                    let (got, receipt) = log.acquire(birth, terms, clock, cost);
                    let expected = list.apply(Op::Decide, threshold, clock, cost.into());
                    let is_charged = expected.0 && cost > 0;
                    prop_assert_eq!(receipt.birth > 0, is_charged);
                    if is_charged {
                        prop_assert_eq!(receipt.place, list.now(0));
                        open.push((list.births, Settlement { receipt, charged: cost, used: 0 }));
                    }
                    (got, expected)
                }
                LogStep::Settle(_, used) if open.is_empty() => {
                    let settlement = Settlement { receipt: Receipt::default(), charged: 0, used };
                    let expected = list.settle(settlement, 0, threshold, clock);
                    (log.settle(settlement, terms, clock), expected)
                }
                LogStep::Settle(which, used) => {
                    let (births, settlement) = open.swap_remove(which % open.len());
                    let settlement = Settlement { used, ..settlement };
                    let expected = list.settle(settlement, births, threshold, clock);
                    (log.settle(settlement, terms, clock), expected)
                }
            };
            let got = (got.is_allowed(), got.remaining.into(), got.retry_us, got.reset_us);
            prop_assert_eq!(got, expected, "{:?} at {}", step, clock);
            retry = expected.2;
            let expires = list.charges.last().map_or(0, |last| last.0 + period);
            prop_assert_eq!(log.expires(), expires);
        }
    }
}

/// Charges a unit at `clock`, and returns the form of the log.
fn form(log: &mut Log, limit: &Limit, clock: u64) -> &'static str {
    assert!(log.decide(limit.terms(), clock, 1).is_allowed());
    match log {
        Log::Narrow(_) => "narrow",
        Log::Wide(_) => "wide",
        Log::Short(_) => "short",
        Log::Long(_) => "long",
    }
}

#[test]
fn the_form_of_a_new_log_follows_from_the_terms() {
    let forms = PERIODS.map(|period| form(&mut Log::default(), &limit(5, period), 3 * period));
    assert_eq!(forms, ["narrow", "narrow", "wide", "wide", "wide", "short"]);
    let most = MOST as u32;
    let forms = [1, most, most + 1].map(|most| form(&mut Log::default(), &limit(most, 9), 100));
    assert_eq!(forms, ["narrow", "narrow", "short"]);
}

#[test]
fn a_ring_becomes_a_log_only_for_a_higher_threshold_or_a_debt_and_then_a_ring_again() {
    for (period, ring) in [(PERIODS[0], "narrow"), (PERIODS[2], "wide")] {
        let (low, high) = (limit(5, period), limit(5_000, period));
        let (mut log, mut clock) = (Log::default(), 10 * period);
        assert_eq!(form(&mut log, &low, clock), ring);
        log.apply(Op::Decide, high.terms(), clock, 3);
        assert_eq!(form(&mut log, &low, clock), "short");
        clock += period;
        assert_eq!(form(&mut log, &low, clock), ring);
        let debt = |used| Settlement { receipt: Receipt::default(), charged: 0, used };
        assert_eq!(log.settle(debt(1_000), low.terms(), clock).remaining, 0);
        assert!(matches!(&log, Log::Narrow(_) | Log::Wide(_)));
        log.settle(debt(24), low.terms(), clock);
        assert!(matches!(&log, Log::Short(_)));
        assert_eq!(log.apply(Op::Peek, high.terms(), clock, 0).remaining, 5_000 - 1_025);
        clock += period;
        assert_eq!(form(&mut log, &low, clock), ring);
        assert_eq!(log.apply(Op::Peek, low.terms(), clock, 0).remaining, 4);
    }
}
