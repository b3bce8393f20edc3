//! The limits that this process knows, for its operators. An annotated limit is registered by its first call, with the
//! number of calls that it has decided. The others are registered without that number: a limit of a layer when the
//! layer is built, a limit that code checks by hand when it first rejects a call, or when a call first looks for its
//! rules.
//!
//! The limits that are not annotated: those of layers, and those that code checks by hand. Bounded, because code can
//! make any number of limits.
//!
//! How many calls each annotated limit has decided.
//!
//! The counts are in shards, and each thread writes to one of them. Threads that count at the same time rarely share a
//! cache line, and no thread waits for a lock (`benches/all -- instructions`).

use std::array;
use std::iter;
#[cfg(feature = "tower")]
use std::panic::Location;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::limit::Limit;

/// The annotated limits, in the order of their first calls.
static SEEN: Mutex<Vec<RegisteredLimit>> = Mutex::new(Vec::new());

/// A limit of this process.
#[derive(Clone, Debug)]
pub(crate) struct RegisteredLimit {
    /// If each call computes the amounts, they are 1 here.
    pub(crate) limit: Limit,
    /// The file, the line and the column; empty if code checks the limit by hand.
    pub(crate) place: &'static str,
    /// Whether each call computes the threshold or the burst.
    pub(crate) is_computed: bool,
}

/// Returns all limits: first the annotated ones, in the order of their first calls, then the others.
#[cfg(feature = "rules")]
pub(crate) fn limits() -> Vec<RegisteredLimit> {
    let (mut limits, mut others) = (seen().clone(), lock().limits.clone());
    others.retain(|other| !limits.iter().any(|limit| limit.shares_count(&other.limit)));
    limits.append(&mut others);
    limits
}

/// Returns the annotated limits with the counts of their calls.
pub(crate) fn limits_with_counts() -> Vec<(RegisteredLimit, CallCounts)> {
    let limits = seen().clone().into_iter().enumerate();
    limits.map(|(index, limit)| (limit, counts(index))).collect()
}

/// Returns a number that grows with each change of the registered limits.
#[cfg(feature = "rules")]
pub(crate) fn version() -> usize {
    seen().len() + lock().version
}

/// Adds an annotated limit. Returns its index, and the first one with the same name, algorithm and period, if there is
/// one.
pub(crate) fn add(added: RegisteredLimit) -> (usize, Option<RegisteredLimit>) {
    let mut seen = seen();
    let shares_name = |other: &&RegisteredLimit| {
        let (one, other) = (added.limit.terms(), other.limit.terms());
        one.name() == other.name()
            && one.algorithm() == other.algorithm()
            && one.period() == other.period()
    };
    let first = seen.iter().find(shares_name).cloned();
    seen.push(added);
    (seen.len() - 1, first)
}

impl RegisteredLimit {
    /// Returns whether calls of another limit have the same counts.
    fn shares_count(&self, limit: &Limit) -> bool {
        self.limit.terms().identity() == limit.terms().identity()
    }
}

fn seen() -> MutexGuard<'static, Vec<RegisteredLimit>> {
    SEEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The most limits that are kept.
const MOST: usize = 256;

static OTHERS: Mutex<Others> = Mutex::new(Others { limits: Vec::new(), version: 0 });

struct Others {
    limits: Vec<RegisteredLimit>,
    version: usize,
}

/// Registers a limit of a layer.
#[cfg(feature = "tower")]
pub(crate) fn add_of_layer(limit: &Limit, place: &'static Location<'static>) {
    lock().add(limit, || {
        // Leaked once for each limit, of which there are few.
        format!("{}:{}:{}", place.file(), place.line(), place.column()).leak()
    });
}

/// Registers a limit of a call, if it is not registered. Returns whether its calls have different amounts, as far as it
/// is known.
#[cold]
pub(crate) fn see(limit: &Limit) -> bool {
    // Annotated limits were registered by their first calls.
    seen().iter().any(|annotated| annotated.shares_count(limit)) || lock().see(limit)
}

impl Others {
    /// Adds a limit, unless it is there.
    fn add(&mut self, limit: &Limit, place: impl FnOnce() -> &'static str) {
        let is_known = self.limits.iter().any(|other| other.shares_count(limit));
        if is_known || self.limits.len() >= MOST {
            return;
        }
        // A rule, or a computed amount, as 0 always is: neither is what the code says of each call.
        let is_computed = limit.varies() || limit.threshold() == 0;
        let limit = if is_computed { without_amounts(limit) } else { *limit };
        self.limits.push(RegisteredLimit { limit, place: place(), is_computed });
        self.version += 1;
    }

    /// Adds the limit of a call, unless it is there. Returns whether its calls have different amounts.
    fn see(&mut self, limit: &Limit) -> bool {
        self.add(limit, || "");
        let Some(known) = self.limits.iter_mut().find(|other| other.shares_count(limit)) else {
            return true;
        };
        let has_other_amounts = (known.limit.threshold(), known.limit.capacity())
            != (limit.threshold(), limit.capacity());
        if !known.is_computed && !limit.varies() && has_other_amounts {
            known.is_computed = true;
            known.limit = without_amounts(limit);
            self.version += 1;
        }
        known.is_computed
    }
}

/// Returns a limit of which each call computes the amounts: they are 1.
fn without_amounts(limit: &Limit) -> Limit {
    limit.try_amounts(1, None).unwrap_or(*limit)
}

fn lock() -> MutexGuard<'static, Others> {
    OTHERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number of shards. Threads take them in turn.
pub(crate) const SHARDS: usize = 16;

/// The number of limits in the first chunk. Each chunk has twice as many limits as the one before.
const FIRST_CHUNK: usize = 16;

/// Enough chunks for all indexes of a `Vec` of limits.
const CHUNKS: usize = 48;

/// The counts of all limits. Chunks never move, so counting needs no lock.
static TALLIES: [OnceLock<Chunk>; CHUNKS] = [const { OnceLock::new() }; CHUNKS];

/// The number of threads that have counted.
static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static SHARD: usize = THREADS.fetch_add(1, Relaxed) % SHARDS;
}

/// The counts of some limits, shard by shard.
type Chunk = [Box<[Tally]>; SHARDS];

/// How many calls an annotated limit has decided since the process started, as their callers saw it: a call that a
/// shadow or `on_error` admits is admitted. A call that still waits, or was dropped, is not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallCounts {
    /// The calls that ran.
    pub admitted: u64,
    /// The calls that this limit has rejected. If several limits are decided together, only the limit that the
    /// [`Rejection`](crate::Rejection) names counts the call.
    pub rejected: u64,
    /// The calls that were rejected without a decision: [`Rejection::Unavailable`] and [`Rejection::Mistake`].
    ///
    /// [`Rejection::Unavailable`]: crate::Rejection::Unavailable
    /// [`Rejection::Mistake`]: crate::Rejection::Mistake
    pub undecided: u64,
}

/// How a call has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CallEnd {
    Admitted,
    Rejected,
    Undecided,
}

/// The counts of one limit in one shard.
#[derive(Default)]
struct Tally {
    admitted: AtomicU64,
    rejected: AtomicU64,
    undecided: AtomicU64,
}

/// Counts a call of the limit `index`.
#[inline]
pub(crate) fn count(index: usize, end: CallEnd) {
    let (chunk, place) = place_of(index);
    let shards = TALLIES[chunk].get_or_init(|| new_chunk(chunk));
    SHARD.with(|shard| shards[*shard][place].add(end));
}

/// Returns the shard of this thread.
#[inline]
pub(crate) fn shard() -> usize {
    SHARD.with(|shard| *shard)
}

/// Returns the counts of the limit `index`.
fn counts(index: usize) -> CallCounts {
    let (chunk, place) = place_of(index);
    let mut counts = CallCounts::default();
    for shard in TALLIES[chunk].get().into_iter().flatten() {
        let Tally { admitted, rejected, undecided } = &shard[place];
        counts.admitted += admitted.load(Relaxed);
        counts.rejected += rejected.load(Relaxed);
        counts.undecided += undecided.load(Relaxed);
    }
    counts
}

/// Returns the chunk of a limit, and its place there.
#[inline]
fn place_of(index: usize) -> (usize, usize) {
    let chunk = (index / FIRST_CHUNK + 1).ilog2() as usize;
    (chunk, index - FIRST_CHUNK * ((1 << chunk) - 1))
}

#[cold]
fn new_chunk(chunk: usize) -> Chunk {
    array::from_fn(|_| iter::repeat_with(Tally::default).take(FIRST_CHUNK << chunk).collect())
}

impl Tally {
    #[inline]
    fn add(&self, end: CallEnd) {
        let count = match end {
            CallEnd::Admitted => &self.admitted,
            CallEnd::Rejected => &self.rejected,
            CallEnd::Undecided => &self.undecided,
        };
        count.fetch_add(1, Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;

    fn others() -> Others {
        Others { limits: Vec::new(), version: 0 }
    }

    const LIMIT: Limit = Limit::token_bucket("by hand", 5, Duration::from_secs(60));

    #[test]
    fn a_limit_with_other_amounts_is_a_computed_one() {
        let mut others = others();
        assert!(!others.see(&LIMIT) && !others.see(&LIMIT));
        assert_eq!((others.version, others.limits[0].limit), (1, LIMIT));
        let (ruled, _) = LIMIT.under_rule(Some(50), None);
        assert!(!others.see(&ruled), "a rule does not change what the code says");
        let other = LIMIT.try_amounts(50, Some(7)).expect("valid");
        assert!(others.see(&other) && others.see(&LIMIT));
        assert_eq!((others.version, others.limits.len()), (2, 1));
        let amount_and_kind =
            |others: &Others| (others.limits[0].limit.threshold(), others.limits[0].is_computed);
        assert_eq!(amount_and_kind(&others), (1, true));
        let (mut others, blocked) = (self::others(), LIMIT.try_amounts(0, None).expect("valid"));
        assert!(others.see(&blocked));
        assert_eq!(amount_and_kind(&others), (1, true), "0 is no amount that all calls have");
    }

    #[test]
    fn limits_are_bounded_in_number() {
        let mut others = others();
        for period in 1..=2 * MOST as u64 {
            others.see(&Limit::fixed("by hand", 5, Duration::from_secs(period)));
        }
        assert_eq!(others.limits.len(), MOST);
    }
}

#[cfg(all(test, not(loom)))]
mod tally_tests {
    use std::thread;

    use super::*;

    #[test]
    fn each_limit_has_a_place_of_its_own() {
        let mut expected = (0, 0);
        for index in 0..10_000 {
            assert_eq!(place_of(index), expected);
            let (chunk, place) = expected;
            let is_last = place + 1 == FIRST_CHUNK << chunk;
            expected = if is_last { (chunk + 1, 0) } else { (chunk, place + 1) };
        }
    }

    #[test]
    fn counts_the_calls_of_all_threads() {
        // Limits that no other test has.
        const LIMITS: [usize; 3] = [1_000, 1_001, 5_000];
        let count_some = || {
            for (index, limit) in LIMITS.into_iter().enumerate() {
                for _ in 0..=index {
                    count(limit, CallEnd::Admitted);
                }
                count(limit, CallEnd::Rejected);
            }
        };
        thread::scope(|scope| {
            for _ in 0..2 * SHARDS {
                scope.spawn(count_some);
            }
        });
        let threads = 2 * SHARDS as u64;
        for (index, limit) in LIMITS.into_iter().enumerate() {
            let admitted = threads * (index as u64 + 1);
            assert_eq!(counts(limit), CallCounts { admitted, rejected: threads, undecided: 0 });
        }
    }
}
