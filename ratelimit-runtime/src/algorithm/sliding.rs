//! Exact sliding window: the log of what was admitted in the trailing period. Twin of
//! `lua/sliding.lua`.
//!
//! One entry per admitted call, whatever its cost, holds its time and the running total up to and
//! including it. What was admitted between two entries is a difference of totals, so every question
//! is a binary search and a cost of a million is as cheap as a cost of one.

use std::collections::VecDeque;

use super::{Op, Outcome, State};
use crate::limit::Limit;

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: u64,
    total: u64,
}

/// The admitted calls, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    entries: VecDeque<Entry>,
    /// The running total before the first entry.
    base: u64,
    /// When the last entry leaves the window.
    expires: u64,
}

impl State for Log {
    #[inline(always)]
    fn apply(&mut self, op: Op, limit: &Limit, clock: u64, cost: u32) -> Outcome {
        let (threshold, period) = (u64::from(limit.threshold()), limit.period_us());
        let cost = u64::from(cost);
        let last = self.entries.back().copied().unwrap_or(Entry { at: 0, total: self.base });
        let now = clock.max(last.at);

        // Entries at `now - period` and before have left the window.
        let first = match self.entries.front() {
            Some(oldest) if oldest.at + period <= now => {
                self.entries.partition_point(|entry| entry.at + period <= now)
            }
            _ => 0,
        };
        let base = if first == 0 { self.base } else { self.entries[first - 1].total };
        let mut used = last.total - base;
        let mut newest = last.at;

        let allowed = op.gives_back() || cost == 0 || used + cost <= threshold;
        let mut retry = 0;
        if !allowed {
            // The call fits once all that is too much has left.
            let excess = used + cost - threshold;
            let blocker = self.entries.partition_point(|entry| entry.total < base + excess);
            retry = self.entries[blocker].at + period - clock;
        } else if cost > 0 && op == Op::Decide {
            self.forget(first, base);
            self.entries.push_back(Entry { at: now, total: last.total + cost });
            used += cost;
            newest = now;
            self.expires = newest + period;
        } else if cost > 0 && op == Op::Refund {
            self.forget(first, base);
            used = used.saturating_sub(cost);
            newest = self.cut(used);
            self.expires = if used == 0 { 0 } else { newest + period };
        } else if let (1.., Op::Return { at }) = (cost, op) {
            self.forget(first, base);
            if at + period > now {
                used = used.saturating_sub(cost);
            }
            self.advance(used);
        }

        Outcome {
            clock,
            allowed,
            remaining: threshold.saturating_sub(used) as u32,
            retry_us: retry,
            reset_us: if used == 0 { 0 } else { newest + period - clock },
        }
    }

    fn expires(&self) -> u64 {
        self.expires
    }
}

impl Log {
    fn forget(&mut self, first: usize, base: u64) {
        self.entries.drain(..first);
        self.base = base;
        // A busy hour is not kept in memory for ever.
        if self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to(self.entries.len() * 2);
        }
    }

    /// Shortens the log so that `used` units are left, taking the oldest away: those that are left
    /// leave no earlier than those that stay in truth.
    fn advance(&mut self, used: u64) {
        let Some(last) = self.entries.back().filter(|_| used > 0) else {
            *self = Self::default();
            return;
        };
        let base = last.total - used;
        let first = self.entries.partition_point(|entry| entry.total <= base);
        self.forget(first, base);
    }

    /// Shortens the log so that `used` units are left, taking the newest away, and says when the
    /// last of those left was admitted.
    fn cut(&mut self, used: u64) -> u64 {
        if used == 0 {
            *self = Self::default();
            return 0;
        }
        let total = self.base + used;
        let last = self.entries.partition_point(|entry| entry.total < total);
        self.entries.truncate(last + 1);
        self.entries[last].total = total;
        self.entries[last].at
    }
}
