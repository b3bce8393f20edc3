//! The hash of a key, while it is written: see `fingerprint.rs`.

use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher13};

/// Hashes a key while it is written. To write its text first takes three times as long (`benches/all -- embedded`).
pub(super) struct KeyHasher {
    hasher: SipHasher13,
    /// The number of bytes since the last word.
    value: usize,
    /// The number of bytes of the text, if all values are escaped.
    pub(super) most: usize,
    has_structure: bool,
}

impl KeyHasher {
    #[inline]
    pub(super) fn new(hasher: SipHasher13) -> Self {
        Self { hasher, value: 0, most: 0, has_structure: false }
    }

    #[inline]
    pub(super) fn write(&mut self, value: &[u8]) {
        self.hasher.write(value);
        self.value += value.len();
        // An escape has three bytes.
        self.most += 3 * value.len();
    }

    /// Appends a byte of the structure.
    #[inline]
    pub(super) fn write_structure(&mut self, byte: u8) {
        self.hasher.write_u64((self.value as u64) << 8 | u64::from(byte));
        self.value = 0;
        self.most += 1;
        self.has_structure = true;
    }

    #[inline]
    pub(super) fn finish(&mut self) -> u128 {
        if !self.has_structure {
            // Saves a word (`benches/all -- embedded`).
            return !self.hasher.finish128().as_u128();
        }
        self.write_structure(0);
        self.hasher.finish128().as_u128()
    }
}
