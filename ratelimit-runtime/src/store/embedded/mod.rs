//! The embedded store: counts in this process, bounded in number. It reclaims expired counts as new keys
//! arrive.
//!
//! The store keeps fingerprints of keys under a secret of its own. So a key of any length takes the same space, and
//! a client cannot find two keys that share a count.

#![allow(
    clippy::inline_always,
    reason = "an inlined result stays in registers (`benches/all -- embedded`)"
)]

#[cfg(all(test, loom))]
mod interleavings;
mod shard;
mod table;

use std::array;
use std::future::ready;
use std::sync::{Arc, PoisonError};
#[cfg(not(all(test, loom)))]
use std::sync::{Mutex, MutexGuard};

#[cfg(all(test, loom))]
use loom::sync::{Mutex, MutexGuard};

use self::shard::Shard;
pub(crate) use self::shard::{LocalCharge, StoredState};
use super::{
    CancelledUnits, Charge, EqualCalls, LineCounts, LineRequest, MAX_RESERVED, OneOrMany, Reply,
    Request, Reservations, SettledCharge, Store,
};
use crate::algorithm::bucket::Bucket;
use crate::algorithm::{
    BucketOp, Op, Outcome, Receipt, Settlement, State, match_algorithm, with_state,
};
use crate::clock::Clock;
use crate::key::{Key, KeyId, KeyWriter, Secret};
use crate::limit::Terms;
use crate::reply::{Source, StoreError};
use crate::report;

/// The number of shards: so many that threads rarely wait for a lock.
const SHARDS: usize = 64;

pub(crate) struct Embedded {
    shards: Box<[Mutex<Shard>; SHARDS]>,
    secret: Secret,
    /// The fingerprint of `()`, the key of a limit without a key.
    no_key: u128,
    clock: Clock,
}

impl Embedded {
    /// Creates a store of at most `max_keys` counts, rounded up to a multiple of the number of shards.
    pub(crate) fn new(max_keys: usize, clock: Clock) -> Self {
        let secret = Secret::random();
        Self {
            shards: Box::new(array::from_fn(|_| Mutex::new(Shard::new(max_keys.div_ceil(SHARDS))))),
            no_key: KeyWriter::fingerprint(&secret, &()),
            secret,
            clock,
        }
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    #[inline]
    pub(crate) fn key_id(&self, terms: &Terms, key: &(impl Key + ?Sized)) -> KeyId {
        let fingerprint =
            if key.is_nothing() { self.no_key } else { KeyWriter::fingerprint(&self.secret, key) };
        KeyId::new(terms.identity(), fingerprint)
    }

    /// Executes a request. The reply names `source`: this store, or a fallback to it.
    pub(crate) fn apply(&self, request: &Request, source: Source) -> Reply {
        let outcomes = match request {
            Request::Acquire(OneOrMany::One(charge)) => {
                let (outcome, receipt) = with_state!(charge.terms.algorithm(), S => {
                    self.acquire_as::<S>((&**charge).into())
                });
                let mut reply = Reply::one(outcome, source);
                if outcome.allowed {
                    reply.receipts = OneOrMany::One(receipt);
                }
                return reply;
            }
            Request::Acquire(OneOrMany::Many(charges)) => {
                let (outcomes, receipts) = self.acquire_many(charges);
                let receipts = OneOrMany::Many(receipts);
                return Reply { outcomes: OneOrMany::Many(outcomes), receipts, source };
            }
            Request::Apply(op, OneOrMany::One(charge)) => {
                OneOrMany::One(self.apply_one(*op, (&**charge).into()))
            }
            Request::Apply(op, OneOrMany::Many(charges)) => {
                OneOrMany::Many(self.apply_many(*op, charges))
            }
            Request::Line(line) => {
                let (outcomes, receipts) = self.apply_line(line);
                let (outcomes, receipts) = (OneOrMany::Many(outcomes), OneOrMany::Many(receipts));
                return Reply { outcomes, receipts, source };
            }
        };
        Reply::new(outcomes, source)
    }

    /// Applies an operation to one count.
    pub(crate) fn apply_one(&self, op: Op, charge: LocalCharge<'_>) -> Outcome {
        with_state!(charge.terms.algorithm(), S => self.apply_as::<S>(op, charge))
    }

    /// Applies an operation to one count, whose state is an `S`.
    #[inline(always)]
    pub(crate) fn apply_as<S: StoredState>(&self, op: Op, charge: LocalCharge<'_>) -> Outcome {
        let clock = self.clock.local();
        let mut shard = self.shard(shard_of(charge.key_id));
        let mut new = None::<S>;
        let outcome = shard.apply(op, charge, clock, &mut new);
        if let Some(state) = new {
            add(shard, charge.key_id, state, clock);
        }
        outcome
    }

    /// Decides a call of one count, whose state is an `S`. Its charge can be settled.
    #[inline(never)]
    pub(crate) fn acquire_as<S: StoredState>(&self, charge: LocalCharge<'_>) -> (Outcome, Receipt) {
        let clock = self.clock.local();
        let mut shard = self.shard(shard_of(charge.key_id));
        let mut new = None::<S>;
        let acquired = shard.acquire(charge, clock, &mut new);
        if let Some(state) = new {
            add(shard, charge.key_id, state, clock);
        }
        acquired
    }

    /// Corrects a charge.
    pub(crate) fn settle_one(&self, charge: LocalCharge<'_>, settlement: Settlement) -> Outcome {
        let LocalCharge { key_id, terms, .. } = charge;
        with_state!(terms.algorithm(), S => {
            let clock = self.clock.local();
            let mut shard = self.shard(shard_of(key_id));
            let mut new = None::<S>;
            let outcome = shard.state(key_id, &mut new).settle(settlement, terms, clock);
            if let Some(state) = new {
                add(shard, key_id, state, clock);
            }
            outcome
        })
    }

    /// Decides a call whose charges can be settled. Without receipts if it is rejected. Twin of `lua/all.lua`.
    fn acquire_many(&self, charges: &[Arc<Charge>]) -> (Vec<Outcome>, Vec<Receipt>) {
        self.with_counts(charges, |apply| {
            let mut apply_all = |op| -> (Vec<Outcome>, Vec<Receipt>) {
                let apply = |(index, charge): (usize, &Arc<Charge>)| apply(index, op, charge.cost);
                charges.iter().enumerate().map(apply).unzip()
            };
            let (peeked, _) = apply_all(CountOp::Apply(Op::Peek));
            let fits = peeked.iter().all(|outcome| outcome.allowed);
            if fits { apply_all(CountOp::Acquire) } else { (peeked, Vec::new()) }
        })
    }

    /// Applies an operation to several counts. Twin of `lua/all.lua`.
    fn apply_many(&self, op: Op, charges: &[Arc<Charge>]) -> Vec<Outcome> {
        self.with_counts(charges, |apply| {
            let mut apply_all = |op| {
                let op = CountOp::Apply(op);
                let apply =
                    |(index, charge): (usize, &Arc<Charge>)| apply(index, op, charge.cost).0;
                charges.iter().enumerate().map(apply).collect()
            };
            match op {
                Op::Decide => {
                    let peeked: Vec<Outcome> = apply_all(Op::Peek);
                    let fits = peeked.iter().all(|outcome| outcome.allowed);
                    if fits { apply_all(Op::Decide) } else { peeked }
                }
                Op::Peek | Op::Refund | Op::Return { .. } => apply_all(op),
            }
        })
    }

    /// Decides the calls of a line. Returns the receipts of the admitted calls if their charges can be settled. Twin of
    /// `lua/line.lua`.
    fn apply_line(
        &self,
        LineRequest { counts, calls, settles }: &LineRequest,
    ) -> (Vec<Outcome>, Vec<Receipt>) {
        let mut receipts = Vec::new();
        match counts {
            LineCounts::Each(charges) => self.with_counts(charges, |apply| {
                let decide = if *settles { CountOp::Acquire } else { CountOp::Apply(Op::Decide) };
                let mut outcomes = Vec::new();
                for EqualCalls { costs, count, .. } in calls {
                    for _ in 0..*count {
                        let mut apply_all = |op| -> (Vec<Outcome>, Vec<Receipt>) {
                            let apply = |(index, cost): (usize, &u32)| apply(index, op, *cost);
                            costs.iter().enumerate().map(apply).unzip()
                        };
                        let (peeked, _) = apply_all(CountOp::Apply(Op::Peek));
                        if !peeked.iter().all(|outcome| outcome.allowed) {
                            outcomes.extend(peeked);
                            return (outcomes, receipts);
                        }
                        let (decided, of_charges) = apply_all(decide);
                        outcomes.extend(decided);
                        if *settles {
                            receipts.extend(of_charges);
                        }
                    }
                }
                (outcomes, receipts)
            }),
            LineCounts::Bucket(bucket, reservations) => {
                let Charge { terms, key_id, .. } = &**bucket.charge();
                let clock = self.clock.local();
                let mut shard = self.shard(shard_of(*key_id));
                let birth = shard.birth();
                let mut new = None::<Bucket>;
                let state = shard.state(*key_id, &mut new);
                let outcomes = reserve(*reservations, calls, |op, cost| {
                    let outcome = state.apply_ahead(op, terms, clock, cost);
                    if *settles && outcome.allowed && matches!(op, BucketOp::Reserve { .. }) {
                        receipts.push(if cost > 0 {
                            state.mark(birth)
                        } else {
                            Receipt::default()
                        });
                    }
                    outcome
                });
                if let Some(state) = new {
                    add(shard, *key_id, state, clock);
                }
                (outcomes, receipts)
            }
        }
    }

    /// Locks the shards of several counts. Passes a function to `work` that applies an operation to the count with an
    /// index.
    fn with_counts<T>(
        &self,
        charges: &[Arc<Charge>],
        work: impl FnOnce(&mut dyn FnMut(usize, CountOp, u32) -> (Outcome, Receipt)) -> T,
    ) -> T {
        let clock = self.clock.local();
        // Every call locks shards in ascending order, so no two calls wait for each other.
        let mut indices: Vec<_> = charges.iter().map(|charge| shard_of(charge.key_id)).collect();
        indices.sort_unstable();
        indices.dedup();
        let shards: Vec<_> = indices.iter().map(|index| self.shard(*index)).collect();
        change(shards, |shards| {
            work(&mut |index, op, cost| {
                let charge = &charges[index];
                let at = indices.binary_search(&shard_of(charge.key_id)).unwrap_or(0);
                with_state!(charge.terms.algorithm(), S => {
                    let mut new = None::<S>;
                    let charge = LocalCharge { cost, ..(&**charge).into() };
                    let applied = match op {
                        CountOp::Apply(op) => {
                            let outcome = shards[at].apply(op, charge, clock, &mut new);
                            (outcome, Receipt::default())
                        }
                        CountOp::Acquire => shards[at].acquire(charge, clock, &mut new),
                    };
                    if let Some(state) = new {
                        shards[at].add(charge.key_id, state, clock);
                    }
                    applied
                })
            })
        })
    }

    /// Removes a count, and returns whether it was there.
    pub(crate) fn remove(&self, terms: &Terms, key_id: KeyId) -> bool {
        let shard = self.shard(shard_of(key_id));
        // A long log takes milliseconds to free, so it is dropped after the shard is unlocked.
        change([shard], |[shard]| shard.remove(terms.algorithm(), key_id)).is_some()
    }

    /// Locks a shard. The caller holds the lock for the arithmetic only.
    #[inline(always)]
    fn shard(&self, index: usize) -> MutexGuard<'_, Shard> {
        // A panic leaves no shard half changed, because no foreign code runs under the lock.
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        let shards = self.shards.iter_mut().map(Mutex::get_mut);
        let shards = shards.map(|shard| shard.unwrap_or_else(PoisonError::into_inner));
        let len: usize = shards.map(|shard| shard.len()).sum();
        report::keys_changed(-(len as isize));
    }
}

/// An operation on one of several counts.
#[derive(Clone, Copy)]
enum CountOp {
    Apply(Op),
    /// Decides a call whose charge can be settled.
    Acquire,
}

/// Cancels and reserves moments of a bucket. `apply` applies an operation to it.
fn reserve(
    Reservations { cancelled, mut held, most }: Reservations,
    calls: &[EqualCalls],
    mut apply: impl FnMut(BucketOp, u32) -> Outcome,
) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    if let Some(CancelledUnits { units, end }) = cancelled {
        let outcome = apply(BucketOp::Cancel { end }, units);
        outcomes.push(outcome);
        if !outcome.allowed {
            return outcomes;
        }
    }
    let mut reserved = 0;
    for EqualCalls { costs, count, wait } in calls {
        let cost = costs.first().copied().unwrap_or(0);
        for _ in 0..*count {
            let may_reserve = held == 0 || held.saturating_add(cost) <= most;
            let wait = if may_reserve { *wait } else { 0 };
            let outcome = apply(BucketOp::Reserve { wait }, cost);
            outcomes.push(outcome);
            if !outcome.allowed {
                return outcomes;
            }
            if outcome.retry_us > 0 {
                held = held.saturating_add(cost);
                reserved += 1;
                if reserved == MAX_RESERVED {
                    return outcomes;
                }
            }
        }
    }
    outcomes
}

#[inline(never)]
fn add<S: StoredState>(shard: MutexGuard<'_, Shard>, key_id: KeyId, state: S, now: u64) {
    change([shard], |[shard]| shard.add(key_id, state, now));
}

/// Changes shards, unlocks them, and then reports the change in the number of counts. The report is last, because
/// the recorder of metrics is foreign code and may be slow.
fn change<'a, H, T>(mut shards: H, work: impl FnOnce(&mut H) -> T) -> T
where
    H: AsRef<[MutexGuard<'a, Shard>]>,
{
    let count = |shards: &H| shards.as_ref().iter().map(|shard| shard.len()).sum::<usize>();
    let before = count(&shards);
    let result = work(&mut shards);
    let after = count(&shards);
    drop(shards);
    report::keys_changed(after as isize - before as isize);
    result
}

/// Returns the shard of a count, from bits that are spread evenly. These are not the highest bits, by which the
/// tables in a shard are sorted.
fn shard_of(key_id: KeyId) -> usize {
    (key_id.bits() >> 64) as usize % SHARDS
}

impl Store for Embedded {
    fn execute(&self, request: Request) -> impl Future<Output = Result<Reply, StoreError>> + Send {
        ready(Ok(self.apply(&request, self.source())))
    }

    fn settle(
        &self,
        charges: Vec<SettledCharge>,
    ) -> impl Future<Output = Vec<Result<Outcome, StoreError>>> + Send {
        let settle = |SettledCharge { charge, settlement }: &SettledCharge| {
            Ok(self.settle_one((&**charge).into(), *settlement))
        };
        ready(charges.iter().map(settle).collect())
    }

    fn reset(&self, charge: &Charge) -> impl Future<Output = Result<bool, StoreError>> + Send {
        ready(Ok(self.remove(&charge.terms, charge.key_id)))
    }

    fn ping(&self) -> impl Future<Output = Result<(), StoreError>> + Send {
        ready(Ok(()))
    }

    fn count_name(&self, _: &Terms, _: &dyn Key) -> Vec<u8> {
        Vec::new()
    }

    fn source(&self) -> Source {
        Source::Embedded
    }
}
