//! Fixed window: one count per window. Twin of `lua/fixed.lua`.

use super::{Op, Outcome, Receipt, Settlement, State, Verdict};
use crate::limit::Terms;

/// The count of the window from `start` to `end`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Window {
    start: u64,
    end: u64,
    count: u32,
    /// 0 until a call acquires units.
    birth: u32,
}

/// The window at the time of a call.
struct WindowAtCall {
    start: u64,
    end: u64,
    count: u32,
}

impl State for Window {
    fn expires(&self) -> u64 {
        self.end
    }

    #[inline]
    fn apply(&mut self, op: Op, terms: &Terms, clock: u64, cost: u32) -> Outcome {
        let threshold = terms.threshold();
        let WindowAtCall { start, end, mut count } = self.at(terms, clock);
        let left = end - clock;

        let allowed =
            !op.is_limited() || u64::from(count) + u64::from(cost) <= u64::from(threshold);
        if cost > 0 && allowed && op != Op::Peek {
            count = match op {
                Op::Refund => count.saturating_sub(cost),
                // This count does not include units that were charged in another window.
                Op::Return { at } if start <= at && at < end => count.saturating_sub(cost),
                Op::Return { .. } => count,
                Op::Decide | Op::Peek | Op::Measure => count + cost,
            };
            self.keep(WindowAtCall { start, end, count });
        }

        Outcome {
            clock,
            verdict: allowed.into(),
            remaining: if op == Op::Measure { count } else { threshold.saturating_sub(count) },
            retry_us: if allowed { 0 } else { left },
            reset_us: if count == 0 { 0 } else { left },
        }
    }

    fn acquire(&mut self, birth: u64, terms: &Terms, clock: u64, cost: u32) -> (Outcome, Receipt) {
        let outcome = self.apply(Op::Decide, terms, clock, cost);
        if !outcome.is_allowed() || cost == 0 {
            return (outcome, Receipt::default());
        }
        if self.birth == 0 {
            // Few bits suffice, because the start of the window has to be the same as well.
            self.birth = birth as u32 | 1;
        }
        (outcome, Receipt { birth: self.birth.into(), place: self.start })
    }

    fn settle(&mut self, settlement: Settlement, terms: &Terms, clock: u64) -> Outcome {
        let Receipt { birth, place } = settlement.receipt;
        let mut window = self.at(terms, clock);
        if u64::from(self.birth) == birth && window.start == place {
            window.count = window.count.saturating_sub(settlement.less());
        }
        window.count = window.count.saturating_add(settlement.more());
        let (left, count) = (window.end - clock, window.count);
        self.keep(window);
        Outcome {
            clock,
            verdict: Verdict::Admitted,
            remaining: terms.threshold().saturating_sub(count),
            retry_us: 0,
            reset_us: if count == 0 { 0 } else { left },
        }
    }
}

impl Window {
    /// Returns the window of a call at the time `clock`.
    #[inline]
    fn at(&self, terms: &Terms, clock: u64) -> WindowAtCall {
        let period = terms.period_us();
        let now = clock.max(self.start);
        // An aligned window starts at a calendar boundary, any other window with its first admitted call. A
        // boundary before the epoch counts as the epoch.
        let (is_open, start, end) = if let Some(shift) = terms.shift_us() {
            let elapsed = (now + shift) % period;
            let boundary = now.saturating_sub(elapsed);
            (self.start >= boundary, boundary, now + period - elapsed)
        } else if self.count > 0 && self.start + period > now {
            (true, self.start, self.start + period)
        } else {
            (false, now, now + period)
        };
        WindowAtCall { start, end, count: if is_open { self.count } else { 0 } }
    }

    #[inline]
    fn keep(&mut self, WindowAtCall { start, end, count }: WindowAtCall) {
        if count == 0 {
            *self = Self::default();
            return;
        }
        // A window after this one keeps the birth: its start tells the two apart.
        (self.start, self.end, self.count) = (start, end, count);
    }
}
