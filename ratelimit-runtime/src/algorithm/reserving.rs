//! Compares buckets whose calls reserve moments, give them back and are settled with a plain list of what each call has
//! really used, and when.

use std::time::Duration;

use proptest::prelude::*;

use super::bucket::Bucket;
use super::{Charged, Correction, Op, Outcome, Receipt, Reservation, State};
use crate::limit::{Limit, Terms};

/// The bucket drains a unit in each tick of 10 µs.
const TICK: u64 = 10;
const CAPACITY: u64 = 10;

#[derive(Clone, Copy, Debug)]
enum ReservingStep {
    Wait(u64),
    Acquire(u64),
    /// A plain call.
    Decide(u64),
    Reserve(u64),
    /// The index of an open charge, and the units that its call has used.
    Settle(usize, u64),
    /// The index of a reservation that no call uses, and how many before it go back after it.
    Cancel(usize, usize),
    /// The index of a charge whose call has not started.
    Return(usize),
}

fn step() -> impl Strategy<Value = ReservingStep> {
    // Few different numbers, so that buckets are often full again at the same time.
    let cost = || prop_oneof![Just(1_u64), Just(5), Just(CAPACITY), 1_u64..8];
    prop_oneof![
        2 => prop_oneof![Just(TICK), Just(5 * TICK), 0_u64..25].prop_map(ReservingStep::Wait),
        3 => cost().prop_map(ReservingStep::Acquire),
        1 => cost().prop_map(ReservingStep::Decide),
        4 => cost().prop_map(ReservingStep::Reserve),
        3 => (any::<usize>(), prop_oneof![Just(0_u64), Just(5), 0_u64..10])
            .prop_map(|(which, used)| ReservingStep::Settle(which, used)),
        3 => (any::<usize>(), 0_usize..3).prop_map(|(last, more)| ReservingStep::Cancel(last, more)),
        2 => any::<usize>().prop_map(ReservingStep::Return),
    ]
}

/// Units that were charged for a moment.
#[derive(Clone, Copy, Debug)]
struct ChargedUnits {
    moment: u64,
    units: u64,
    receipt: Receipt,
    is_reserved: bool,
    is_settled: bool,
}

/// A bucket, and what was charged to it, in the order of the charges.
struct ReservingTrial<'a> {
    terms: &'a Terms,
    state: Bucket,
    now: u64,
    births: u64,
    charged: Vec<ChargedUnits>,
}

impl ReservingTrial<'_> {
    fn push(&mut self, outcome: Outcome, units: u64, receipt: Receipt) {
        let moment = outcome.clock + outcome.retry_us;
        let is_reserved = outcome.retry_us > 0;
        self.charged.push(ChargedUnits { moment, units, receipt, is_reserved, is_settled: false });
    }

    fn play(&mut self, step: ReservingStep) {
        let (terms, now) = (self.terms, self.now);
        self.births += 1;
        match step {
            ReservingStep::Wait(time) => self.now += time,
            ReservingStep::Acquire(cost) => {
                let (outcome, receipt) =
                    self.state.apply(Op::ACQUIRE, self.births, terms, now, cost);
                if outcome.is_allowed() {
                    self.push(outcome, cost, receipt);
                }
            }
            ReservingStep::Decide(cost) => {
                let (outcome, receipt) = self.state.apply(Op::TAKE, 0, terms, now, cost);
                if outcome.is_allowed() {
                    self.push(outcome, cost, receipt);
                }
            }
            ReservingStep::Reserve(cost) => {
                let reserve = Op::Take { wait: 1_000, receipt: true };
                let (outcome, receipt) = self.state.apply(reserve, self.births, terms, now, cost);
                if outcome.is_allowed() {
                    self.push(outcome, cost, receipt);
                }
            }
            ReservingStep::Settle(which, used) => self.settle(which, used),
            ReservingStep::Cancel(last, more) => self.cancel(last, more),
            ReservingStep::Return(which) => {
                let is_charge = |index: &usize| {
                    !self.charged[*index].is_reserved && !self.charged[*index].is_settled
                };
                let charges: Vec<_> = (0..self.charged.len()).filter(is_charge).collect();
                if !charges.is_empty() {
                    let ChargedUnits { moment: at, units, .. } =
                        self.charged.remove(charges[which % charges.len()]);
                    let returned = Correction::give_back(Charged::At(at), units);
                    self.state.apply(Op::Correct(returned), 0, terms, now, 0);
                }
            }
        }
    }

    fn settle(&mut self, which: usize, used: u64) {
        let now = self.now;
        // A call is settled once it has started.
        let is_open =
            |it: &&mut ChargedUnits| !it.is_settled && it.receipt.birth != 0 && it.moment <= now;
        let mut open: Vec<_> = self.charged.iter_mut().filter(is_open).collect();
        if open.is_empty() {
            return;
        }
        let index = which % open.len();
        let charged = &mut *open[index];
        let settled = Correction::settled(charged.receipt, charged.units, used);
        // What a call has used beyond its charge counts from now on.
        let debt = used.saturating_sub(charged.units);
        (charged.units, charged.is_settled) = (used - debt, true);
        let receipt = charged.receipt;
        if debt > 0 {
            let (is_reserved, is_settled) = (false, true);
            let of_debt =
                ChargedUnits { moment: now, units: debt, receipt, is_reserved, is_settled };
            self.charged.push(of_debt);
        }
        self.state.apply(Op::Correct(settled), 0, self.terms, now, 0);
    }

    fn cancel(&mut self, last: usize, more: usize) {
        let is_open =
            |index: &usize| self.charged[*index].is_reserved && !self.charged[*index].is_settled;
        let reserved: Vec<usize> = (0..self.charged.len()).filter(is_open).collect();
        if reserved.is_empty() {
            return;
        }
        // The last first. A moment that does not go back as a whole may be used, unless its receipt gives it back.
        for index in reserved[..=last % reserved.len()].iter().rev().take(more + 1) {
            let ChargedUnits { receipt, moment, units, .. } = self.charged[*index];
            let reservation = Charged::Reserved(Reservation { receipt, moment });
            let op = Op::Correct(Correction::give_back(reservation, units));
            if !self.state.apply(op, 0, self.terms, self.now, 0).0.is_allowed() {
                let op = Op::Correct(Correction::give_back(Charged::By(receipt), units));
                self.state.apply(op, 0, self.terms, self.now, 0);
            }
            self.charged.remove(*index);
        }
    }

    /// Returns how many units a call may take now, if the bucket also holds what the calls of later moments take.
    fn left(&self) -> u64 {
        let mut charges: Vec<_> = self.charged.iter().map(|it| (it.moment, it.units)).collect();
        charges.sort_by_key(|(moment, _)| *moment);
        let later = charges.partition_point(|(moment, _)| *moment <= self.now);
        let fits = |more: &u64| {
            let (mut level, mut since, mut fits) = (0_u64, 0, true);
            let call = [(self.now, *more)];
            let all = charges[..later].iter().chain(&call).chain(&charges[later..]);
            for (index, (moment, units)) in all.enumerate() {
                level = level.saturating_sub(moment - since) + *units * TICK;
                since = *moment;
                fits &= index < later || level <= CAPACITY * TICK;
            }
            fits
        };
        (0..=CAPACITY).rev().find(fits).unwrap_or(0)
    }
}

/// Plays steps. After each, a bucket admits no more than is left.
fn play(steps: &[ReservingStep]) -> Result<(), TestCaseError> {
    let period = Duration::from_micros(TICK * CAPACITY);
    let limit = Limit::token_bucket("reserved", CAPACITY, period);
    let (state, charged) = (Bucket::default(), Vec::new());
    let mut trial = ReservingTrial { terms: limit.terms(), state, now: 1_000, births: 0, charged };
    for step in steps {
        trial.play(*step);
        let seen = trial.state.apply(Op::Peek, 0, trial.terms, trial.now, 0).0.remaining;
        let left = trial.left();
        prop_assert!(seen <= left, "{step:?}: {seen} of {left}: {:?}", trial.charged);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_bucket_keeps_the_moments_that_it_has_reserved(
        steps in prop::collection::vec(step(), 1..25),
    ) {
        play(&steps)?;
    }
}

/// A settlement has made the level low again, so that it does not tell that a moment is ahead.
#[test]
fn nothing_is_returned_that_a_reserved_moment_needs() {
    let steps = [
        ReservingStep::Acquire(5),
        ReservingStep::Decide(5),
        ReservingStep::Reserve(5),
        ReservingStep::Settle(0, 0),
        ReservingStep::Return(0),
        ReservingStep::Wait(5 * TICK),
    ];
    play(&steps).expect("no more than is left");
}

/// A return has moved the end of the bucket, so a later charge ends when an earlier reservation did.
#[test]
fn a_late_cancellation_gives_no_units_of_another_charge_back() {
    let steps = [
        ReservingStep::Reserve(CAPACITY),
        ReservingStep::Reserve(1),
        ReservingStep::Wait(50),
        ReservingStep::Return(0),
        ReservingStep::Wait(10),
        ReservingStep::Reserve(5),
        ReservingStep::Cancel(0, 0),
    ];
    play(&steps).expect("no more than is left");
}
