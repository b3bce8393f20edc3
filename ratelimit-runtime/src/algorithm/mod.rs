//! The five algorithms as plain values and integer arithmetic: no clock, no lock, no I/O.
//!
//! Each file is the twin of the script of its name in `lua/`: the same state, the same arithmetic
//! in the same order, so that both stores decide alike.
//!
//! All numbers are integers that stay exact in Lua's `f64`: times are microseconds since the epoch,
//! and products are kept below 2⁵³ by the way a [`Limit`] is built.

#![allow(
    clippy::inline_always,
    reason = "what a function returns through memory is read back slower than it was computed"
)]

pub(crate) mod bucket;
pub(crate) mod fixed;
pub(crate) mod sliding;
pub(crate) mod sliding_counter;

use crate::limit::Limit;

/// What a store is asked about one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// Admit and charge, or refuse and change nothing.
    Decide,
    /// Say what `Decide` would, and change nothing.
    Peek,
    /// Give units back, the newest first; never above capacity. A bucket takes nothing back while its level
    /// is above its capacity: neither by this nor by `Return`.
    Refund,
    /// Give back units that were charged at the moment `at` and never used. What that admits is never
    /// more than if they had not been charged, however late it comes.
    Return { at: u64 },
}

/// What a store is asked about one key of a bucket, and of nothing else: a window does not know when it
/// will admit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BucketOp {
    /// Admit and charge, if need be for a moment ahead that is at most `wait` microseconds away: the
    /// caller's slot, which `retry_us` then tells. Or refuse.
    Book { wait: u64 },
    /// Give back what was booked for the moment `slot`, if nothing was booked behind it.
    Unbook { slot: u64 },
}

impl Op {
    /// Whether this gives units back rather than asking for them.
    pub(crate) fn gives_back(self) -> bool {
        match self {
            Self::Decide | Self::Peek => false,
            Self::Refund | Self::Return { .. } => true,
        }
    }
}

/// The answer to an [`Op`]. Waits are counted from `clock`, and rounded up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The time of the call, by the clock of the store.
    pub(crate) clock: u64,
    pub(crate) allowed: bool,
    /// What is left: after the charge of an admitted call, as it stands otherwise.
    pub(crate) remaining: u32,
    /// The smallest wait after which the same call is admitted if nothing else comes; of a call that
    /// was booked ahead, how long until its slot.
    pub(crate) retry_us: u64,
    /// How long until the key is as if it had never been used.
    pub(crate) reset_us: u64,
}

/// The state of one key under one limit; by default that of a key that was never used.
pub(crate) trait State: Default {
    /// Answers `op` at `clock`.
    fn apply(&mut self, op: Op, limit: &Limit, clock: u64, cost: u32) -> Outcome;

    /// When this will be as if the key had never been used; 0 if it is.
    fn expires(&self) -> u64;
}

/// Does something with the state that an algorithm keeps, as a type of that name.
macro_rules! with_state {
    ($algorithm:expr, $state:ident => $work:expr) => {
        match $algorithm {
            $crate::limit::Algorithm::TokenBucket | $crate::limit::Algorithm::LeakyBucket => {
                type $state = $crate::algorithm::bucket::Bucket;
                $work
            }
            $crate::limit::Algorithm::Sliding => {
                type $state = $crate::algorithm::sliding::Log;
                $work
            }
            $crate::limit::Algorithm::Fixed => {
                type $state = $crate::algorithm::fixed::Window;
                $work
            }
            $crate::limit::Algorithm::SlidingCounter => {
                type $state = $crate::algorithm::sliding_counter::Counts;
                $work
            }
        }
    };
}

pub(crate) use with_state;
