//! Notifies the other rooms of counts that have changed: calls wait for units that go back, a rejection that is cached
//! does not hold any more, and leased units of a key that is blocked go back.

use std::sync::Arc;

use once_cell::sync::OnceCell;

use super::rejections::RejectionCache;
use crate::algorithm::{BlockChange, Correction};
use crate::key::KeyId;

/// A change of a count, after which its lines ask the store again.
#[derive(Clone, Copy)]
pub(crate) enum CountChange {
    /// Some were given back, or the key was unblocked.
    GiveBack,
    /// The count was reset.
    Reset,
    /// The key was blocked: no call starts before the block ends.
    Block,
}

/// The rejection cache, and the listeners to units that go back and to blocks.
pub(crate) struct Notices {
    pub(crate) rejections: RejectionCache,
    returned: OnceCell<Box<dyn Fn(KeyId, CountChange) + Send + Sync>>,
    blocked: OnceCell<Box<dyn Fn(KeyId) + Send + Sync>>,
}

impl Notices {
    /// Creates a value without listeners. `caches_rejections` says whether the rejections of a shared store are cached.
    pub(crate) fn new(caches_rejections: bool) -> Arc<Self> {
        let rejections = RejectionCache::new(caches_rejections);
        Arc::new(Self { rejections, returned: OnceCell::new(), blocked: OnceCell::new() })
    }

    /// Sets the function that is called with each count to which this process has given units back.
    pub(crate) fn on_return(&self, listener: impl Fn(KeyId, CountChange) + Send + Sync + 'static) {
        let is_first = self.returned.set(Box::new(listener)).is_ok();
        debug_assert!(is_first, "a limiter sets its listener once");
    }

    /// Sets the function that is called with each key that this process blocks: once the process obeys, and again once
    /// the shared store has blocked the key.
    pub(crate) fn on_block(&self, listener: impl Fn(KeyId) + Send + Sync + 'static) {
        let is_first = self.blocked.set(Box::new(listener)).is_ok();
        debug_assert!(is_first, "a limiter sets its listener once");
    }

    /// Removes the cached rejection of a count, and notifies of its units.
    #[inline]
    pub(crate) fn returned(&self, key_id: KeyId, change: CountChange) {
        self.rejections.forget(key_id);
        if let Some(listener) = self.returned.get() {
            listener(key_id, change);
        }
    }

    /// Notifies of units of a count that may be free now.
    #[inline]
    pub(crate) fn released(&self, key_id: KeyId) {
        self.returned(key_id, CountChange::GiveBack);
    }

    /// Notifies of a charge that was corrected, or may have been.
    pub(crate) fn corrected(&self, key_id: KeyId, correction: Correction) {
        if correction.less() > 0 {
            self.released(key_id);
        } else {
            // A debt makes the wait longer.
            self.rejections.forget(key_id);
        }
    }

    /// Notifies that a key was blocked, unblocked or reset: waiting calls ask again, and leased units of a blocked key
    /// go back.
    pub(crate) fn changed(&self, key_id: KeyId, change: BlockChange) {
        let change = match change {
            BlockChange::None => return,
            BlockChange::BlockFor(_) => CountChange::Block,
            BlockChange::Unblock => CountChange::GiveBack,
            BlockChange::Reset => CountChange::Reset,
        };
        if let (CountChange::Block, Some(listener)) = (change, self.blocked.get()) {
            listener(key_id);
        }
        self.returned(key_id, change);
    }
}
