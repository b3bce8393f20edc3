//! The keys in `tracing` events, and for the function that listens to rejections. An event contains a hash of the key
//! under a secret: events of one key have the same hash, and without the secret, a reader of the events cannot test
//! guesses of the key. The application can choose the secret, or have the keys themselves in the events.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use once_cell::sync::Lazy;
use tracing::field::{DisplayValue, display};
use tracing::{Level, enabled};

use crate::key::{Key, KeyId, OwnedKey};
use crate::limit::Terms;
use crate::reply::Rejection;

/// The keys of a check.
pub(super) enum KeyTrace {
    /// Nothing records the keys.
    None,
    One(TracedKey),
    /// The keys of several limits, in their order.
    Many(Vec<TracedKey>),
}

/// A key, as events name it, and its text.
pub(super) struct TracedKey {
    /// `None` if no event will contain the key.
    logged: Option<LoggedKey>,
    /// `None` if nothing records the text.
    text: Option<Arc<str>>,
}

/// A key as events show it.
#[derive(Clone)]
pub(crate) enum LoggedKey {
    Hash(u64),
    Text(Arc<str>),
}

impl KeyTrace {
    /// Returns the key for an event.
    pub(super) fn logged(&self) -> Option<DisplayValue<LoggedKey>> {
        self.key()?.logged.clone().map(display)
    }

    /// Returns the text of the key; empty if it is not known.
    pub(super) fn text(&self) -> &str {
        self.key().and_then(|key| key.text.as_deref()).unwrap_or_default()
    }

    /// Keeps the key of one limit.
    pub(super) fn choose(&mut self, index: usize) {
        if let Self::Many(keys) = self
            && index < keys.len()
        {
            *self = Self::One(keys.swap_remove(index));
        }
    }

    fn key(&self) -> Option<&TracedKey> {
        match self {
            Self::None => None,
            Self::One(key) => Some(key),
            Self::Many(keys) => keys.first(),
        }
    }
}

impl TracedKey {
    /// `is_logged`: whether an event will contain the key.
    pub(super) fn new<K: Key + ?Sized>(
        settings: &ReportSettings,
        is_logged: bool,
        terms: &Terms,
        key_id: KeyId,
        key: &K,
    ) -> Self {
        let ReportSettings { on_rejected, logs_keys, log_secret } = settings;
        let needs_text = on_rejected.is_some() || is_logged && (*logs_keys || log_secret.is_some());
        let text = needs_text.then(|| text_of(key));
        let text_again = || text.clone().unwrap_or_default();
        let logged = is_logged.then(|| settings.logged(terms, key_id, text_again));
        Self { logged, text }
    }
}

impl ReportSettings {
    /// Returns a key as events show it. `text` returns its text, which may be needed.
    pub(crate) fn logged(
        &self,
        terms: &Terms,
        key_id: KeyId,
        text: impl FnOnce() -> Arc<str>,
    ) -> LoggedKey {
        match self.log_secret {
            _ if self.logs_keys => LoggedKey::Text(text()),
            Some(secret) => LoggedKey::Hash(secret.hash(&text())),
            None => LoggedKey::Hash(hash_in_process(terms, key_id)),
        }
    }
}

/// Hashes the fingerprint that the embedded store has for a key; the same for all limits.
fn hash_in_process(terms: &Terms, key_id: KeyId) -> u64 {
    // Fingerprints are secret: an event that contained them could reveal the key.
    static SECRET: Lazy<RandomState> = Lazy::new(RandomState::new);
    SECRET.hash_one(key_id.fingerprint(terms.identity()))
}

fn text_of<K: Key + ?Sized>(key: &K) -> Arc<str> {
    OwnedKey::of(&key).to_string().into()
}

impl fmt::Display for LoggedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hash(hash) => write!(f, "{hash:016x}"),
            Self::Text(text) => f.write_str(text),
        }
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

impl ReportSettings {
    /// Returns whether rejections are reported.
    #[inline]
    pub(crate) fn reports_rejections(&self) -> bool {
        self.on_rejected.is_some() || is_traced()
    }
}

/// Returns whether the event of a rejection is enabled.
#[inline]
pub(crate) fn is_traced() -> bool {
    enabled!(target: "ratelimit_runtime::report", Level::DEBUG)
}

/// Called with each rejected call.
pub(crate) type RejectionHook = Arc<dyn Fn(&RejectedCall<'_>) + Send + Sync>;

/// A secret for hashes in events, from the bytes that the application sets.
#[derive(Clone, Copy)]
pub(crate) struct LogSecret([u64; 2]);

impl LogSecret {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        Self([0, 1].map(|half| sip_hash([half, 0], bytes)))
    }

    pub(super) fn hash(self, text: &str) -> u64 {
        sip_hash(self.0, text.as_bytes())
    }
}

/// Hashes by `SipHash` 2-4, which is the same in all builds.
#[allow(deprecated, reason = "the other hashers of the standard library can change")]
fn sip_hash([one, other]: [u64; 2], bytes: &[u8]) -> u64 {
    use std::hash::{Hasher, SipHasher};

    let mut hasher = SipHasher::new_with_keys(one, other);
    hasher.write(bytes);
    hasher.finish()
}

/// A rejected call, for [`Builder::on_rejected`](crate::Builder::on_rejected).
#[derive(Clone, Copy)]
pub struct RejectedCall<'a> {
    pub(super) rejection: &'a Rejection,
    pub(super) key: &'a str,
    pub(super) is_shadow: bool,
}

impl<'a> RejectedCall<'a> {
    /// Returns the name of the limit that rejected the call.
    #[must_use]
    pub fn limit(&self) -> &'a str {
        self.rejection.name()
    }

    /// Returns the text of the key, as in Redis: `alice`, `(acme:7)`, `%` for the key `()`. A terminal
    /// can print it: see [`OwnedKey`](crate::OwnedKey). Clients can choose keys: escape the text for other
    /// destinations, such as HTML.
    #[must_use]
    pub fn key(&self) -> &'a str {
        self.key
    }

    /// Returns the rejection, with the decision.
    #[must_use]
    pub fn rejection(&self) -> &'a Rejection {
        self.rejection
    }

    /// Returns whether the limit is a [shadow](crate::Limit::shadow), which has admitted the call.
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.is_shadow
    }
}

/// Shows the key: the application asked for it.
impl fmt::Debug for RejectedCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RejectedCall")
            .field("key", &self.key)
            .field("rejection", &self.rejection)
            .field("is_shadow", &self.is_shadow)
            .finish()
    }
}
