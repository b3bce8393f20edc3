//! An entry of the store: the state of a count, and until when its key is blocked.

use super::LocalCharge;
use crate::algorithm::bucket::Bucket;
use crate::algorithm::fixed::Window;
use crate::algorithm::sliding::Log;
use crate::algorithm::sliding_counter::Counters;
use crate::algorithm::slots::Slots;
use crate::algorithm::{Applied, Op, Outcome, State, Verdict};
use crate::key::KeyId;
use crate::limit::Algorithm;

/// The state of a count of any algorithm.
enum CountState {
    Bucket(Bucket),
    Window(Window),
    Log(Log),
    Counters(Counters),
    Slots(Slots),
}

/// Evaluates `$result` with the state in `$count`, of whatever type it is.
macro_rules! with_state {
    ($count:expr, $state:ident => $result:expr) => {
        match $count {
            CountState::Bucket($state) => $result,
            CountState::Window($state) => $result,
            CountState::Log($state) => $result,
            CountState::Counters($state) => $result,
            CountState::Slots($state) => $result,
        }
    };
}

/// An entry is a cache line (`benches/all -- embedded`).
#[repr(align(64))]
pub(super) struct CountEntry {
    pub(super) key_id: KeyId,
    /// The time until which the key is blocked, or 0, and in the lowest bit whether the count has rejected a call.
    blocked_until_and_rejected: u64,
    state: CountState,
}

const _: () = assert!(size_of::<CountEntry>() == 64, "an entry is a cache line");

impl CountEntry {
    /// Creates the entry of a key that was never used.
    pub(super) fn new(key_id: KeyId, algorithm: Algorithm) -> Self {
        let state = match algorithm {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                CountState::Bucket(Bucket::default())
            }
            Algorithm::Fixed => CountState::Window(Window::default()),
            Algorithm::Sliding => CountState::Log(Log::default()),
            Algorithm::SlidingCounter => CountState::Counters(Counters::default()),
            Algorithm::InFlight => CountState::Slots(Slots::default()),
        };
        Self { key_id, blocked_until_and_rejected: 0, state }
    }

    /// Returns the time until which the key is blocked, or 0.
    #[inline]
    pub(super) fn blocked_until(&self) -> u64 {
        self.blocked_until_and_rejected >> 1
    }

    pub(super) fn set_blocked_until(&mut self, time: u64) {
        self.blocked_until_and_rejected = time << 1 | u64::from(self.has_rejected());
    }

    /// Returns whether the count has rejected a call.
    #[inline]
    pub(super) fn has_rejected(&self) -> bool {
        self.blocked_until_and_rejected & 1 != 0
    }

    pub(super) fn set_rejected(&mut self) {
        self.blocked_until_and_rejected |= 1;
    }

    /// Applies an operation. Returns the receipt of an admitted charge that can be settled. A state without a birth
    /// gets `birth`. While the key is blocked, takes are rejected, and everything else goes on.
    #[inline(always)]
    pub(super) fn apply(
        &mut self,
        op: Op,
        birth: u64,
        charge: LocalCharge<'_>,
        clock: u64,
    ) -> Applied {
        if self.blocked_until() > clock {
            return self.apply_to_blocked(op, birth, charge, clock);
        }
        let LocalCharge { terms, cost, .. } = charge;
        with_state!(&mut self.state, state => state.apply(op, birth, terms, clock, cost))
    }

    /// Applies an operation while the key is blocked. On its own, so that a key that is not blocked copies neither the
    /// operation nor the outcome (`benches/all -- embedded`). Twin of `lua/answer.lua`.
    #[cold]
    fn apply_to_blocked(
        &mut self,
        op: Op,
        birth: u64,
        LocalCharge { terms, cost, .. }: LocalCharge<'_>,
        clock: u64,
    ) -> Applied {
        let applied = if op.is_take() { Op::Peek } else { op };
        let state = &mut self.state;
        let (outcome, receipt) =
            with_state!(state, state => state.apply(applied, birth, terms, clock, cost));
        let rest = self.blocked_until() - outcome.clock;
        let reset_us = outcome.reset_us.max(rest);
        let is_measured = op == Op::Measure;
        let remaining = if is_measured { outcome.remaining } else { 0 };
        if outcome.is_allowed() && !op.is_take() && !is_measured {
            return (Outcome { remaining, reset_us, ..outcome }, receipt);
        }
        let verdict = Verdict::Blocked { also_limited: outcome.retry_us > rest };
        let retry_us = outcome.retry_us.max(rest);
        (Outcome { verdict, remaining, retry_us, reset_us, ..outcome }, receipt)
    }

    /// Returns the time from which this entry equals that of a key that was never used; [`u64::MAX`] if calls hold
    /// units.
    pub(super) fn expires(&self) -> u64 {
        with_state!(&self.state, state => state.expires()).max(self.blocked_until())
    }

    /// Returns whether nothing is lost with this entry.
    pub(super) fn can_go(&self, now: u64) -> bool {
        self.expires() <= now
    }

    /// Returns the state of a count of calls in flight.
    pub(super) fn slots(&mut self) -> Option<&mut Slots> {
        if let CountState::Slots(slots) = &mut self.state { Some(slots) } else { None }
    }
}
