//! Keys that this process closes while Redis does not know of it yet. Until then, the process rejects their calls by
//! itself.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::background::{OwnValue, lock_own};
use crate::key::KeyId;
use crate::threads::Mutex;

#[derive(Default)]
pub(super) struct PendingClosings {
    /// Of each key how many closings are pending, and the latest opening, by the steady clock of the limiter.
    keys: Mutex<OwnValue<HashMap<KeyId, (usize, u64)>>>,
    /// The number of these keys. Saves the lock for nearly all calls.
    count: AtomicUsize,
}

/// A closing that is pending until this is dropped.
pub(super) struct PendingClosing {
    pending: Arc<PendingClosings>,
    key_id: KeyId,
}

impl PendingClosings {
    pub(super) fn begin(self: &Arc<Self>, key_id: KeyId, until: u64) -> PendingClosing {
        let mut keys = lock_own(&self.keys);
        let (closings, latest) = keys.entry(key_id).or_default();
        (*closings, *latest) = (*closings + 1, until.max(*latest));
        self.count.store(keys.len(), Ordering::SeqCst);
        PendingClosing { pending: Arc::clone(self), key_id }
    }

    /// Returns the time at which a key opens.
    #[inline]
    pub(super) fn opening_of(&self, key_id: KeyId) -> Option<u64> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return None;
        }
        lock_own(&self.keys).get(&key_id).map(|(_, until)| *until)
    }
}

impl Drop for PendingClosing {
    fn drop(&mut self) {
        let mut keys = lock_own(&self.pending.keys);
        if let Some((closings, _)) = keys.get_mut(&self.key_id) {
            *closings -= 1;
            if *closings == 0 {
                keys.remove(&self.key_id);
            }
        }
        self.pending.count.store(keys.len(), Ordering::SeqCst);
    }
}
