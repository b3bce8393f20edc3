//! A log of entries: the units of a call have one entry, for any cost. An entry is its time, and the running total of
//! the units in its page, its own units included. The units between two entries are the difference of their totals. So
//! every lookup is a binary search, and a cost of a million takes no longer than a cost of one.

use std::collections::VecDeque;

use super::{BIRTH, FEW_LEFT, PAGE};
use crate::algorithm::{Op, Outcome, Receipt, Settlement, Verdict};
use crate::limit::Terms;

/// The number of newest entries in which a charge is searched one by one.
const NEWEST: usize = 8;

#[derive(Clone, Copy, Debug)]
pub(super) struct LogEntry {
    pub(super) at: u64,
    pub(super) total: u64,
}

/// Consecutive entries, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Page {
    pub(super) entries: VecDeque<LogEntry>,
    /// The running total before the first entry. The highest bits of all totals are the birth of the log: 0 until a
    /// call acquires units. Decisions need only differences of totals.
    pub(super) base: u64,
}

/// A log of one page.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShortLog {
    pub(super) page: Page,
    /// The time at which the last entry leaves the window.
    pub(super) expires: u64,
}

impl ShortLog {
    /// Applies an operation. Returns `None`, and changes nothing that counts, if the page has no room for an entry.
    #[inline(always)]
    pub(super) fn apply(
        &mut self,
        op: Op,
        terms: &Terms,
        clock: u64,
        cost: u32,
    ) -> Option<Outcome> {
        let (threshold, period) = (u64::from(terms.threshold()), terms.period_us());
        let units = u64::from(cost);
        let page = &mut self.page;
        let last = page.entries.back().copied().unwrap_or(LogEntry { at: 0, total: page.base });
        let now = clock.max(last.at);

        // Entries at `now - period` and before have left the window.
        let first = page.expired(now, period);
        let base = page.base_of(first);
        let mut used = last.total - base;
        let mut newest = last.at;

        let allowed = op.gives_back() || units == 0 || used + units <= threshold;
        let mut retry = 0;
        if !allowed {
            // The call fits once all excess units have left the window.
            let blocker = page.reached(base + used + units - threshold);
            retry = page.entries[blocker].at + period - clock;
        } else if units > 0 {
            match op {
                Op::Decide => {
                    page.forget(first, base);
                    if page.entries.len() == PAGE {
                        return None;
                    }
                    page.entries.push_back(LogEntry { at: now, total: last.total + units });
                    used += units;
                    newest = now;
                    self.expires = newest + period;
                }
                Op::Peek | Op::Measure => {}
                Op::Refund => {
                    page.forget(first, base);
                    used = used.saturating_sub(units);
                    if used == 0 {
                        *self = Self::default();
                    } else {
                        newest = page.cut(used);
                        self.expires = newest + period;
                    }
                }
                Op::Return { at } => {
                    page.forget(first, base);
                    used -= page.lower(at, units);
                    if used == 0 {
                        *self = Self::default();
                    } else {
                        newest = page.entries.back().map_or(newest, |last| last.at);
                        self.expires = newest + period;
                    }
                }
            }
        }

        let left = threshold.saturating_sub(used);
        Some(Outcome {
            clock,
            verdict: allowed.into(),
            remaining: if op == Op::Measure { used } else { left } as u32,
            retry_us: retry,
            reset_us: if used == 0 { 0 } else { newest + period - clock },
        })
    }

    /// Returns the receipt of the last charge. A log without a birth gets `birth`.
    pub(super) fn receipt(&mut self, birth: u64) -> Receipt {
        let place = self.page.entries.back().map_or(0, |last| last.at);
        Receipt { birth: self.page.born(birth), place }
    }

    pub(super) fn expires(&self) -> u64 {
        self.expires
    }

    /// Corrects the charge of a call. Returns `None`, and changes nothing, if the page has no room for an entry.
    pub(super) fn settle(
        &mut self,
        settlement: Settlement,
        terms: &Terms,
        clock: u64,
    ) -> Option<Outcome> {
        if self.page.entries.len() == PAGE {
            return None;
        }
        let (threshold, period) = (u64::from(terms.threshold()), terms.period_us());
        let page = &mut self.page;
        let now = clock.max(page.entries.back().map_or(0, |last| last.at));
        let first = page.expired(now, period);
        page.forget(first, page.base_of(first));
        if page.base >> BIRTH == settlement.receipt.birth && settlement.less() > 0 {
            page.lower(settlement.receipt.place, settlement.less().into());
        }
        let used = page.entries.back().map_or(0, |last| last.total - page.base);
        let more = u64::from(settlement.more()).min(u64::from(u32::MAX).saturating_sub(used));
        if more > 0 {
            page.entries.push_back(LogEntry { at: now, total: page.base + used + more });
        }
        let newest = page.entries.back().map_or(0, |last| last.at);
        self.expires = newest + period;
        let used = used + more;
        Some(Outcome {
            clock,
            verdict: Verdict::Admitted,
            remaining: threshold.saturating_sub(used) as u32,
            retry_us: 0,
            reset_us: if used == 0 { 0 } else { newest + period - clock },
        })
    }
}

impl Page {
    /// Returns the birth of the log, which is `birth` if it has none.
    pub(super) fn born(&mut self, birth: u64) -> u64 {
        let own = self.base >> BIRTH;
        // A total that comes near the birth starts again.
        let is_high = self.base & ((1 << BIRTH) - 1) > 1 << (BIRTH - 1);
        if own == 0 || is_high {
            self.set_birth(if own == 0 { birth } else { own });
        }
        self.base >> BIRTH
    }

    pub(super) fn set_birth(&mut self, birth: u64) {
        let change = (birth << BIRTH).wrapping_sub(self.base);
        for entry in &mut self.entries {
            entry.total = entry.total.wrapping_add(change);
        }
        self.base = self.base.wrapping_add(change);
    }

    /// Returns the number of entries that have left the window.
    #[inline(always)]
    pub(super) fn expired(&self, now: u64, period: u64) -> usize {
        let has_left = |entry: &LogEntry| entry.at + period <= now;
        let few = self.entries.iter().take(FEW_LEFT).take_while(|entry| has_left(entry)).count();
        if few < FEW_LEFT { few } else { self.entries.partition_point(has_left) }
    }

    /// Returns the running total before the entry `index`.
    #[inline(always)]
    pub(super) fn base_of(&self, index: usize) -> u64 {
        if index == 0 { self.base } else { self.entries[index - 1].total }
    }

    /// Returns the index of the first entry whose running total reaches `total`.
    pub(super) fn reached(&self, total: u64) -> usize {
        self.entries.partition_point(|entry| entry.total < total)
    }

    /// Removes the entries before the index `first`. `base` becomes the running total before the page.
    #[inline(always)]
    pub(super) fn forget(&mut self, first: usize, base: u64) {
        self.entries.drain(..first);
        self.base = base;
        // Frees memory once most entries are gone.
        if self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to(self.entries.len() * 2);
        }
    }

    /// Removes up to `units` of the entries at the time `at`, from the newest of them on. Returns how many.
    pub(super) fn lower(&mut self, at: u64, units: u64) -> u64 {
        // Most calls settle one of the last charges.
        let later =
            self.entries.iter().rev().take(NEWEST).take_while(|entry| entry.at > at).count();
        let end = match later {
            NEWEST => self.entries.partition_point(|entry| entry.at <= at),
            later => self.entries.len() - later,
        };
        let equal = self.entries.range(..end).rev().take_while(|entry| entry.at == at).count();
        let first = end - equal;
        let Some(last) = end.checked_sub(1).filter(|_| equal > 0) else { return 0 };
        let removed = units.min(self.entries[last].total - self.base_of(first));
        let floor = self.entries[last].total - removed;
        for entry in self.entries.range_mut(first..end) {
            entry.total = entry.total.min(floor);
        }
        for entry in self.entries.range_mut(end..) {
            entry.total -= removed;
        }
        // The last entry tells when the log is empty. An entry without units before it changes nothing.
        while let Some(last) = self.entries.len().checked_sub(1)
            && self.entries[last].total == self.base_of(last)
        {
            self.entries.pop_back();
        }
        removed
    }

    /// Removes the newest units until `used` are left. Returns the time of the last entry that stays.
    pub(super) fn cut(&mut self, used: u64) -> u64 {
        let total = self.base + used;
        let last = self.reached(total);
        self.entries.truncate(last + 1);
        self.entries[last].total = total;
        self.entries[last].at
    }
}
