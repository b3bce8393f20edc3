//! Hashes of credentials, under a secret, as keys.

use std::fmt;
use std::hash::{BuildHasher, RandomState};

use hmac_sha256::{HMAC, Hash};

use super::writer::{lacks_secret, text_of};
use super::{Key, KeyWriter};
use crate::printing::debug_by_name;

/// The secret under which a limiter hashes credentials and other secret keys, from
/// [`RateLimiter::key_secret`](crate::RateLimiter::key_secret). Processes with the same secret share the counts of
/// hashed keys. Each secret has counts of its own.
///
/// ```
/// use std::time::Duration;
/// use ratelimit_runtime::{Limit, RateLimiter};
///
/// const API: Limit = Limit::sliding("api", 100, Duration::from_secs(60));
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = RateLimiter::builder().key_secret("7c0d2b1e9a54f3e8").build()?;
/// let secret = limiter.key_secret()?;
/// limiter.check(&API, secret.hash("Bearer sk_live_1234"), 1).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct KeySecret {
    secret: [u8; 32],
    /// Whether the program has set it, so that other processes can have it.
    is_given: bool,
}

/// The hash of a key: see [`KeySecret::hash`]. Its text is `hashed-` and 32 hexadecimal digits, in Redis, in events and
/// in rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HashedKey {
    digest: u128,
    lacks_secret: bool,
}

impl KeySecret {
    /// The fewest bytes of a secret.
    pub(crate) const FEWEST: usize = 16;

    pub(crate) fn new(secret: &[u8]) -> Self {
        Self { secret: Hash::hash(secret), is_given: true }
    }

    pub(crate) fn random() -> Self {
        let bytes = [(); 4].map(|()| RandomState::new().hash_one(()).to_ne_bytes());
        Self { secret: Hash::hash(bytes.as_flattened()), is_given: false }
    }

    /// Returns whether other processes can have it.
    pub(crate) fn is_given(&self) -> bool {
        self.is_given
    }

    /// Returns the first 128 bits of the HMAC-SHA-256 of a key under the secret. A reader of Redis or of logs needs the
    /// secret to test a guess of the key.
    #[must_use]
    pub fn hash(&self, key: impl Key) -> HashedKey {
        let digest = HMAC::mac(text_of(&key), self.secret);
        let digest = digest.first_chunk().map_or(0, |first| u128::from_be_bytes(*first));
        HashedKey { digest, lacks_secret: !self.is_given || lacks_secret(&key) }
    }
}

debug_by_name!("KeySecret" [] KeySecret);

impl fmt::Display for HashedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hashed-{:032x}", self.digest)
    }
}

impl Key for HashedKey {
    fn write(&self, out: &mut KeyWriter<'_>) {
        out.lacks_secret |= self.lacks_secret;
        out.display(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_depends_on_the_secret_and_the_key_alone() {
        let [one, other] =
            ["one of the secrets", "another one of them"].map(|it| KeySecret::new(it.as_bytes()));
        assert_eq!(one.hash("alice"), one.hash("alice".to_owned()));
        assert_ne!(one.hash("alice"), one.hash("bob"));
        assert_ne!(one.hash("alice"), other.hash("alice"));
        assert_ne!(one.hash(("a", "b")), one.hash("(a:b)"));
        assert_ne!(KeySecret::random().hash("alice"), KeySecret::random().hash("alice"));
        // HMAC-SHA-256 of `alice` under the SHA-256 of the secret.
        assert_eq!(one.hash("alice").to_string(), "hashed-bcc86160587faf110b71bd09e4f198da");
    }
}
