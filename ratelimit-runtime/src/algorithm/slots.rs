//! Calls in flight: the units of the calls that run now. Nothing but their end gives units back.

use super::{Op, Outcome, Receipt, Settlement, State, Verdict};
use crate::limit::Terms;

/// How long a count is kept after its first call, in microseconds, although no units are held. The next call of the key
/// then need not add the count again (`benches/all -- in-flight`).
const IDLE: u64 = 1_000_000;

/// The units that calls hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slots {
    held: u32,
    /// 0 until a call acquires units.
    birth: u32,
    /// When the first of the units were taken, which every receipt has.
    since: u64,
}

impl State for Slots {
    /// Held units do not expire, and are never evicted.
    fn expires(&self) -> u64 {
        match self {
            Self { held: 0, since: 0, .. } => 0,
            Self { held: 0, since, .. } => since + IDLE,
            _ => u64::MAX,
        }
    }

    /// The end of a call is unknown, so the waits of the outcome are 0.
    #[inline]
    fn apply(&mut self, op: Op, terms: &Terms, clock: u64, cost: u32) -> Outcome {
        let fits = self.held.checked_add(cost).is_some_and(|held| held <= terms.threshold());
        let allowed = !op.is_limited() || fits;
        if allowed {
            match op {
                Op::Decide => self.take(clock, cost),
                // The receipt of a grant names the state.
                Op::Return { at } if at == self.since => self.give_back(cost),
                // A credit cannot end a call.
                Op::Peek | Op::Measure | Op::Refund | Op::Return { .. } => {}
            }
        }
        let outcome = self.outcome_of(terms, clock, allowed.into());
        if op == Op::Measure { Outcome { remaining: self.held, ..outcome } } else { outcome }
    }

    #[inline]
    fn acquire(&mut self, birth: u64, terms: &Terms, clock: u64, cost: u32) -> (Outcome, Receipt) {
        let outcome = self.apply(Op::Decide, terms, clock, cost);
        if !outcome.is_allowed() || cost == 0 {
            return (outcome, Receipt::default());
        }
        if self.birth == 0 {
            // The low half of a birth is not 0. A state ends before all of these numbers are used.
            self.birth = birth as u32 | 1;
        }
        (outcome, Receipt { birth: self.birth.into(), place: self.since })
    }

    /// Gives back the units that were not used: all of them once the call has ended.
    fn settle(&mut self, settlement: Settlement, terms: &Terms, clock: u64) -> Outcome {
        self.release(settlement.receipt, settlement.less());
        self.outcome_of(terms, clock, Verdict::Admitted)
    }
}

impl Slots {
    /// Returns whether the units of a receipt are among these.
    pub(crate) fn has(&self, Receipt { birth, place }: Receipt) -> bool {
        u64::from(self.birth) == birth && self.since == place
    }

    /// Gives units of a receipt back, if they are among these.
    pub(crate) fn release(&mut self, receipt: Receipt, units: u32) {
        if self.has(receipt) {
            self.give_back(units);
        }
    }

    fn take(&mut self, clock: u64, cost: u32) {
        if self.held == 0 && cost > 0 {
            *self = Self { held: 0, birth: 0, since: clock.max(self.since) };
        }
        self.held += cost;
    }

    fn give_back(&mut self, units: u32) {
        self.held = self.held.saturating_sub(units);
    }

    fn outcome_of(&self, terms: &Terms, clock: u64, verdict: Verdict) -> Outcome {
        let remaining = terms.threshold().saturating_sub(self.held);
        Outcome { clock, verdict, remaining, retry_us: 0, reset_us: 0 }
    }
}
