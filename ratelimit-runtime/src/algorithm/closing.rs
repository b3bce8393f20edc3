//! Closed keys: a key that is closed admits nothing until its opening. Twin of `lua/closing.lua`.
//!
//! The store sets the state of a closed key aside, so that calls of open keys need not look whether theirs is closed.
//! Meanwhile, a bucket stands still: its times are moved to where they are after the opening.

use std::time::Duration;

use super::bucket::Bucket;
use super::{BucketOp, Expires, Op, Outcome, Settlement, State, Verdict};
use crate::limit::Terms;

/// The longest time for which a key is closed: 100 years, as the longest period.
const LONGEST_CLOSING: u64 = 36_525 * 86_400_000_000;

/// A key that is closed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Closing {
    until: u64,
    /// By how much the times of a bucket are moved.
    moved: u64,
}

/// A change of the opening of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Closure {
    #[default]
    Unchanged,
    /// Closes the key for some microseconds. A later opening stays.
    Close(u64),
    Open,
}

impl Closure {
    /// Closes a key for at most [`LONGEST_CLOSING`].
    pub(crate) fn close_for(duration: Duration) -> Self {
        let micros = u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX);
        Self::Close(micros.min(LONGEST_CLOSING))
    }
}

impl Closing {
    /// Closes a key for `time` from `clock` on.
    pub(crate) fn start<S: State>(state: &mut S, clock: u64, time: u64) -> Self {
        let mut closing = Self { until: clock, moved: 0 };
        closing.extend(state, clock, time);
        closing
    }

    /// Closes a key that is closed for `time` from `clock` on, if it then opens later.
    pub(crate) fn extend<S: State>(&mut self, state: &mut S, clock: u64, time: u64) {
        let by = (clock + time).saturating_sub(self.until);
        self.until += by;
        self.moved += by;
        if state.expires() > 0 {
            state.postpone(by);
        }
    }

    /// Opens a key before its time.
    pub(crate) fn end<S: State>(self, state: &mut S, clock: u64) {
        if state.expires() > 0 {
            state.advance(self.until - clock);
        }
    }

    pub(crate) fn is_over(&self, clock: u64) -> bool {
        self.until <= clock
    }

    /// Applies an operation to the state of the key.
    pub(crate) fn apply<S: State>(
        self,
        state: &mut S,
        op: Op,
        terms: &Terms,
        clock: u64,
        cost: u32,
    ) -> Outcome {
        match op {
            Op::Decide | Op::Peek => self.reject(state, terms, clock, cost),
            Op::Refund | Op::Return { .. } => {
                self.correct::<S>(clock, |at| state.apply(op, terms, at, cost))
            }
        }
    }

    /// Rejects a call until the later of the opening and the time at which the limit then admits it.
    pub(crate) fn reject<S: State>(
        self,
        state: &mut S,
        terms: &Terms,
        clock: u64,
        cost: u32,
    ) -> Outcome {
        let (at_opening, ahead) =
            (state.apply(Op::Peek, terms, self.until, cost), self.until - clock);
        Outcome {
            clock,
            verdict: Verdict::Closed { is_full: at_opening.retry_us > 0 },
            remaining: 0,
            retry_us: ahead + at_opening.retry_us,
            reset_us: ahead + at_opening.reset_us,
        }
    }

    /// Corrects a charge.
    pub(crate) fn settle<S: State>(
        self,
        state: &mut S,
        settlement: Settlement,
        terms: &Terms,
        clock: u64,
    ) -> Outcome {
        self.correct::<S>(clock, |at| state.settle(settlement, terms, at))
    }

    /// Reserves nothing, and cancels reservations.
    pub(crate) fn apply_ahead(
        self,
        bucket: &mut Bucket,
        op: BucketOp,
        terms: &Terms,
        clock: u64,
        cost: u32,
    ) -> Outcome {
        let end = match op {
            BucketOp::Reserve { .. } => return self.reject(bucket, terms, clock, cost),
            BucketOp::Cancel { end } => end + self.moved,
        };
        self.correct::<Bucket>(clock, |at| {
            let cancelled = bucket.apply_ahead(BucketOp::Cancel { end }, terms, at, cost);
            if !cancelled.is_allowed() && at + cancelled.reset_us > end {
                // All processes cancel what they have reserved, in any order.
                return bucket.apply(Op::Refund, terms, at, cost);
            }
            Outcome { verdict: Verdict::Admitted, ..cancelled }
        })
    }

    /// Changes the state of the key. `change` is passed the time for it.
    fn correct<S: State>(self, clock: u64, change: impl FnOnce(u64) -> Outcome) -> Outcome {
        let at = if S::STANDS_STILL { self.until } else { clock };
        let outcome = change(at);
        let reset_us = (at + outcome.reset_us).max(self.until) - clock;
        Outcome { clock, remaining: 0, reset_us, ..outcome }
    }
}

impl Expires for Closing {
    fn expires(&self) -> u64 {
        self.until
    }
}
