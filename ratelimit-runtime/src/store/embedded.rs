//! The embedded store: counts in this process, bounded in number, reclaimed as calls come.
//!
//! Keys are held as fingerprints under a secret of this store: a key of any length takes the same
//! space, and nobody can find two keys that meet without knowing the secret.

#![allow(
    clippy::inline_always,
    reason = "what a function returns through memory is read back slower than it was computed"
)]

#[cfg(all(test, loom))]
mod interleavings;
mod shard;
mod table;

use std::array;
use std::sync::PoisonError;
#[cfg(not(all(test, loom)))]
use std::sync::{Mutex, MutexGuard};

#[cfg(all(test, loom))]
use loom::sync::{Mutex, MutexGuard};

pub(crate) use self::shard::Held;
use self::shard::Shard;
use super::{OnReturn, Store};
use crate::algorithm::bucket::Bucket;
use crate::algorithm::{BucketOp, Op, Outcome, with_state};
use crate::check::Answer;
use crate::clock::Clock;
use crate::decision::{Answered, Decision, Source, Verdict};
use crate::error::StoreError;
use crate::key::{Key, KeyWriter, Secret};
use crate::limit::{BucketLimit, Limit};
use crate::part::Charge;
use crate::report;

/// Enough that threads rarely meet.
const SHARDS: usize = 64;

pub(crate) struct Embedded {
    shards: Box<[Mutex<Shard>; SHARDS]>,
    secret: Secret,
    /// The fingerprint of no key.
    nothing: u128,
    clock: Clock,
}

impl Embedded {
    /// A store of at most `max_keys` keys, rounded up to a multiple of the number of shards.
    pub(crate) fn new(max_keys: usize, clock: Clock) -> Self {
        let secret = Secret::random();
        Self {
            shards: Box::new(array::from_fn(|_| Mutex::new(Shard::new(max_keys.div_ceil(SHARDS))))),
            nothing: KeyWriter::fingerprint(&secret, &()),
            secret,
            clock,
        }
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Where the count of `key` is: its fingerprint.
    #[inline]
    pub(crate) fn place(&self, limit: &Limit, key: &(impl Key + ?Sized)) -> u128 {
        // No other limit has this one's; and it is not all ones, as one bit is neither of an identity nor
        // of a fingerprint.
        let fingerprint =
            if key.is_nothing() { self.nothing } else { KeyWriter::fingerprint(&self.secret, key) };
        limit.identity ^ fingerprint
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
    pub(crate) fn apply_at(&self, place: u128, op: Op, limit: &Limit, cost: u32) -> Outcome {
        with_state!(limit.algorithm(), S => self.apply_as::<S>(place, op, limit, cost))
    }

    /// The same, for the algorithm that keeps this state.
    #[inline(always)]
    pub(crate) fn apply_as<S: Held>(
        &self,
        place: u128,
        op: Op,
        limit: &Limit,
        cost: u32,
    ) -> Outcome {
        let clock = self.clock.local();
        let mut shard = self.shard(shard_of(place));
        let mut new = None::<S>;
        let outcome = shard.apply(shard::Ask { place, op, limit, clock, cost }, &mut new);
        if let Some(state) = new {
            add(shard, place, state, clock);
        }
        outcome
    }

    /// Books a moment of the bucket at `place`, or gives one back.
    pub(crate) fn apply_ahead(
        &self,
        place: u128,
        op: BucketOp,
        limit: &BucketLimit,
        cost: u32,
    ) -> Answered {
        let clock = self.clock.local();
        let mut shard = self.shard(shard_of(place));
        let mut new = None::<Bucket>;
        let outcome = shard.state(place, &mut new).apply_ahead(op, limit, clock, cost);
        if let Some(state) = new {
            add(shard, place, state, clock);
        }
        Answered { outcome, source: Source::Embedded }
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
                let Ask { limit, place, cost } = ask;
                let asked = shard::Ask { place: *place, op, limit, clock, cost: *cost };
                let outcome = with_state!(limit.algorithm(), S => {
                    let mut new = None::<S>;
                    let outcome = held[at].apply(asked, &mut new);
                    if let Some(state) = new {
                        held[at].add(*place, state, clock);
                    }
                    outcome
                });
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
    #[inline(always)]
    fn shard(&self, index: usize) -> MutexGuard<'_, Shard> {
        // A panic cannot leave a shard half changed: nothing under the lock calls foreign code.
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        let shards = self.shards.iter_mut().map(Mutex::get_mut);
        let shards = shards.map(|shard| shard.unwrap_or_else(PoisonError::into_inner));
        let held: usize = shards.map(|shard| shard.held()).sum();
        report::keys_changed(-(held as isize));
    }
}

#[inline(never)]
fn add<S: Held>(shard: MutexGuard<'_, Shard>, place: u128, state: S, now: u64) {
    change([shard], |[shard]| shard.add(place, state, now));
}

/// Changes shards, and tells how many keys came or went once the shards are free again: who is told
/// may be slow, and is foreign code.
fn change<'a, H, T>(mut held: H, work: impl FnOnce(&mut H) -> T) -> T
where
    H: AsRef<[MutexGuard<'a, Shard>]>,
{
    let count = |held: &H| held.as_ref().iter().map(|shard| shard.held()).sum::<usize>();
    let before = count(&held);
    let answer = work(&mut held);
    let after = count(&held);
    drop(held);
    report::keys_changed(after as isize - before as isize);
    answer
}

/// The shard of a place, by bits that are spread evenly. The tables inside are in the order of the
/// highest.
fn shard_of(place: u128) -> usize {
    (place >> 64) as usize % SHARDS
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

    fn apply_ahead(
        &self,
        op: BucketOp,
        limit: &BucketLimit,
        key: &dyn Key,
        cost: u32,
    ) -> Answer<Answered> {
        let place = self.place(limit, key);
        Answer::ready(Ok(Embedded::apply_ahead(self, place, op, limit, cost)))
    }

    fn apply_all(&self, parts: &[Charge<'_>], _: &dyn Fn() -> OnReturn) -> Answer<Verdict> {
        let asks = self.asks(parts);
        Answer::ready(self.apply_all_at(&asks, self.source()).ok_or(StoreError::NoLimits))
    }

    fn reset(&self, limit: &Limit, key: &dyn Key) -> Answer<()> {
        let place = self.place(limit, key);
        let shard = self.shard(shard_of(place));
        // Freed once the shard is free.
        drop(change([shard], |[shard]| shard.remove(limit.algorithm(), place)));
        Answer::ready(Ok(()))
    }

    fn ping(&self) -> Answer<()> {
        Answer::ready(Ok(()))
    }

    fn source(&self) -> Source {
        Source::Embedded
    }
}
