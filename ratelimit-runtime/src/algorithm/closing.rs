//! Closed keys: a key that is closed admits nothing until its opening. Everything else goes on: charges leave the
//! window, buckets drain, and charges are corrected. Twin of `lua/answer.lua`.
//!
//! The store sets the state of a closed key aside, so that calls of open keys need not look whether theirs is closed.

use std::time::Duration;

use super::bucket::Bucket;
use super::{BucketOp, Expires, Op, Outcome, Settlement, State, Verdict};
use crate::limit::Terms;

/// The longest time for which a key is closed, in microseconds: 100 years, as the longest period.
const LONGEST_CLOSING: u64 = 36_525 * 86_400_000_000;

/// The count of a closed key.
#[derive(Default)]
pub(crate) struct ClosedCount<S> {
    /// The time at which the key opens.
    opening: u64,
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
    /// Creates the count of an open key.
    pub(crate) fn new(state: S) -> Self {
        Self { opening: 0, state }
    }

    /// Closes the key until `clock` + `time`, unless it opens later.
    pub(crate) fn close_for(&mut self, clock: u64, time: u64) {
        self.opening = self.opening.max(clock + time);
    }

    /// Opens the key. Returns its state.
    pub(crate) fn open(self) -> S {
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
        match op {
            Op::Decide | Op::Peek => self.reject(terms, clock, cost),
            Op::Measure => {
                let outcome = self.state.apply(op, terms, clock, 0);
                let verdict = Verdict::Closed { also_limited: false };
                let retry_us = self.opening - clock;
                Outcome { verdict, retry_us, ..self.closed(outcome) }
            }
            Op::Refund | Op::Return { .. } => {
                let outcome = self.state.apply(op, terms, clock, cost);
                Outcome { remaining: 0, ..self.closed(outcome) }
            }
        }
    }

    /// Rejects a call until the later of the opening and the time at which the limit admits it.
    pub(crate) fn reject(&mut self, terms: &Terms, clock: u64, cost: u32) -> Outcome {
        let outcome = self.state.apply(Op::Peek, terms, clock, cost);
        let opens = self.opening - clock;
        let verdict = Verdict::Closed { also_limited: outcome.retry_us > opens };
        let retry_us = outcome.retry_us.max(opens);
        Outcome { verdict, remaining: 0, retry_us, ..self.closed(outcome) }
    }

    /// Corrects a charge.
    pub(crate) fn settle(&mut self, settlement: Settlement, terms: &Terms, clock: u64) -> Outcome {
        let outcome = self.state.settle(settlement, terms, clock);
        Outcome { remaining: 0, ..self.closed(outcome) }
    }

    /// Returns an outcome whose reset is not before the opening.
    fn closed(&self, outcome: Outcome) -> Outcome {
        Outcome { reset_us: outcome.reset_us.max(self.opening - outcome.clock), ..outcome }
    }
}

impl ClosedCount<Bucket> {
    /// Reserves nothing, and cancels the last reservations. A rejection says that the key is closed.
    pub(crate) fn apply_ahead(
        &mut self,
        op: BucketOp,
        terms: &Terms,
        clock: u64,
        cost: u32,
    ) -> Outcome {
        let BucketOp::Cancel(_) = op else { return self.reject(terms, clock, cost) };
        let outcome = self.state.apply_ahead(op, terms, clock, cost);
        if outcome.is_allowed() {
            Outcome { remaining: 0, ..self.closed(outcome) }
        } else {
            self.reject(terms, clock, cost)
        }
    }
}

impl<S: State> Expires for ClosedCount<S> {
    fn expires(&self) -> u64 {
        self.opening.max(self.state.expires())
    }
}
