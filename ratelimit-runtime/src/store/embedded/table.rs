//! A table of states by key id. The states are inside the table, so a lookup reads one place in memory.
//!
//! Cells are sorted by key id. The home of a key id is the cell that the key id would have if key ids were spread
//! evenly. They nearly are, so each key id is in its home or in one of the next cells. A lookup starts at the home
//! and ends at the first key id that is not smaller.
//!
//! The lowest bit of a key id is 0. In a cell, it is 1 if a call of the key was rejected: the cell is then marked. A
//! mark changes neither the order of the cells nor where a lookup ends.

use crate::algorithm::Expires;
use crate::key::KeyId;

/// The number of cells after the last home, for key ids whose homes are taken.
const TAIL: usize = 8;

/// The number of cells that a lookup compares at once, without branches between them, which a processor cannot predict
/// (`benches/all -- embedded`).
const COMPARED: usize = 4;

/// Up to this number of states, nearly all are at home: a lookup compares one cell after the other.
const FEW: usize = 8;

/// The number of cells that an insertion sweeps: enough to find expired states faster than new ones arrive.
const SWEEP: usize = 4;

/// The number of states that an eviction compares.
const SAMPLE: usize = 5;

/// The bit of a key id that marks a cell.
const MARK: u64 = 1;

pub(crate) struct Table<S> {
    cells: Vec<TableCell<S>>,
    /// The number of cells that are homes.
    homes: usize,
    len: usize,
    /// The number of marked cells.
    marked: usize,
    /// Where the next sweep continues.
    hand: usize,
}

struct TableCell<S> {
    /// The high and the low half of the key id, with the mark: a `u128` would be aligned to its size and make cells
    /// larger.
    marked_id: [u64; 2],
    state: S,
}

impl<S: Expires> Table<S> {
    pub(super) const fn new() -> Self {
        Self { cells: Vec::new(), homes: 0, len: 0, marked: 0, hand: 0 }
    }

    /// Returns the number of states.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the state of `key_id`.
    #[inline(always)]
    pub(super) fn get_mut(&mut self, key_id: KeyId) -> Option<&mut S> {
        self.place_of(key_id).map(|place| self.at_mut(place))
    }

    /// Returns the place of the state of `key_id`. It changes with the next [`insert`](Self::insert), `remove` or
    /// `sweep`.
    #[inline(always)]
    pub(super) fn place_of(&self, key_id: KeyId) -> Option<usize> {
        let at = self.position_of(key_id);
        self.cells.get(at).is_some_and(|cell| cell.key_id() == key_id).then_some(at)
    }

    /// Returns the state at a place.
    #[inline(always)]
    pub(super) fn at_mut(&mut self, place: usize) -> &mut S {
        &mut self.cells[place].state
    }

    /// Marks the state at a place, because it has rejected a call.
    #[inline(always)]
    pub(super) fn mark(&mut self, place: usize) {
        let [_, low] = &mut self.cells[place].marked_id;
        self.marked += usize::from(*low & MARK == 0);
        *low |= MARK;
    }

    /// Adds the state of `key_id`, which has none and is not [`KeyId::NONE`].
    pub(super) fn insert(&mut self, key_id: KeyId, state: S) {
        // At most five sixths of the homes are taken: a lookup then passes two or three cells on average.
        if self.len * 6 >= self.homes * 5 {
            self.resize(self.homes + self.homes / 5 + 2 * TAIL);
        }
        let at = self.position_of(key_id);
        let behind = self.cells[at..].iter().position(TableCell::is_free).unwrap_or_else(|| {
            let end = self.cells.len();
            // Reserves exactly: `resize_with` alone would double the capacity.
            self.cells.reserve_exact(TAIL);
            self.cells.resize_with(end + TAIL, TableCell::free);
            end - at
        });
        // Moves all cells up to the free one by one cell.
        self.cells[at..=at + behind].rotate_right(1);
        self.cells[at] = TableCell::new(key_id, state);
        self.len += 1;
    }

    pub(super) fn remove(&mut self, key_id: KeyId) -> Option<S> {
        let at = self.position_of(key_id);
        let there = self.cells.get(at).is_some_and(|cell| cell.key_id() == key_id);
        there.then(|| self.take(at))
    }

    /// Removes some states that have expired by `now`. Inlined, because an insertion passes all tables of its shard,
    /// and most of them have no cells (`benches/all -- in-flight`).
    #[inline]
    pub(super) fn sweep(&mut self, now: u64) {
        if !self.cells.is_empty() {
            self.sweep_cells(now);
        }
    }

    #[inline(never)]
    fn sweep_cells(&mut self, now: u64) {
        for _ in 0..SWEEP {
            match self.cells.get(self.hand) {
                Some(cell) if !cell.is_free() && cell.state.expires() <= now => {
                    self.take(self.hand);
                }
                Some(_) => self.hand += 1,
                None => {
                    self.hand = 0;
                    self.shrink();
                }
            }
        }
    }

    /// Frees memory once most states are gone.
    #[inline(never)]
    fn shrink(&mut self) {
        if self.len * 8 < self.homes {
            self.resize(self.homes / 4);
        }
    }

    /// Evicts one state of a sample. A state that is not marked goes first, because its key would have admitted the
    /// next call as well. If more than half of all states are marked, a marked one goes first: otherwise, exhausted
    /// keys would evict all others. Of several such states, the one that expires first goes; one that never expires
    /// stays. `spread` is any number that differs from call to call.
    pub(super) fn evict(&mut self, spread: usize) {
        let marked_first = 2 * self.marked > self.len;
        let victim = victim(self.cells.len(), spread, &|at| {
            let cell = &self.cells[at];
            let (is_free, expires) = (cell.is_free(), cell.state.expires());
            let can_go = !is_free && expires < u64::MAX;
            can_go.then(|| (cell.is_marked() != marked_first, expires))
        });
        if let Some(victim) = victim {
            self.take(victim);
        }
    }

    /// Returns the index at which `key_id` is or would be.
    #[inline(always)]
    fn position_of(&self, key_id: KeyId) -> usize {
        let mut at = self.home(key_id);
        if self.len > FEW
            && let Some(cells) = self.cells.get(at..at + COMPARED)
        {
            let before =
                cells.iter().map(|cell| usize::from(cell.marked_id() < key_id)).sum::<usize>();
            at += before;
            if before < COMPARED {
                return at;
            }
        }
        while self.cells.get(at).is_some_and(|cell| cell.marked_id() < key_id) {
            at += 1;
        }
        at
    }

    /// Returns the home of `key_id`: its place among the homes is proportional to its place among all key ids.
    #[inline(always)]
    fn home(&self, key_id: KeyId) -> usize {
        (((key_id.bits() >> 64) * self.homes as u128) >> 64) as usize
    }

    /// Frees a cell, and moves the key ids after it back towards their homes.
    #[inline(never)]
    fn take(&mut self, mut at: usize) -> S {
        let taken = std::mem::replace(&mut self.cells[at], TableCell::free());
        self.len -= 1;
        self.marked -= usize::from(taken.is_marked());
        while let Some(next) = self.cells.get(at + 1) {
            if next.is_free() || self.home(next.key_id()) > at {
                break;
            }
            self.cells.swap(at, at + 1);
            at += 1;
        }
        taken.state
    }

    /// Spreads the states over another number of homes.
    #[inline(never)]
    fn resize(&mut self, homes: usize) {
        self.homes = homes;
        self.hand = 0;
        let mut cells = Vec::with_capacity(homes + TAIL);
        for cell in std::mem::take(&mut self.cells).into_iter().filter(|cell| !cell.is_free()) {
            let home = self.home(cell.key_id());
            cells.resize_with(home.max(cells.len()), TableCell::free);
            cells.push(cell);
        }
        cells.resize_with((homes + TAIL).max(cells.len()), TableCell::free);
        self.cells = cells;
    }
}

impl<S: Expires> TableCell<S> {
    fn new(key_id: KeyId, state: S) -> Self {
        Self { marked_id: [(key_id.bits() >> 64) as u64, key_id.bits() as u64], state }
    }

    fn free() -> Self {
        Self::new(KeyId::NONE, S::default())
    }

    fn is_free(&self) -> bool {
        self.marked_id() == KeyId::NONE
    }

    fn is_marked(&self) -> bool {
        self.marked_id[1] & MARK != 0
    }

    #[inline(always)]
    fn key_id(&self) -> KeyId {
        KeyId::from_bits(self.marked_id().bits() & !u128::from(MARK))
    }

    /// Returns the key id with the mark, which is larger than the key id, and smaller than each larger key id.
    #[inline(always)]
    fn marked_id(&self) -> KeyId {
        let [high, low] = self.marked_id.map(u128::from);
        KeyId::from_bits(high << 64 | low)
    }
}

/// Returns the index of the state that an eviction takes from `len` cells: of a sample, the one with the least rank.
/// `rank` returns none for a free cell. Not generic, so that a program contains it once (`benches/all -- footprint`).
fn victim(len: usize, spread: usize, rank: &dyn Fn(usize) -> Option<(bool, u64)>) -> Option<usize> {
    // The sample is spread over the table, because neighbours may have arrived together.
    let sample = (0..SAMPLE).filter_map(|part| {
        let start = (spread % len + part * len / SAMPLE) % len;
        (start..len).chain(0..start).find_map(|at| Some((rank(at)?, at)))
    });
    sample.min_by_key(|(rank, _)| *rank).map(|(_, at)| at)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// A state that consists of its expiry.
    #[derive(Default)]
    struct Until(u64);

    impl Expires for Until {
        fn expires(&self) -> u64 {
            self.0
        }
    }

    #[derive(Clone, Debug)]
    enum TableStep {
        Insert(KeyId, u64),
        Remove(KeyId),
        Sweep(u64),
        Evict(usize),
        Mark(KeyId),
    }

    /// Generates key ids from a small set: many have the same home, and some homes are at the ends of the table.
    fn key_id() -> impl Strategy<Value = KeyId> {
        (prop_oneof![Just(0_u64), Just(u64::MAX), 0..8_u64, any::<u64>()], 1..20_u64)
            .prop_map(|(high, low)| KeyId::from_bits(u128::from(high) << 64 | u128::from(low << 1)))
    }

    fn step() -> impl Strategy<Value = TableStep> {
        prop_oneof![
            6 => (key_id(), 1..100_u64).prop_map(|(key_id, until)| TableStep::Insert(key_id, until)),
            2 => key_id().prop_map(TableStep::Remove),
            1 => (0..100_u64).prop_map(TableStep::Sweep),
            1 => any::<usize>().prop_map(TableStep::Evict),
            1 => key_id().prop_map(TableStep::Mark),
        ]
    }

    /// Returns whether the cells are sorted, and no cell is free between a key id and its home.
    fn is_sound(table: &Table<Until>) -> bool {
        let taken = |at: &usize| !table.cells[*at].is_free();
        let used: Vec<usize> = (0..table.cells.len()).filter(taken).collect();
        let in_order =
            used.is_sorted_by(|a, b| table.cells[*a].key_id() < table.cells[*b].key_id());
        let reached = |at: &usize| {
            let home = table.home(table.cells[*at].key_id());
            (home..*at).all(|between| taken(&between)) && home <= *at
        };
        in_order && used.iter().all(reached) && used.len() == table.len
    }

    proptest! {
        #[test]
        fn holds_the_same_states_as_a_map(steps in prop::collection::vec(step(), 1..400)) {
            let (mut table, mut map) = (Table::<Until>::new(), BTreeMap::new());
            for step in steps {
                match step {
                    TableStep::Insert(key_id, until) => {
                        if let Some(state) = table.get_mut(key_id) {
                            state.0 = until;
                        } else {
                            table.insert(key_id, Until(until));
                        }
                        map.insert(key_id, until);
                    }
                    TableStep::Remove(key_id) => {
                        table.remove(key_id);
                        map.remove(&key_id);
                    }
                    TableStep::Sweep(now) => {
                        table.sweep(now);
                        map.retain(|key_id, until| *until > now || table.get_mut(*key_id).is_some());
                    }
                    TableStep::Evict(spread) if !map.is_empty() => {
                        table.evict(spread);
                        map.retain(|key_id, _| table.get_mut(*key_id).is_some());
                    }
                    TableStep::Evict(_) => {}
                    TableStep::Mark(key_id) => {
                        if let Some(place) = table.place_of(key_id) {
                            table.mark(place);
                        }
                    }
                }
                prop_assert!(is_sound(&table));
                prop_assert_eq!(table.len(), map.len());
                let taken = table.cells.iter().filter(|cell| !cell.is_free());
                prop_assert_eq!(table.marked, taken.filter(|cell| cell.is_marked()).count());
                for (key_id, until) in &map {
                    prop_assert_eq!(table.get_mut(*key_id).map(|it| it.0), Some(*until));
                }
            }
        }
    }

    #[test]
    fn sweeps_find_every_expired_state() {
        let mut table = Table::new();
        let spread = |index: u64| {
            KeyId::from_bits(u128::from(index.wrapping_mul(0x9E37_79B9_7F4A_7C15)) << 64 | 2)
        };
        for index in 1..=1_000 {
            table.insert(spread(index), Until(index));
        }
        for _ in 0..1_000 {
            table.sweep(900);
        }
        assert_eq!(table.len(), 100);
        assert!((901..=1_000).all(|index| table.get_mut(spread(index)).is_some()));

        table.insert(spread(2_000), Until(2_000));
        assert!(table.cells.len() < 700, "{} cells for 101", table.cells.len());
        for spread in 0..101 {
            table.evict(spread * 97);
        }
        assert_eq!(table.len(), 0);
    }
}
