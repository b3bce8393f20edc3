//! The keys in `tracing` events, and for the function that listens to rejections. An event contains a hash of the key
//! under a secret: events of one key have the same hash, and without the secret, a reader of the events cannot test
//! guesses of the key. The application can choose the secret, or have the keys themselves in the events.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use once_cell::sync::Lazy;
use tracing::field::{DisplayValue, display};

use super::settings::ReportSettings;
use crate::key::{Key, KeyId, OwnedKey};
use crate::limit::Terms;

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
    SECRET.hash_one(key_id.fingerprint_part(terms.identity()))
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
