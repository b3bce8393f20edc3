//! The functions of the store for the counts of one algorithm, and for the table of one kind of state. A limit refers
//! to those of its algorithm, so that a program contains no others (see [`Capability`], `benches/all -- footprint`).

use std::any::Any;

use super::shard::{CountOp, Shard};
use super::{Embedded, LocalCharge, StoredState};
use crate::algorithm::{Op, OpeningChange, Outcome, Receipt, Settlement, states};
use crate::key::KeyId;
use crate::limit::{Algorithm, Capability, Terms};
use crate::report;

/// What the store does with the counts of one algorithm. Functions of the fast paths take no structures, which would be
/// passed in memory (`benches/all -- together`).
pub(crate) struct CountFunctions {
    /// Decides a call.
    pub(crate) decide: fn(&Embedded, KeyId, &Terms, u32, &mut Option<Outcome>) -> Left,
    /// Decides a call whose charge can be settled.
    pub(crate) acquire: fn(&Embedded, LocalCharge<'_>) -> (Outcome, Receipt),
    /// Applies an operation at a time.
    pub(super) apply: fn(&mut Shard, CountOp, LocalCharge<'_>, u64) -> (Outcome, Receipt),
    pub(super) settle: fn(&mut Shard, LocalCharge<'_>, Settlement, u64) -> Outcome,
    pub(super) change_opening: fn(&mut Shard, KeyId, OpeningChange, u64) -> bool,
    pub(super) remove: fn(&mut Shard, KeyId) -> Option<Box<dyn Any>>,
    /// Finds a count that is open and holds no units. The last argument is the time.
    pub(super) find: fn(&mut Shard, KeyId, &Terms, u32, u64) -> Option<FoundCount>,
    /// Decides a call of the count at a place. Writes the outcome where it is read, field by field: a copy would read
    /// it in other widths (`benches/all -- together`).
    pub(super) decide_at: fn(&mut Shard, usize, &Terms, u32, u64, &mut Outcome),
    /// Determines the outcome of a call of the count at a place, which another count may reject.
    pub(super) reject_at: fn(&mut Shard, usize, &Terms, u32, u64, &mut Outcome),
}

/// The place of a count that has no state.
pub(super) const MISSING: usize = usize::MAX;

/// Where a count is, and whether it admits a call.
pub(super) struct FoundCount {
    /// [`MISSING`] if the count has no state.
    pub(super) place: usize,
    pub(super) admits: bool,
}

/// What makes room in the table of one kind of state. A shard refers to those of the tables that it uses, so that a
/// program contains no others (`benches/all -- footprint`).
pub(super) struct TableFunctions {
    /// Whether an eviction would lose units that are held.
    pub(super) holds: bool,
    pub(super) len: fn(&mut Shard) -> usize,
    pub(super) sweep: fn(&mut Shard, u64),
    pub(super) evict: fn(&mut Shard, usize),
}

impl TableFunctions {
    pub(super) const fn of<S: StoredState>() -> Self {
        Self {
            holds: S::HOLDS,
            len: |shard| S::table(shard).len(),
            sweep: |shard, now| S::table(shard).sweep(now),
            evict: |shard, spread| S::table(shard).evict(spread),
        }
    }
}

/// The units that remain after an admitted call, and its reset. A function returns two whole words in registers
/// (`benches/all -- embedded`).
pub(crate) struct Left {
    /// [`u64::MAX`] unless the call was admitted and nothing records it, so that nothing else is to be done.
    pub(crate) remaining: u64,
    pub(crate) reset_us: u64,
}

impl CountFunctions {
    const fn of<S: StoredState>() -> Self {
        Self {
            decide: decide::<S>,
            acquire: Embedded::acquire_as::<S>,
            apply: Shard::apply_op::<S>,
            settle: Shard::settle::<S>,
            change_opening: Shard::change_opening::<S>,
            remove: Shard::remove::<S>,
            find: find::<S>,
            decide_at: decide_at::<S>,
            reject_at: reject_at::<S>,
        }
    }
}

/// Defines what counts the calls of each algorithm in the list of [`states`].
macro_rules! define_functions {
    (() $($table:ident: $state:ty = $($algorithm:ident)|+;)*) => {
        impl Algorithm {
            /// Returns what counts the calls of limits by this algorithm: [`CountFunctions`].
            pub(crate) const fn counted_by(self) -> Capability {
                match self {
                    $($(Self::$algorithm)|+ => Capability::new(functions::<$state>),)*
                }
            }
        }
    };
}

states!(define_functions!());

fn functions<S: StoredState>() -> &'static (dyn Any + Send + Sync) {
    const { &CountFunctions::of::<S>() }
}

impl Left {
    const NOT_FINAL: Self = Self { remaining: u64::MAX, reset_us: 0 };

    #[inline]
    pub(crate) fn is_final(&self) -> bool {
        self.remaining != u64::MAX
    }
}

fn decide<S: StoredState>(
    local: &Embedded,
    key_id: KeyId,
    terms: &Terms,
    cost: u32,
    outcome: &mut Option<Outcome>,
) -> Left {
    if S::HOLDS {
        return Left::NOT_FINAL;
    }
    let decided = local.decide_as::<S>(LocalCharge { key_id, terms, cost });
    if decided.is_allowed() && !report::is_recorded() {
        return Left { remaining: decided.remaining.into(), reset_us: decided.reset_us };
    }
    *outcome = Some(decided);
    Left::NOT_FINAL
}

fn find<S: StoredState>(
    shard: &mut Shard,
    key_id: KeyId,
    terms: &Terms,
    cost: u32,
    clock: u64,
) -> Option<FoundCount> {
    if S::HOLDS {
        return None;
    }
    let Some(place) = shard.place_of::<S>(key_id) else {
        // The cost is within the capacity, so a new count admits the call.
        return (!shard.is_closed(key_id)).then_some(FoundCount { place: MISSING, admits: true });
    };
    let admits = shard.state_at::<S>(place).admits(terms, clock, cost);
    Some(FoundCount { place, admits })
}

fn decide_at<S: StoredState>(
    shard: &mut Shard,
    place: usize,
    terms: &Terms,
    cost: u32,
    clock: u64,
    outcome: &mut Outcome,
) {
    let decided = shard.state_at::<S>(place).decide(terms, clock, cost);
    *outcome = S::outcome(decided, terms, clock, cost);
}

fn reject_at<S: StoredState>(
    shard: &mut Shard,
    place: usize,
    terms: &Terms,
    cost: u32,
    clock: u64,
    outcome: &mut Outcome,
) {
    *outcome = shard.state_at::<S>(place).apply(Op::Peek, terms, clock, cost);
    if !outcome.is_allowed() {
        shard.mark_rejecting::<S>(place);
    }
}
