//! A part of the store, under a lock of its own: a map from key ids to entries.

use hashbrown::HashTable;

use super::LocalCharge;
use super::entry::CountEntry;
use crate::algorithm::slots::Slots;
use crate::algorithm::{Applied, BlockChange, Op, Verdict};
use crate::key::KeyId;
use crate::limit::Algorithm;

/// The number of buckets of the map that an insertion sweeps: enough to find expired entries faster than new ones
/// arrive.
const SWEEP: usize = 4;

/// The number of entries that an eviction compares.
const SAMPLE: usize = 5;

/// The most buckets of the map in which it looks for each of them.
const REACH: usize = 64;

/// The fewest buckets of a map that shrinks.
const FEW_BUCKETS: usize = 32;

pub(super) struct Shard {
    entries: HashTable<CountEntry>,
    /// The most entries that the shard keeps.
    capacity: usize,
    /// The number of entries whose key was blocked.
    blocked: usize,
    /// The number of entries that have rejected a call.
    rejecting: usize,
    /// Where the next sweep continues.
    hand: usize,
    /// The last birth: an odd number, because some states keep the low half, which must not be 0.
    births: u64,
}

impl Shard {
    pub(super) fn new(capacity: usize) -> Self {
        Self { entries: HashTable::new(), capacity, blocked: 0, rejecting: 0, hand: 0, births: 1 }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether the units of a call in flight have a place. Entries whose units are held are never evicted, so
    /// they can take twice the capacity of the shard. Above that, calls of other keys are rejected. (The counts of one
    /// call can exceed that together.) If the call `takes` the units, makes a place if it can.
    #[inline]
    pub(super) fn has_place(&mut self, charge: LocalCharge<'_>, takes: bool, now: u64) -> bool {
        let is_overfull = self.len() >= 2 * self.capacity;
        !(is_overfull && charge.terms.is_in_flight() && charge.cost > 0)
            || self.finds_place(charge.key_id, takes, now)
    }

    #[cold]
    fn finds_place(&mut self, key_id: KeyId, takes: bool, now: u64) -> bool {
        if self.entries.find(hash(key_id), is(key_id)).is_some() {
            return true;
        }
        if !takes {
            return false;
        }
        self.sweep(now);
        while self.len() >= 2 * self.capacity && self.evict(hash(key_id) as usize) {}
        self.len() < 2 * self.capacity
    }

    /// Applies an operation to a count. Adds the count if it has no entry.
    #[inline(always)]
    pub(super) fn apply(&mut self, op: Op, charge: LocalCharge<'_>, clock: u64) -> Applied {
        self.births += 2;
        let Some(entry) = self.entries.find_mut(hash(charge.key_id), is(charge.key_id)) else {
            return self.apply_to_new(op, charge, clock);
        };
        if entry.blocked_until() > 0 && entry.blocked_until() <= clock {
            entry.set_blocked_until(0);
            self.blocked -= 1;
        }
        let decided = entry.apply(op, self.births, charge, clock);
        if decided.0.verdict == Verdict::Rejected && !entry.has_rejected() {
            entry.set_rejected();
            self.rejecting += 1;
        }
        decided
    }

    /// Applies an operation to a count that has no entry. Not inlined, so that calls of other counts do not pay for it
    /// (`benches/all -- embedded`).
    #[inline(never)]
    fn apply_to_new(&mut self, op: Op, charge: LocalCharge<'_>, clock: u64) -> Applied {
        let mut entry = CountEntry::new(charge.key_id, charge.terms.identity.algorithm);
        let decided = entry.apply(op, self.births, charge, clock);
        // A state that equals that of an unused key is not kept.
        if entry.expires() > 0 {
            self.insert(entry, clock);
        }
        decided
    }

    /// Returns the state of a count of calls in flight, if it has one.
    pub(super) fn slots(&mut self, key_id: KeyId) -> Option<&mut Slots> {
        self.entries.find_mut(hash(key_id), is(key_id))?.slots()
    }

    /// Blocks or unblocks a key. Returns whether it was blocked.
    pub(super) fn change_block(
        &mut self,
        key_id: KeyId,
        algorithm: Algorithm,
        change: BlockChange,
        clock: u64,
    ) -> bool {
        let entry = self.entries.find_mut(hash(key_id), is(key_id));
        let before = entry.as_ref().map_or(0, |entry| entry.blocked_until());
        let until = match change {
            BlockChange::None | BlockChange::BlockFor(0) => before,
            BlockChange::BlockFor(time) => before.max(clock + time),
            BlockChange::Unblock | BlockChange::Reset => 0,
        };
        match entry {
            Some(entry) => {
                entry.set_blocked_until(until);
                self.blocked = self.blocked + usize::from(until > 0) - usize::from(before > 0);
                if entry.can_go(clock) {
                    self.remove(key_id);
                }
            }
            None if until > 0 => {
                let mut entry = CountEntry::new(key_id, algorithm);
                entry.set_blocked_until(until);
                self.insert(entry, clock);
            }
            None => {}
        }
        before > clock
    }

    /// Removes a count, and unblocks its key. The caller drops the entry after the shard is unlocked.
    pub(super) fn remove(&mut self, key_id: KeyId) -> Option<CountEntry> {
        let entry = self.entries.find_entry(hash(key_id), is(key_id)).ok()?;
        let bucket = entry.bucket_index();
        self.take(bucket)
    }

    /// Adds an entry, after it has reclaimed a few expired ones. If the shard is still full, evicts one.
    fn insert(&mut self, entry: CountEntry, now: u64) {
        self.sweep(now);
        if self.len() >= self.capacity {
            self.evict(hash(entry.key_id) as usize);
        }
        self.blocked += usize::from(entry.blocked_until() > 0);
        self.entries.insert_unique(hash(entry.key_id), entry, |entry| hash(entry.key_id));
    }

    /// Removes some entries that have expired.
    fn sweep(&mut self, now: u64) {
        for _ in 0..SWEEP {
            if let Some(entry) = self.entries.get_bucket_mut(self.hand) {
                if entry.can_go(now) {
                    self.take(self.hand);
                } else if entry.blocked_until() > 0 && entry.blocked_until() <= now {
                    entry.set_blocked_until(0);
                    self.blocked -= 1;
                }
            }
            self.hand += 1;
            if self.hand >= self.entries.num_buckets() {
                self.hand = 0;
                self.shrink();
            }
        }
    }

    /// Frees memory once most entries are gone.
    fn shrink(&mut self) {
        let buckets = self.entries.num_buckets();
        if buckets > FEW_BUCKETS && 8 * self.len() < buckets {
            self.entries.shrink_to(2 * self.len(), |entry| hash(entry.key_id));
        }
    }

    /// Evicts one entry of a sample. A blocked one goes only if more than half of all entries are blocked. An entry
    /// that has rejected no call goes first, because its key would have admitted the next call as well. If more than
    /// half of all entries have, one that has goes first: otherwise, exhausted keys would evict all others. Of several
    /// such entries, the one that expires first goes; one whose units are held stays. `spread` is any number that
    /// differs from call to call. Returns whether the sample had one that could go.
    fn evict(&mut self, spread: usize) -> bool {
        let (len, buckets) = (self.len(), self.entries.num_buckets());
        let (blocked_go, rejecting_first) = (2 * self.blocked > len, 2 * self.rejecting > len);
        let rank = |bucket: usize| {
            let entry = self.entries.get_bucket(bucket)?;
            let expires = entry.expires();
            let can_go = expires < u64::MAX && (entry.blocked_until() > 0) == blocked_go;
            can_go.then_some((entry.has_rejected() != rejecting_first, expires, bucket))
        };
        // The sample is spread over the map.
        let sample = (0..SAMPLE).filter_map(|part| {
            let start = spread % buckets + part * buckets / SAMPLE;
            (start..start + REACH).find_map(|bucket| rank(bucket % buckets))
        });
        sample.min().is_some_and(|(_, _, victim)| self.take(victim).is_some())
    }

    /// Removes the entry in a bucket of the map.
    fn take(&mut self, bucket: usize) -> Option<CountEntry> {
        let (entry, _) = self.entries.get_bucket_entry(bucket).ok()?.remove();
        self.blocked -= usize::from(entry.blocked_until() > 0);
        self.rejecting -= usize::from(entry.has_rejected());
        Some(entry)
    }
}

/// Returns the hash of a key id for the map. Other bits choose the shard.
fn hash(key_id: KeyId) -> u64 {
    key_id.bits() as u64
}

fn is(key_id: KeyId) -> impl Fn(&CountEntry) -> bool {
    move |entry| entry.key_id == key_id
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::algorithm::{Correction, Outcome};
    use crate::limit::Limit;

    const WINDOW: Limit = Limit::fixed("window", 3, Duration::from_secs(1));
    const BUCKET: Limit = Limit::token_bucket("bucket", 10, Duration::from_secs(1));
    const SECOND: u64 = 1_000_000;

    /// Returns a key id in any bucket of the map.
    fn key_id(index: u64) -> KeyId {
        KeyId::from_bits(index.wrapping_mul(0x9E37_79B9_7F4A_7C15).into())
    }

    fn charge(limit: &Limit, index: u64, cost: u64) -> LocalCharge<'_> {
        LocalCharge { key_id: key_id(index), terms: limit.terms(), cost }
    }

    fn decide(shard: &mut Shard, limit: &Limit, index: u64, cost: u64, now: u64) -> Outcome {
        shard.apply(Op::TAKE, charge(limit, index, cost), now).0
    }

    fn block(shard: &mut Shard, limit: &Limit, index: u64, time: u64, now: u64) -> bool {
        let change = BlockChange::BlockFor(time);
        shard.change_block(key_id(index), limit.terms().identity.algorithm, change, now)
    }

    fn has(shard: &mut Shard, index: u64) -> bool {
        shard.entries.find(hash(key_id(index)), is(key_id(index))).is_some()
    }

    #[test]
    fn sweeps_find_every_expired_entry_and_free_their_memory() {
        let mut shard = Shard::new(100_000);
        for index in 1..=1_000 {
            decide(&mut shard, &WINDOW, index, 1, SECOND + index);
        }
        for _ in 0..1_000 {
            shard.sweep(2 * SECOND + 900);
        }
        assert_eq!(shard.len(), 100);
        assert!((901..=1_000).all(|index| has(&mut shard, index)));
        shard.hand = shard.entries.num_buckets() - 1;
        shard.sweep(2 * SECOND + 900);
        assert!(shard.entries.num_buckets() <= 512, "{}", shard.entries.num_buckets());
        assert!((901..=1_000).all(|index| has(&mut shard, index)));
    }

    #[test]
    fn a_full_shard_keeps_the_keys_that_have_rejected_a_call() {
        let mut shard = Shard::new(100);
        for index in 0..5 {
            decide(&mut shard, &WINDOW, index, 3, SECOND);
            assert!(!decide(&mut shard, &WINDOW, index, 1, SECOND).is_allowed());
        }
        for index in 1_000..5_000 {
            decide(&mut shard, &WINDOW, index, 1, SECOND);
        }
        assert_eq!((shard.len(), shard.rejecting), (100, 5));
        // Once most have, they make room.
        for index in 5_000..6_000 {
            decide(&mut shard, &WINDOW, index, 3, SECOND);
            decide(&mut shard, &WINDOW, index, 1, SECOND);
        }
        assert_eq!(shard.len(), 100);
        assert!((0..5).any(|index| !has(&mut shard, index)));
    }

    #[test]
    fn a_blocked_key_stays_until_most_of_a_full_shard_are_blocked() {
        let mut shard = Shard::new(100);
        for index in 0..50 {
            block(&mut shard, &WINDOW, index, 60 * SECOND, SECOND);
        }
        for index in 1_000..5_000 {
            decide(&mut shard, &WINDOW, index, 1, SECOND);
        }
        assert!((0..50).all(|index| has(&mut shard, index)));
        for index in 50..200 {
            block(&mut shard, &WINDOW, index, 60 * SECOND, SECOND);
        }
        assert_eq!(shard.len(), 100);
        // All blocks end.
        for index in 5_000..6_000 {
            decide(&mut shard, &WINDOW, index, 1, 61 * SECOND + index);
        }
        assert_eq!((shard.len(), shard.blocked), (100, 0));
    }

    #[test]
    fn a_blocked_key_rejects_until_the_later_of_its_block_and_its_limit() {
        let mut shard = Shard::new(100);
        decide(&mut shard, &WINDOW, 1, 3, SECOND);
        for (time, until, also_limited) in [(SECOND / 2, 2, true), (3 * SECOND, 4, false)] {
            block(&mut shard, &WINDOW, 1, time, SECOND);
            let outcome = decide(&mut shard, &WINDOW, 1, 1, SECOND);
            assert_eq!(outcome.verdict, Verdict::Blocked { also_limited });
            assert_eq!((outcome.remaining, outcome.retry_us), (0, (until - 1) * SECOND));
        }
        // The later end holds.
        assert!(block(&mut shard, &WINDOW, 1, SECOND, SECOND));
        assert_eq!(decide(&mut shard, &WINDOW, 1, 0, SECOND).retry_us, 3 * SECOND);
        let unblocked = decide(&mut shard, &WINDOW, 1, 1, 4 * SECOND);
        assert_eq!((unblocked.is_allowed(), unblocked.remaining, shard.blocked), (true, 2, 0));
    }

    #[test]
    fn a_bucket_refills_and_is_corrected_while_its_key_is_blocked() {
        let mut shard = Shard::new(100);
        let acquired = shard.apply(Op::ACQUIRE, charge(&BUCKET, 1, 10), SECOND);
        block(&mut shard, &BUCKET, 1, SECOND, SECOND);
        let settled = Op::Correct(Correction::settled(acquired.1, 10, 7));
        let settled = shard.apply(settled, charge(&BUCKET, 1, 0), SECOND);
        assert_eq!((settled.0.remaining, settled.0.reset_us), (0, SECOND));
        let measured = shard.apply(Op::Measure, charge(&BUCKET, 1, 0), SECOND);
        assert_eq!((measured.0.remaining, measured.0.retry_us), (7, SECOND));
        assert_eq!(measured.0.verdict, Verdict::Blocked { also_limited: false });
        let unblock = BlockChange::Unblock;
        assert!(shard.change_block(key_id(1), Algorithm::TokenBucket, unblock, 3 * SECOND / 2));
        assert_eq!(decide(&mut shard, &BUCKET, 1, 1, 3 * SECOND / 2).remaining, 7);
    }

    #[test]
    fn a_block_makes_an_entry_and_an_unblock_drops_an_unused_one() {
        let mut shard = Shard::new(100);
        assert!(!block(&mut shard, &WINDOW, 1, 0, SECOND) && shard.len() == 0);
        assert!(!block(&mut shard, &WINDOW, 1, SECOND, SECOND));
        assert_eq!((shard.len(), shard.blocked), (1, 1));
        let open = |shard: &mut Shard| {
            shard.change_block(key_id(1), Algorithm::Fixed, BlockChange::Unblock, SECOND)
        };
        assert!(open(&mut shard) && !open(&mut shard));
        assert_eq!((shard.len(), shard.blocked), (0, 0));
    }

    #[test]
    fn held_units_take_twice_the_capacity_and_no_more() {
        const SLOTS: Limit = Limit::in_flight("slots", 2);
        let mut shard = Shard::new(10);
        let acquire = |shard: &mut Shard, index| {
            let charge = charge(&SLOTS, index, 1);
            let has_place = shard.has_place(charge, true, SECOND);
            has_place.then(|| shard.apply(Op::ACQUIRE, charge, SECOND).1)
        };
        let held: Vec<_> = (0..20).map(|index| acquire(&mut shard, index).expect("held")).collect();
        assert!(acquire(&mut shard, 20).is_none());
        // Calls of these keys, and of limits of a rate, go on.
        assert!(acquire(&mut shard, 7).is_some());
        for index in 100..200 {
            assert!(decide(&mut shard, &WINDOW, index, 1, SECOND).is_allowed());
        }
        assert_eq!(shard.len(), 21);
        // Counts whose units have gone back make room.
        shard.slots(key_id(3)).expect("held").release(held[3], 1);
        shard.slots(key_id(4)).expect("held").release(held[4], 1);
        assert!(acquire(&mut shard, 20).is_some());
        assert!(has(&mut shard, 20) && shard.len() <= 20);
    }
}
