//! The counts in flight that have changed since their job has looked at them.

use std::collections::HashSet;
use std::mem;

use tokio::sync::Notify;

use crate::background::{OwnValue, lock_own};
use crate::key::KeyId;
use crate::threads::Mutex;

/// The counts of which units were taken or released. Saves a look at all counts when one changes.
#[derive(Default)]
pub(crate) struct ChangedCounts {
    counts: Mutex<OwnValue<HashSet<KeyId>>>,
    notify: Notify,
}

impl ChangedCounts {
    pub(crate) fn add(&self, key_id: KeyId) {
        lock_own(&self.counts).insert(key_id);
        self.notify.notify_one();
    }

    pub(crate) fn take(&self) -> HashSet<KeyId> {
        mem::take(&mut **lock_own(&self.counts))
    }

    /// Completes once a count has changed.
    pub(crate) async fn changed(&self) {
        self.notify.notified().await;
    }
}
