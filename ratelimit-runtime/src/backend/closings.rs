//! Closings that wait to be sent to Redis. Calls of such a key wait for them, so that the process that closes a key
//! obeys at once.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::background::{OwnValue, lock_own};
use crate::key::KeyId;
use crate::reply::StoreError;
use crate::threads::{Mutex, MutexGuard};

#[derive(Default)]
pub(super) struct PendingClosings {
    keys: Mutex<OwnValue<HashMap<KeyId, Vec<ClosingSender>>>>,
    /// The number of these keys. Saves the lock for nearly all calls.
    count: AtomicUsize,
}

/// Sends why the shared store does not execute a closing now. Dropped once the closing is not pending any more.
type ClosingSender = Arc<watch::Sender<Option<StoreError>>>;

/// A closing that is pending until this is dropped.
pub(crate) struct PendingClosing {
    pending: Arc<PendingClosings>,
    key_id: KeyId,
    sender: ClosingSender,
}

impl PendingClosings {
    pub(super) fn add(self: &Arc<Self>, key_id: KeyId) -> PendingClosing {
        let sender = Arc::new(watch::Sender::new(None));
        let mut keys = self.lock();
        keys.entry(key_id).or_default().push(Arc::clone(&sender));
        self.count.store(keys.len(), Ordering::SeqCst);
        PendingClosing { pending: Arc::clone(self), key_id, sender }
    }

    /// Waits until the closings of these keys that are pending now are made. Fails at once while the shared store does
    /// not execute one of them.
    pub(super) async fn wait_until_closed(
        &self,
        key_ids: impl IntoIterator<Item = KeyId>,
    ) -> Result<(), StoreError> {
        if self.count.load(Ordering::SeqCst) == 0 || Handle::try_current().is_err() {
            return Ok(());
        }
        let pending: Vec<_> = {
            let keys = self.lock();
            let of_keys = key_ids.into_iter().filter_map(|key_id| keys.get(&key_id)).flatten();
            of_keys.map(|sender| sender.subscribe()).collect()
        };
        for mut closing in pending {
            while closing.has_changed().is_ok() {
                if let Some(error) = &*closing.borrow_and_update() {
                    return Err(error.clone());
                }
                let _ = closing.changed().await;
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, OwnValue<HashMap<KeyId, Vec<ClosingSender>>>> {
        lock_own(&self.keys)
    }
}

impl PendingClosing {
    /// Makes the calls that wait fail, because the shared store does not execute the closing now.
    pub(crate) fn delay(&self, error: &StoreError) {
        self.sender.send_if_modified(|cause| {
            let is_first = cause.is_none();
            if is_first {
                *cause = Some(error.clone());
            }
            is_first
        });
    }
}

impl Drop for PendingClosing {
    fn drop(&mut self) {
        let mut keys = self.pending.lock();
        if let Some(senders) = keys.get_mut(&self.key_id) {
            senders.retain(|sender| !Arc::ptr_eq(sender, &self.sender));
            if senders.is_empty() {
                keys.remove(&self.key_id);
            }
        }
        self.pending.count.store(keys.len(), Ordering::SeqCst);
    }
}
