//! The times at which leases end. A job of the background thread watches them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use tokio::sync::Notify;

use crate::background::{OwnValue, lock_own};
use crate::key::KeyId;
use crate::threads::{Mutex, MutexGuard};

/// When to look at the lease of each count. A count can be here several times.
#[derive(Default)]
pub(super) struct LeaseEnds(Mutex<OwnValue<Schedule>>);

#[derive(Default)]
struct Schedule {
    looks: BinaryHeap<Reverse<(u64, KeyId)>>,
    changed: Arc<Notify>,
}

impl LeaseEnds {
    pub(super) fn schedule(&self, key_id: KeyId, at: u64) {
        let mut schedule = self.lock();
        schedule.looks.push(Reverse((at, key_id)));
        schedule.changed.notify_one();
    }

    /// Takes a count at which to look by now, and the time for which it was scheduled.
    pub(super) fn take_due(&self, now: u64) -> Option<(u64, KeyId)> {
        let mut schedule = self.lock();
        let Reverse((end, _)) = schedule.looks.peek()?;
        if *end > now {
            return None;
        }
        schedule.looks.pop().map(|Reverse(due)| due)
    }

    /// Returns the next end; `None` if no lease is scheduled.
    pub(super) fn next_end(&self) -> Option<u64> {
        self.lock().looks.peek().map(|Reverse((end, _))| *end)
    }

    /// Returns what is notified when another lease is scheduled, or when the job must end.
    pub(super) fn changed(&self) -> Arc<Notify> {
        Arc::clone(&self.lock().changed)
    }

    fn lock(&self) -> MutexGuard<'_, OwnValue<Schedule>> {
        lock_own(&self.0)
    }
}
