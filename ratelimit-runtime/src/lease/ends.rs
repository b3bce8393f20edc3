//! The times at which leases end. A job of the background thread watches them.

use std::sync::Arc;

use tokio::sync::Notify;

use crate::background::{OwnValue, lock_own};
use crate::key::KeyId;
use crate::owner::Agenda;
use crate::threads::{Mutex, MutexGuard};

/// When to look at the lease of each count.
#[derive(Default)]
pub(super) struct LeaseEnds(Mutex<OwnValue<Schedule>>);

#[derive(Default)]
struct Schedule {
    looks: Agenda<u64, KeyId>,
    changed: Arc<Notify>,
}

impl LeaseEnds {
    /// Schedules a look at a count, unless one comes before.
    pub(super) fn schedule(&self, key_id: KeyId, at: u64) {
        let mut schedule = self.lock();
        schedule.looks.plan_by(key_id, at);
        schedule.changed.notify_one();
    }

    /// Takes a count at which to look by now.
    pub(super) fn take_due(&self, now: u64) -> Option<KeyId> {
        self.lock().looks.take_due(now)
    }

    /// Returns the next end; `None` if no lease is scheduled.
    pub(super) fn next_end(&self) -> Option<u64> {
        self.lock().looks.first()
    }

    /// Returns what is notified when another lease is scheduled, or when the job must end.
    pub(super) fn changed(&self) -> Arc<Notify> {
        Arc::clone(&self.lock().changed)
    }

    fn lock(&self) -> MutexGuard<'_, OwnValue<Schedule>> {
        lock_own(&self.0)
    }
}
