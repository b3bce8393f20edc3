//! How many calls each annotated limit has decided.
//!
//! Each thread has a tally of its own for each limit, which only that thread writes, so that counting needs no atomic
//! read-modify-write and no cache line goes from thread to thread (`benches/all -- instructions`).

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::seen;

thread_local! {
    static OWN: OwnTallies = const { OwnTallies(RefCell::new(Vec::new())) };
}

/// How many calls an annotated limit has decided since the process started, as their callers saw it: a call that a
/// shadow or `on_error` admits is admitted. A call that still waits, or was dropped, is not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallCounts {
    /// The calls that ran.
    pub admitted: u64,
    /// The calls that this limit has rejected. If several limits are decided together, only the one that the
    /// [`Rejection`](crate::Rejection) names counts the call.
    pub rejected: u64,
    /// The calls that were rejected because no store could decide: [`Rejection::Unavailable`].
    ///
    /// [`Rejection::Unavailable`]: crate::Rejection::Unavailable
    pub undecided: u64,
}

/// How a call has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CallEnd {
    Admitted,
    Rejected,
    Undecided,
}

/// The counts of one limit.
#[derive(Default)]
pub(super) struct Tallies {
    /// Those of threads that have ended.
    ended: CallCounts,
    running: Vec<Arc<Tally>>,
}

/// The counts of one limit in one thread, which writes them. Other threads read them.
#[derive(Default)]
struct Tally {
    admitted: AtomicU64,
    rejected: AtomicU64,
    undecided: AtomicU64,
}

/// The tallies of a thread, by the index of the limit.
struct OwnTallies(RefCell<Vec<Option<Arc<Tally>>>>);

/// Counts a call of the limit `index`.
#[inline]
pub(crate) fn count(index: usize, end: CallEnd) {
    let counted = OWN.try_with(|own| match own.0.borrow().get(index) {
        Some(Some(tally)) => {
            tally.add(end);
            true
        }
        _ => false,
    });
    if counted != Ok(true) {
        count_first(index, end);
    }
}

/// Counts the first call of a limit in this thread, or a call in a destructor of the thread.
#[cold]
fn count_first(index: usize, end: CallEnd) {
    let mut seen = seen();
    let Some(tallies) = seen.get_mut(index).map(|seen| &mut seen.tallies) else { return };
    let added = OWN.try_with(|own| {
        let (mut own, tally) = (own.0.borrow_mut(), Arc::new(Tally::default()));
        tally.add(end);
        if own.len() <= index {
            own.resize(index + 1, None);
        }
        own[index] = Some(Arc::clone(&tally));
        tallies.running.push(tally);
    });
    if added.is_err() {
        let tally = Tally::default();
        tally.add(end);
        tallies.ended.add(&tally);
    }
}

impl Tally {
    #[inline]
    fn add(&self, end: CallEnd) {
        let count = match end {
            CallEnd::Admitted => &self.admitted,
            CallEnd::Rejected => &self.rejected,
            CallEnd::Undecided => &self.undecided,
        };
        count.store(count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
}

impl Tallies {
    pub(super) fn counts(&self) -> CallCounts {
        let mut counts = self.ended;
        for tally in &self.running {
            counts.add(tally);
        }
        counts
    }
}

impl CallCounts {
    fn add(&mut self, tally: &Tally) {
        self.admitted += tally.admitted.load(Ordering::Relaxed);
        self.rejected += tally.rejected.load(Ordering::Relaxed);
        self.undecided += tally.undecided.load(Ordering::Relaxed);
    }
}

impl Drop for OwnTallies {
    fn drop(&mut self) {
        let mut seen = seen();
        for (seen, own) in seen.iter_mut().zip(self.0.get_mut()) {
            if let Some(own) = own.take() {
                seen.tallies.ended.add(&own);
                seen.tallies.running.retain(|tally| !Arc::ptr_eq(tally, &own));
            }
        }
    }
}
