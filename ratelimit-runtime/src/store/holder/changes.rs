//! The counts in flight that have changed since their job has looked at them.

use std::collections::HashSet;
use std::mem;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use crate::background::{OwnValue, lock_own};
use crate::key::KeyId;
use crate::threads::Mutex;

/// How long the job waits for further changes after one. A call that begins meanwhile states what was released, so a
/// busy count needs few other statements (`benches/all -- in-flight`).
const GATHERING: Duration = Duration::from_millis(1);

/// The counts of which units were taken or released. Saves a look at all counts when one changes.
#[derive(Default)]
pub(crate) struct ChangedCounts {
    counts: Mutex<OwnValue<HashSet<KeyId>>>,
    notify: Notify,
    /// Ends the gathering.
    hurry: Notify,
}

impl ChangedCounts {
    pub(crate) fn add(&self, key_id: KeyId) {
        lock_own(&self.counts).insert(key_id);
        self.notify.notify_one();
    }

    /// Makes the job look at once: a caller waits for a statement.
    pub(crate) fn hurry(&self) {
        self.hurry.notify_one();
    }

    pub(crate) fn take(&self) -> HashSet<KeyId> {
        mem::take(&mut **lock_own(&self.counts))
    }

    /// Completes after a change, once further changes are gathered.
    pub(crate) async fn changed(&self) {
        self.notify.notified().await;
        let _ = timeout(GATHERING, self.hurry.notified()).await;
    }
}
