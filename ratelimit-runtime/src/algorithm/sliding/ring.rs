//! A ring of times: the log of a limit with a small threshold and a short period.
//!
//! Each unit has one entry, its time: a charge of a cost of 3 is three equal times. So "at most n in any period" asks
//! one thing of a call of cost 1: whether the n-th newest time is a period old. A call that is admitted writes one
//! entry, and reads the oldest ones only if some of them have left the window.
//!
//! An entry has only the lowest bits of its time. All times are less than a period before the newest, which is known in
//! full, and a ring has only periods that these bits can count. So an entry is never ambiguous, and a ring is never
//! written again because time has passed.

use super::FEW_LEFT;
use super::low_bits::LowBits;
use crate::algorithm::{Op, Outcome, Receipt, Settlement, Verdict};
use crate::limit::Terms;

/// The most units in a ring: so few that a call can write all of them again.
pub(super) const MOST: usize = 1024;

/// The number of entries in a new ring: they fit in the smallest block that an allocator has.
const START: usize = 4;

/// Up to this number of entries, a ring does not shrink.
const SMALL: usize = 16;

/// The times of the units that calls have taken, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ring<T> {
    /// The times are in `len` slots from `head` on. After the last slot comes the first.
    slots: Box<[T]>,
    /// The time at which the newest unit leaves the window; 0 without units. The newest time is a period before it: a
    /// count has one period.
    expires: u64,
    /// The oldest time. A call that is rejected, or admitted before this unit has left the window, reads no other
    /// (`benches/all -- steady`).
    oldest: T,
    /// The time after the oldest, or the oldest again if that time was not read yet. So nearly half of the calls whose
    /// oldest unit has left the window also read no slot.
    next: T,
    head: u16,
    len: u16,
    /// 0 until a call acquires units.
    birth: u16,
}

impl<T: LowBits> Ring<T> {
    /// Returns whether a ring can have all units that these terms admit.
    #[inline]
    pub(super) fn fits(terms: &Terms) -> bool {
        terms.threshold() as usize <= MOST && terms.period_us() <= T::MASK
    }

    pub(super) fn expires(&self) -> u64 {
        self.expires
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Decides a call of cost 1, if it is one of nearly all: few units have left the window, and the ring keeps its
    /// size. Returns `None`, and changes nothing, for any other call.
    #[inline(always)]
    pub(super) fn decide_one(&mut self, terms: &Terms, clock: u64) -> Option<Outcome> {
        let (threshold, period) = (terms.threshold() as usize, terms.period_us());
        let len = usize::from(self.len);
        if len == 0 {
            return None;
        }
        let newest = self.expires - period;
        let now = clock.max(newest);
        let (mut left, mut oldest, mut next) = (0, self.oldest, self.next);
        while age(newest, oldest) + (now - newest) >= period {
            left += 1;
            if left == len {
                break;
            }
            if left > FEW_LEFT {
                return None;
            }
            if next == oldest {
                oldest = self.slots[self.slot(left)];
                next = if left + 1 < len { self.slots[self.slot(left + 1)] } else { oldest };
            } else {
                oldest = next;
            }
        }
        let used = len - left;
        if used >= threshold {
            let retry_us = newest - age(newest, oldest) + period - clock;
            let reset_us = self.expires - clock;
            let verdict = Verdict::Rejected;
            // If more units must leave, the wait is that of another unit.
            return (used == threshold).then_some(Outcome {
                clock,
                verdict,
                remaining: 0,
                retry_us,
                reset_us,
            });
        }
        if used == self.slots.len() || left > 1 && self.is_sparse(used + 1) {
            return None;
        }
        let (free, head) = (self.slot(len), self.slot(left));
        self.slots[free] = T::of(now);
        (self.oldest, self.next) =
            if used == 0 { (T::of(now), T::of(now)) } else { (oldest, next) };
        self.head = head as u16;
        self.len = used as u16 + 1;
        self.expires = now + period;
        Some(Outcome {
            clock,
            verdict: Verdict::Admitted,
            remaining: (threshold - used - 1) as u32,
            retry_us: 0,
            reset_us: now + period - clock,
        })
    }

    /// Returns whether a call of cost 1 is admitted, if the oldest time tells.
    #[inline]
    pub(super) fn admits_one(&self, terms: &Terms, clock: u64) -> Option<bool> {
        let (threshold, period) = (terms.threshold() as usize, terms.period_us());
        match usize::from(self.len) {
            len if len < threshold => Some(true),
            len if len == threshold => {
                let newest = self.newest(period);
                Some(age(newest, self.oldest) + (clock.max(newest) - newest) >= period)
            }
            _ => None,
        }
    }

    /// Applies an operation. Returns `None`, and changes nothing, if a ring cannot have the units.
    #[inline(never)]
    pub(super) fn apply(
        &mut self,
        op: Op,
        terms: &Terms,
        clock: u64,
        cost: u32,
    ) -> Option<Outcome> {
        let (period, units) = (terms.period_us(), cost as usize);
        let now = clock.max(self.newest(period));
        let left = self.left(now, period);
        let used = usize::from(self.len) - left;
        let excess = (used as u64 + u64::from(cost)).saturating_sub(terms.threshold().into());
        if excess > 0 && cost > 0 && !op.gives_back() {
            // The call fits once all excess units have left the window.
            let retry_us = self.at(left + excess as usize - 1, period) + period - clock;
            let outcome = self.outcome(terms, clock, used);
            return Some(Outcome { verdict: Verdict::Rejected, retry_us, ..outcome });
        }
        if op == Op::Measure {
            let outcome = self.outcome(terms, clock, used);
            return Some(Outcome { remaining: used as u32, ..outcome });
        }
        if units == 0 || op == Op::Peek {
            return Some(self.outcome(terms, clock, used));
        }
        match op {
            Op::Decide if !Self::fits(terms) => return None,
            Op::Decide => {
                self.forget(left, used + units);
                self.push(now, units, terms);
            }
            Op::Refund => {
                self.forget(left, used);
                self.keep(used.saturating_sub(units), period);
            }
            Op::Return { at } => {
                self.forget(left, used);
                self.lower(at, units, period);
            }
            Op::Peek | Op::Measure => {}
        }
        Some(self.outcome(terms, clock, self.len.into()))
    }

    /// Returns the receipt of the last charge. A ring without a birth gets `birth`.
    pub(super) fn receipt(&mut self, birth: u64, terms: &Terms) -> Receipt {
        if self.birth == 0 {
            self.birth = birth as u16;
        }
        Receipt { birth: self.birth.into(), place: self.newest(terms.period_us()) }
    }

    /// Corrects the charge of a call. Returns `None`, and changes nothing, if a ring cannot have the units.
    pub(super) fn settle(
        &mut self,
        settlement: Settlement,
        terms: &Terms,
        clock: u64,
    ) -> Option<Outcome> {
        let period = terms.period_us();
        let (less, more) = (settlement.less() as usize, settlement.more() as usize);
        let now = clock.max(self.newest(period));
        let left = self.left(now, period);
        let used = usize::from(self.len) - left;
        if more > 0 && !(Self::fits(terms) && more <= MOST - used) {
            return None;
        }
        self.forget(left, used + more);
        if less > 0 && u64::from(self.birth) == settlement.receipt.birth {
            self.lower(settlement.receipt.place, less, period);
        }
        if more > 0 {
            self.push(now, more, terms);
        } else if self.is_empty() {
            *self = Self::default();
        }
        Some(self.outcome(terms, clock, self.len.into()))
    }

    /// Returns the birth, and the time and the units of each moment at which units were taken.
    pub(super) fn charges(&self, terms: &Terms) -> (u64, Vec<(u64, u64)>) {
        let mut charges: Vec<(u64, u64)> = Vec::new();
        for index in 0..self.len.into() {
            let at = self.at(index, terms.period_us());
            match charges.last_mut() {
                Some((last, units)) if *last == at => *units += 1,
                _ => charges.push((at, 1)),
            }
        }
        (self.birth.into(), charges)
    }

    /// Returns the outcome of an admitted call after which `used` units are in the window.
    fn outcome(&self, terms: &Terms, clock: u64, used: usize) -> Outcome {
        Outcome {
            clock,
            verdict: Verdict::Admitted,
            remaining: terms.threshold().saturating_sub(used as u32),
            retry_us: 0,
            reset_us: if used == 0 { 0 } else { self.expires - clock },
        }
    }

    /// Returns the slot of the time with an index.
    #[inline(always)]
    fn slot(&self, index: usize) -> usize {
        let slot = usize::from(self.head) + index;
        if slot < self.slots.len() { slot } else { slot - self.slots.len() }
    }

    fn newest(&self, period: u64) -> u64 {
        if self.len == 0 { 0 } else { self.expires - period }
    }

    /// Returns the time with an index in full.
    fn at(&self, index: usize, period: u64) -> u64 {
        let newest = self.newest(period);
        newest - age(newest, self.slots[self.slot(index)])
    }

    /// Returns the number of units that have left the window.
    fn left(&self, now: u64, period: u64) -> usize {
        let newest = self.newest(period);
        let has_left = |time| age(newest, time) + (now - newest) >= period;
        if has_left(self.oldest) { self.first_without(has_left) } else { 0 }
    }

    /// Returns the index of the first time for which `is_before` is false. It is true for all times before.
    fn first_without(&self, is_before: impl Fn(T) -> bool) -> usize {
        let (mut low, mut high) = (0, usize::from(self.len));
        while low < high {
            let middle = usize::midpoint(low, high);
            if is_before(self.slots[self.slot(middle)]) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Returns whether the ring would be mostly free with this many units.
    #[inline(always)]
    fn is_sparse(&self, units: usize) -> bool {
        self.slots.len() > SMALL && units < self.slots.len() / 4
    }

    /// Removes the `left` oldest units, and shrinks the ring if `needed` units would leave most of it free.
    fn forget(&mut self, left: usize, needed: usize) {
        self.head = if left == 0 { self.head } else { self.slot(left) as u16 };
        self.len -= left as u16;
        self.changed();
        if self.is_sparse(needed) {
            self.resize((2 * needed).max(START));
        }
    }

    /// Adds units at a time. Together, there are at most [`MOST`].
    fn push(&mut self, now: u64, units: usize, terms: &Terms) {
        let needed = usize::from(self.len) + units;
        if needed > self.slots.len() {
            let threshold = terms.threshold() as usize;
            let most = if needed > threshold { MOST } else { threshold };
            self.resize((2 * self.slots.len()).max(START).max(needed).min(most));
        }
        for index in usize::from(self.len)..needed {
            let slot = self.slot(index);
            self.slots[slot] = T::of(now);
        }
        self.len = needed as u16;
        self.expires = now + terms.period_us();
        self.changed();
    }

    /// Removes the newest units until `used` are left.
    fn keep(&mut self, used: usize, period: u64) {
        if used == 0 {
            *self = Self::default();
        } else {
            self.expires = self.at(used - 1, period) + period;
            self.len = used as u16;
        }
    }

    /// Removes up to `units` that were taken at the time `at`.
    fn lower(&mut self, at: u64, units: usize, period: u64) {
        let newest = self.newest(period);
        let mut removed = 0;
        if at <= newest && newest - at < period {
            let end = self.first_without(|time| age(newest, time) >= newest - at);
            let first = self.first_without(|time| age(newest, time) > newest - at);
            removed = units.min(end - first);
            for index in end..self.len.into() {
                let (from, to) = (self.slot(index), self.slot(index - removed));
                self.slots[to] = self.slots[from];
            }
        }
        self.keep(usize::from(self.len) - removed, period);
        self.changed();
    }

    /// Copies the times into another number of slots.
    fn resize(&mut self, slots: usize) {
        let times = (0..self.len.into()).map(|index| self.slots[self.slot(index)]);
        let mut times: Vec<T> = times.collect();
        times.reserve_exact(slots - times.len());
        times.resize(slots, T::default());
        (self.slots, self.head) = (times.into_boxed_slice(), 0);
    }

    /// Updates what follows from the times.
    fn changed(&mut self) {
        if self.len > 0 {
            self.oldest = self.slots[usize::from(self.head)];
            self.next = self.oldest;
        }
    }
}

/// Returns how long before the newest time another one is.
#[inline(always)]
fn age<T: LowBits>(newest: u64, time: T) -> u64 {
    newest.wrapping_sub(time.bits()) & T::MASK
}
