//! Sliding window: the units that were charged in the trailing period, exact to a tick or, of large limits, to a cell.
//! Twin of `lua/sliding.lua`, which explains records, ticks and cells.

use super::{Applied, Charged, Op, Outcome, Receipt, State, Verdict};
use crate::limit::Terms;

/// The most records of a state.
const MOST: usize = 1_016;

/// The largest threshold under which charges of different ticks share a record only if debts have filled the state.
const EXACT: u64 = 1_000;

/// The units that were charged in a period.
///
/// What each call reads is found without a step between: the records from here, and the head. So the processor fetches
/// them at once (`benches/all -- steady`).
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    /// The records before the newest one, a ring: of each, the low 32 bits of its tick and of its units.
    slots: Box<[(u32, u32)]>,
    /// The slot of the oldest record.
    first: u32,
    len: u32,
    head: Box<Head>,
}

#[derive(Clone, Debug, Default)]
struct Head {
    /// The units of all records; 0 if nothing was charged.
    total: u64,
    /// The units of the newest record.
    units: u64,
    /// The latest tick of a record that charges of several ticks share.
    joined: u64,
    /// A period after the newest record, in microseconds.
    expires: u64,
    /// 0 until a call acquires units.
    birth: u32,
    /// Of each slot, the high bits of the units; empty while all of them are 0.
    high: Vec<u32>,
}

/// The records of the ring, each by its place from the oldest one.
impl Log {
    fn len(&self) -> usize {
        self.len as usize
    }

    #[inline]
    fn slot(&self, index: usize) -> usize {
        let slot = self.first as usize + index;
        if slot < self.slots.len() { slot } else { slot - self.slots.len() }
    }

    #[inline]
    fn record(&self, index: usize) -> (u32, u64) {
        let slot = self.slot(index);
        let (tick, low) = self.slots[slot];
        let high = self.head.high.get(slot).map_or(0, |high| u64::from(*high));
        (tick, high << 32 | u64::from(low))
    }

    /// Returns the records from an index on.
    #[inline]
    fn records(&self, index: usize) -> impl Iterator<Item = (u32, u64)> {
        (index..self.len()).map(|index| self.record(index))
    }

    /// Sets a record. It has a slot.
    fn set(&mut self, index: usize, (tick, units): (u32, u64)) {
        let (slot, high) = (self.slot(index), (units >> 32) as u32);
        self.slots[slot] = (tick, units as u32);
        if high > 0 {
            self.head.high.resize(self.slots.len(), 0);
        }
        if let Some(known) = self.head.high.get_mut(slot) {
            *known = high;
        }
    }

    fn push(&mut self, record: (u32, u64)) {
        self.len += 1;
        self.set(self.len() - 1, record);
    }

    fn remove(&mut self, index: usize) {
        for later in index + 1..self.len() {
            self.set(later - 1, self.record(later));
        }
        self.len -= 1;
    }

    /// Removes the oldest records. Frees memory once most records are gone.
    fn drop_oldest(&mut self, count: usize) {
        self.first = self.slot(count) as u32;
        self.len -= count as u32;
        if self.slots.len() > 16 && self.len() < self.slots.len() / 4 {
            self.replace(self.records(0).collect(), 2 * self.len());
        }
    }

    /// Replaces all records, and the number of slots.
    fn replace(&mut self, records: Vec<(u32, u64)>, slots: usize) {
        (self.slots, self.first, self.len) = (vec![(0, 0); slots].into(), 0, 0);
        self.head.high = Vec::new();
        for record in records {
            self.push(record);
        }
    }
}

/// How a limit counts time: in ticks of 2^`shift` microseconds.
#[derive(Clone, Copy)]
struct Ticks {
    shift: u32,
    /// The ticks of a cell.
    cell: u64,
    period_us: u64,
}

/// What counts at a time.
struct Live {
    now: u64,
    /// The records of the ring that have left the window.
    dead: usize,
    used: u64,
}

impl Ticks {
    #[inline]
    fn of(terms: &Terms) -> Self {
        let period_us = terms.period_us();
        // The least shift with which a period has less than 2^32 - 1 ticks.
        let mut shift = 0;
        while period_us > u64::from(u32::MAX - 1) << shift {
            shift += 1;
        }
        Self { shift, cell: period_us.div_ceil(1_000 << shift), period_us }
    }

    fn is_one_cell(self, one: u64, other: u64) -> bool {
        one / self.cell == other / self.cell
    }

    /// Returns the tick of a time, which is not before it.
    #[inline]
    fn at(self, time: u64) -> u64 {
        (time + (1 << self.shift) - 1) >> self.shift
    }

    fn time(self, tick: u64) -> u64 {
        tick << self.shift
    }
}

impl State for Log {
    fn expires(&self) -> u64 {
        self.head.expires
    }

    fn apply(&mut self, op: Op, birth: u64, terms: &Terms, clock: u64, cost: u64) -> Applied {
        let ticks = Ticks::of(terms);
        // The slot of the next record is fetched while the oldest ones are read (`benches/all -- steady`).
        std::hint::black_box(self.slots.get(self.slot(self.len())).copied());
        let mut live = self.live(ticks, clock);
        let excess = (live.used + cost).saturating_sub(terms.threshold);
        let (before, mut receipt) = (live.used, Receipt::default());
        match op {
            Op::Take { .. } | Op::Peek if excess > 0 => {
                let leaves = self.blocker(ticks, &live, excess) + ticks.period_us;
                let retry_us = leaves.saturating_sub(clock);
                let outcome = self.outcome_of(terms, clock, live.used);
                return (Outcome { verdict: Verdict::Rejected, retry_us, ..outcome }, receipt);
            }
            Op::Take { receipt: needs_receipt, .. } if cost > 0 => {
                self.charge(terms.threshold, ticks, &mut live, cost);
                receipt = Receipt::new(needs_receipt, &mut self.head.birth, birth, live.now);
            }
            Op::Correct(correction) if correction.change > 0 => {
                let more = correction.more().min(super::MOST - live.used);
                if more > 0 {
                    self.charge(terms.threshold, ticks, &mut live, more);
                }
            }
            Op::Correct(correction) => {
                let less = correction.less();
                match correction.charged {
                    Charged::Newest => self.refund(ticks, &mut live, less),
                    Charged::At(time) => self.give_back(ticks, &mut live, time, less),
                    Charged::By(receipt) if receipt.birth == u64::from(self.head.birth) => {
                        self.give_back(ticks, &mut live, receipt.place, less);
                    }
                    Charged::By(_) | Charged::Reserved(_) => {}
                }
            }
            Op::Take { .. } | Op::Peek | Op::Measure => {}
        }
        let outcome = self.outcome_of(terms, clock, live.used);
        if live.used == 0 && before > 0 {
            *self = Self::default();
        }
        let remaining = if op == Op::Measure { live.used } else { outcome.remaining };
        (Outcome { remaining, ..outcome }, receipt)
    }
}

impl Log {
    /// Returns the time of the newest record.
    #[inline]
    fn last(&self, ticks: Ticks) -> u64 {
        self.head.expires.saturating_sub(ticks.period_us)
    }

    /// Returns what counts at a time. If the clock has stepped back, that is the time of the newest record.
    #[inline]
    fn live(&self, ticks: Ticks, clock: u64) -> Live {
        let now = clock.max(self.last(ticks));
        if self.head.expires <= now {
            return Live { now, dead: self.len(), used: 0 };
        }
        // The first tick that has not left the window.
        let left = now.checked_sub(ticks.period_us);
        let oldest = left.map_or(0, |left| (left >> ticks.shift) + 1);
        let newest = ticks.at(self.last(ticks));
        let (mut dead, mut used) = (0, self.head.total);
        for (low, units) in self.records(0) {
            if tick(newest, low) >= oldest {
                break;
            }
            (dead, used) = (dead + 1, used - units);
        }
        Live { now, dead, used }
    }

    /// Returns the time of the record with which the last of the excess units leaves.
    fn blocker(&self, ticks: Ticks, live: &Live, mut excess: u64) -> u64 {
        for (low, units) in self.records(live.dead) {
            excess = excess.saturating_sub(units);
            if excess == 0 {
                return ticks.time(tick(ticks.at(self.last(ticks)), low));
            }
        }
        self.last(ticks)
    }

    fn outcome_of(&self, terms: &Terms, clock: u64, used: u64) -> Outcome {
        Outcome {
            clock,
            verdict: Verdict::Admitted,
            remaining: terms.threshold.saturating_sub(used),
            retry_us: 0,
            reset_us: if used == 0 { 0 } else { self.head.expires - clock },
        }
    }

    /// Charges units, and drops the records that have left the window.
    fn charge(&mut self, threshold: u64, ticks: Ticks, live: &mut Live, cost: u64) {
        self.drop_oldest(live.dead);
        let (now, newest) = (ticks.at(live.now), ticks.at(self.last(ticks)));
        let is_full = self.len() >= MOST - 1;
        let is_coarse = threshold > EXACT || is_full;
        if live.used == 0 {
            self.head.units = cost;
        } else if now == newest || is_coarse && ticks.is_one_cell(now, newest) {
            if now > newest {
                self.head.joined = now;
            }
            self.head.units += cost;
        } else {
            self.push_newest(threshold, newest);
            if is_full {
                self.join(ticks);
            }
            self.head.units = cost;
        }
        live.used += cost;
        self.head.total = live.used;
        self.head.expires = live.now + ticks.period_us;
    }

    /// Appends the newest record to the ring.
    fn push_newest(&mut self, threshold: u64, newest: u64) {
        let slots = self.slots.len();
        if self.len() == slots {
            let is_within = (slots as u64) + 1 < threshold && threshold < MOST as u64;
            let most = if is_within { threshold as usize - 1 } else { MOST };
            self.replace(self.records(0).collect(), (2 * slots).max(4).min(most));
        }
        self.push((newest as u32, self.head.units));
    }

    /// Joins the records of each cell.
    fn join(&mut self, ticks: Ticks) {
        let newest = ticks.at(self.last(ticks));
        let (mut joined, mut latest) = (Vec::<(u32, u64)>::with_capacity(MOST), self.head.joined);
        for (low, units) in self.records(0) {
            let at = tick(newest, low);
            match joined.last_mut() {
                Some(last) if ticks.is_one_cell(tick(newest, last.0), at) => {
                    *last = (low, last.1 + units);
                    latest = latest.max(at);
                }
                _ => joined.push((low, units)),
            }
        }
        self.head.joined = latest;
        self.replace(joined, MOST);
    }

    /// Gives units back, of the newest records first.
    fn refund(&mut self, ticks: Ticks, live: &mut Live, cost: u64) {
        let mut rest = cost.min(live.used);
        live.used -= rest;
        self.head.total -= rest;
        while rest > 0 {
            let part = rest.min(self.head.units);
            self.head.units -= part;
            rest -= part;
            self.drop_empty_newest(ticks);
        }
    }

    /// Gives units back to the record of their charge: the one of its tick, or the next one of its cell if that is
    /// shared. A charge that has left the window gets nothing back.
    fn give_back(&mut self, ticks: Ticks, live: &mut Live, charged_at: u64, cost: u64) {
        if live.used == 0 || charged_at + ticks.period_us <= live.now {
            return;
        }
        let (moment, newest) = (ticks.at(charged_at), ticks.at(self.last(ticks)));
        let is_before = |index: &usize| tick(newest, self.record(*index).0) < moment;
        let index = (0..self.len()).rev().find(is_before).map_or(0, |before| before + 1);
        let record = (index < self.len()).then(|| self.record(index));
        let (at, units) =
            record.map_or((newest, self.head.units), |(low, units)| (tick(newest, low), units));
        let is_shared = at > moment && at <= self.head.joined && ticks.is_one_cell(at, moment);
        if at != moment && !is_shared {
            return;
        }
        let given = cost.min(units);
        match record {
            None => self.head.units -= given,
            Some(_) if given == units => self.remove(index),
            Some((low, _)) => self.set(index, (low, units - given)),
        }
        live.used -= given;
        self.head.total -= given;
        self.drop_empty_newest(ticks);
    }

    /// If the newest record has no units left, the one before it becomes the newest.
    fn drop_empty_newest(&mut self, ticks: Ticks) {
        if self.head.units == 0
            && let Some(newest) = self.len().checked_sub(1)
        {
            let (low, units) = self.record(newest);
            self.remove(newest);
            let tick = tick(ticks.at(self.last(ticks)), low);
            (self.head.expires, self.head.units) = (ticks.time(tick) + ticks.period_us, units);
        }
    }
}

/// Returns a tick in full: no record is 2^32 ticks older than the newest one.
#[inline]
fn tick(newest: u64, low: u32) -> u64 {
    newest - u64::from((newest as u32).wrapping_sub(low))
}
