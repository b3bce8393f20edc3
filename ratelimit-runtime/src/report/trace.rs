//! What events tell of keys: a hash under a secret of the process, by which refusals of one key are seen
//! to be of one, and nobody learns the key, not even by guessing.

use std::fmt;
use std::hash::{BuildHasher, RandomState};

use once_cell::sync::Lazy;
use tracing::field::{DisplayValue, display};
use tracing::{Level, enabled};

use crate::limit::Limit;
use crate::part::Charge;

/// The keys of a check.
pub(super) enum Trace {
    /// No event would tell of them.
    None,
    One(KeyHash),
    Several(Vec<(&'static str, KeyHash)>),
}

/// A hash of the place that the embedded store has for a key, under another secret.
#[derive(Clone, Copy)]
pub(super) struct KeyHash(u64);

impl Trace {
    #[inline]
    pub(super) fn one(limit: &Limit, cost: u32, place: impl FnOnce() -> u128) -> Self {
        if tells(limit, cost) { Self::One(KeyHash::new(limit, place())) } else { Self::None }
    }

    pub(super) fn several(parts: &[Charge<'_>], place: impl Fn(&Charge<'_>) -> u128) -> Self {
        if !parts.iter().any(|part| tells(part.limit, part.cost)) {
            return Self::None;
        }
        let hash = |part: &Charge<'_>| (part.limit.name(), KeyHash::new(part.limit, place(part)));
        Self::Several(parts.iter().map(hash).collect())
    }

    /// The key of the limit called `name`.
    pub(super) fn of(&self, name: &str) -> Option<DisplayValue<KeyHash>> {
        match self {
            Self::None => None,
            Self::One(hash) => Some(display(*hash)),
            Self::Several(hashes) => {
                hashes.iter().find(|(known, _)| *known == name).map(|(_, hash)| display(*hash))
            }
        }
    }
}

/// Whether an event would tell that a call was refused.
#[inline]
pub(crate) fn tells(limit: &Limit, cost: u32) -> bool {
    if limit.is_shadow() || cost > limit.capacity() {
        enabled!(target: "ratelimit_runtime::report", Level::INFO)
    } else {
        enabled!(target: "ratelimit_runtime::report", Level::DEBUG)
    }
}

impl KeyHash {
    /// That of the key at `place`; the same for all limits.
    fn new(limit: &Limit, place: u128) -> Self {
        // Places are secret: what is seen of them might be undone.
        static SECRET: Lazy<RandomState> = Lazy::new(RandomState::new);
        Self(SECRET.hash_one(((place ^ limit.identity) >> 64) as u64))
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
