//! Fixed window: one count per window. Twin of `lua/fixed.lua`.

use super::{Op, Outcome};
use crate::limit::Limit;

/// The count of the window that began at `start`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Window {
    start: u64,
    count: u32,
}

impl Window {
    pub(crate) fn apply(&mut self, op: Op, limit: &Limit, clock: u64, cost: u32) -> Outcome {
        let (threshold, period) = (limit.threshold(), limit.period_us());
        let now = clock.max(self.start);

        // Aligned, a window begins at the boundary; else where its first admitted call came.
        let boundary = limit.shift_us().map(|shift| now - (now + shift) % period);
        let open = match boundary {
            Some(boundary) => self.start >= boundary,
            None => self.start + period > now,
        };
        let mut count = if open { self.count } else { 0 };
        let start = boundary.unwrap_or(if count > 0 { self.start } else { now });
        let left = start + period - clock;

        let allowed = op == Op::Refund
            || cost == 0
            || u64::from(count) + u64::from(cost) <= u64::from(threshold);
        if cost > 0 && allowed && op != Op::Peek {
            count = if op == Op::Refund { count.saturating_sub(cost) } else { count + cost };
            *self = if count == 0 { Self::default() } else { Self { start, count } };
        }

        Outcome {
            allowed,
            remaining: threshold.saturating_sub(count),
            retry_us: if allowed { 0 } else { left },
            reset_us: if count == 0 { 0 } else { left },
        }
    }
}
