//! Pending work, for which a flush or a shutdown waits.

use std::convert::Infallible;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::process::{OwnValue, lock_own, seen_process};
use crate::threads::Mutex;

/// Counts pending work. A process that was forked has none of its parent.
#[derive(Clone, Default)]
pub(crate) struct WorkCount(Arc<Mutex<OwnValue<WorkCountState>>>);

#[derive(Default)]
struct WorkCountState {
    /// How much work has begun so far, and how much of it is pending.
    begun: u64,
    pending: usize,
    waits: Vec<WorkWait>,
}

/// A caller that waits until the work before it has ended.
struct WorkWait {
    /// The number of the first work after it, and how much of the work before it is pending.
    before: u64,
    left: usize,
    /// Dropped once all of it has ended.
    ended: oneshot::Sender<Infallible>,
}

/// Work that is pending until this is dropped.
pub(crate) struct PendingWork {
    count: WorkCount,
    number: u64,
    process: u32,
}

impl WorkCount {
    /// Begins work.
    pub(crate) fn begin(&self) -> PendingWork {
        let mut state = lock_own(&self.0);
        state.begun += 1;
        state.pending += 1;
        PendingWork { count: self.clone(), number: state.begun, process: seen_process() }
    }

    /// Returns how much work is pending.
    pub(crate) fn pending(&self) -> usize {
        lock_own(&self.0).pending
    }

    /// Completes once all work that is pending now has ended.
    pub(crate) fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut state = lock_own(&self.0);
        // Those of callers that have stopped waiting.
        state.waits.retain(|wait| !wait.ended.is_closed());
        let (sender, ended) = oneshot::channel();
        if state.pending > 0 {
            let wait = WorkWait { before: state.begun + 1, left: state.pending, ended: sender };
            state.waits.push(wait);
        }
        async {
            let _ = ended.await;
        }
    }

    /// Completes once no work is pending.
    pub(crate) async fn all_ended(&self) {
        while self.pending() > 0 {
            self.ended().await;
        }
    }
}

impl Drop for PendingWork {
    fn drop(&mut self) {
        if self.process != seen_process() {
            return;
        }
        let mut state = lock_own(&self.count.0);
        state.pending -= 1;
        for wait in &mut state.waits {
            wait.left -= usize::from(self.number < wait.before);
        }
        let ended: Vec<_> = state.waits.extract_if(.., |wait| wait.left == 0).collect();
        drop(state);
        // A waker is foreign code, so it is woken after this lock is released.
        drop(ended);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn is_ready(future: std::pin::Pin<&mut impl Future>) -> bool {
        matches!(future.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(_))
    }

    #[test]
    fn waits_for_the_work_before_and_not_for_later_work() {
        let works = WorkCount::default();
        assert!(is_ready(pin!(works.ended())), "there is none");
        let (first, second) = (works.begin(), works.begin());
        let (mut ended, mut all_ended) = (pin!(works.ended()), pin!(works.all_ended()));
        let third = works.begin();
        drop(second);
        assert!(!is_ready(ended.as_mut()) && !is_ready(all_ended.as_mut()));
        drop(first);
        assert!(is_ready(ended) && !is_ready(all_ended.as_mut()));
        drop(third);
        assert!(is_ready(all_ended) && works.pending() == 0);
    }

    #[test]
    fn forgets_callers_that_have_stopped_waiting() {
        let works = WorkCount::default();
        let _work = works.begin();
        for _ in 0..3 {
            drop(works.ended());
        }
        let ended = works.ended();
        assert_eq!(lock_own(&works.0).waits.len(), 1);
        drop(ended);
    }
}

/// Tries every order of threads. CONTRIBUTING.md describes how to run these tests.
#[cfg(all(test, loom))]
mod interleavings {
    use loom::future::block_on;
    use loom::thread::spawn;

    use super::*;

    #[test]
    fn a_caller_waits_until_all_work_has_ended() {
        loom::model(|| {
            let count = WorkCount::default();
            let threads = [count.begin(), count.begin()].map(|work| spawn(move || drop(work)));
            block_on(count.all_ended());
            assert_eq!(count.pending(), 0);
            for thread in threads {
                thread.join().expect("no panic");
            }
        });
    }

    #[test]
    fn later_work_does_not_hold_up_a_caller() {
        loom::model(|| {
            let count = WorkCount::default();
            let earlier = count.begin();
            let ended = count.ended();
            let later = count.begin();
            let thread = spawn(move || drop(earlier));
            block_on(ended);
            assert_eq!(count.pending(), 1);
            drop(later);
            thread.join().expect("no panic");
        });
    }
}
