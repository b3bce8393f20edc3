//! The keys in `tracing` events: a hash under a secret of the process. Events of one key have the same hash. Without
//! the secret, a reader of the events cannot test guesses of the key.

use std::fmt;
use std::hash::{BuildHasher, RandomState};

use once_cell::sync::Lazy;
use tracing::field::{DisplayValue, display};
use tracing::{Level, enabled};

use crate::key::KeyId;
use crate::limit::{Name, Terms};

/// The keys of a check, hashed.
pub(super) enum KeyTrace {
    /// No event will contain the keys.
    None,
    One(KeyHash),
    Many(Vec<(Name, KeyHash)>),
}

/// A hash of the fingerprint that the embedded store has for a key.
#[derive(Clone, Copy)]
pub(super) struct KeyHash(u64);

impl KeyTrace {
    /// Returns the hash of the key of the limit `name`.
    pub(super) fn of(&self, name: &Name) -> Option<DisplayValue<KeyHash>> {
        match self {
            Self::None => None,
            Self::One(hash) => Some(display(*hash)),
            Self::Many(hashes) => {
                hashes.iter().find(|(known, _)| known == name).map(|(_, hash)| display(*hash))
            }
        }
    }
}

/// Returns whether the event of a rejection is enabled.
#[inline]
pub(crate) fn is_traced(shadow: bool, exceeds_capacity: bool) -> bool {
    if shadow || exceeds_capacity {
        enabled!(target: "ratelimit_runtime::report", Level::INFO)
    } else {
        enabled!(target: "ratelimit_runtime::report", Level::DEBUG)
    }
}

impl KeyHash {
    /// Hashes the key of a count; the same for all limits.
    pub(super) fn new(terms: &Terms, key_id: KeyId) -> Self {
        // Fingerprints are secret: an event that contained them could reveal the key.
        static SECRET: Lazy<RandomState> = Lazy::new(RandomState::new);
        Self(SECRET.hash_one(key_id.fingerprint_part(terms.identity())))
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
