//! Notifies the other rooms of units that are given back to a count: calls wait for them. Notifies them of keys that
//! this process closes: the units that it has leased of such a key go back.

use std::sync::Arc;

use once_cell::sync::OnceCell;

use super::rejections::RejectionCache;
use crate::algorithm::Outcome;
use crate::key::KeyId;
use crate::reply::Source;

/// Units that were given back to a count.
#[derive(Clone, Copy)]
pub(crate) struct GivenBack {
    pub(crate) key_id: KeyId,
    /// The outcome of the give-back, with the store that replied, if it is known.
    pub(crate) outcome: Option<(Source, Outcome)>,
    /// Whether all units were given back.
    pub(crate) is_reset: bool,
}

/// The rejection cache, and the listeners to give-backs and closings.
pub(crate) struct GiveBacks {
    pub(super) rejections: RejectionCache,
    listener: OnceCell<Box<dyn Fn(GivenBack) + Send + Sync>>,
    closing_listener: OnceCell<Box<dyn Fn(KeyId) + Send + Sync>>,
}

impl GiveBacks {
    /// Creates a value without listeners. `caches_rejections` says whether the rejections of a shared store are cached.
    pub(crate) fn new(caches_rejections: bool) -> Arc<Self> {
        let rejections = RejectionCache::new(caches_rejections);
        Arc::new(Self { rejections, listener: OnceCell::new(), closing_listener: OnceCell::new() })
    }

    /// Sets the function that is called with each count to which units were given back.
    pub(super) fn listen(&self, listener: impl Fn(GivenBack) + Send + Sync + 'static) {
        let is_first = self.listener.set(Box::new(listener)).is_ok();
        debug_assert!(is_first, "a limiter sets its listener once");
    }

    /// Sets the function that is called with each key that this process closes.
    pub(super) fn listen_to_closings(&self, listener: impl Fn(KeyId) + Send + Sync + 'static) {
        let is_first = self.closing_listener.set(Box::new(listener)).is_ok();
        debug_assert!(is_first, "a limiter sets its listener once");
    }

    pub(super) fn notify_closing(&self, key_id: KeyId) {
        if let Some(listener) = self.closing_listener.get() {
            listener(key_id);
        }
    }

    /// Removes the cached rejection of a count, and notifies the listener of its units.
    #[inline]
    pub(crate) fn notify(&self, given_back: GivenBack) {
        self.rejections.forget(given_back.key_id);
        if let Some(listener) = self.listener.get() {
            listener(given_back);
        }
    }
}
