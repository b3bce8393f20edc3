//! Closed keys: a key that is closed admits nothing until its opening. Twin of `lua/closing.lua`.
//!
//! The store sets the state of a closed key aside, so that calls of open keys need not look whether theirs is closed.
//! Meanwhile, a bucket stands still: its times are moved forward, so that its level at the opening is the level at the
//! closing.

use std::time::Duration;

use super::bucket::Bucket;
use super::{BucketOp, Expires, LastReservations, Op, Outcome, Settlement, State, Verdict};
use crate::limit::Terms;

/// The longest time for which a key is closed, in microseconds: 100 years, as the longest period.
const LONGEST_CLOSING: u64 = 36_525 * 86_400_000_000;

/// The count of a closed key.
#[derive(Default)]
pub(crate) struct ClosedCount<S> {
    /// The time at which the key opens.
    opening: u64,
    /// By how much the times of a bucket are moved.
    moved: u64,
    /// The state of the open key.
    state: S,
}

/// A change of the time at which a key opens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OpeningChange {
    #[default]
    None,
    /// Closes the key for this many microseconds. A later opening stays.
    CloseFor(u64),
    Open,
}

impl OpeningChange {
    /// Closes a key for at most [`LONGEST_CLOSING`].
    pub(crate) fn close_for(duration: Duration) -> Self {
        let micros = u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX);
        Self::CloseFor(micros.min(LONGEST_CLOSING))
    }

    /// Returns this change for a store that learns of it `delay` microseconds later: the opening does not move.
    pub(crate) fn after(self, delay: u64) -> Self {
        match self {
            Self::CloseFor(time) if time <= delay => Self::None,
            Self::CloseFor(time) => Self::CloseFor(time - delay),
            Self::None | Self::Open => self,
        }
    }
}

impl<S: State> ClosedCount<S> {
    /// Closes a key at `clock`, for no time yet.
    pub(crate) fn new(state: S, clock: u64) -> Self {
        Self { opening: clock, moved: 0, state }
    }

    /// Moves the opening to `clock` + `time`, if that is later.
    pub(crate) fn close_for(&mut self, clock: u64, time: u64) {
        let by = (clock + time).saturating_sub(self.opening);
        self.opening += by;
        self.moved += by;
        if self.state.expires() > 0 {
            self.state.shift_later(by);
        }
    }

    /// Opens the key at `clock`, at its opening or before. Returns the state of the open key.
    pub(crate) fn open(mut self, clock: u64) -> S {
        if self.state.expires() > 0 {
            self.state.shift_earlier(self.opening.saturating_sub(clock).min(self.moved));
        }
        self.state
    }

    pub(crate) fn state_mut(&mut self) -> &mut S {
        &mut self.state
    }

    pub(crate) fn is_over(&self, clock: u64) -> bool {
        self.opening <= clock
    }

    /// Applies an operation.
    pub(crate) fn apply(&mut self, op: Op, terms: &Terms, clock: u64, cost: u32) -> Outcome {
        let op = match op {
            Op::Decide | Op::Peek => return self.reject(terms, clock, cost),
            Op::Measure => return self.measure(terms, clock),
            Op::Refund => Op::Refund,
            // The charge was made before the closing.
            Op::Return { at } if S::STANDS_STILL => Op::Return { at: at + self.moved },
            Op::Return { at } => Op::Return { at },
        };
        self.correct(clock, |state, at| state.apply(op, terms, at, cost))
    }

    /// Rejects a call until the later of the opening and the time at which the limit then admits it.
    pub(crate) fn reject(&mut self, terms: &Terms, clock: u64, cost: u32) -> Outcome {
        let at_opening = self.state.apply(Op::Peek, terms, self.opening, cost);
        let ahead = self.opening - clock;
        Outcome {
            clock,
            verdict: Verdict::Closed { also_limited: !at_opening.is_allowed() },
            remaining: 0,
            retry_us: ahead + at_opening.retry_us,
            reset_us: ahead + at_opening.reset_us,
        }
    }

    /// Counts the units in use.
    fn measure(&mut self, terms: &Terms, clock: u64) -> Outcome {
        let mut used = 0;
        let outcome = self.correct(clock, |state, at| {
            let outcome = state.apply(Op::Measure, terms, at, 0);
            used = outcome.remaining;
            outcome
        });
        let verdict = Verdict::Closed { also_limited: false };
        Outcome { verdict, remaining: used, retry_us: self.opening - clock, ..outcome }
    }

    /// Corrects a charge.
    pub(crate) fn settle(&mut self, settlement: Settlement, terms: &Terms, clock: u64) -> Outcome {
        self.correct(clock, |state, at| state.settle(settlement, terms, at))
    }

    /// Changes the state. `change` is passed the time for it.
    fn correct(&mut self, clock: u64, change: impl FnOnce(&mut S, u64) -> Outcome) -> Outcome {
        let at = if S::STANDS_STILL { self.opening } else { clock };
        let outcome = change(&mut self.state, at);
        let reset_us = (at + outcome.reset_us).max(self.opening) - clock;
        Outcome { clock, remaining: 0, reset_us, ..outcome }
    }
}

impl ClosedCount<Bucket> {
    /// Reserves nothing, and cancels the last reservations. A process that has not observed the closing keeps its
    /// moments. So no reservation before them is cancelled: after an early opening, other calls would be reserved for
    /// its moments. Such a cancellation is rejected as a call is, which says that the key is closed.
    pub(crate) fn apply_ahead(
        &mut self,
        op: BucketOp,
        terms: &Terms,
        clock: u64,
        cost: u32,
    ) -> Outcome {
        let BucketOp::Cancel(last) = op else { return self.reject(terms, clock, cost) };
        let later = |time: u64| time.saturating_add(self.moved);
        let (end, moment) = (later(last.end), later(last.moment));
        let op = BucketOp::Cancel(LastReservations { end, moment, ..last });
        let outcome = self.correct(clock, |state, at| state.apply_ahead(op, terms, at, cost));
        if outcome.is_allowed() { outcome } else { self.reject(terms, clock, cost) }
    }
}

impl<S: State> Expires for ClosedCount<S> {
    fn expires(&self) -> u64 {
        self.opening.max(self.state.expires())
    }
}
