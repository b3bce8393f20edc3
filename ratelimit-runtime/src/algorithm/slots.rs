//! Calls in flight: the units of the calls that run now. Nothing but their end gives units back.

use super::{Applied, Charged, Op, Outcome, Receipt, State};
use crate::limit::Terms;

/// The units that calls hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slots {
    held: u64,
    /// 0 until a call acquires units.
    birth: u32,
    /// When the first of the units were taken, which every receipt has.
    since: u64,
}

impl State for Slots {
    /// Held units do not expire, and are never evicted.
    fn expires(&self) -> u64 {
        if self.held == 0 { 0 } else { u64::MAX }
    }

    /// The end of a call is unknown, so the waits of the outcome are 0.
    #[inline]
    fn apply(&mut self, op: Op, birth: u64, terms: &Terms, clock: u64, cost: u64) -> Applied {
        let fits = self.held.checked_add(cost).is_some_and(|held| held <= terms.threshold);
        let (allowed, mut receipt) = (!op.is_take() || fits, Receipt::default());
        match op {
            Op::Take { receipt: needs_receipt, .. } if allowed && cost > 0 => {
                self.take(clock, cost);
                receipt = Receipt::new(needs_receipt, &mut self.birth, birth, self.since);
            }
            Op::Correct(correction) => match correction.charged {
                Charged::By(receipt) => self.release(receipt, correction.less()),
                // A credit cannot end a call, and nothing else says which call it is.
                Charged::At(_) | Charged::Newest | Charged::Reserved(_) => {}
            },
            Op::Take { .. } | Op::Peek | Op::Measure => {}
        }
        let remaining = match op {
            Op::Measure => self.held,
            _ => terms.threshold.saturating_sub(self.held),
        };
        (Outcome { clock, verdict: allowed.into(), remaining, retry_us: 0, reset_us: 0 }, receipt)
    }
}

impl Slots {
    /// Returns whether the units of a receipt are among these.
    pub(crate) fn has(&self, receipt: Receipt) -> bool {
        receipt == Receipt::of(self.birth, self.since)
    }

    /// Gives units of a receipt back, if they are among these.
    pub(crate) fn release(&mut self, receipt: Receipt, units: u64) {
        if self.has(receipt) {
            self.held = self.held.saturating_sub(units);
        }
    }

    fn take(&mut self, clock: u64, cost: u64) {
        if self.held == 0 {
            *self = Self { held: 0, birth: 0, since: clock.max(self.since) };
        }
        self.held += cost;
    }
}
