//! Counts the rejected calls of each key of a limiter: the last step of a rejection.

use super::Backend;
use crate::key::{Key, KeyId, OwnedKey};
use crate::limit::Limit;
use crate::report::{RejectedCount, RejectedKey};

impl Backend {
    /// Counts a rejected call of a key. `key_id` is its id under the identity of `limit`.
    #[inline(never)]
    pub(crate) fn count_rejection(&self, limit: &Limit, key_id: KeyId, key: &dyn Key) {
        self.count_rejected(limit, key_id, || OwnedKey::of(key));
    }

    /// Counts a rejected call of the key in the name of a count in the shared store.
    pub(crate) fn count_rejection_of(&self, limit: &Limit, key_id: KeyId, count_name: &[u8]) {
        self.count_rejected(limit, key_id, || OwnedKey::in_count_name(count_name));
    }

    /// Returns the keys with the most rejected calls.
    pub(crate) fn rejected_keys(&self, most: usize) -> Vec<RejectedKey> {
        self.rejected_keys.most(most, self.clock().local())
    }

    fn count_rejected(&self, limit: &Limit, key_id: KeyId, key: impl FnOnce() -> OwnedKey) {
        let rejected = RejectedCount { limit, key_id, at: self.clock().local() };
        let text = || key().to_string().into();
        self.rejected_keys.count(&rejected, || self.reports().logged(limit.terms(), key_id, text));
    }
}
