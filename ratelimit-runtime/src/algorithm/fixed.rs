//! Fixed window: one count per window. Twin of `lua/fixed.lua`.

use super::{Applied, Charged, MOST, Op, Outcome, Receipt, State};
use crate::limit::Terms;

/// The count of the window from `start` to `end`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Window {
    start: u64,
    end: u64,
    count: u64,
    /// 0 until a call acquires units.
    birth: u32,
}

impl State for Window {
    fn expires(&self) -> u64 {
        self.end
    }

    #[inline]
    fn apply(&mut self, op: Op, birth: u64, terms: &Terms, clock: u64, cost: u64) -> Applied {
        let threshold = terms.threshold;
        let mut window = self.at(terms, clock);
        let (left, mut receipt) = (window.end - clock, Receipt::default());
        let fits = window.count + cost <= threshold;
        let allowed = fits || !op.is_take();
        let before = window.count;
        match op {
            Op::Take { receipt: needs_receipt, .. } if allowed && cost > 0 => {
                window.count += cost;
                receipt = Receipt::new(needs_receipt, &mut window.birth, birth, window.start);
            }
            Op::Correct(correction) => {
                // This count does not include units that were charged in another window.
                let is_its = match correction.charged {
                    Charged::Newest => true,
                    Charged::At(time) => window.start <= time && time < window.end,
                    Charged::By(receipt) => receipt == Receipt::of(self.birth, window.start),
                    Charged::Reserved(_) => false,
                };
                let less = if is_its { correction.less() } else { 0 };
                window.count = (window.count.saturating_sub(less) + correction.more()).min(MOST);
            }
            Op::Take { .. } | Op::Peek | Op::Measure => {}
        }
        let count = window.count;
        if count != before {
            *self = if count == 0 { Self::default() } else { window };
        }
        let outcome = Outcome {
            clock,
            verdict: allowed.into(),
            remaining: if op == Op::Measure { count } else { threshold.saturating_sub(count) },
            retry_us: if allowed { 0 } else { left },
            reset_us: if count == 0 { 0 } else { left },
        };
        (outcome, receipt)
    }
}

impl Window {
    /// Returns the window of a call at the time `clock`: the last one until it is over. It keeps the birth: its start
    /// tells it from the window before.
    #[inline]
    fn at(&self, terms: &Terms, clock: u64) -> Self {
        let now = clock.max(self.start);
        if self.count > 0 && now < self.end {
            return self.clone();
        }
        // An aligned window starts at a calendar boundary, any other window with its first admitted call. A
        // boundary before the epoch counts as the epoch.
        let period = terms.period_us();
        let (start, end) = if let Some(shift) = terms.shift_us() {
            let elapsed = (now + shift) % period;
            (now.saturating_sub(elapsed), now + period - elapsed)
        } else {
            terms.calendar_window(now).unwrap_or((now, now + period))
        };
        Self { start, end, count: 0, birth: self.birth }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::algorithm::Correction;
    use crate::limit::Limit;

    #[test]
    fn a_window_gets_nothing_back_of_one_that_was_emptied_before() {
        const MINUTE: u64 = 60_000_000;
        let limit = Limit::fixed("window", 10, Duration::from_secs(3_600));
        let (terms, mut window) = (limit.terms(), Window::default());
        let mut apply = |op, minute, cost| window.apply(op, 1, terms, minute * MINUTE, cost).0;
        let charged = Charged::At(apply(Op::TAKE, 100, 4).charged_at(terms));
        let returned = Op::Correct(Correction::give_back(charged, 4));
        assert_eq!(apply(returned, 110, 0).remaining, 10);
        assert_eq!(apply(Op::TAKE, 120, 3).remaining, 7);
        assert_eq!(apply(returned, 130, 0).remaining, 7);
    }
}
