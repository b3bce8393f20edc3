//! The times at which leases end, and the job that watches them: at most one for a limiter.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;

use crate::background::{OwnValue, lock_own};
use crate::key::KeyId;

/// When to look at the lease of each count. A count can be here several times.
#[derive(Default)]
pub(super) struct LeaseEnds {
    schedule: Mutex<OwnValue<Schedule>>,
    /// Notified when another lease is scheduled, or when the watch must end.
    pub(super) changed: Arc<Notify>,
}

#[derive(Default)]
struct Schedule {
    queue: BinaryHeap<Reverse<(u64, KeyId)>>,
    is_watched: bool,
}

impl LeaseEnds {
    pub(super) fn schedule(&self, key_id: KeyId, at: u64) {
        self.lock().queue.push(Reverse((at, key_id)));
        self.changed.notify_one();
    }

    /// Takes a count at which to look by now, and the time for which it was scheduled.
    pub(super) fn take_due(&self, now: u64) -> Option<(u64, KeyId)> {
        let mut schedule = self.lock();
        let Reverse((end, _)) = schedule.queue.peek()?;
        if *end > now {
            return None;
        }
        schedule.queue.pop().map(|Reverse(due)| due)
    }

    /// Returns whether the caller must start the watch, and marks the watch as started.
    pub(super) fn starts_watch(&self) -> bool {
        let mut schedule = self.lock();
        !schedule.queue.is_empty() && !std::mem::replace(&mut schedule.is_watched, true)
    }

    /// Returns the next end; `None` if no lease is scheduled, which ends the watch.
    pub(super) fn next_end(&self) -> Option<u64> {
        let mut schedule = self.lock();
        let end = schedule.queue.peek().map(|Reverse((end, _))| *end);
        schedule.is_watched = end.is_some();
        end
    }

    pub(super) fn end_watch(&self) {
        self.lock().is_watched = false;
    }

    fn lock(&self) -> MutexGuard<'_, OwnValue<Schedule>> {
        lock_own(&self.schedule)
    }
}
