//! A part of the embedded store, under a lock of its own: a table for the counts of each algorithm,
//! bounded together.

use std::any::Any;

use super::table::Table;
use crate::algorithm::bucket::Bucket;
use crate::algorithm::fixed::Window;
use crate::algorithm::sliding::Log;
use crate::algorithm::sliding_counter::Counts;
use crate::algorithm::{Op, Outcome, State, with_state};
use crate::limit::{Algorithm, Limit};

pub(crate) struct Shard {
    logs: Table<Log>,
    windows: Table<Window>,
    counts: Table<Counts>,
    buckets: Table<Bucket>,
    /// How many counts it holds at most.
    capacity: usize,
}

/// A state, with the table of a shard that it is in.
pub(crate) trait Held: State {
    fn held_in(shard: &mut Shard) -> &mut Table<Self>;
}

macro_rules! held {
    ($($state:ty: $table:ident),*) => {$(
        impl Held for $state {
            #[inline(always)]
            fn held_in(shard: &mut Shard) -> &mut Table<Self> {
                &mut shard.$table
            }
        }
    )*};
}

held!(Log: logs, Window: windows, Counts: counts, Bucket: buckets);

/// What a shard is asked about one place.
#[derive(Clone, Copy)]
pub(super) struct Ask<'a> {
    pub(super) place: u128,
    pub(super) op: Op,
    pub(super) limit: &'a Limit,
    pub(super) clock: u64,
    pub(super) cost: u32,
}

impl Shard {
    pub(super) fn new(capacity: usize) -> Self {
        let (logs, windows) = (Table::new(), Table::new());
        Self { logs, windows, counts: Table::new(), buckets: Table::new(), capacity }
    }

    pub(super) fn held(&self) -> usize {
        self.logs.held() + self.windows.held() + self.counts.held() + self.buckets.held()
    }

    /// Answers about a place. If it has no count, the state is made in `new`, to be [added](Self::add).
    #[inline(always)]
    pub(super) fn apply<S: Held>(&mut self, ask: Ask<'_>, new: &mut Option<S>) -> Outcome {
        self.state(ask.place, new).apply(ask.op, ask.limit, ask.clock, ask.cost)
    }

    /// The state at a place, or a new one.
    #[inline(always)]
    pub(super) fn state<'a, S: Held>(
        &'a mut self,
        place: u128,
        new: &'a mut Option<S>,
    ) -> &'a mut S {
        S::held_in(self).get_mut(place).unwrap_or_else(|| new.insert(S::default()))
    }

    pub(super) fn add<S: Held>(&mut self, place: u128, state: S, now: u64) {
        if state.expires() > 0 {
            self.make_room(now, place as usize);
            S::held_in(self).insert(place, state);
        }
    }

    /// Removes a count and returns it: a long log takes milliseconds to be freed.
    pub(super) fn remove(&mut self, algorithm: Algorithm, place: u128) -> Option<Box<dyn Any>> {
        with_state!(algorithm, S => Some(Box::new(S::held_in(self).remove(place)?)))
    }

    /// Reclaims a few counts that have become useless, and if the shard is full all the same, evicts
    /// one of the most numerous kind.
    fn make_room(&mut self, now: u64, spread: usize) {
        self.logs.sweep(now);
        self.windows.sweep(now);
        self.counts.sweep(now);
        self.buckets.sweep(now);
        if self.held() >= self.capacity {
            let kinds =
                [self.logs.held(), self.windows.held(), self.counts.held(), self.buckets.held()];
            let most = kinds.iter().max();
            match kinds.iter().position(|held| Some(held) == most) {
                Some(0) => self.logs.evict(spread),
                Some(1) => self.windows.evict(spread),
                Some(2) => self.counts.evict(spread),
                _ => self.buckets.evict(spread),
            }
        }
    }
}
