//! Counts the rejected calls of each key of a limiter: the last step of a rejection.

use super::Backend;
use crate::key::{Key, KeyId, OwnedKey};
use crate::limit::Limit;
use crate::report::{RejectedCount, RejectedKey};

impl Backend {
    /// Counts a call of a key that was rejected at `at`, by the clock of this process. `key_id` is its id under the
    /// identity of `limit`.
    #[inline]
    pub(crate) fn count_rejection(&self, limit: &Limit, key_id: KeyId, key: &dyn Key, at: u64) {
        // Most calls of a flood end here, with few instructions (`benches/all -- instructions`).
        if self.rejected_keys.counts(at) {
            self.count_rejected(&RejectedCount { limit, key_id, at }, key);
        }
    }

    /// Counts a rejected call of the key in the name of a count in the shared store.
    pub(crate) fn count_rejection_of(&self, limit: &Limit, key_id: KeyId, count_name: &[u8]) {
        let at = self.clock().local();
        if self.rejected_keys.counts(at) {
            let key = || OwnedKey::in_count_name(count_name);
            self.count_shown(&RejectedCount { limit, key_id, at }, key);
        }
    }

    /// Returns the keys with the most rejected calls.
    pub(crate) fn rejected_keys(&self, most: usize) -> Vec<RejectedKey> {
        self.rejected_keys.most(most, self.clock().local())
    }

    #[inline(never)]
    fn count_rejected(&self, rejected: &RejectedCount<'_>, key: &dyn Key) {
        self.count_shown(rejected, || OwnedKey::of(key));
    }

    fn count_shown(&self, rejected: &RejectedCount<'_>, key: impl FnOnce() -> OwnedKey) {
        let text = || key().to_string().into();
        let terms = rejected.limit.terms();
        self.rejected_keys.count(rejected, || self.reports().logged(terms, rejected.key_id, text));
    }
}
