//! The id of a count.

use crate::limit::Identity;

/// The id of a count: the fingerprint of a key, combined with the identity of a limit.
///
/// No client can find two keys that have the same id under one identity: see `fingerprint.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct KeyId(u128);

impl KeyId {
    /// The id of no count, where one has to be named.
    pub(crate) const NONE: Self = Self(u128::MAX);

    #[inline]
    pub(crate) const fn new(identity: &Identity, fingerprint: u128) -> Self {
        Self(identity.hash() ^ fingerprint)
    }

    #[cfg(test)]
    pub(crate) const fn from_bits(bits: u128) -> Self {
        Self(bits)
    }

    #[inline]
    pub(crate) const fn bits(self) -> u128 {
        self.0
    }

    /// Returns the fingerprint of the key, the same under every identity.
    pub(crate) const fn fingerprint(self, identity: &Identity) -> u128 {
        self.0 ^ identity.hash()
    }

    /// Returns a part of the fingerprint of the key, the same under every identity.
    pub(crate) const fn fingerprint_part(self, identity: &Identity) -> u64 {
        ((self.0 ^ identity.hash()) >> 64) as u64
    }

    /// Returns the id of the same key under another identity. Saves hashing the key again.
    pub(crate) const fn under(self, own: &Identity, other: &Identity) -> Self {
        Self(self.0 ^ own.hash() ^ other.hash())
    }
}
