//! A part of the embedded store, under a lock of its own: a table for each kind of state, and one for closed keys. They
//! are bounded together.

use std::any::Any;
use std::mem;

use super::closed::{AnyClosed, ClosedState};
use super::functions::TableFunctions;
use super::table::Table;
use crate::algorithm::bucket::Bucket;
use crate::algorithm::slots::Slots;
use crate::algorithm::{
    BucketOp, ClosedCount, Op, OpeningChange, Outcome, Receipt, Settlement, State, states,
};
use crate::key::KeyId;
use crate::limit::{Algorithm, Terms};
use crate::store::{Charge, DecideOp};

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

/// An operation on one of the counts of a request.
#[derive(Clone, Copy)]
pub(super) enum CountOp {
    Apply(Op),
    /// Decides a call whose charge can be settled.
    Acquire,
    /// Reserves a moment of a bucket, or cancels reservations. The flag says whether the charge can be settled.
    Ahead(BucketOp, bool),
}

impl From<DecideOp> for CountOp {
    fn from(op: DecideOp) -> Self {
        match op {
            DecideOp::Peek => Self::Apply(Op::Peek),
            DecideOp::Measure => Self::Apply(Op::Measure),
            DecideOp::Decide => Self::Apply(Op::Decide),
            DecideOp::Acquire => Self::Acquire,
        }
    }
}

/// A state type that has a table in each shard.
pub(crate) trait StoredState: State + Send + 'static {
    /// The first of its algorithms.
    const ALGORITHM: Algorithm;

    fn table(shard: &mut Shard) -> &mut Table<Self>;
}

/// Defines the shard, with a table for each state in the list of [`states`].
macro_rules! define_shard {
    (() $($table:ident: $state:ty = $algorithm:ident $(| $other:ident)*;)*) => {
        pub(crate) struct Shard {
            $($table: Table<$state>,)*
            closed: Table<AnyClosed>,
            /// The tables in use, by the first algorithm of each.
            in_use: [Option<&'static TableFunctions>; Algorithm::ALL.len()],
            /// The most counts that the shard keeps.
            capacity: usize,
            /// The change in the number of counts since [`take_unreported`](Self::take_unreported).
            unreported: isize,
            /// The last birth: an odd number, because some states keep the low half, which must not be 0.
            births: u64,
        }

        $(impl StoredState for $state {
            const ALGORITHM: Algorithm = Algorithm::$algorithm;

            #[inline(always)]
            fn table(shard: &mut Shard) -> &mut Table<Self> {
                &mut shard.$table
            }
        })*

        impl Shard {
            pub(super) fn new(capacity: usize) -> Self {
                let (closed, in_use) = (Table::new(), [None; Algorithm::ALL.len()]);
                Self {
                    $($table: Table::new(),)*
                    closed,
                    in_use,
                    capacity,
                    unreported: 0,
                    births: 1,
                }
            }

            /// Returns the number of counts.
            pub(super) fn len(&self) -> usize {
                self.closed.len() $(+ self.$table.len())*
            }
        }
    };
}

states!(define_shard!());

impl Shard {
    /// Returns the place of the state of a count whose key is open, if it has one. It changes when a count is added or
    /// removed.
    #[inline(always)]
    pub(super) fn place_of<S: StoredState>(&mut self, key_id: KeyId) -> Option<usize> {
        S::table(self).place_of(key_id)
    }

    /// Returns the state at a place.
    #[inline(always)]
    pub(super) fn state_at<S: StoredState>(&mut self, place: usize) -> &mut S {
        S::table(self).at_mut(place)
    }

    /// Records that the state at a place has rejected a call, so that it is evicted after others.
    #[inline(always)]
    pub(super) fn mark_rejecting<S: StoredState>(&mut self, place: usize) {
        S::table(self).mark(place);
    }

    /// Applies an operation to a count. Returns the receipt of an admitted charge that can be settled.
    pub(super) fn apply_op<S: StoredState>(
        &mut self,
        op: CountOp,
        charge: LocalCharge<'_>,
        clock: u64,
    ) -> (Outcome, Receipt) {
        match op {
            CountOp::Apply(op) => (self.apply::<S>(op, charge, clock), Receipt::default()),
            CountOp::Acquire => self.acquire::<S>(charge, clock),
            CountOp::Ahead(op, settles) => self.apply_ahead(op, settles, charge, clock),
        }
    }

    /// Applies an operation to a count. Adds the count if it has no state.
    pub(super) fn apply<S: StoredState>(
        &mut self,
        op: Op,
        LocalCharge { key_id, terms, cost }: LocalCharge<'_>,
        clock: u64,
    ) -> Outcome {
        let outcome = self.visit::<S, _>(
            key_id,
            clock,
            |state| state.apply(op, terms, clock, cost),
            |closed| closed.apply(op, terms, clock, cost),
        );
        self.mark_if_rejected::<S>(key_id, &outcome);
        outcome
    }

    /// Marks a count that has rejected a call.
    fn mark_if_rejected<S: StoredState>(&mut self, key_id: KeyId, outcome: &Outcome) {
        if !outcome.is_allowed()
            && let Some(place) = self.place_of::<S>(key_id)
        {
            self.mark_rejecting::<S>(place);
        }
    }

    /// Decides a call whose charge can be settled, as [`apply`](Self::apply) does.
    pub(super) fn acquire<S: StoredState>(
        &mut self,
        LocalCharge { key_id, terms, cost }: LocalCharge<'_>,
        clock: u64,
    ) -> (Outcome, Receipt) {
        let birth = self.birth();
        let acquired = self.visit::<S, _>(
            key_id,
            clock,
            |state| state.acquire(birth, terms, clock, cost),
            |closed| (closed.apply(Op::Decide, terms, clock, cost), Receipt::default()),
        );
        self.mark_if_rejected::<S>(key_id, &acquired.0);
        acquired
    }

    /// Reserves a moment of a bucket, or cancels reservations.
    fn apply_ahead(
        &mut self,
        op: BucketOp,
        settles: bool,
        LocalCharge { key_id, terms, cost }: LocalCharge<'_>,
        clock: u64,
    ) -> (Outcome, Receipt) {
        let birth = self.birth();
        self.visit::<Bucket, _>(
            key_id,
            clock,
            |state| {
                let outcome = state.apply_ahead(op, terms, clock, cost);
                let is_reserved = outcome.is_allowed() && outcome.retry_us > 0;
                let is_marked = is_reserved && (settles || state.has_birth());
                let moment = clock + outcome.retry_us;
                (outcome, if is_marked { state.mark(birth, moment) } else { Receipt::default() })
            },
            |closed| {
                let bucket: &mut dyn Any = closed;
                let outcome = match bucket.downcast_mut::<ClosedCount<Bucket>>() {
                    Some(bucket) => bucket.apply_ahead(op, terms, clock, cost),
                    None => closed.apply(Op::Decide, terms, clock, cost),
                };
                (outcome, Receipt::default())
            },
        )
    }

    /// Corrects a charge.
    pub(super) fn settle<S: StoredState>(
        &mut self,
        LocalCharge { key_id, terms, .. }: LocalCharge<'_>,
        settlement: Settlement,
        clock: u64,
    ) -> Outcome {
        self.visit::<S, _>(
            key_id,
            clock,
            |state| state.settle(settlement, terms, clock),
            |closed| closed.settle(settlement, terms, clock),
        )
    }

    /// Returns the state of a count of calls in flight, if it has one. Its key can be closed: units go back to it as to
    /// that of an open key.
    #[inline(always)]
    pub(super) fn slots(&mut self, key_id: KeyId) -> Option<&mut Slots> {
        match self.place_of::<Slots>(key_id) {
            Some(place) => Some(self.state_at(place)),
            None => self.closed_slots(key_id),
        }
    }

    #[inline(never)]
    fn closed_slots(&mut self, key_id: KeyId) -> Option<&mut Slots> {
        let slots: &mut dyn Any = self.closed_count(key_id)?;
        slots.downcast_mut().map(ClosedCount::state_mut)
    }

    /// Returns a birth that no other state of this shard has.
    #[inline]
    pub(super) fn birth(&mut self) -> u64 {
        self.births += 2;
        self.births
    }

    /// Passes the state of a count to `open`, or the count to `closed` if its key is closed. If the count has no state,
    /// adds the one that `open` makes of a new one.
    fn visit<S: StoredState, T>(
        &mut self,
        key_id: KeyId,
        clock: u64,
        open: impl FnOnce(&mut S) -> T,
        closed: impl FnOnce(&mut dyn ClosedState) -> T,
    ) -> T {
        if self.closed.len() > 0 {
            self.open_if_over(key_id, clock);
            if let Some(count) = self.closed_count(key_id) {
                return closed(count);
            }
        }
        if let Some(state) = S::table(self).get_mut(key_id) {
            return open(state);
        }
        let mut state = S::default();
        let result = open(&mut state);
        // A state that equals that of an unused key is not kept.
        if state.expires() > 0 {
            self.count_changes(|shard| {
                shard.make_room(clock, spread(key_id));
                shard.insert(key_id, state);
            });
        }
        result
    }

    /// Adds the state of a count that has none and whose key is open.
    pub(super) fn insert<S: StoredState>(&mut self, key_id: KeyId, state: S) {
        self.in_use[S::ALGORITHM as usize] = Some(const { &TableFunctions::of::<S>() });
        S::table(self).insert(key_id, state);
    }

    /// Reclaims a few expired counts. If the shard is still full, evicts one from the largest table: a closed one only
    /// if more than half of the counts are closed.
    fn make_room(&mut self, now: u64, spread: usize) {
        // In a shard that is half full, counts without held units do not wait for the next call of their key, so that
        // they fill no shard and evict no other count.
        let is_half_full = 2 * self.len() >= self.capacity;
        let unheld = if is_half_full { u64::MAX - 1 } else { now };
        self.closed.sweep(now);
        let in_use = self.in_use;
        for table in in_use.iter().flatten() {
            (table.sweep)(self, if table.holds { unheld } else { now });
        }
        if self.len() < self.capacity {
            return;
        }
        if 2 * self.closed.len() > self.len() {
            return self.closed.evict(spread);
        }
        // Units that are held are not lost.
        let evictable = in_use.iter().flatten().filter(|table| !table.holds);
        if let Some(largest) = evictable.max_by_key(|table| (table.len)(self)) {
            (largest.evict)(self, spread);
        }
    }

    /// Returns the change in the number of counts since the last call. The caller reports it after the shard is
    /// unlocked, because the recorder of metrics is foreign code and may be slow.
    pub(super) fn take_unreported(&mut self) -> isize {
        mem::take(&mut self.unreported)
    }

    fn count_changes<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.len();
        let result = work(self);
        self.unreported += self.len() as isize - before as isize;
        result
    }

    /// Closes or opens a key. Returns whether it was closed.
    pub(super) fn change_opening<S: StoredState>(
        &mut self,
        key_id: KeyId,
        change: OpeningChange,
        clock: u64,
    ) -> bool {
        self.open_if_over(key_id, clock);
        let was_closed = self.closed_count(key_id).is_some();
        match change {
            OpeningChange::None | OpeningChange::CloseFor(0) => {}
            OpeningChange::CloseFor(time) => {
                if !was_closed {
                    self.count_changes(|shard| {
                        let state = S::table(shard).remove(key_id);
                        if state.is_none() {
                            shard.make_room(clock, spread(key_id));
                        }
                        let count = ClosedCount::<S>::new(state.unwrap_or_default());
                        shard.closed.insert(key_id, AnyClosed(Some(Box::new(count))));
                    });
                }
                if let Some(count) = self.closed_count(key_id) {
                    count.close_for(clock, time);
                }
            }
            OpeningChange::Open => self.open(key_id),
        }
        was_closed
    }

    /// Returns whether a key is closed, or was closed and no call of it came since.
    pub(super) fn is_closed(&mut self, key_id: KeyId) -> bool {
        self.closed.len() > 0 && self.closed_count(key_id).is_some()
    }

    /// Returns the count of a closed key.
    fn closed_count(&mut self, key_id: KeyId) -> Option<&mut dyn ClosedState> {
        self.closed.get_mut(key_id)?.0.as_deref_mut()
    }

    /// Opens a key whose opening has come.
    fn open_if_over(&mut self, key_id: KeyId, clock: u64) {
        if self.closed_count(key_id).is_some_and(|count| count.is_over(clock)) {
            self.open(key_id);
        }
    }

    /// Opens a key, if it is closed.
    fn open(&mut self, key_id: KeyId) {
        if let Some(AnyClosed(Some(count))) = self.closed.remove(key_id) {
            count.open(self, key_id);
        }
    }

    /// Removes a count, and opens its key. Returns what it was, which the caller drops after the shard is unlocked.
    pub(super) fn remove<S: StoredState>(&mut self, key_id: KeyId) -> Option<Box<dyn Any>> {
        let remove =
            |shard: &mut Self| (S::table(shard).remove(key_id), shard.closed.remove(key_id));
        match self.count_changes(remove) {
            (None, None) => None,
            count => Some(Box::new(count)),
        }
    }
}

/// Returns a number that differs from key to key. The lowest bit of each key id is 0.
fn spread(key_id: KeyId) -> usize {
    (key_id.bits() >> 1) as usize
}
