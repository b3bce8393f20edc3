//! A part of the embedded store, under a lock of its own: a table for each kind of state, bounded together.

use std::any::Any;

use super::table::Table;
use crate::algorithm::{Op, Outcome, Receipt, State, match_algorithm, states, with_state};
use crate::key::KeyId;
use crate::limit::{Algorithm, Terms};
use crate::store::Charge;

/// A borrowed [`Charge`]. Saves a clone of the terms for a call that is decided at once
/// (`benches/all -- instructions`).
#[derive(Clone, Copy)]
pub(crate) struct LocalCharge<'a> {
    pub(crate) key_id: KeyId,
    pub(crate) terms: &'a Terms,
    pub(crate) cost: u32,
}

impl<'a> From<&'a Charge> for LocalCharge<'a> {
    fn from(charge: &'a Charge) -> Self {
        Self { key_id: charge.key_id, terms: &charge.terms, cost: charge.cost }
    }
}

/// A state type that has a table in each shard.
pub(crate) trait StoredState: State {
    fn table(shard: &mut Shard) -> &mut Table<Self>;
}

/// Defines the shard, with a table for each state in the list of [`states`].
macro_rules! define_shard {
    (() $($table:ident: $state:ty = $($algorithm:ident)|+;)*) => {
        pub(crate) struct Shard {
            $($table: Table<$state>,)*
            /// The most counts that the shard keeps.
            capacity: usize,
            /// The last birth: an odd number, because some states keep the low half, which must not be 0.
            births: u64,
        }

        $(impl StoredState for $state {
            #[inline(always)]
            fn table(shard: &mut Shard) -> &mut Table<Self> {
                &mut shard.$table
            }
        })*

        impl Shard {
            pub(super) fn new(capacity: usize) -> Self {
                Self { $($table: Table::new(),)* capacity, births: 1 }
            }

            /// Returns the number of counts.
            pub(super) fn len(&self) -> usize {
                [$(self.$table.len()),*].into_iter().sum()
            }

            /// Reclaims a few expired counts. If the shard is still full, evicts one from the largest table.
            fn make_room(&mut self, now: u64, spread: usize) {
                $(self.$table.sweep(now);)*
                if self.len() < self.capacity {
                    return;
                }
                let largest = [$(self.$table.len()),*].into_iter().max().unwrap_or(0);
                $(if self.$table.len() == largest {
                    return self.$table.evict(spread);
                })*
            }
        }
    };
}

states!(define_shard!());

impl Shard {
    /// Applies an operation to a count. If the count has no state, creates one in `new`, which the caller passes
    /// to [`add`](Self::add).
    #[inline(always)]
    pub(super) fn apply<S: StoredState>(
        &mut self,
        op: Op,
        LocalCharge { key_id, terms, cost }: LocalCharge<'_>,
        clock: u64,
        new: &mut Option<S>,
    ) -> Outcome {
        self.state(key_id, new).apply(op, terms, clock, cost)
    }

    /// Decides a call whose charge can be settled, as [`apply`](Self::apply) does.
    pub(super) fn acquire<S: StoredState>(
        &mut self,
        LocalCharge { key_id, terms, cost }: LocalCharge<'_>,
        clock: u64,
        new: &mut Option<S>,
    ) -> (Outcome, Receipt) {
        let birth = self.birth();
        self.state(key_id, new).acquire(birth, terms, clock, cost)
    }

    /// Returns a birth that no other state of this shard has.
    pub(super) fn birth(&mut self) -> u64 {
        self.births += 2;
        self.births
    }

    /// Returns the state of a count. If the count has no state, creates one in `new`.
    #[inline(always)]
    pub(super) fn state<'a, S: StoredState>(
        &'a mut self,
        key_id: KeyId,
        new: &'a mut Option<S>,
    ) -> &'a mut S {
        S::table(self).get_mut(key_id).unwrap_or_else(|| new.insert(S::default()))
    }

    /// Adds the state of a count that has none. Drops a state that equals that of an unused key.
    pub(super) fn add<S: StoredState>(&mut self, key_id: KeyId, state: S, now: u64) {
        if state.expires() > 0 {
            self.make_room(now, key_id.bits() as usize);
            S::table(self).insert(key_id, state);
        }
    }

    /// Removes a count and returns its state, which the caller drops after the shard is unlocked.
    pub(super) fn remove(&mut self, algorithm: Algorithm, key_id: KeyId) -> Option<Box<dyn Any>> {
        with_state!(algorithm, S => Some(Box::new(S::table(self).remove(key_id)?)))
    }
}
