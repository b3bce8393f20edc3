//! A part of the embedded store, under a lock of its own: a table for the counts of each algorithm,
//! bounded together.

use super::table::Table;
use crate::algorithm::bucket::Bucket;
use crate::algorithm::fixed::Window;
use crate::algorithm::sliding::Log;
use crate::algorithm::sliding_counter::Counts;
use crate::algorithm::{Op, Outcome, State};
use crate::limit::{Algorithm, Limit};

pub(super) struct Shard {
    logs: Table<Log>,
    windows: Table<Window>,
    counts: Table<Counts>,
    buckets: Table<Bucket>,
    /// How many counts it holds at most.
    capacity: usize,
}

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

    pub(super) fn apply(&mut self, ask: Ask<'_>) -> Outcome {
        self.apply_known(ask).unwrap_or_else(|| self.apply_new(ask))
    }

    /// Answers about a place that has a count.
    #[inline(always)]
    pub(super) fn apply_known(&mut self, ask: Ask<'_>) -> Option<Outcome> {
        match ask.limit.algorithm() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => ask.known_in(&mut self.buckets),
            Algorithm::Sliding => ask.known_in(&mut self.logs),
            Algorithm::Fixed => ask.known_in(&mut self.windows),
            Algorithm::SlidingCounter => ask.known_in(&mut self.counts),
        }
    }

    /// Answers about a place that has none.
    pub(super) fn apply_new(&mut self, ask: Ask<'_>) -> Outcome {
        match ask.limit.algorithm() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => self.add(ask, |it| &mut it.buckets),
            Algorithm::Sliding => self.add(ask, |it| &mut it.logs),
            Algorithm::Fixed => self.add(ask, |it| &mut it.windows),
            Algorithm::SlidingCounter => self.add(ask, |it| &mut it.counts),
        }
    }

    pub(super) fn remove(&mut self, algorithm: Algorithm, place: u128) {
        match algorithm {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => self.buckets.remove(place),
            Algorithm::Sliding => self.logs.remove(place),
            Algorithm::Fixed => self.windows.remove(place),
            Algorithm::SlidingCounter => self.counts.remove(place),
        }
    }

    fn add<S: State>(&mut self, ask: Ask<'_>, table: fn(&mut Self) -> &mut Table<S>) -> Outcome {
        let mut state = S::default();
        let outcome = state.apply(ask.op, ask.limit, ask.clock, ask.cost);
        if state.expires() > 0 {
            self.make_room(ask.clock, ask.place as usize);
            table(self).insert(ask.place, state);
        }
        outcome
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

impl Ask<'_> {
    #[inline(always)]
    fn known_in<S: State>(&self, table: &mut Table<S>) -> Option<Outcome> {
        let state = table.get_mut(self.place)?;
        Some(state.apply(self.op, self.limit, self.clock, self.cost))
    }
}
