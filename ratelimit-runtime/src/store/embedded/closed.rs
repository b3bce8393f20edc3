//! The count of a closed key, for all kinds of state.

use std::any::Any;

use super::shard::{Shard, StoredState};
use crate::algorithm::{ClosedCount, Expires, Op, Outcome, Settlement};
use crate::key::KeyId;
use crate::limit::Terms;

/// The count of a closed key, with any kind of state. Few keys are closed, so one table has all of them.
#[derive(Default)]
pub(super) struct AnyClosed(pub(super) Option<Box<dyn ClosedState>>);

/// A [`ClosedCount`]. A trait, so that a program that closes no key does not contain its functions
/// (`benches/all -- footprint`).
pub(super) trait ClosedState: Any + Send {
    fn expires(&self) -> u64;

    fn is_over(&self, clock: u64) -> bool;

    fn close_for(&mut self, clock: u64, time: u64);

    fn apply(&mut self, op: Op, terms: &Terms, clock: u64, cost: u32) -> Outcome;

    fn settle(&mut self, settlement: Settlement, terms: &Terms, clock: u64) -> Outcome;

    /// Moves the state to the table of the open keys. Also a state that equals that of an unused key, so that the
    /// number of counts does not change.
    fn open(self: Box<Self>, shard: &mut Shard, key_id: KeyId);
}

impl<S: StoredState> ClosedState for ClosedCount<S> {
    fn expires(&self) -> u64 {
        Expires::expires(self)
    }

    fn is_over(&self, clock: u64) -> bool {
        self.is_over(clock)
    }

    fn close_for(&mut self, clock: u64, time: u64) {
        self.close_for(clock, time);
    }

    fn apply(&mut self, op: Op, terms: &Terms, clock: u64, cost: u32) -> Outcome {
        self.apply(op, terms, clock, cost)
    }

    fn settle(&mut self, settlement: Settlement, terms: &Terms, clock: u64) -> Outcome {
        self.settle(settlement, terms, clock)
    }

    fn open(self: Box<Self>, shard: &mut Shard, key_id: KeyId) {
        shard.insert(key_id, (*self).open());
    }
}

impl Expires for AnyClosed {
    fn expires(&self) -> u64 {
        self.0.as_ref().map_or(0, |count| count.expires())
    }
}
