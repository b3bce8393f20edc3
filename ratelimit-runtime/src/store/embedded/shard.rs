//! A part of the embedded store, under a lock of its own: a table for each kind of state, bounded together.

use std::any::Any;

use super::table::Table;
use crate::algorithm::{
    Closing, Closure, Op, Outcome, Receipt, Settlement, State, match_algorithm, states, with_state,
};
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
            /// The keys that are closed. Their states are set aside: in their tables, under other ids.
            closings: Table<Closing>,
            /// The most counts that the shard keeps, and the most closed keys.
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
                Self { $($table: Table::new(),)* closings: Table::new(), capacity, births: 1 }
            }

            /// Returns the number of counts.
            pub(super) fn len(&self) -> usize {
                [$(self.$table.len()),*].into_iter().sum()
            }

            /// Reclaims a few expired counts. If the shard is still full, evicts one from the largest table.
            fn make_room(&mut self, now: u64, spread: usize) {
                $(self.$table.sweep(now);)*
                self.closings.sweep(now);
                if self.closings.len() >= self.capacity {
                    self.closings.evict(spread);
                }
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
    /// Returns the state of a count whose key is open, if it has one.
    #[inline(always)]
    pub(super) fn state<S: StoredState>(&mut self, key_id: KeyId) -> Option<&mut S> {
        S::table(self).get_mut(key_id)
    }

    /// Applies an operation to a count. If the count has no state, creates one in `new`, which the caller passes
    /// to [`add`](Self::add).
    pub(super) fn apply<S: StoredState>(
        &mut self,
        op: Op,
        LocalCharge { key_id, terms, cost }: LocalCharge<'_>,
        clock: u64,
        new: &mut Option<S>,
    ) -> Outcome {
        self.visit(
            key_id,
            clock,
            new,
            |state| state.apply(op, terms, clock, cost),
            |closing, state| closing.apply(state, op, terms, clock, cost),
        )
    }

    /// Decides a call whose charge can be settled, as [`apply`](Self::apply) does.
    pub(super) fn acquire<S: StoredState>(
        &mut self,
        LocalCharge { key_id, terms, cost }: LocalCharge<'_>,
        clock: u64,
        new: &mut Option<S>,
    ) -> (Outcome, Receipt) {
        let birth = self.birth();
        self.visit(
            key_id,
            clock,
            new,
            |state| state.acquire(birth, terms, clock, cost),
            |closing, state| (closing.reject(state, terms, clock, cost), Receipt::default()),
        )
    }

    /// Corrects a charge.
    pub(super) fn settle<S: StoredState>(
        &mut self,
        LocalCharge { key_id, terms, .. }: LocalCharge<'_>,
        settlement: Settlement,
        clock: u64,
        new: &mut Option<S>,
    ) -> Outcome {
        self.visit(
            key_id,
            clock,
            new,
            |state| state.settle(settlement, terms, clock),
            |closing, state| closing.settle(state, settlement, terms, clock),
        )
    }

    /// Returns a birth that no other state of this shard has.
    pub(super) fn birth(&mut self) -> u64 {
        self.births += 2;
        self.births
    }

    /// Passes the state of a count to `open`, or to `closed` if its key is closed. If the count has no state, creates
    /// one in `new`.
    pub(super) fn visit<S: StoredState, T>(
        &mut self,
        key_id: KeyId,
        clock: u64,
        new: &mut Option<S>,
        open: impl FnOnce(&mut S) -> T,
        closed: impl FnOnce(Closing, &mut S) -> T,
    ) -> T {
        let state = if let Some(state) = S::table(self).get_mut(key_id) {
            state
        } else {
            if self.closings.len() > 0
                && let Some(closing) = self.closing::<S>(key_id, clock)
            {
                return self.visit_aside(key_id, |state| closed(closing, state));
            }
            // Its key may have opened now.
            S::table(self).get_mut(key_id).unwrap_or_else(|| new.insert(S::default()))
        };
        open(state)
    }

    /// Changes the opening of a key. Returns whether the key was closed.
    pub(super) fn close<S: StoredState>(
        &mut self,
        key_id: KeyId,
        closure: Closure,
        clock: u64,
    ) -> bool {
        let closing = self.closing::<S>(key_id, clock);
        match (closure, closing) {
            (Closure::Close(0) | Closure::Unchanged, _) | (Closure::Open, None) => {}
            (Closure::Close(time), None) => {
                self.make_room(clock, key_id.bits() as usize);
                if let Some(state) = S::table(self).remove(key_id) {
                    S::table(self).insert(key_id.aside(), state);
                }
                let closing =
                    self.visit_aside(key_id, |state: &mut S| Closing::start(state, clock, time));
                self.closings.insert(key_id, closing);
            }
            (Closure::Close(time), Some(mut closing)) => {
                self.visit_aside(key_id, |state: &mut S| closing.extend(state, clock, time));
                if let Some(kept) = self.closings.get_mut(key_id) {
                    *kept = closing;
                }
            }
            (Closure::Open, Some(closing)) => {
                self.visit_aside(key_id, |state: &mut S| closing.end(state, clock));
                self.open::<S>(key_id);
            }
        }
        closing.is_some()
    }

    /// Returns the closing of a key. A key whose time has come is opened.
    #[inline(never)]
    fn closing<S: StoredState>(&mut self, key_id: KeyId, clock: u64) -> Option<Closing> {
        let closing = *self.closings.get_mut(key_id)?;
        if closing.is_over(clock) {
            self.open::<S>(key_id);
            return None;
        }
        Some(closing)
    }

    fn open<S: StoredState>(&mut self, key_id: KeyId) {
        self.closings.remove(key_id);
        if let Some(state) = S::table(self).remove(key_id.aside()) {
            S::table(self).insert(key_id, state);
        }
    }

    /// Passes the state of a closed key to `work`.
    fn visit_aside<S: StoredState, T>(
        &mut self,
        key_id: KeyId,
        work: impl FnOnce(&mut S) -> T,
    ) -> T {
        let mut state = S::table(self).remove(key_id.aside()).unwrap_or_default();
        let result = work(&mut state);
        if state.expires() > 0 {
            S::table(self).insert(key_id.aside(), state);
        }
        result
    }

    /// Adds the state of a count that has none. Drops a state that equals that of an unused key.
    pub(super) fn add<S: StoredState>(&mut self, key_id: KeyId, state: S, now: u64) {
        if state.expires() > 0 {
            self.make_room(now, key_id.bits() as usize);
            S::table(self).insert(key_id, state);
        }
    }

    /// Removes a count and returns its state, which the caller drops after the shard is unlocked. Opens its key.
    pub(super) fn remove(&mut self, algorithm: Algorithm, key_id: KeyId) -> Option<Box<dyn Any>> {
        let closing = self.closings.remove(key_id);
        with_state!(algorithm, S => {
            let id = if closing.is_some() { key_id.aside() } else { key_id };
            let state = S::table(self).remove(id);
            match (state, closing) {
                (None, None) => None,
                (state, closing) => Some(Box::new((state, closing))),
            }
        })
    }
}
