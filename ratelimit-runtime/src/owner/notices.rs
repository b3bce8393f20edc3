//! Notifies the other rooms of counts that have changed: calls wait for units that go back, a rejection that is cached
//! does not hold any more, and leased units of a key that is closed go back.

use std::sync::Arc;

use once_cell::sync::OnceCell;

use super::rejections::RejectionCache;
use crate::algorithm::{Correction, OpeningChange};
use crate::key::KeyId;

/// A count of which units may be free now, or whose key was closed: its waiting calls ask again.
#[derive(Clone, Copy)]
pub(crate) struct FreedUnits {
    pub(crate) key_id: KeyId,
    pub(crate) by: FreedBy,
}

/// What has freed units, or will.
#[derive(Clone, Copy)]
pub(crate) enum FreedBy {
    /// Some were given back, or the key was opened.
    GiveBack,
    /// The count was reset.
    Reset,
    /// The key was closed: no call starts before it opens.
    Closing,
}

/// The rejection cache, and the listeners to units that go back and to closings.
pub(crate) struct Notices {
    pub(crate) rejections: RejectionCache,
    returned: OnceCell<Box<dyn Fn(FreedUnits) + Send + Sync>>,
    closed: OnceCell<Box<dyn Fn(KeyId) + Send + Sync>>,
}

impl Notices {
    /// Creates a value without listeners. `caches_rejections` says whether the rejections of a shared store are cached.
    pub(crate) fn new(caches_rejections: bool) -> Arc<Self> {
        let rejections = RejectionCache::new(caches_rejections);
        Arc::new(Self { rejections, returned: OnceCell::new(), closed: OnceCell::new() })
    }

    /// Sets the function that is called with each count to which this process has given units back.
    pub(crate) fn on_return(&self, listener: impl Fn(FreedUnits) + Send + Sync + 'static) {
        let is_first = self.returned.set(Box::new(listener)).is_ok();
        debug_assert!(is_first, "a limiter sets its listener once");
    }

    /// Sets the function that is called with each key that this process closes: once the process obeys, and again once
    /// the shared store has closed the key.
    pub(crate) fn on_closing(&self, listener: impl Fn(KeyId) + Send + Sync + 'static) {
        let is_first = self.closed.set(Box::new(listener)).is_ok();
        debug_assert!(is_first, "a limiter sets its listener once");
    }

    /// Removes the cached rejection of a count, and notifies of its units.
    #[inline]
    pub(crate) fn returned(&self, returned: FreedUnits) {
        self.rejections.forget(returned.key_id);
        if let Some(listener) = self.returned.get() {
            listener(returned);
        }
    }

    /// Notifies of units of a count that may be free now.
    #[inline]
    pub(crate) fn released(&self, key_id: KeyId) {
        self.returned(FreedUnits { key_id, by: FreedBy::GiveBack });
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

    /// Notifies that a key was closed, opened or reset: waiting calls ask again, and leased units of a closed key go
    /// back.
    pub(crate) fn changed(&self, key_id: KeyId, change: OpeningChange) {
        let by = match change {
            OpeningChange::None => return,
            OpeningChange::CloseFor(_) => FreedBy::Closing,
            OpeningChange::Open => FreedBy::GiveBack,
            OpeningChange::Reset => FreedBy::Reset,
        };
        if let (FreedBy::Closing, Some(listener)) = (by, self.closed.get()) {
            listener(key_id);
        }
        self.returned(FreedUnits { key_id, by });
    }
}
