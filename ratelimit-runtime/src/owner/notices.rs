//! Notifies the other rooms of counts that have changed: calls wait for units that go back, a rejection that is cached
//! does not hold any more, and leased units of a key that is blocked go back.
//!
//! While Redis does not know yet of a key that this process blocks, the process rejects its calls by itself.
//!
//! The rejection cache: rejections of the shared store that still hold. A client that retries too early is
//! rejected from the cache, without a request.
//!
//! A rejection of a call of cost 1 holds until its `retry_after` has passed, unless units are given back: other
//! calls cannot end it earlier. If this limiter gives units back, the cache removes the entry at once. If another
//! process gives units back or resets the count, the entry expires after a second at most.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use once_cell::sync::OnceCell;

use crate::algorithm::{BlockChange, Correction, Outcome, Verdict};
use crate::key::KeyId;
use crate::limit::Terms;
use crate::reply::Source;
use crate::store::{Charge, Reply};
use crate::threads::{AtomicU64, Mutex, lock};

/// The rejection cache, and the listeners to units that go back and to blocks.
pub(crate) struct Notices {
    pub(crate) rejections: RejectionCache,
    /// Called with each count to which this process has given units back, and each key that it has blocked, unblocked
    /// or reset.
    pub(crate) on_return: OnceCell<Box<dyn Fn(KeyId, BlockChange) + Send + Sync>>,
    /// Called with each key that this process blocks: once the process obeys, and again once the shared store has
    /// blocked the key.
    pub(crate) on_block: OnceCell<Box<dyn Fn(KeyId) + Send + Sync>>,
}

impl Notices {
    /// Creates a value without listeners. `caches_rejections` says whether the rejections of a shared store are cached.
    pub(crate) fn new(caches_rejections: bool) -> Arc<Self> {
        let cells = (0..if caches_rejections { CELLS } else { 0 }).map(|_| Mutex::new(None));
        let rejections = RejectionCache { cells: cells.collect(), returns: AtomicU64::new(0) };
        Arc::new(Self { rejections, on_return: OnceCell::new(), on_block: OnceCell::new() })
    }

    /// Removes the cached rejection of a count, and notifies of its units.
    #[inline]
    pub(crate) fn returned(&self, key_id: KeyId, change: BlockChange) {
        self.rejections.forget(key_id);
        if let Some(listener) = self.on_return.get() {
            listener(key_id, change);
        }
    }

    /// Notifies of units of a count that may be free now.
    #[inline]
    pub(crate) fn released(&self, key_id: KeyId) {
        self.returned(key_id, BlockChange::None);
    }

    /// Notifies of a charge that was corrected, or may have been.
    pub(crate) fn corrected(&self, key_id: KeyId, correction: Correction) {
        if correction.less() > 0 {
            self.released(key_id);
        } else {
            // A debt makes the wait longer.
            self.rejections.forget(key_id);
        }
    }

    /// Notifies that a key was blocked, unblocked or reset: waiting calls ask again, and leased units of a blocked key
    /// go back.
    pub(crate) fn changed(&self, key_id: KeyId, change: BlockChange) {
        if let (BlockChange::BlockFor(_), Some(listener)) = (change, self.on_block.get()) {
            listener(key_id);
        }
        if change != BlockChange::None {
            self.returned(key_id, change);
        }
    }
}

/// The number of cells; a power of two. A cell has one entry, and a new entry replaces it.
const CELLS: usize = 1024;

/// The longest time for which an entry is kept, in microseconds.
const LIFETIME: u64 = 1_000_000;

pub(crate) struct RejectionCache {
    cells: Box<[Mutex<Option<CachedRejection>>]>,
    /// The number of give-backs so far.
    returns: AtomicU64,
}

struct CachedRejection {
    key_id: KeyId,
    terms: Terms,
    outcome: Outcome,
    /// The time at which the reply was received, by the clock of this process.
    received: u64,
    /// The time until which the rejection certainly holds.
    until: u64,
}

/// The time of a request, by the clock of this process, and the number of give-backs before it.
#[derive(Clone, Copy)]
pub(crate) struct RequestStamp {
    sent: u64,
    returns: u64,
}

impl RejectionCache {
    /// Returns the rejection of a call of cost 1 if one is cached at the time `now`.
    pub(crate) fn get(&self, terms: &Terms, key_id: KeyId, now: u64) -> Option<Reply> {
        let cell = lock(self.cell(key_id)?);
        let cached = cell.as_ref()?;
        let holds = (cached.received..cached.until).contains(&now)
            && cached.key_id == key_id
            && cached.terms == *terms;
        holds.then(|| {
            let passed = now - cached.received;
            let outcome = Outcome {
                retry_us: cached.outcome.retry_us - passed,
                reset_us: cached.outcome.reset_us.saturating_sub(passed),
                ..cached.outcome
            };
            Reply::one(outcome, Source::Cache)
        })
    }

    /// Returns the stamp of a request that is about to be sent.
    pub(crate) fn stamp(&self, now: u64) -> RequestStamp {
        RequestStamp { sent: now, returns: self.returns.load(Ordering::SeqCst) }
    }

    /// Caches the outcome of a decision if it is a rejection by Redis.
    pub(crate) fn record(
        &self,
        charge: &Charge,
        stamp: RequestStamp,
        now: u64,
        outcome: &Outcome,
        source: Source,
    ) {
        let Some(cell) = self.cell(charge.key_id) else { return };
        if outcome.is_allowed() {
            // Removes an older entry: after a step of the clock backwards, it would hold again.
            *lock(cell) = None;
            return;
        }
        if charge.cost != 1 || source != Source::Redis {
            return;
        }
        // Once the block ends, the call is rejected for another reason.
        if outcome.verdict == (Verdict::Blocked { also_limited: true }) {
            return;
        }
        // The store decided between `sent` and now, by a clock that may run a little faster. If the clock of this
        // process has stepped back since, `sent` is later than now, and the rejection would be kept for longer than it
        // holds.
        let certain = outcome.retry_us - outcome.retry_us / 1_000;
        let until = stamp.sent.min(now).saturating_add(certain.min(LIFETIME));
        let mut cell = lock(cell);
        // If units were given back since the stamp, the rejection may no longer hold.
        if stamp.returns == self.returns.load(Ordering::SeqCst) && until > now {
            *cell = Some(CachedRejection {
                key_id: charge.key_id,
                terms: charge.terms,
                outcome: *outcome,
                received: now,
                until,
            });
        }
    }

    /// Removes the rejection of a count after units were given back to it.
    #[inline]
    pub(crate) fn forget(&self, key_id: KeyId) {
        // Without cells, nothing reads the number: saves its atomic change (`benches/all -- in-flight`).
        let Some(cell) = self.cell(key_id) else { return };
        // Before the cell is locked: a `record` that does not see the number yet comes first, and is cleared.
        self.returns.fetch_add(1, Ordering::SeqCst);
        *lock(cell) = None;
    }

    fn cell(&self, key_id: KeyId) -> Option<&Mutex<Option<CachedRejection>>> {
        self.cells.get((key_id.bits() >> 64) as usize % CELLS)
    }
}

/// Tries every order of threads. CONTRIBUTING.md describes how to run these tests.

#[cfg(all(test, loom))]
mod interleavings {
    use std::time::Duration;

    use loom::sync::Arc;
    use loom::thread::spawn;

    use super::*;
    use crate::limit::Limit;

    const ONCE: Limit = Limit::fixed("once", 1, Duration::from_secs(3600));
    const KEY: KeyId = KeyId::from_bits(0);
    const NOW: u64 = 1_000_000;

    /// Returns a cache of one cell, which has the key.
    fn cache() -> Arc<RejectionCache> {
        let cells = Box::new([Mutex::new(None)]);
        Arc::new(RejectionCache { cells, returns: AtomicU64::new(0) })
    }

    fn record(cache: &RejectionCache, stamp: RequestStamp) {
        let charge = Charge {
            terms: *ONCE.terms(),
            key_id: KEY,
            count_name: Vec::new(),
            cost: 1,
            statement: None,
        };
        let verdict = Verdict::Rejected;
        let outcome = Outcome { verdict, retry_us: 500_000, ..Outcome::UNDECIDED };
        cache.record(&charge, stamp, NOW, &outcome, Source::Redis);
    }

    fn is_cached(cache: &RejectionCache) -> bool {
        cache.get(ONCE.terms(), KEY, NOW).is_some()
    }

    #[test]
    fn a_rejection_from_before_a_give_back_is_not_kept() {
        loom::model(|| {
            let cache = cache();
            let stamp = cache.stamp(NOW);
            let threads = [
                spawn({
                    let cache = Arc::clone(&cache);
                    move || record(&cache, stamp)
                }),
                spawn({
                    let cache = Arc::clone(&cache);
                    move || cache.forget(KEY)
                }),
            ];
            for thread in threads {
                thread.join().expect("no panic");
            }
            assert!(!is_cached(&cache));
            record(&cache, cache.stamp(NOW));
            assert!(is_cached(&cache), "a rejection from after it");
        });
    }
}
