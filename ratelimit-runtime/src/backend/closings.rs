//! Closings that wait to be sent to Redis. Calls of such a key wait for them, so that the process that closes a key obeys
//! at once.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::key::KeyId;
use crate::reply::StoreError;

#[derive(Default)]
pub(super) struct PendingClosings {
    keys: Mutex<HashMap<KeyId, ClosingKey>>,
    /// The number of these keys. Saves the lock for nearly all calls.
    count: AtomicUsize,
}

struct ClosingKey {
    closings: usize,
    /// Dropped once no closing of the key is pending.
    done: watch::Sender<()>,
}

/// A closing that is pending until this is dropped.
pub(crate) struct PendingClosing {
    pending: Arc<PendingClosings>,
    key_id: KeyId,
}

impl PendingClosings {
    pub(super) fn add(self: &Arc<Self>, key_id: KeyId) -> PendingClosing {
        let mut keys = self.lock();
        let new = || ClosingKey { closings: 0, done: watch::Sender::new(()) };
        keys.entry(key_id).or_insert_with(new).closings += 1;
        self.count.store(keys.len(), Ordering::SeqCst);
        PendingClosing { pending: Arc::clone(self), key_id }
    }

    /// Waits until no closing of these keys is pending. Fails after `deadline`.
    pub(super) async fn wait_until_closed(
        &self,
        key_ids: impl Iterator<Item = KeyId>,
        deadline: Duration,
    ) -> Result<(), StoreError> {
        if self.count.load(Ordering::SeqCst) == 0 || Handle::try_current().is_err() {
            return Ok(());
        }
        let pending: Vec<_> = {
            let keys = self.lock();
            key_ids.filter_map(|key_id| Some(keys.get(&key_id)?.done.subscribe())).collect()
        };
        let all = async {
            for mut done in pending {
                while done.changed().await.is_ok() {}
            }
        };
        timeout(deadline, all).await.map_err(|_| StoreError::Timeout { deadline })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<KeyId, ClosingKey>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PendingClosing {
    fn drop(&mut self) {
        let mut keys = self.pending.lock();
        if let Some(key) = keys.get_mut(&self.key_id) {
            key.closings -= 1;
            if key.closings == 0 {
                keys.remove(&self.key_id);
            }
        }
        self.pending.count.store(keys.len(), Ordering::SeqCst);
    }
}
