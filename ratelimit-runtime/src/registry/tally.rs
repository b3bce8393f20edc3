//! How many calls each annotated limit has decided.
//!
//! The counts are in shards, and each thread writes to one of them. Threads that count at the same time rarely share a
//! cache line, and no thread waits for a lock (`benches/all -- instructions`).

use std::array;
use std::iter;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

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
pub(super) fn counts(index: usize) -> CallCounts {
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
