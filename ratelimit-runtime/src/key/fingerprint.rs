//! Fingerprints of keys: SipHash-1-3 of 128 bits under a secret. Without the secret, a client cannot find two keys that
//! share a fingerprint.
//!
//! The hash of a key that is one value is over that value, and is inverted. The hash of any other key is over its
//! values as they are, not escaped. Each byte of the structure is a word of 8 bytes, with the number of the bytes of
//! values since the word before. A last word ends the key. So the words can be found from the end of the hashed bytes,
//! and no value can imitate one. A value with the bytes of such a key has an inverted hash, so it is another key.
//!
//! The fingerprint and the identity of a limit are the id of a count.

use std::hash::{BuildHasher, RandomState};

use siphasher::sip128::SipHasher13;

use super::owned::write_text;
use super::writer::{KeyHasher, MAX_TEXT, text_of};
use super::{Key, KeyWriter};
use crate::limit::Identity;

/// The secret of a store.
#[derive(Clone)]
pub(crate) struct Secret(SipHasher13);

impl Secret {
    pub(crate) fn random() -> Self {
        let [one, other] = [(); 2].map(|()| RandomState::new().hash_one(()));
        Self(SipHasher13::new_with_keys(one, other))
    }

    /// Returns the fingerprint of `key`.
    #[inline]
    pub(crate) fn fingerprint(&self, key: &(impl Key + ?Sized)) -> u128 {
        let mut hasher = KeyHasher::new(self.0);
        key.write(&mut KeyWriter::to_hash(&mut hasher));
        if hasher.most > MAX_TEXT { self.of_long(&key) } else { hasher.finish() }
    }

    /// Returns the fingerprint of the text of `key`, of a long one that of its short text.
    #[cold]
    fn of_long(&self, key: &dyn Key) -> u128 {
        let mut hasher = KeyHasher::new(self.0);
        write_text(&text_of(key), &mut KeyWriter::to_hash(&mut hasher));
        hasher.finish()
    }
}

/// The id of a count: the fingerprint of a key, combined with the identity of a limit.
///
/// No client can find two keys that have the same id under one identity: see above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct KeyId(u128);

impl KeyId {
    #[inline]
    pub(crate) const fn new(identity: &Identity, fingerprint: u128) -> Self {
        Self::from_bits(identity.hash ^ fingerprint)
    }

    pub(crate) const fn from_bits(bits: u128) -> Self {
        Self(bits)
    }

    #[inline]
    pub(crate) const fn bits(self) -> u128 {
        self.0
    }

    /// Returns the fingerprint of the key, the same under every identity.
    pub(crate) const fn fingerprint(self, identity: &Identity) -> u128 {
        self.0 ^ identity.hash
    }

    /// Returns the id of the same key under another identity. Saves hashing the key again.
    pub(crate) const fn under(self, own: &Identity, other: &Identity) -> Self {
        Self(self.0 ^ own.hash ^ other.hash)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::key::OwnedKey;

    #[test]
    fn keys_with_equal_texts_and_no_others_have_equal_fingerprints() {
        use crate::key::{Format, Formatted};

        let secrets = [(); 2].map(|()| Secret::random());
        let long = "a(b):c%{d}".repeat(10);
        let format = |out: &mut KeyWriter<'_>| {
            out.bytes(b"a");
            out.separator();
            out.bytes(b"(");
            Formatted(format_args!("{long}")).write_argument(out);
        };
        // The bytes that are hashed for the key `colon`, without its last word.
        let imitated =
            [b"a".as_slice(), &(1_u64 << 8 | u64::from(b':')).to_ne_bytes(), b"b"].concat();
        let colon = |out: &mut KeyWriter<'_>| {
            out.bytes(b"a");
            out.separator();
            out.bytes(b"b");
        };
        let keys: [&dyn Key; 16] = [
            &(),
            &((),),
            &"",
            &"%",
            &"a:b",
            &("a", "b"),
            &"(a:b)",
            &("a", ("b", "c")),
            &(("a", "b"), "c"),
            &("a", "b", "c"),
            &"\0",
            &[0_u8; 8],
            &imitated,
            &Format(colon),
            &long,
            &Format(format),
        ];
        let mut all = HashSet::new();
        for secret in &secrets {
            for key in keys {
                let fingerprint = secret.fingerprint(key);
                assert!(all.insert(fingerprint), "{}", OwnedKey::of(key));
                assert_eq!(secret.fingerprint(&OwnedKey::of(key)), fingerprint);
            }
        }
        assert_eq!(secrets[0].fingerprint(&42), secrets[0].fingerprint(&"42"));
        assert_eq!(secrets[0].fingerprint(&'x'), secrets[0].fingerprint(b"x"));
    }
}
