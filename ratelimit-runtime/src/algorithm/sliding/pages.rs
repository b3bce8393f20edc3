//! A long sliding log: full pages of 4,096 entries, and the newest page, which grows. Twin of
//! `lua/segments.lua`.
//!
//! Full pages are never copied, and each page has running totals of its own. So an append copies at most the
//! newest page, and a give-back changes the entries of at most one page.

use std::collections::VecDeque;

use super::short::{LogEntry, Page, ShortLog};
use super::{BIRTH, PAGE};
use crate::algorithm::{Op, Outcome, Settlement, Verdict};
use crate::limit::Terms;

/// The number of pages that one call frees at most, because each takes some microseconds to free.
const MAX_FREED: usize = 2;

#[derive(Clone, Debug)]
pub(crate) struct LongLog {
    /// The pages, oldest first, each with its units. No page is empty.
    pages: VecDeque<(Page, u64)>,
    /// The units of all pages.
    used: u64,
    expires: u64,
    /// Pages that have left the window and are not yet freed.
    dead: VecDeque<(Page, u64)>,
    /// 0 until a call acquires units.
    birth: u64,
}

/// The position of an entry: the index of its page, its index in the page, and the units of all entries before.
#[derive(Clone, Copy, Debug, Default)]
struct Position {
    page: usize,
    entry: usize,
    before: u64,
}

impl From<ShortLog> for LongLog {
    fn from(short: ShortLog) -> Self {
        let ShortLog { page, expires } = short;
        let used = page.entries.back().map_or(0, |last| last.total - page.base);
        let birth = page.base >> BIRTH;
        Self { pages: [(page, used)].into(), used, expires, dead: VecDeque::new(), birth }
    }
}

impl LongLog {
    /// Creates a log without entries.
    pub(super) fn new(birth: u64, expires: u64) -> Self {
        Self { pages: VecDeque::new(), used: 0, expires, dead: VecDeque::new(), birth }
    }

    /// Applies an operation, with the outcome that a short log would have.
    pub(super) fn apply(&mut self, op: Op, terms: &Terms, clock: u64, cost: u32) -> Outcome {
        let (threshold, period) = (u64::from(terms.threshold()), terms.period_us());
        let cost = u64::from(cost);
        let now = clock.max(self.newest());
        let first = self.expired(now, period);
        let mut used = self.used - first.before;

        let allowed = op.gives_back() || cost == 0 || used + cost <= threshold;
        let mut retry = 0;
        if !allowed {
            let blocker = self.reached(first.before + used + cost - threshold);
            retry = self.pages[blocker.page].0.entries[blocker.entry].at + period - clock;
        } else if cost > 0 && op != Op::Peek {
            self.forget(first);
            match op {
                Op::Decide => self.push(now, cost),
                Op::Refund => self.cut(used.saturating_sub(cost)),
                Op::Return { at } => self.lower(at, cost),
                Op::Peek | Op::Measure => {}
            }
            used = self.used;
            self.changed(period);
        }

        let left = threshold.saturating_sub(used);
        Outcome {
            clock,
            verdict: allowed.into(),
            remaining: if op == Op::Measure { used } else { left } as u32,
            retry_us: retry,
            reset_us: if used == 0 { 0 } else { self.newest() + period - clock },
        }
    }

    /// Returns the birth of this log, which is `birth` if it has none.
    pub(super) fn born(&mut self, birth: u64) -> u64 {
        if self.birth == 0 {
            self.birth = birth;
        }
        self.birth
    }

    /// Corrects the charge of a call.
    pub(super) fn settle(&mut self, settlement: Settlement, terms: &Terms, clock: u64) -> Outcome {
        let (threshold, period) = (u64::from(terms.threshold()), terms.period_us());
        let now = clock.max(self.newest());
        self.forget(self.expired(now, period));
        if self.birth == settlement.receipt.birth {
            self.lower(settlement.receipt.place, settlement.less().into());
        }
        let more = u64::from(settlement.more()).min(u64::from(u32::MAX).saturating_sub(self.used));
        if more > 0 {
            self.push(now, more);
        }
        self.changed(period);
        Outcome {
            clock,
            verdict: Verdict::Admitted,
            remaining: threshold.saturating_sub(self.used) as u32,
            retry_us: 0,
            reset_us: if self.used == 0 { 0 } else { self.newest() + period - clock },
        }
    }

    /// Updates what follows from the entries.
    fn changed(&mut self, period: u64) {
        if self.used == 0 {
            (self.expires, self.birth) = (0, 0);
        } else {
            self.expires = self.newest() + period;
        }
    }

    /// Removes up to `units` of the entries at the time `at`.
    fn lower(&mut self, at: u64, units: u64) {
        // Entries at one time can be in two pages.
        let first = self
            .pages
            .partition_point(|(page, _)| page.entries.back().is_some_and(|last| last.at < at));
        let mut rest = units;
        for (page, sum) in self.pages.range_mut(first..) {
            if page.entries.front().is_none_or(|oldest| oldest.at > at) {
                break;
            }
            let removed = page.lower(at, rest);
            (*sum, rest) = (*sum - removed, rest - removed);
        }
        self.used -= units - rest;
        self.pages.retain(|(page, _)| !page.entries.is_empty());
    }

    pub(super) fn expires(&self) -> u64 {
        self.expires
    }

    /// Returns whether [`shorten`](Self::shorten) has something to do.
    pub(super) fn is_short(&self) -> bool {
        self.pages.len() <= 1 || !self.dead.is_empty()
    }

    /// Frees up to [`MAX_FREED`] dead pages. Returns this log as a short one if at most one page is left.
    pub(super) fn shorten(&mut self) -> Option<ShortLog> {
        self.dead.truncate(self.dead.len().saturating_sub(MAX_FREED));
        if self.pages.len() > 1 || !self.dead.is_empty() {
            return None;
        }
        let (mut page, _) = self.pages.pop_front().unwrap_or_default();
        if page.base >> BIRTH != self.birth {
            page.set_birth(self.birth);
        }
        Some(ShortLog { page, expires: self.expires })
    }

    pub(super) fn newest(&self) -> u64 {
        let last = self.pages.back().and_then(|(page, _)| page.entries.back());
        last.map_or(0, |entry| entry.at)
    }

    /// Returns the position of the first entry that is still in the window.
    fn expired(&self, now: u64, period: u64) -> Position {
        if let Some((first, _)) = self.pages.front() {
            let entry = first.expired(now, period);
            if entry < first.entries.len() {
                return Position { page: 0, entry, before: first.base_of(entry) - first.base };
            }
        }
        let left = |page: &Page| page.entries.back().is_some_and(|last| last.at + period <= now);
        let page = self.pages.partition_point(|(page, _)| left(page));
        let before = self.pages.iter().take(page).map(|(_, units)| units).sum();
        let Some((first, _)) = self.pages.get(page) else {
            return Position { page, entry: 0, before };
        };
        let entry = first.expired(now, period);
        Position { page, entry, before: before + first.base_of(entry) - first.base }
    }

    /// Returns the position of the entry at which the units, added up from the first entry, reach `units`.
    fn reached(&self, units: u64) -> Position {
        let mut before = 0;
        for (index, (page, sum)) in self.pages.iter().enumerate() {
            if before + sum >= units {
                let entry = page.reached(page.base + units - before);
                let before = before + page.base_of(entry) - page.base;
                return Position { page: index, entry, before };
            }
            before += sum;
        }
        Position { page: self.pages.len(), entry: 0, before }
    }

    /// Removes all entries before `position`.
    fn forget(&mut self, position: Position) {
        if position.page > 0 {
            self.dead.extend(self.pages.drain(..position.page));
        }
        if let Some((page, units)) = self.pages.front_mut() {
            let base = page.base_of(position.entry);
            *units -= base - page.base;
            page.forget(position.entry, base);
        }
        self.used -= position.before;
    }

    pub(super) fn push(&mut self, at: u64, cost: u64) {
        if self.pages.back().is_none_or(|(page, _)| page.entries.len() == PAGE) {
            self.pages.push_back((Page::default(), 0));
        }
        if let Some((page, units)) = self.pages.back_mut() {
            *units += cost;
            page.entries.push_back(LogEntry { at, total: page.base + *units });
        }
        self.used += cost;
    }

    /// Removes the newest units until `used` are left.
    fn cut(&mut self, used: u64) {
        let Position { page, before, entry } = self.reached(used);
        let keeps = if used == 0 { 0 } else { page + 1 };
        self.dead.extend(self.pages.drain(keeps.min(self.pages.len())..));
        if let Some((page, units)) = self.pages.back_mut() {
            *units = page.base_of(entry) - page.base + used - before;
            page.cut(*units);
        }
        self.used = used;
    }
}
