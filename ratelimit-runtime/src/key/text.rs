//! The text of a key. A long one is shortened, so that a client which chooses its key cannot choose how much a count
//! costs.
//!
//! A text above [`MAX_TEXT`] bytes becomes its beginning, [`MARK`], and the SHA-256 of the whole text in hexadecimal
//! digits. The parenthesis of the mark is never closed, but every text of a key closes its parentheses. So no key has
//! the short text of another key.

use hmac_sha256::Hash;

/// The most bytes of a text that is not shortened.
pub(super) const MAX_TEXT: usize = 256;

/// The most bytes of a long text that its short text begins with.
const BEGINNING: usize = 128;

/// Separates the beginning of a long text from its hash.
const MARK: &[u8] = b"(sha256:";

/// The number of hexadecimal digits of a hash.
const DIGITS: usize = 64;

/// The text of a key, as [`KeyWriter`](super::KeyWriter) writes it. Allocates nothing.
pub(super) struct KeyText {
    /// The first bytes.
    bytes: [u8; MAX_TEXT],
    len: usize,
    /// The hash of a long text.
    hash: Option<Hash>,
}

impl KeyText {
    /// Returns the text with these bytes.
    pub(super) fn from_bytes(bytes: &[u8]) -> Self {
        let mut text = Self::empty();
        text.push(bytes);
        text.finish();
        text
    }

    pub(super) fn empty() -> Self {
        Self { bytes: [0; MAX_TEXT], len: 0, hash: None }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Appends bytes to a text that is not finished.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        let kept = bytes.len().min(MAX_TEXT - self.len);
        self.bytes[self.len..self.len + kept].copy_from_slice(&bytes[..kept]);
        self.len += kept;
        let rest = &bytes[kept..];
        if !rest.is_empty() {
            let hash = self.hash.get_or_insert_with(|| {
                let mut hash = Hash::new();
                hash.update(self.bytes);
                hash
            });
            hash.update(rest);
        }
    }

    /// Shortens the text if it is long.
    pub(super) fn finish(&mut self) {
        let Some(hash) = &self.hash else { return };
        self.len = end_of_beginning(&self.bytes);
        let mut append = |bytes: &[u8]| {
            self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
            self.len += bytes.len();
        };
        append(MARK);
        for byte in hash.finalize() {
            append(&[byte >> 4, byte & 15].map(|digit| b"0123456789abcdef"[usize::from(digit)]));
        }
    }
}

/// Splits a short text into its beginning and the rest; `None` if `text` is not the short text of a long one.
pub(super) fn split(text: &str) -> Option<(&str, &str)> {
    let (beginning, rest) = text.split_at_checked(text.len().checked_sub(MARK.len() + DIGITS)?)?;
    let digits = rest.as_bytes().strip_prefix(MARK)?;
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    digits.iter().all(is_digit).then_some((beginning, rest))
}

/// Returns where the beginning of a long text ends: neither in an escape nor in a character.
fn end_of_beginning(long: &[u8]) -> usize {
    let is_inside = |end: &usize| {
        let is_in_escape = long[end - 2..*end].contains(&b'%');
        let is_in_character = long[*end] & 0xC0 == 0x80;
        is_in_escape || is_in_character
    };
    // A text that is not UTF-8 can have any number of such bytes.
    (BEGINNING - 8..=BEGINNING).rev().find(|end| !is_inside(end)).unwrap_or(BEGINNING - 8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{Key, OwnedKey};
    use crate::limit::Limit;

    /// Returns the text of a key, as Redis has it.
    fn text(key: &dyn Key) -> String {
        const LIMIT: Limit = Limit::fixed("a", 1, std::time::Duration::from_secs(1));
        let mut name = Vec::new();
        crate::key::put_count_name(&mut name, LIMIT.terms(), key);
        let name = String::from_utf8(name).expect("UTF-8");
        name.strip_prefix("fixed:1s:a{").and_then(|key| key.strip_suffix("}")).expect(&name).into()
    }

    #[test]
    fn keys_above_256_bytes_are_their_beginning_and_a_hash() {
        let longest = "a".repeat(256);
        assert_eq!(text(&longest), longest);
        let long = "a".repeat(257);
        // printf 'a%.0s' {1..257} | sha256sum
        let hash = "e8d95cc2b4bc198c54b40bd214df958afb65f5e73d2c2eafe0593cf5c635c1f0";
        assert_eq!(text(&long), format!("{}(sha256:{hash}", "a".repeat(128)));
        // 86 escapes have 258 bytes.
        assert_eq!(text(&"%".repeat(85)).len(), 255);
        assert!(text(&"%".repeat(86)).starts_with("%25%25"));
        assert!(text(&"x".repeat(2 << 20)).len() < 256);
    }

    #[test]
    fn the_beginning_ends_between_characters_and_escapes() {
        for before in 120..136 {
            let mut ends = vec![("%", "%25"), ("é", "é"), ("🦀", "🦀")];
            while let Some((value, written)) = ends.pop() {
                let key = format!("{}{}", "a".repeat(before), value.repeat(300));
                let short = text(&key);
                let (beginning, _) = split(&short).expect("short");
                let rest = beginning.strip_prefix(&"a".repeat(before.min(beginning.len())));
                assert_eq!(rest.expect("a").replace(written, ""), "", "{short}");
                assert!((121..=128).contains(&beginning.len()), "{short}");
            }
        }
    }

    #[test]
    fn no_key_has_the_short_text_of_another() {
        let long = "a".repeat(300);
        let short = text(&long);
        for key in [&*short, &format!("{short})"), &format!("({short}")] {
            assert_ne!(text(&key), short);
        }
        assert_ne!(text(&(&*short,)), short);
        assert_ne!(text(&"a".repeat(301)), short);
        assert_ne!(text(&(&*long,)), short);
    }

    #[test]
    fn the_short_text_is_the_same_key() {
        let nested = ("a:b", ("{x}".repeat(50), None::<u8>), "%".repeat(200));
        let controls = "\n\u{202e}".repeat(300);
        let keys: [&dyn Key; 5] =
            [&"a".repeat(300), &"(:)".repeat(100), &nested, &"é:".repeat(1_000), &controls];
        let secret = crate::key::Secret::random();
        let fingerprint = |key: &dyn Key| secret.fingerprint(key);
        for key in keys {
            let short = text(key);
            let read = OwnedKey::parse(&short).expect("a key");
            assert_eq!((text(&read), OwnedKey::of(key)), (short, read.clone()));
            assert_eq!(OwnedKey::parse(&read.to_string()).as_ref(), Ok(&read));
            assert_eq!(fingerprint(&read), fingerprint(key));
        }
        // The whole text is the same key as well.
        let whole = "a".repeat(300);
        assert_eq!(OwnedKey::parse(&whole), Ok(OwnedKey::of(&whole)));
        assert!(OwnedKey::parse(&format!("a(sha256:{}", "0".repeat(63))).is_err());
    }
}
