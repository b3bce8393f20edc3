//! Keys that this process blocks while Redis does not know of it yet. Until then, the process rejects their calls by
//! itself.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::background::{OwnValue, lock_own};
use crate::key::KeyId;
use crate::threads::Mutex;

#[derive(Default)]
pub(super) struct PendingBlocks {
    /// Of each key how many blocks are pending, and the latest end, by the steady clock of the limiter.
    keys: Mutex<OwnValue<HashMap<KeyId, (usize, u64)>>>,
    /// The number of these keys. Saves the lock for nearly all calls.
    count: AtomicUsize,
}

/// A block that is pending until this is dropped.
pub(super) struct PendingBlock {
    pending: Arc<PendingBlocks>,
    key_id: KeyId,
}

impl PendingBlocks {
    pub(super) fn begin(self: &Arc<Self>, key_id: KeyId, until: u64) -> PendingBlock {
        let mut keys = lock_own(&self.keys);
        let (blocks, latest) = keys.entry(key_id).or_default();
        (*blocks, *latest) = (*blocks + 1, until.max(*latest));
        self.count.store(keys.len(), Ordering::SeqCst);
        PendingBlock { pending: Arc::clone(self), key_id }
    }

    /// Returns the time until which a key is blocked.
    #[inline]
    pub(super) fn blocked_until(&self, key_id: KeyId) -> Option<u64> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return None;
        }
        lock_own(&self.keys).get(&key_id).map(|(_, until)| *until)
    }
}

impl Drop for PendingBlock {
    fn drop(&mut self) {
        let mut keys = lock_own(&self.pending.keys);
        if let Some((blocks, _)) = keys.get_mut(&self.key_id) {
            *blocks -= 1;
            if *blocks == 0 {
                keys.remove(&self.key_id);
            }
        }
        self.pending.count.store(keys.len(), Ordering::SeqCst);
    }
}
