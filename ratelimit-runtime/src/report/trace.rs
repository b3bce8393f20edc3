//! The keys in `tracing` events, and for the function that listens to rejections. An event contains a hash of the key
//! under a secret: events of one key have the same hash, and without the secret, a reader of the events cannot test
//! guesses of the key. The application can choose the secret, or have the keys themselves in the events.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use once_cell::sync::Lazy;
use siphasher::sip::SipHasher24;
use tracing::{Level, enabled};

use crate::key::{Key, KeyId, OwnedKey};
use crate::limit::Terms;
use crate::reply::Rejection;

/// A key of a check that is recorded.
pub(super) struct TracedKey {
    /// The key as events name it.
    pub(super) logged: String,
    pub(super) text: String,
}

impl ReportSettings {
    /// Returns a key of a check.
    pub(super) fn traced(&self, terms: &Terms, key_id: KeyId, key: &dyn Key) -> TracedKey {
        let text = OwnedKey::of(&key).to_string();
        TracedKey { logged: self.logged(terms, key_id, || text.clone()), text }
    }

    /// Returns whether rejections are reported: an event is enabled, or the application listens.
    #[inline]
    pub(crate) fn reports_rejections(&self) -> bool {
        self.on_rejected.is_some() || enabled!(target: "ratelimit_runtime::report", Level::DEBUG)
    }

    /// Returns a key as events show it: a hash, or its text. `text` returns its text, which may be needed.
    pub(crate) fn logged(
        &self,
        terms: &Terms,
        key_id: KeyId,
        text: impl FnOnce() -> String,
    ) -> String {
        // Fingerprints are secret: an event that contained them could reveal the key.
        static PROCESS_SECRET: Lazy<RandomState> = Lazy::new(RandomState::new);
        let hash = match self.log_secret {
            _ if self.logs_keys => return text(),
            Some(secret) => secret.0.hash(text().as_bytes()),
            // Of the fingerprint that the embedded store has for a key; the same for all limits.
            None => PROCESS_SECRET.hash_one(key_id.fingerprint(&terms.identity)),
        };
        format!("{hash:016x}")
    }
}

/// The settings of a limiter for its reports.
#[derive(Clone, Default)]
pub(crate) struct ReportSettings {
    pub(crate) on_rejected: Option<RejectionHook>,
    /// Whether events contain the texts of keys.
    pub(crate) logs_keys: bool,
    /// The secret of the hashes of keys; `None`: a random one of the process.
    pub(crate) log_secret: Option<LogSecret>,
}

/// Called with each rejected call.
pub(crate) type RejectionHook = Arc<dyn Fn(&RejectedCall<'_>) + Send + Sync>;

/// A secret for hashes in events, from the bytes that the application sets. `SipHash` 2-4 is the same in all builds.
#[derive(Clone, Copy)]
pub(crate) struct LogSecret(SipHasher24);

impl LogSecret {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let [one, other] = [0, 1].map(|half| SipHasher24::new_with_keys(half, 0).hash(bytes));
        Self(SipHasher24::new_with_keys(one, other))
    }
}

/// A rejected call, for [`Builder::on_rejected`](crate::Builder::on_rejected).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RejectedCall<'a> {
    /// The text of the key, as in Redis: `alice`, `(acme:7)`, `%` for the key `()`. A terminal can print it: see
    /// [`OwnedKey`](crate::OwnedKey). Clients can choose keys: escape the text for other destinations, such as HTML.
    pub key: &'a str,
    /// The rejection, with the decision and the name of the limit.
    pub rejection: &'a Rejection,
    /// Whether the limit is a [shadow](crate::Limit::shadow), which has admitted the call.
    pub is_shadow: bool,
}
