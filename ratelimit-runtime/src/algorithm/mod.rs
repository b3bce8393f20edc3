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

pub(crate) mod bucket;
mod closing;
pub(crate) mod fixed;
mod least_levels;
#[cfg(test)]
mod reserving;
#[cfg(test)]
mod settling;
pub(crate) mod sliding;
pub(crate) mod sliding_counter;
pub(crate) mod slots;

pub(crate) use self::closing::OpeningChange;
use crate::limit::{Algorithm, Terms};

/// An operation on one count that every algorithm supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// Admits and charges the call, or rejects it and changes nothing. A call of cost 0 is admitted while the count is
    /// at most its limit: it can be above after a debt, a lowered threshold or reservations.
    Decide,
    /// Returns the outcome that `Decide` would have, and changes nothing.
    Peek,
    /// Counts the units in use, and changes nothing. The outcome has them in place of the remaining units; they do not
    /// depend on the amounts. The cost is 0. Like all operations below, it does not change the rate of a bucket.
    Measure,
    /// Gives units back, the newest first, never more than are charged.
    Refund,
    /// Gives back units that were charged at the time `at` and never used, to the charges of that time;
    /// [`Outcome::charged_at`] returns it. At any later time, the count then admits no more than if the units had not
    /// been charged. Has no effect on a bucket whose level is above its capacity.
    Return { at: u64 },
}

/// An operation that only buckets support: a bucket can compute when it will admit a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BucketOp {
    /// Admits and charges the call for now or for a moment at most `wait` microseconds ahead, or rejects
    /// it. `retry_us` of the outcome is the time until that moment.
    Reserve { wait: u64 },
    /// Cancels the last reservations. Rejected if another charge came later. If the count was reset or refunded since,
    /// has no effect, and is rejected while the level is above the capacity.
    Cancel(LastReservations),
}

/// What identifies the last reservations of a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LastReservations {
    /// The time of the full bucket after the last one: `clock` + `reset_us` of its outcome. Each charge moves this time
    /// forward, so it identifies the last charge of a bucket without a birth. A settlement moves it back: a bucket with
    /// a birth can have the same time again after a later charge.
    pub(crate) end: u64,
    /// The receipt of the last one, if the bucket had a birth.
    pub(crate) receipt: Receipt,
    pub(crate) count: u32,
    /// The moment of the first one. From then on, its units drain.
    pub(crate) moment: u64,
}

impl Op {
    /// Returns whether the limit can reject this operation.
    #[inline(always)]
    pub(crate) fn is_limited(self) -> bool {
        match self {
            Self::Decide | Self::Peek => true,
            Self::Measure | Self::Refund | Self::Return { .. } => false,
        }
    }

    /// Returns whether this operation gives units back.
    pub(crate) fn gives_back(self) -> bool {
        match self {
            Self::Decide | Self::Peek | Self::Measure => false,
            Self::Refund | Self::Return { .. } => true,
        }
    }
}

/// The outcome of an operation. Waits are counted from `clock` and rounded up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The time of the call, by the clock of the store.
    pub(crate) clock: u64,
    pub(crate) verdict: Verdict,
    /// The units that are left, after the charge if the call is admitted; of [`Op::Measure`], the units in use.
    pub(crate) remaining: u32,
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
    /// Rejected because the key is closed. `also_limited` says whether the limit also rejects the call once the key
    /// opens.
    Closed {
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

    /// Returns the time of an admitted charge, as its count has recorded it, for [`Op::Return`]. If the clock of the
    /// call lags behind the clock of another, that time is later than [`clock`](Self::clock).
    pub(crate) fn charged_at(&self, terms: &Terms) -> u64 {
        let reset = self.clock + self.reset_us;
        match terms.algorithm() {
            // A window ends after a period, and the newest unit leaves a sliding window after a period.
            Algorithm::Sliding | Algorithm::Fixed => reset.saturating_sub(terms.period_us()),
            // The window after the one of the charge still counts it.
            Algorithm::SlidingCounter => reset.saturating_sub(2 * terms.period_us()),
            // A bucket does not tell its time. If the time is too early, the bucket gives back less.
            // Units in flight are found by their receipt.
            Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::InFlight => self.clock,
        }
    }

    /// The outcome of a call that is admitted because no store could decide.
    pub(crate) const UNDECIDED: Self =
        Self { clock: 0, verdict: Verdict::Admitted, remaining: 0, retry_us: 0, reset_us: 0 };
}

/// What a count needs to find a charge again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Receipt {
    /// The birth of the state that was charged; 0 if nothing was charged.
    pub(crate) birth: u64,
    /// The time of the charge in a sliding window, the start of its window in a fixed window or a sliding counter, and
    /// the number of the charge in a bucket.
    pub(crate) place: u64,
}

/// A charge, and what the call has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settlement {
    pub(crate) receipt: Receipt,
    pub(crate) charged: u32,
    pub(crate) used: u32,
}

impl Settlement {
    /// Returns the units that were charged and not used. A charge without a receipt cannot be found again.
    pub(crate) fn less(self) -> u32 {
        if self.receipt.birth == 0 { 0 } else { self.charged.saturating_sub(self.used) }
    }

    /// Returns the units that were used and not charged.
    pub(crate) fn more(self) -> u32 {
        self.used.saturating_sub(self.charged)
    }
}

/// The state of one count. The default is the state of a key that was never used.
pub(crate) trait State: Default {
    /// Returns the time from which this equals the default; 0 if it does now, [`u64::MAX`] if calls hold units.
    fn expires(&self) -> u64;

    /// Applies `op` at the time `clock`.
    fn apply(&mut self, op: Op, terms: &Terms, clock: u64, cost: u32) -> Outcome;

    /// Decides a call whose charge can be settled. A state without a birth gets `birth`, which no other state has: the
    /// state of a key that was reset is then another one.
    fn acquire(&mut self, birth: u64, terms: &Terms, clock: u64, cost: u32) -> (Outcome, Receipt);

    /// Corrects the charge of a call. Units that were not used are given back to their own charge, if this state still
    /// counts it: then no more is admitted than if the call had been charged what it used. Units that were used
    /// and not charged are charged now, also above the capacity.
    fn settle(&mut self, settlement: Settlement, terms: &Terms, clock: u64) -> Outcome;
}
