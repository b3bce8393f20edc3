//! The times at which leases end. A job of the limiter watches them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use tokio::sync::Notify;

use crate::background::{JobCounter, OwnValue, lock_own};
use crate::key::KeyId;
use crate::threads::{Mutex, MutexGuard};

/// When to look at the lease of each count. A count can be here several times.
#[derive(Default)]
pub(super) struct LeaseEnds {
    schedule: Mutex<OwnValue<Schedule>>,
    /// The job that watches the schedule.
    pub(super) watch: JobCounter,
    /// Notified when another lease is scheduled, or when the watch must end.
    pub(super) changed: Arc<Notify>,
}

type Schedule = BinaryHeap<Reverse<(u64, KeyId)>>;

impl LeaseEnds {
    pub(super) fn schedule(&self, key_id: KeyId, at: u64) {
        self.lock().push(Reverse((at, key_id)));
        self.changed.notify_one();
    }

    /// Takes a count at which to look by now, and the time for which it was scheduled.
    pub(super) fn take_due(&self, now: u64) -> Option<(u64, KeyId)> {
        let mut schedule = self.lock();
        let Reverse((end, _)) = schedule.peek()?;
        if *end > now {
            return None;
        }
        schedule.pop().map(|Reverse(due)| due)
    }

    /// Returns the next end; `None` if no lease is scheduled.
    pub(super) fn next_end(&self) -> Option<u64> {
        self.lock().peek().map(|Reverse((end, _))| *end)
    }

    fn lock(&self) -> MutexGuard<'_, OwnValue<Schedule>> {
        lock_own(&self.schedule)
    }
}
