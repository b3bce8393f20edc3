//! Exact sliding window: the log of the calls admitted in the trailing period. Twin of `lua/sliding.lua`.
//!
//! Each admitted call has one entry, for any cost: its time, and the running total of the units in its page, its
//! own units included. The units between two entries are the difference of their totals. So every lookup is a
//! binary search, and a cost of a million takes no longer than a cost of one.
//!
//! A log of up to 4,096 entries is one page. A longer log is a list of [`pages`], so that no call copies or
//! frees many entries while it holds the lock of the store.

mod pages;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use self::pages::LongLog;
use super::{Expires, Op, Outcome, Receipt, Settlement, State, Verdict};
use crate::limit::Terms;

/// The number of entries in a full page; small in unit tests, so that short logs have many pages.
const PAGE: usize = if cfg!(test) { 8 } else { 4096 };

#[derive(Clone, Copy, Debug)]
struct LogEntry {
    at: u64,
    total: u64,
}

/// Consecutive entries, oldest first.
#[derive(Clone, Debug, Default)]
struct Page {
    entries: VecDeque<LogEntry>,
    /// The running total before the first entry. The highest bits of all totals are the birth of the log: 0 until a
    /// call acquires units. Decisions need only differences of totals.
    base: u64,
}

/// The number of oldest entries that a call looks at one by one: since the call before, few have left the window.
const FEW_LEFT: usize = 4;

/// The number of newest entries in which a charge is searched one by one.
const NEWEST: usize = 8;

/// The position of the birth in a total.
const BIRTH: u32 = 52;

/// The admitted calls, oldest first.
#[derive(Clone, Debug)]
pub(crate) enum Log {
    Short(ShortLog),
    /// Boxed, so that this variant takes no more space than a short log.
    Long(Box<LongLog>),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ShortLog {
    page: Page,
    /// The time at which the last entry leaves the window.
    expires: u64,
}

/// A log and its key id fit in one cache line.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Log>() == 48);

impl Default for Log {
    fn default() -> Self {
        Self::Short(ShortLog::default())
    }
}

impl State for Log {
    type Decided = Outcome;

    #[inline(always)]
    fn decide(&mut self, terms: &Terms, clock: u64, cost: u32) -> Outcome {
        self.apply(Op::Decide, terms, clock, cost)
    }

    #[inline]
    fn is_allowed(decided: &Outcome) -> bool {
        decided.is_allowed()
    }

    #[inline(always)]
    fn outcome(decided: Outcome, _: &Terms, _: u64, _: u32) -> Outcome {
        decided
    }

    #[inline(always)]
    fn apply(&mut self, op: Op, terms: &Terms, clock: u64, cost: u32) -> Outcome {
        let short = match self {
            Self::Short(short) => short,
            Self::Long(long) => {
                let outcome = long.apply(op, terms, clock, cost);
                if long.is_short() {
                    self.shorten();
                }
                return outcome;
            }
        };
        let (threshold, period) = (u64::from(terms.threshold()), terms.period_us());
        let units = u64::from(cost);
        let page = &mut short.page;
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
                        return self.apply_to_long(op, terms, clock, cost);
                    }
                    page.entries.push_back(LogEntry { at: now, total: last.total + units });
                    used += units;
                    newest = now;
                    short.expires = newest + period;
                }
                Op::Peek => {}
                Op::Refund => {
                    page.forget(first, base);
                    used = used.saturating_sub(units);
                    if used == 0 {
                        *self = Self::default();
                    } else {
                        newest = page.cut(used);
                        short.expires = newest + period;
                    }
                }
                Op::Return { at } => {
                    page.forget(first, base);
                    used -= page.lower(at, units);
                    if used == 0 {
                        *self = Self::default();
                    } else {
                        newest = page.entries.back().map_or(newest, |last| last.at);
                        short.expires = newest + period;
                    }
                }
            }
        }

        Outcome {
            clock,
            verdict: allowed.into(),
            remaining: threshold.saturating_sub(used) as u32,
            retry_us: retry,
            reset_us: if used == 0 { 0 } else { newest + period - clock },
        }
    }

    fn acquire(&mut self, birth: u64, terms: &Terms, clock: u64, cost: u32) -> (Outcome, Receipt) {
        let outcome = self.apply(Op::Decide, terms, clock, cost);
        if !outcome.is_allowed() || cost == 0 {
            return (outcome, Receipt::default());
        }
        let birth = small_birth(birth);
        let receipt = match self {
            Self::Short(short) => {
                let place = short.page.entries.back().map_or(0, |last| last.at);
                Receipt { birth: short.page.born(birth), place }
            }
            Self::Long(long) => Receipt { birth: long.born(birth), place: long.newest() },
        };
        (outcome, receipt)
    }

    fn settle(&mut self, settlement: Settlement, terms: &Terms, clock: u64) -> Outcome {
        if let Self::Short(short) = self
            && short.page.entries.len() < PAGE
        {
            let outcome = short.settle(settlement, terms, clock);
            if outcome.reset_us == 0 {
                *self = Self::default();
            }
            return outcome;
        }
        let mut long = self.take_long();
        let outcome = long.settle(settlement, terms, clock);
        self.put_back(long);
        outcome
    }
}

impl Expires for Log {
    fn expires(&self) -> u64 {
        match self {
            Self::Short(short) => short.expires,
            Self::Long(long) => long.expires(),
        }
    }
}

impl Log {
    /// Applies an operation to a short log that the operation makes long.
    #[cold]
    #[inline(never)]
    fn apply_to_long(&mut self, op: Op, terms: &Terms, clock: u64, cost: u32) -> Outcome {
        let mut long = self.take_long();
        let outcome = long.apply(op, terms, clock, cost);
        self.put_back(long);
        outcome
    }

    /// Frees pages of a long log. If it has shrunk to one page, it becomes a short log.
    #[cold]
    #[inline(never)]
    fn shorten(&mut self) {
        let long = self.take_long();
        self.put_back(long);
    }

    #[allow(clippy::unnecessary_box_returns, reason = "saves a copy of a log that is boxed")]
    fn take_long(&mut self) -> Box<LongLog> {
        match std::mem::take(self) {
            Self::Short(short) => Box::new(LongLog::from(short)),
            Self::Long(long) => long,
        }
    }

    fn put_back(&mut self, mut long: Box<LongLog>) {
        *self = match long.shorten() {
            Some(short) => Self::Short(short),
            None => Self::Long(long),
        };
    }
}

impl ShortLog {
    /// Corrects the charge of a call. There is room for another entry.
    fn settle(&mut self, settlement: Settlement, terms: &Terms, clock: u64) -> Outcome {
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
        Outcome {
            clock,
            verdict: Verdict::Admitted,
            remaining: threshold.saturating_sub(used) as u32,
            retry_us: 0,
            reset_us: if used == 0 { 0 } else { newest + period - clock },
        }
    }
}

/// Returns a birth that fits into the highest bits of a total, and is not 0. A receipt also has the time of its charge,
/// so it finds another log only if a thousand calls acquire units within a microsecond.
fn small_birth(birth: u64) -> u64 {
    // The highest bit stays 0: a running total does not overflow.
    const BIRTHS: u64 = (1 << (63 - BIRTH)) - 1;
    birth / 2 % BIRTHS + 1
}

impl Page {
    /// Returns the birth of the log, which is `birth` if it has none.
    fn born(&mut self, birth: u64) -> u64 {
        let own = self.base >> BIRTH;
        // A total that comes near the birth starts again.
        let is_high = self.base & ((1 << BIRTH) - 1) > 1 << (BIRTH - 1);
        if own == 0 || is_high {
            self.set_birth(if own == 0 { birth } else { own });
        }
        self.base >> BIRTH
    }

    fn set_birth(&mut self, birth: u64) {
        let change = (birth << BIRTH).wrapping_sub(self.base);
        for entry in &mut self.entries {
            entry.total = entry.total.wrapping_add(change);
        }
        self.base = self.base.wrapping_add(change);
    }

    /// Returns the number of entries that have left the window.
    #[inline(always)]
    fn expired(&self, now: u64, period: u64) -> usize {
        let has_left = |entry: &LogEntry| entry.at + period <= now;
        let few = self.entries.iter().take(FEW_LEFT).take_while(|entry| has_left(entry)).count();
        if few < FEW_LEFT { few } else { self.entries.partition_point(has_left) }
    }

    /// Returns the running total before the entry `index`.
    #[inline(always)]
    fn base_of(&self, index: usize) -> u64 {
        if index == 0 { self.base } else { self.entries[index - 1].total }
    }

    /// Returns the index of the first entry whose running total reaches `total`.
    fn reached(&self, total: u64) -> usize {
        self.entries.partition_point(|entry| entry.total < total)
    }

    /// Removes the entries before the index `first`. `base` becomes the running total before the page.
    #[inline(always)]
    fn forget(&mut self, first: usize, base: u64) {
        self.entries.drain(..first);
        self.base = base;
        // Frees memory once most entries are gone.
        if self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to(self.entries.len() * 2);
        }
    }

    /// Removes up to `units` of the entries at the time `at`, from the newest of them on. Returns how many.
    fn lower(&mut self, at: u64, units: u64) -> u64 {
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
    fn cut(&mut self, used: u64) -> u64 {
        let total = self.base + used;
        let last = self.reached(total);
        self.entries.truncate(last + 1);
        self.entries[last].total = total;
        self.entries[last].at
    }
}
