//! Sliding window: the units that were charged in the trailing period, exact to a tick or, of large limits, to a cell.
//! Twin of `lua/sliding.lua`, which explains records, ticks and cells.

use std::collections::VecDeque;

use super::{Applied, Charged, Op, Outcome, Receipt, State, Verdict};
use crate::limit::Terms;

/// The most records of a state.
const MOST: usize = 1_016;

/// The largest threshold under which charges of different ticks share a record only if debts have filled the state.
const EXACT: u64 = 1_000;

/// The units that were charged in a period.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    ring: Ring,
    /// The units of all records; 0 if nothing was charged.
    total: u64,
    /// The units of the newest record.
    units: u64,
    /// The latest tick of a record that charges of several ticks share.
    joined: u64,
    /// 0 until a call acquires units.
    birth: u32,
    /// A period after the newest record, in microseconds.
    expires: u64,
}

/// The records before the newest one, the oldest first.
#[derive(Clone, Debug, Default)]
struct Ring {
    /// Of each record, the low 32 bits of its tick and of its units.
    records: VecDeque<(u32, u32)>,
    /// Of each record, the high bits of its units; `None` while all of them are 0.
    #[allow(clippy::box_collection, reason = "few states have it, and each pays for its size")]
    high: Option<Box<VecDeque<u32>>>,
}

impl Ring {
    fn len(&self) -> usize {
        self.records.len()
    }

    #[inline]
    fn units(&self, index: usize, low: u32) -> u64 {
        let high = self.high.as_ref().map_or(0, |high| high[index]);
        u64::from(high) << 32 | u64::from(low)
    }

    /// Returns the records from an index on.
    #[inline]
    fn from(&self, index: usize) -> impl Iterator<Item = (u32, u64)> {
        let records = self.records.range(index..).enumerate();
        records.map(move |(later, (tick, low))| (*tick, self.units(index + later, *low)))
    }

    fn get(&self, index: usize) -> Option<(u32, u64)> {
        self.records.get(index).map(|(tick, low)| (*tick, self.units(index, *low)))
    }

    fn push(&mut self, tick: u32, units: u64) {
        let high = (units >> 32) as u32;
        if high > 0 && self.high.is_none() {
            self.high = Some(Box::new(VecDeque::from(vec![0; self.len()])));
        }
        if let Some(all) = &mut self.high {
            all.push_back(high);
        }
        self.records.push_back((tick, units as u32));
    }

    fn set_units(&mut self, index: usize, units: u64) {
        self.records[index].1 = units as u32;
        if let Some(high) = &mut self.high {
            high[index] = (units >> 32) as u32;
        }
    }

    fn remove(&mut self, index: usize) -> Option<(u32, u64)> {
        let record = self.get(index);
        self.records.remove(index);
        if let Some(high) = &mut self.high {
            high.remove(index);
        }
        record
    }

    /// Removes the oldest records. Frees memory once most records are gone.
    fn drop_oldest(&mut self, count: usize) {
        self.records.drain(..count);
        if self.records.is_empty() {
            self.high = None;
        } else if let Some(high) = &mut self.high {
            high.drain(..count);
        }
        if self.records.capacity() > 16 && self.len() < self.records.capacity() / 4 {
            self.records.shrink_to(2 * self.len());
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
        self.expires
    }

    fn apply(&mut self, op: Op, birth: u64, terms: &Terms, clock: u64, cost: u64) -> Applied {
        let ticks = Ticks::of(terms);
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
                if needs_receipt {
                    receipt = Receipt::new(&mut self.birth, birth, live.now);
                }
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
                    Charged::By(Receipt { birth, place }) if u64::from(self.birth) == birth => {
                        self.give_back(ticks, &mut live, place, less);
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
        self.expires.saturating_sub(ticks.period_us)
    }

    /// Returns what counts at a time. If the clock has stepped back, that is the time of the newest record.
    #[inline]
    fn live(&self, ticks: Ticks, clock: u64) -> Live {
        let now = clock.max(self.last(ticks));
        if self.expires <= now {
            return Live { now, dead: self.ring.len(), used: 0 };
        }
        // The first tick that has not left the window.
        let left = now.checked_sub(ticks.period_us);
        let oldest = left.map_or(0, |left| (left >> ticks.shift) + 1);
        let newest = ticks.at(self.last(ticks));
        let (mut dead, mut used) = (0, self.total);
        for (low, units) in self.ring.from(0) {
            if tick(newest, low) >= oldest {
                break;
            }
            (dead, used) = (dead + 1, used - units);
        }
        Live { now, dead, used }
    }

    /// Returns the time of the record with which the last of the excess units leaves.
    fn blocker(&self, ticks: Ticks, live: &Live, mut excess: u64) -> u64 {
        for (low, units) in self.ring.from(live.dead) {
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
            reset_us: if used == 0 { 0 } else { self.expires - clock },
        }
    }

    /// Charges units, and drops the records that have left the window.
    fn charge(&mut self, threshold: u64, ticks: Ticks, live: &mut Live, cost: u64) {
        self.ring.drop_oldest(live.dead);
        let (now, newest) = (ticks.at(live.now), ticks.at(self.last(ticks)));
        let is_full = self.ring.len() >= MOST - 1;
        let is_coarse = threshold > EXACT || is_full;
        if live.used == 0 {
            self.units = cost;
        } else if now == newest || is_coarse && ticks.is_one_cell(now, newest) {
            if now > newest {
                self.joined = now;
            }
            self.units += cost;
        } else {
            self.push(threshold, newest);
            if is_full {
                self.join(ticks);
            }
            self.units = cost;
        }
        live.used += cost;
        self.total = live.used;
        self.expires = live.now + ticks.period_us;
    }

    /// Appends the newest record to the ring.
    fn push(&mut self, threshold: u64, newest: u64) {
        let (length, slots) = (self.ring.len(), self.ring.records.capacity());
        if length == slots {
            let is_within = (length as u64) + 1 < threshold && threshold < MOST as u64;
            let most = if is_within { threshold as usize - 1 } else { MOST };
            self.ring.records.reserve_exact((2 * slots).max(4).min(most) - length);
        }
        self.ring.push(newest as u32, self.units);
    }

    /// Joins the records of each cell.
    fn join(&mut self, ticks: Ticks) {
        let newest = ticks.at(self.last(ticks));
        let mut joined: Vec<(u32, u64)> = Vec::with_capacity(MOST);
        for (low, units) in self.ring.from(0) {
            let at = tick(newest, low);
            match joined.last_mut() {
                Some(last) if ticks.is_one_cell(tick(newest, last.0), at) => {
                    *last = (low, last.1 + units);
                    self.joined = self.joined.max(at);
                }
                _ => joined.push((low, units)),
            }
        }
        self.ring.drop_oldest(self.ring.len());
        self.ring.records.reserve_exact(MOST);
        for (low, units) in joined {
            self.ring.push(low, units);
        }
    }

    /// Gives units back, of the newest records first.
    fn refund(&mut self, ticks: Ticks, live: &mut Live, cost: u64) {
        let mut rest = cost.min(live.used);
        live.used -= rest;
        self.total -= rest;
        while rest > 0 {
            let part = rest.min(self.units);
            self.units -= part;
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
        let records = &self.ring.records;
        let index = records.partition_point(|(low, _)| tick(newest, *low) < moment);
        let record = self.ring.get(index);
        let (at, units) =
            record.map_or((newest, self.units), |(low, units)| (tick(newest, low), units));
        let is_shared = at > moment && at <= self.joined && ticks.is_one_cell(at, moment);
        if at != moment && !is_shared {
            return;
        }
        let given = cost.min(units);
        match record {
            None => self.units -= given,
            Some(_) if given == units => drop(self.ring.remove(index)),
            Some(_) => self.ring.set_units(index, units - given),
        }
        live.used -= given;
        self.total -= given;
        self.drop_empty_newest(ticks);
    }

    /// If the newest record has no units left, the one before it becomes the newest.
    fn drop_empty_newest(&mut self, ticks: Ticks) {
        if self.units == 0
            && let Some(newest) = self.ring.len().checked_sub(1)
            && let Some((low, units)) = self.ring.remove(newest)
        {
            let tick = tick(ticks.at(self.last(ticks)), low);
            (self.expires, self.units) = (ticks.time(tick) + ticks.period_us, units);
        }
    }
}

/// Returns a tick in full: no record is 2^32 ticks older than the newest one.
#[inline]
fn tick(newest: u64, low: u32) -> u64 {
    newest - u64::from((newest as u32).wrapping_sub(low))
}
