//! Exact sliding window: the log of the units that calls took in the trailing period. `lua/sliding.lua` makes the same
//! decisions on another form of the log.
//!
//! The form follows from the terms of a count:
//!
//! - If the threshold is at most 1,024 and the period at most 12 days, the log is a [`ring`] of times.
//! - Any other log has [entries](short), in one page.
//! - A log of more than 4,096 entries is a list of [`pages`], so that no call copies or frees many entries while it
//!   holds the lock of the store.
//!
//! A ring that must take more units than it can have, because its threshold was raised or because of a debt, becomes a
//! log of entries, and stays one until it is empty.

mod low_bits;
mod pages;
mod ring;
mod short;
#[cfg(test)]
mod tests;

use self::pages::LongLog;
use self::ring::Ring;
use self::short::ShortLog;
use super::{Expires, Op, Outcome, Receipt, Settlement, State};
use crate::limit::Terms;

/// The number of entries in a full page; small in unit tests, so that short logs have many pages.
const PAGE: usize = if cfg!(test) { 8 } else { 4096 };

/// The number of oldest units or entries that a call looks at one by one: since the call before, few have left the
/// window.
const FEW_LEFT: usize = 4;

/// The position of the birth in a total.
const BIRTH: u32 = 52;

/// The entries of a ring: the lowest 32 or 40 bits of a time.
type Narrow = u32;
type Wide = [u8; 5];

/// The units in the window, oldest first.
#[derive(Clone, Debug)]
pub(crate) enum Log {
    /// Also a log without units.
    Narrow(Ring<Narrow>),
    Wide(Ring<Wide>),
    Short(ShortLog),
    /// Boxed, so that this variant takes no more space than a short log.
    Long(Box<LongLog>),
}

/// A log and its key id fit in one cache line.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Log>() == 48);

impl Default for Log {
    fn default() -> Self {
        Self::Narrow(Ring::default())
    }
}

impl State for Log {
    type Decided = Outcome;

    #[inline(always)]
    fn decide(&mut self, terms: &Terms, clock: u64, cost: u32) -> Outcome {
        let decided = match self {
            Self::Narrow(ring) if cost == 1 => ring.decide_one(terms, clock),
            Self::Wide(ring) if cost == 1 => ring.decide_one(terms, clock),
            Self::Short(short) if short.expires() > clock => {
                short.apply(Op::Decide, terms, clock, cost)
            }
            _ => None,
        };
        decided.unwrap_or_else(|| self.apply(Op::Decide, terms, clock, cost))
    }

    #[inline]
    fn admits(&mut self, terms: &Terms, clock: u64, cost: u32) -> bool {
        let admits = match self {
            Self::Narrow(ring) if cost == 1 => ring.admits_one(terms, clock),
            Self::Wide(ring) if cost == 1 => ring.admits_one(terms, clock),
            _ => None,
        };
        admits.unwrap_or_else(|| self.apply(Op::Peek, terms, clock, cost).is_allowed())
    }

    #[inline]
    fn is_allowed(decided: &Outcome) -> bool {
        decided.is_allowed()
    }

    #[inline(always)]
    fn outcome(decided: Outcome, _: &Terms, _: u64, _: u32) -> Outcome {
        decided
    }

    #[inline(never)]
    fn apply(&mut self, op: Op, terms: &Terms, clock: u64, cost: u32) -> Outcome {
        let applied = match self {
            Self::Narrow(ring) => ring.apply(op, terms, clock, cost),
            Self::Wide(ring) => ring.apply(op, terms, clock, cost),
            Self::Short(short) => {
                let begins = op == Op::Decide && cost > 0 && short.expires() <= clock;
                // A log without units becomes a ring again.
                if begins && is_ring(terms) { None } else { short.apply(op, terms, clock, cost) }
            }
            Self::Long(long) => {
                let outcome = long.apply(op, terms, clock, cost);
                if long.is_short() {
                    self.shorten();
                }
                return outcome;
            }
        };
        let Some(outcome) = applied else {
            self.change_form(terms, clock, cost);
            return self.apply(op, terms, clock, cost);
        };
        if op.gives_back() && cost > 0 && outcome.reset_us == 0 {
            *self = Self::default();
        }
        outcome
    }

    fn acquire(&mut self, birth: u64, terms: &Terms, clock: u64, cost: u32) -> (Outcome, Receipt) {
        let outcome = self.decide(terms, clock, cost);
        if !outcome.is_allowed() || cost == 0 {
            return (outcome, Receipt::default());
        }
        let birth = small_birth(birth);
        let receipt = match self {
            Self::Narrow(ring) => ring.receipt(birth, terms),
            Self::Wide(ring) => ring.receipt(birth, terms),
            Self::Short(short) => short.receipt(birth),
            Self::Long(long) => Receipt { birth: long.born(birth), place: long.newest() },
        };
        (outcome, receipt)
    }

    fn settle(&mut self, settlement: Settlement, terms: &Terms, clock: u64) -> Outcome {
        let settled = match self {
            Self::Narrow(ring) => ring.settle(settlement, terms, clock),
            Self::Wide(ring) => ring.settle(settlement, terms, clock),
            Self::Short(short) => short.settle(settlement, terms, clock),
            Self::Long(long) => {
                let outcome = long.settle(settlement, terms, clock);
                if long.is_short() {
                    self.shorten();
                }
                return outcome;
            }
        };
        let Some(outcome) = settled else {
            self.change_form(terms, clock, settlement.more());
            return self.settle(settlement, terms, clock);
        };
        if outcome.reset_us == 0 {
            *self = Self::default();
        }
        outcome
    }
}

impl Expires for Log {
    fn expires(&self) -> u64 {
        match self {
            Self::Narrow(ring) => ring.expires(),
            Self::Wide(ring) => ring.expires(),
            Self::Short(short) => short.expires(),
            Self::Long(long) => long.expires(),
        }
    }
}

impl Log {
    /// Changes to a form that can have `units` more.
    #[cold]
    #[inline(never)]
    fn change_form(&mut self, terms: &Terms, clock: u64, units: u32) {
        *self = match std::mem::take(self) {
            Self::Narrow(ring) => {
                if ring.is_empty() && is_ring(terms) && units as usize <= ring::MOST {
                    Self::Wide(Ring::default())
                } else {
                    Self::of_charges(ring.charges(terms), ring.expires())
                }
            }
            Self::Wide(ring) => Self::of_charges(ring.charges(terms), ring.expires()),
            Self::Short(short) if short.expires() <= clock && is_ring(terms) => Self::default(),
            Self::Short(short) => Self::Long(Box::new(short.into())),
            Self::Long(long) => Self::Long(long),
        };
    }

    /// Creates a log of entries from its birth, and the times and the units of its charges.
    fn of_charges((birth, charges): (u64, Vec<(u64, u64)>), expires: u64) -> Self {
        let mut long = Box::new(LongLog::new(birth, expires));
        for (at, units) in charges {
            long.push(at, units);
        }
        match long.shorten() {
            Some(short) => Self::Short(short),
            None => Self::Long(long),
        }
    }

    /// Frees pages of a long log. If it has shrunk to one page, it becomes a short log.
    #[cold]
    #[inline(never)]
    fn shorten(&mut self) {
        if let Self::Long(long) = self
            && let Some(short) = long.shorten()
        {
            *self = Self::Short(short);
        }
    }
}

/// Returns whether a ring can have all units that these terms admit.
fn is_ring(terms: &Terms) -> bool {
    Ring::<Wide>::fits(terms)
}

/// Returns a birth that fits into the highest bits of a total, and is not 0. A receipt also has the time of its charge,
/// so it finds another log only if a thousand calls acquire units within a microsecond.
fn small_birth(birth: u64) -> u64 {
    // The highest bit stays 0: a running total does not overflow.
    const BIRTHS: u64 = (1 << (63 - BIRTH)) - 1;
    birth / 2 % BIRTHS + 1
}
