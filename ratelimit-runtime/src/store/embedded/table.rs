//! A table of counts by place, with the counts in it: to find one is to look at one spot in memory.
//!
//! Slots are in the order of their places. The home of a place is where it would be if all were
//! spread evenly, as those of a hash nearly are; its slot is there or shortly behind. A look begins at
//! the home, and ends at the place or where it would be.

use crate::algorithm::State;

/// How many slots there are behind the last home, for those that stand behind their homes.
const TAIL: usize = 8;

/// How many slots the arrival of a new key looks at for reclaiming: enough that expired ones are
/// found faster than new ones arrive.
const SWEEP: usize = 4;

/// How many slots an eviction chooses from.
const SAMPLE: usize = 5;

pub(crate) struct Table<S> {
    slots: Vec<Slot<S>>,
    /// How many slots are homes.
    homes: usize,
    held: usize,
    /// Where the next sweep goes on.
    hand: usize,
}

struct Slot<S> {
    /// The high and the low half: a `u128` would be aligned to its size, and slots be larger for it.
    place: [u64; 2],
    state: S,
}

/// The place of no count: behind all others, so that a look ends there by itself.
const FREE: u128 = u128::MAX;

impl<S: State> Table<S> {
    pub(super) const fn new() -> Self {
        Self { slots: Vec::new(), homes: 0, held: 0, hand: 0 }
    }

    /// How many counts there are.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// The count at `place`.
    #[inline(always)]
    pub(super) fn get_mut(&mut self, place: u128) -> Option<&mut S> {
        let at = self.reach(place);
        let slot = self.slots.get_mut(at)?;
        (slot.place() == place).then_some(&mut slot.state)
    }

    /// Adds a count whose place has none; the place is not [`FREE`].
    pub(super) fn insert(&mut self, place: u128, state: S) {
        // At most five sixths are taken: a look then passes two or three other slots in the mean.
        if self.held * 6 >= self.homes * 5 {
            self.resize(self.homes + self.homes / 5 + 2 * TAIL);
        }
        let at = self.reach(place);
        let behind = self.slots[at..].iter().position(Slot::is_free).unwrap_or_else(|| {
            let end = self.slots.len();
            // A vector that grows by itself doubles.
            self.slots.reserve_exact(TAIL);
            self.slots.resize_with(end + TAIL, Slot::free);
            end - at
        });
        // All up to the free slot move by one.
        self.slots[at..=at + behind].rotate_right(1);
        self.slots[at] = Slot::new(place, state);
        self.held += 1;
    }

    pub(super) fn remove(&mut self, place: u128) -> Option<S> {
        let at = self.reach(place);
        let there = self.slots.get(at).is_some_and(|slot| slot.place() == place);
        there.then(|| self.take(at))
    }

    /// Removes some of what has become useless by `now`.
    pub(super) fn sweep(&mut self, now: u64) {
        for _ in 0..SWEEP {
            match self.slots.get(self.hand) {
                Some(slot) if !slot.is_free() && slot.state.expires() <= now => {
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

    /// Gives back the memory of what is gone, once there is much.
    fn shrink(&mut self) {
        if self.held * 8 < self.homes {
            self.resize(self.homes / 4);
        }
    }

    /// Removes one count, of a sample the one that would have become useless first. `spread` is any
    /// number that differs from call to call.
    pub(super) fn evict(&mut self, spread: usize) {
        let len = self.slots.len();
        // Taken from all over the table, since neighbours may have come together.
        let sample = (0..SAMPLE).filter_map(|part| {
            let start = (spread % len + part * len / SAMPLE) % len;
            let taken = |at: &usize| !self.slots[*at].is_free();
            (start..len).chain(0..start).find(taken)
        });
        if let Some(victim) = sample.min_by_key(|at| self.slots[*at].state.expires()) {
            self.take(victim);
        }
    }

    /// Where `place` is, or where it would be.
    #[inline(always)]
    fn reach(&self, place: u128) -> usize {
        let mut at = self.home(place);
        while self.slots.get(at).is_some_and(|slot| slot.place() < place) {
            at += 1;
        }
        at
    }

    /// As far into the homes as the place is into all places.
    #[inline(always)]
    fn home(&self, place: u128) -> usize {
        (((place >> 64) * self.homes as u128) >> 64) as usize
    }

    /// Frees a slot; those that stand behind their homes because of it move up.
    fn take(&mut self, mut at: usize) -> S {
        let taken = std::mem::replace(&mut self.slots[at], Slot::free());
        self.held -= 1;
        while let Some(next) = self.slots.get(at + 1) {
            if next.is_free() || self.home(next.place()) > at {
                break;
            }
            self.slots.swap(at, at + 1);
            at += 1;
        }
        taken.state
    }

    /// Spreads the counts over another number of homes.
    fn resize(&mut self, homes: usize) {
        self.homes = homes;
        self.hand = 0;
        let mut slots = Vec::with_capacity(homes + TAIL);
        for slot in std::mem::take(&mut self.slots).into_iter().filter(|slot| !slot.is_free()) {
            let home = self.home(slot.place());
            slots.resize_with(home.max(slots.len()), Slot::free);
            slots.push(slot);
        }
        slots.resize_with((homes + TAIL).max(slots.len()), Slot::free);
        self.slots = slots;
    }
}

impl<S: State> Slot<S> {
    fn new(place: u128, state: S) -> Self {
        Self { place: [(place >> 64) as u64, place as u64], state }
    }

    fn free() -> Self {
        Self::new(FREE, S::default())
    }

    fn is_free(&self) -> bool {
        self.place() == FREE
    }

    #[inline(always)]
    fn place(&self) -> u128 {
        let [high, low] = self.place.map(u128::from);
        high << 64 | low
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::algorithm::{Op, Outcome};
    use crate::limit::Limit;

    /// When it expires, or 0.
    #[derive(Default)]
    struct Until(u64);

    impl State for Until {
        fn apply(&mut self, _: Op, _: &Limit, _: u64, _: u32) -> Outcome {
            unreachable!("the table does not decide")
        }

        fn expires(&self) -> u64 {
            self.0
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u128, u64),
        Remove(u128),
        Sweep(u64),
        Evict(usize),
    }

    /// Few places, many of them with one home, at both ends.
    fn place() -> impl Strategy<Value = u128> {
        (prop_oneof![Just(0_u64), Just(u64::MAX), 0..8_u64, any::<u64>()], 1..20_u64)
            .prop_map(|(high, low)| u128::from(high) << 64 | u128::from(low))
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (place(), 1..100_u64).prop_map(|(place, until)| Step::Insert(place, until)),
            2 => place().prop_map(Step::Remove),
            1 => (0..100_u64).prop_map(Step::Sweep),
            1 => any::<usize>().prop_map(Step::Evict),
        ]
    }

    /// Every slot is in order, and can be reached from its home.
    fn is_sound(table: &Table<Until>) -> bool {
        let taken = |at: &usize| !table.slots[*at].is_free();
        let held: Vec<usize> = (0..table.slots.len()).filter(taken).collect();
        let in_order = held.is_sorted_by(|a, b| table.slots[*a].place() < table.slots[*b].place());
        let reached = |at: &usize| {
            let home = table.home(table.slots[*at].place());
            (home..*at).all(|between| taken(&between)) && home <= *at
        };
        in_order && held.iter().all(reached) && held.len() == table.held
    }

    proptest! {
        #[test]
        fn holds_what_a_map_holds(steps in prop::collection::vec(step(), 1..400)) {
            let (mut table, mut map) = (Table::<Until>::new(), BTreeMap::new());
            for step in steps {
                match step {
                    Step::Insert(place, until) => {
                        if let Some(state) = table.get_mut(place) {
                            state.0 = until;
                        } else {
                            table.insert(place, Until(until));
                        }
                        map.insert(place, until);
                    }
                    Step::Remove(place) => {
                        table.remove(place);
                        map.remove(&place);
                    }
                    Step::Sweep(now) => {
                        table.sweep(now);
                        map.retain(|place, until| *until > now || table.get_mut(*place).is_some());
                    }
                    Step::Evict(spread) if !map.is_empty() => {
                        table.evict(spread);
                        map.retain(|place, _| table.get_mut(*place).is_some());
                    }
                    Step::Evict(_) => {}
                }
                prop_assert!(is_sound(&table));
                prop_assert_eq!(table.held(), map.len());
                for (place, until) in &map {
                    prop_assert_eq!(table.get_mut(*place).map(|it| it.0), Some(*until));
                }
            }
        }
    }

    #[test]
    fn a_sweep_finds_all_that_is_useless() {
        let mut table = Table::new();
        let spread = |index: u64| u128::from(index.wrapping_mul(0x9E37_79B9_7F4A_7C15)) << 64 | 1;
        for index in 1..=1_000 {
            table.insert(spread(index), Until(index));
        }
        for _ in 0..1_000 {
            table.sweep(900);
        }
        assert_eq!(table.held(), 100);
        assert!((901..=1_000).all(|index| table.get_mut(spread(index)).is_some()));

        table.insert(spread(2_000), Until(2_000));
        assert!(table.slots.len() < 700, "{} slots for 101", table.slots.len());
        for spread in 0..101 {
            table.evict(spread * 97);
        }
        assert_eq!(table.held(), 0);
    }
}
