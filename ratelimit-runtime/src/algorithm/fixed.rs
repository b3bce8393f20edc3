//! Fixed window: one count per window. Twin of `lua/fixed.lua`.

use super::{Op, Outcome, State};
use crate::limit::Terms;

/// The count of the window from `start` to `end`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Window {
    start: u64,
    end: u64,
    count: u32,
}

impl State for Window {
    #[inline(always)]
    fn apply(&mut self, op: Op, terms: &Terms, clock: u64, cost: u32) -> Outcome {
        let (threshold, period) = (terms.threshold(), terms.period_us());
        let now = clock.max(self.start);

        // An aligned window starts at a calendar boundary, any other window with its first admitted call. A
        // boundary before the epoch counts as the epoch.
        let (open, start, end) = if let Some(shift) = terms.shift_us() {
            let elapsed = (now + shift) % period;
            let boundary = now.saturating_sub(elapsed);
            (self.start >= boundary, boundary, now + period - elapsed)
        } else if self.count > 0 && self.start + period > now {
            (true, self.start, self.start + period)
        } else {
            (false, now, now + period)
        };
        let mut count = if open { self.count } else { 0 };
        let left = end - clock;

        let allowed = op.gives_back()
            || cost == 0
            || u64::from(count) + u64::from(cost) <= u64::from(threshold);
        if cost > 0 && allowed && op != Op::Peek {
            count = match op {
                Op::Refund => count.saturating_sub(cost),
                // This count does not include units that were charged in another window.
                Op::Return { at } if start <= at && at < end => count.saturating_sub(cost),
                Op::Return { .. } => count,
                Op::Decide | Op::Peek => count + cost,
            };
            *self = if count == 0 { Self::default() } else { Self { start, end, count } };
        }

        Outcome {
            clock,
            allowed,
            remaining: threshold.saturating_sub(count),
            retry_us: if allowed { 0 } else { left },
            reset_us: if count == 0 { 0 } else { left },
        }
    }
    fn expires(&self) -> u64 {
        self.end
    }
}
