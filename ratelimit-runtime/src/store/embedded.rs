//! The embedded store: counts in this process, bounded in number, reclaimed as calls come.
//!
//! Keys are held as 128-bit `SipHash` fingerprints under a secret of this store: a key of any length
//! costs the same, and nobody can find two keys that meet without knowing the secret.

#![allow(
    clippy::inline_always,
    reason = "what a function returns through memory is read back slower than it was computed"
)]

#[cfg(all(test, loom))]
mod interleavings;

use std::hash::{BuildHasherDefault, Hasher, RandomState};
use std::sync::PoisonError;
#[cfg(not(all(test, loom)))]
use std::sync::{Mutex, MutexGuard};

use indexmap::IndexMap;
#[cfg(all(test, loom))]
use loom::sync::{Mutex, MutexGuard};
use siphasher::sip128::SipHasher13;

use super::Store;
use crate::algorithm::{Op, Outcome, State};
use crate::check::Answer;
use crate::clock::Clock;
use crate::decision::{Answered, Decision, Source, Verdict};
use crate::error::StoreError;
use crate::key::{Key, KeyWriter};
use crate::limit::Limit;
use crate::part::Charge;
use crate::report;

/// Enough that threads rarely meet; a power of two.
const SHARDS: usize = 64;

/// How many entries the arrival of a new key looks at for reclaiming: more than one, so that
/// expired entries are found faster than new ones arrive.
const SWEEP: usize = 3;

/// How many entries of a full shard an eviction chooses from.
const SAMPLE: usize = 5;

pub(crate) struct Embedded {
    shards: Box<[Mutex<Shard>]>,
    secret: SipHasher13,
    clock: Clock,
}

struct Shard {
    entries: IndexMap<u128, Entry, BuildHasherDefault<AlreadyHashed>>,
    /// How many entries it holds at most.
    capacity: usize,
    /// Where the next sweep goes on.
    hand: usize,
}

struct Entry {
    state: State,
    /// When the state will have become useless.
    expires: u64,
}

impl Embedded {
    /// A store of at most `max_keys` keys, rounded up to a multiple of the number of shards.
    pub(crate) fn new(max_keys: usize, clock: Clock) -> Self {
        let random = RandomState::new();
        let word = |salt: u8| std::hash::BuildHasher::hash_one(&random, salt);
        Self {
            shards: (0..SHARDS)
                .map(|_| Mutex::new(Shard::new(max_keys.div_ceil(SHARDS))))
                .collect(),
            secret: SipHasher13::new_with_keys(word(0), word(1)),
            clock,
        }
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Where the count of `key` is: its fingerprint.
    pub(crate) fn place(&self, limit: &Limit, key: &dyn Key) -> u128 {
        limit.identity ^ KeyWriter::fingerprint(&self.secret, key)
    }

    /// The parts of a call, with their keys looked up.
    pub(crate) fn asks(&self, parts: &[Charge<'_>]) -> Vec<Ask> {
        let ask = |part: &Charge<'_>| {
            let place = self.place(part.limit, part.key);
            Ask { limit: *part.limit, place, cost: part.cost }
        };
        parts.iter().map(ask).collect()
    }

    /// Answers `op` about the key at `place`.
    #[inline]
    pub(crate) fn apply_at(&self, place: u128, op: Op, limit: &Limit, cost: u32) -> Outcome {
        let clock = self.clock.local();
        let mut shard = self.shard(shard_of(place));
        if let Some(outcome) = shard.apply_known(place, op, limit, clock, cost) {
            return outcome;
        }
        change([shard], |[shard]| shard.apply_new(place, op, limit, clock, cost))
    }

    /// Answers several limits together; their places are all different. Twin of `lua/all.lua`.
    pub(crate) fn apply_all_at(&self, asks: &[Ask], source: Source) -> Option<Verdict> {
        let clock = self.clock.local();
        // In ascending order, as everybody locks them, so that nobody waits for another in turn.
        let mut indices: Vec<_> = asks.iter().map(|ask| shard_of(ask.place)).collect();
        indices.sort_unstable();
        indices.dedup();
        let held: Vec<_> = indices.iter().map(|index| self.shard(*index)).collect();
        change(held, |held| {
            let mut answer = |op, ask: &Ask| {
                let at = indices.binary_search(&shard_of(ask.place)).unwrap_or(0);
                let outcome = held[at].apply(ask.place, op, &ask.limit, clock, ask.cost);
                let decision = Decision::new(ask.limit.capacity(), Answered { outcome, source });
                Verdict::new(&ask.limit, decision)
            };

            let verdict = asks.iter().map(|ask| answer(Op::Peek, ask)).reduce(Verdict::harder)?;
            if !verdict.decision.allowed {
                return Some(verdict);
            }
            asks.iter().map(|ask| answer(Op::Decide, ask)).reduce(Verdict::harder)
        })
    }

    /// A shard; held for the arithmetic only.
    fn shard(&self, index: usize) -> MutexGuard<'_, Shard> {
        // A panic cannot leave a shard half changed: nothing under the lock calls foreign code.
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        let shards = self.shards.iter_mut().map(Mutex::get_mut);
        let shards = shards.map(|shard| shard.unwrap_or_else(PoisonError::into_inner));
        let held: usize = shards.map(|shard| shard.entries.len()).sum();
        report::keys_changed(-(held as isize));
    }
}

/// Changes shards, and tells how many keys came or went once the shards are free again: who is told
/// may be slow, and is foreign code.
fn change<'a, H, T>(mut held: H, work: impl FnOnce(&mut H) -> T) -> T
where
    H: AsRef<[MutexGuard<'a, Shard>]>,
{
    let count = |held: &H| held.as_ref().iter().map(|shard| shard.entries.len()).sum::<usize>();
    let before = count(&held);
    let answer = work(&mut held);
    let after = count(&held);
    drop(held);
    report::keys_changed(after as isize - before as isize);
    answer
}

/// The shard of a key. The table inside uses the low bits.
fn shard_of(place: u128) -> usize {
    (place >> 122) as usize % SHARDS
}

/// One limit among several, with the key already looked up; see [`Charge`].
pub(crate) struct Ask {
    pub(crate) limit: Limit,
    pub(crate) place: u128,
    pub(crate) cost: u32,
}

impl Store for Embedded {
    fn apply(&self, op: Op, limit: &Limit, key: &dyn Key, cost: u32) -> Answer<Answered> {
        let outcome = self.apply_at(self.place(limit, key), op, limit, cost);
        Answer::ready(Ok(Answered { outcome, source: self.source() }))
    }

    fn apply_all(&self, parts: &[Charge<'_>]) -> Answer<Verdict> {
        let asks = self.asks(parts);
        Answer::ready(self.apply_all_at(&asks, self.source()).ok_or(StoreError::NoLimits))
    }

    fn reset(&self, limit: &Limit, key: &dyn Key) -> Answer<()> {
        let place = self.place(limit, key);
        let shard = self.shard(shard_of(place));
        change([shard], |[shard]| shard.entries.swap_remove(&place));
        Answer::ready(Ok(()))
    }

    fn source(&self) -> Source {
        Source::Embedded
    }
}

impl Shard {
    fn new(capacity: usize) -> Self {
        Self { entries: IndexMap::default(), capacity, hand: 0 }
    }

    fn apply(&mut self, place: u128, op: Op, limit: &Limit, clock: u64, cost: u32) -> Outcome {
        self.apply_known(place, op, limit, clock, cost)
            .unwrap_or_else(|| self.apply_new(place, op, limit, clock, cost))
    }

    /// Answers about a key that is here.
    #[inline(always)]
    fn apply_known(
        &mut self,
        place: u128,
        op: Op,
        limit: &Limit,
        clock: u64,
        cost: u32,
    ) -> Option<Outcome> {
        let entry = self.entries.get_mut(&place)?;
        let (outcome, expires) = entry.state.apply(op, limit, clock, cost);
        entry.expires = expires.unwrap_or(entry.expires);
        Some(outcome)
    }

    /// Answers about a key that is not.
    fn apply_new(&mut self, place: u128, op: Op, limit: &Limit, clock: u64, cost: u32) -> Outcome {
        let mut state = State::new(limit);
        let (outcome, expires) = state.apply(op, limit, clock, cost);
        if let Some(expires) = expires.filter(|expires| *expires > 0) {
            self.make_room(clock, place as usize);
            self.entries.insert(place, Entry { state, expires });
        }
        outcome
    }

    /// Reclaims a few entries that have become useless, and if the shard is full all the same,
    /// evicts one. `spread` is any number that differs from call to call.
    fn make_room(&mut self, now: u64, spread: usize) {
        for _ in 0..SWEEP {
            if self.hand >= self.entries.len() {
                self.hand = 0;
            }
            match self.entries.get_index(self.hand) {
                Some((_, entry)) if entry.expires <= now => {
                    self.entries.swap_remove_index(self.hand);
                }
                _ => self.hand += 1,
            }
        }
        let held = self.entries.len();
        if held >= self.capacity {
            // The one of a sample that would have become useless first; taken from all over the
            // shard, since neighbours came together and may be of one limit.
            let sample = (0..SAMPLE).map(|part| (spread % held + part * held / SAMPLE) % held);
            let victim = sample.min_by_key(|index| self.entries[*index].expires);
            self.entries.swap_remove_index(victim.unwrap_or(0));
        }
    }
}

/// A fingerprint is a hash: hashing it again would spend time for nothing.
#[derive(Default)]
struct AlreadyHashed(u64);

impl Hasher for AlreadyHashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys of the table are u128")
    }

    fn write_u128(&mut self, fingerprint: u128) {
        self.0 = fingerprint as u64;
    }
}
