//! The five algorithms of rates, and the calls in flight, as plain values and integer arithmetic: no clock, no lock, no
//! I/O.
//!
//! Each file has a twin in `lua/`, which its first lines name. Twins have the same state and do the same
//! arithmetic in the same order, so both stores make the same decisions.
//!
//! All numbers are integers that stay exact in Lua's `f64`: times are microseconds since the epoch, and
//! `limit/` keeps products below 2⁵³.

#![allow(
    clippy::inline_always,
    reason = "an inlined result stays in registers (`benches/all -- embedded`)"
)]

mod block;
pub(crate) mod bucket;
pub(crate) mod fixed;
mod least_levels;
#[cfg(test)]
mod reserving;
#[cfg(test)]
mod settling;
pub(crate) mod sliding;
pub(crate) mod sliding_counter;
pub(crate) mod slots;

pub(crate) use self::block::BlockChange;
use crate::limit::{Algorithm, Terms};

/// The largest amount and the latest time: integers up to this one are exact in Lua's `f64`.
pub(crate) const MOST: u64 = (1 << 53) - 1;

/// An operation on one count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// Admits and charges a call, or rejects it and changes nothing. A call of cost 0 is admitted while the count is at
    /// most its limit: it can be above after a debt, a lowered threshold or reservations.
    ///
    /// A bucket also admits the call for a moment at most `wait` microseconds ahead: `retry_us` of the outcome is then
    /// the time until that moment. `receipt` says whether the charge needs a receipt; a reserved moment does.
    Take { wait: u64, receipt: bool },
    /// Returns the outcome that a take without a wait would have, and changes nothing.
    Peek,
    /// Counts the units in use, and changes nothing. The outcome has them in place of the remaining units; they do not
    /// depend on the amounts. The cost is 0. Like all operations below, it does not change the rate of a bucket.
    Measure,
    /// Corrects what was charged. The cost is 0.
    Correct(Correction),
}

/// A change of what was charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Correction {
    pub(crate) charged: Charged,
    /// Units to charge, also above the capacity; or, below 0, units to give back.
    pub(crate) change: i64,
}

/// The charges to which units are given back. At any later time, the count then admits no more than if these units had
/// not been charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Charged {
    /// The newest ones, whoever made them.
    #[default]
    Newest,
    /// The charges with this recorded time; [`Outcome::charged_at`] returns it. A bucket whose level is above its
    /// capacity gives nothing back to them.
    At(u64),
    /// The one of a receipt, if the count has it still.
    By(Receipt),
    /// A reserved moment of a bucket that no call uses, if it is the last charge: then the bucket is as if it had never
    /// been reserved. If a later charge exists, the correction is rejected and changes nothing.
    Reserved(Reservation),
}

/// A reserved moment of a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Reservation {
    pub(crate) receipt: Receipt,
    /// The moment, by the clock of the store. From then on, the units drain.
    pub(crate) moment: u64,
}

/// What an operation makes: its outcome, and the receipt of a charge that needs one, otherwise the default.
pub(crate) type Applied = (Outcome, Receipt);

impl Op {
    /// A take that is decided now.
    pub(crate) const TAKE: Self = Self::Take { wait: 0, receipt: false };

    /// A take that is decided now, and has a receipt.
    pub(crate) const ACQUIRE: Self = Self::Take { wait: 0, receipt: true };

    /// Returns whether this takes units, or asks for them: the limit can reject it.
    #[inline(always)]
    pub(crate) fn is_take(self) -> bool {
        matches!(self, Self::Take { .. } | Self::Peek)
    }
}

impl Correction {
    /// Returns the correction of a charge to what its call has used. Without a receipt, the charge cannot be found
    /// again, so nothing is given back.
    pub(crate) fn settled(receipt: Receipt, charged: u64, used: u64) -> Self {
        let change = used as i64 - charged as i64;
        let change = if receipt.birth == 0 { change.max(0) } else { change };
        Self { charged: Charged::By(receipt), change }
    }

    /// Returns the correction that gives units back.
    pub(crate) fn give_back(charged: Charged, units: u64) -> Self {
        Self { charged, change: -(units as i64) }
    }

    /// Returns the units to give back.
    pub(crate) fn less(self) -> u64 {
        u64::try_from(-self.change).unwrap_or(0)
    }

    /// Returns the units to charge.
    pub(crate) fn more(self) -> u64 {
        u64::try_from(self.change).unwrap_or(0)
    }
}

/// The outcome of an operation. Waits are counted from `clock` and rounded up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The time of the call, by the clock of the store.
    pub(crate) clock: u64,
    pub(crate) verdict: Verdict,
    /// The units that are left, after the charge if the call is admitted; of [`Op::Measure`], the units in use.
    pub(crate) remaining: u64,
    /// The smallest wait after which the same call is admitted if no other call comes; for a reservation,
    /// the time until its moment.
    pub(crate) retry_us: u64,
    /// The time until the count is as if the key had never been used.
    pub(crate) reset_us: u64,
}

/// What an operation answers to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Rejected,
    Admitted,
    /// Rejected because the key is blocked. `also_limited` says whether the limit also rejects the call once the
    /// block ends.
    Blocked {
        also_limited: bool,
    },
}

impl From<bool> for Verdict {
    #[inline(always)]
    fn from(allowed: bool) -> Self {
        if allowed { Self::Admitted } else { Self::Rejected }
    }
}

impl Outcome {
    #[inline(always)]
    pub(crate) fn is_allowed(&self) -> bool {
        self.verdict == Verdict::Admitted
    }

    /// Returns whether the key is blocked, so that the call is rejected whatever the limit says.
    pub(crate) fn is_blocked(&self) -> bool {
        matches!(self.verdict, Verdict::Blocked { .. })
    }

    /// Returns the time of an admitted charge, as its count has recorded it, for [`Charged::At`]. If the clock of the
    /// call lags behind the clock of another, that time is later than [`clock`](Self::clock).
    pub(crate) fn charged_at(&self, terms: &Terms) -> u64 {
        let reset = self.clock + self.reset_us;
        match terms.identity.algorithm {
            // Windows of the calendar follow each other. Before any other window is over, the next one can begin.
            Algorithm::Fixed if terms.has_calendar_windows() => reset.saturating_sub(1),
            // A window ends after a period, and the newest unit leaves a sliding window after a period.
            Algorithm::Sliding | Algorithm::Fixed => reset.saturating_sub(terms.period_us()),
            // The window after the one of the charge still counts it.
            Algorithm::SlidingCounter => reset.saturating_sub(2 * terms.period_us()),
            // A bucket does not tell its time. If the time is too early, the bucket gives back less.
            // Units in flight are found by their receipt.
            Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::InFlight => self.clock,
        }
    }

    /// The outcome of a mixed call that failed: it is decided by a request of its own.
    pub(crate) const FAILED: Self = Self { verdict: Verdict::Rejected, ..Self::UNDECIDED };

    /// The outcome of a call that is admitted because no store could decide.
    pub(crate) const UNDECIDED: Self =
        Self { clock: 0, verdict: Verdict::Admitted, remaining: 0, retry_us: 0, reset_us: 0 };
}

/// What a count needs to find a charge again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Receipt {
    /// The birth of the state that was charged; 0 if nothing was charged.
    pub(crate) birth: u64,
    /// The time of the charge in a sliding window, the start of its window in a fixed window or a sliding counter, and
    /// the number of the charge in a bucket.
    pub(crate) place: u64,
}

impl Receipt {
    /// Returns the receipt of a charge that needs one, otherwise the default. A state without a birth gets 32 bits of
    /// `birth`: they suffice, because the place has to be the same as well.
    #[inline]
    fn new(is_needed: bool, own_birth: &mut u32, birth: u64, place: u64) -> Self {
        if !is_needed {
            return Self::default();
        }
        if *own_birth == 0 {
            *own_birth = birth as u32 | 1;
        }
        Self::of(*own_birth, place)
    }

    /// Returns the receipt of a charge at this place of a state with this birth.
    #[inline]
    fn of(birth: u32, place: u64) -> Self {
        Self { birth: birth.into(), place }
    }
}

/// The state of one count. The default is the state of a key that was never used.
pub(crate) trait State: Default {
    /// Returns the time from which this equals the default; 0 if it does now, [`u64::MAX`] if calls hold units.
    fn expires(&self) -> u64;

    /// Applies `op` at the time `clock`. Returns the receipt of an admitted charge that needs one; otherwise the
    /// default. A state without a birth gets `birth` with its first receipt. No other state has it: the state of a key
    /// that was reset is another one.
    fn apply(&mut self, op: Op, birth: u64, terms: &Terms, clock: u64, cost: u64) -> Applied;
}
