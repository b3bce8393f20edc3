//! Writes the text of a key, so that two different keys never have the same text.
//!
//! The bytes of values are escaped and the structure of the key is not, so a value cannot imitate structure:
//!
//! | text | meaning |
//! | --- | --- |
//! | `(a:b)` | a tuple; nested tuples nest |
//! | `user:(42)` | a format string: its text, and each argument as a group |
//! | `%28` `%29` `%3A` `%25` `%7B` `%7D` | the bytes `(` `)` `:` `%` `{` `}` of a value |
//! | `name{key}`, `name%` | the count of a limit for a key, or for no key |
//! | `name{(}` | the count of a limit for a key with an empty text, because Redis ignores an empty hash tag |
//! | `name{abc(sha256:…}` | the count of a limit for a key whose text is long, see below |
//!
//! The braces are a Redis Cluster hash tag. All counts of one key are in one hash slot, so one script can decide
//! several limits of the key. Counts without a key have no hash tag: their names distribute them over the hash slots.
//!
//! A client that chooses its key also chooses the hash slot: the slot is a CRC16 of the key, which anybody can compute.
//! So the client can direct the calls and the memory of many keys at one node of a cluster. No limit admits more for
//! it, because the braces of a value are escaped: a key cannot be another key.
//!
//! A long text is shortened, so that a client which chooses its key cannot choose how much a count
//! costs.
//!
//! A text above [`MAX_TEXT`] bytes becomes its beginning, [`MARK`], and the SHA-256 of the whole text in hexadecimal
//! digits. The parenthesis of the mark is never closed, but every text of a key closes its parentheses. So no key has
//! the short text of another key.

use std::fmt;
use std::hash::Hasher;

use hmac_sha256::Hash;
use siphasher::sip128::{Hasher128, SipHasher13};
use smallvec::SmallVec;

use super::Key;
use crate::limit::Terms;
use crate::printing::debug_by_name;

/// The text of `()`.
pub(super) const NO_KEY: u8 = b'%';

/// Receives the parts of a [`Key`](super::Key), which says how to implement one.
pub struct KeyWriter<'a> {
    output: KeyOutput<'a>,
    /// Whether a part of the key is hashed under a secret that no other process has.
    pub(crate) lacks_secret: bool,
}

/// The output of a [`KeyWriter`]: a text or a fingerprint.
enum KeyOutput<'a> {
    Text(&'a mut KeyText),
    Hash(&'a mut KeyHasher),
}

/// Appends the name of a count: the algorithm, the period, the align, the name of the limit, and the key. The period
/// and the align are in the name, because a window that has ended under one period can still be open under another.
pub(crate) fn put_count_name(out: &mut Vec<u8>, terms: &Terms, key: &(impl Key + ?Sized)) {
    out.extend_from_slice(terms.identity.algorithm.as_str().as_bytes());
    out.push(b':');
    // Calls in flight have no period.
    let (period, align) = (terms.identity.period, terms.identity.align);
    let (count, unit) = if terms.is_in_flight() { (0, "s") } else { period.in_units() };
    if let Some(unit) = period.calendar {
        out.extend_from_slice(unit.as_str().as_bytes());
    } else {
        out.extend_from_slice(itoa::Buffer::new().format(count).as_bytes());
        out.extend_from_slice(unit.as_bytes());
    }
    if let Some(align) = align {
        out.extend_from_slice(align.in_count_name().as_bytes());
    }
    // The colons of the name are structure, and all else is escaped.
    for part in terms.identity.name.split(':') {
        out.push(b':');
        put_escaped(part.as_bytes(), |bytes| out.extend_from_slice(bytes));
    }
    match &*text_of(key) {
        [NO_KEY] => out.push(NO_KEY),
        text => {
            out.push(b'{');
            // Differs from the texts of all other keys, because their parentheses are closed.
            out.extend_from_slice(if text.is_empty() { b"(".as_slice() } else { text });
            out.push(b'}');
        }
    }
}

impl<'a> KeyWriter<'a> {
    fn to_text(text: &'a mut KeyText) -> Self {
        Self { output: KeyOutput::Text(text), lacks_secret: false }
    }

    #[inline]
    pub(super) fn to_hash(hasher: &'a mut KeyHasher) -> Self {
        Self { output: KeyOutput::Hash(hasher), lacks_secret: false }
    }

    /// Writes a value of any bytes, escaped.
    #[inline(always)]
    pub fn bytes(&mut self, value: &[u8]) {
        match &mut self.output {
            KeyOutput::Text(text) => put_escaped(value, |bytes| text.extend_from_slice(bytes)),
            KeyOutput::Hash(hasher) => hasher.write(value),
        }
    }

    /// Writes the `Display` of a value, escaped.
    pub fn display(&mut self, value: impl fmt::Display) {
        self.formatted(format_args!("{value}"));
    }

    /// Writes a formatted value, escaped.
    pub(super) fn formatted(&mut self, value: fmt::Arguments<'_>) {
        struct Escaped<'a, 'b>(&'a mut KeyWriter<'b>);

        impl fmt::Write for Escaped<'_, '_> {
            #[inline]
            fn write_str(&mut self, text: &str) -> fmt::Result {
                self.0.bytes(text.as_bytes());
                Ok(())
            }
        }

        // If `Display` fails, the key is the text that it has written before.
        let _ = fmt::Write::write_fmt(&mut Escaped(self), value);
    }

    /// Writes several parts as one value, as tuples do. Write a [`separator`](Self::separator) between the
    /// parts.
    #[inline(always)]
    pub fn group(&mut self, parts: impl FnOnce(&mut Self)) {
        self.structure(b'(');
        parts(self);
        self.structure(b')');
    }

    /// Ends one part of a [`group`](Self::group) and begins the next.
    #[inline(always)]
    pub fn separator(&mut self) {
        self.structure(b':');
    }

    /// Writes the key `()`. It differs from the text of each value.
    pub(super) fn no_key(&mut self) {
        self.structure(NO_KEY);
    }

    /// Writes a byte of the structure, which is not escaped.
    #[inline(always)]
    pub(super) fn structure(&mut self, byte: u8) {
        match &mut self.output {
            KeyOutput::Text(text) => text.push(byte),
            KeyOutput::Hash(hasher) => hasher.write_structure(byte),
        }
    }
}

/// Returns the text of a key, shortened if it is long.
pub(super) fn text_of(key: &(impl Key + ?Sized)) -> KeyText {
    written(key).0
}

/// Returns whether a part of a key is hashed under a secret that no other process has.
pub(crate) fn lacks_secret(key: &(impl Key + ?Sized)) -> bool {
    written(key).1
}

/// Returns the text of a key, shortened if it is long, and whether it [lacks a secret](lacks_secret).
pub(super) fn written(key: &(impl Key + ?Sized)) -> (KeyText, bool) {
    let mut text = KeyText::new();
    let mut out = KeyWriter::to_text(&mut text);
    key.write(&mut out);
    let lacks_secret = out.lacks_secret;
    shorten(&mut text);
    (text, lacks_secret)
}

debug_by_name!("KeyWriter" [] KeyWriter<'_>);

/// Passes a value to `put`, escaped.
fn put_escaped(value: &[u8], mut put: impl FnMut(&[u8])) {
    let mut rest = value;
    while let Some(at) = rest.iter().position(|byte| is_escaped(*byte)) {
        put(&rest[..at]);
        put(&escape(rest[at]));
        rest = &rest[at + 1..];
    }
    put(rest);
}

/// Returns whether a byte is escaped in a value.
pub(super) fn is_escaped(byte: u8) -> bool {
    matches!(byte, b'(' | b')' | b':' | b'%' | b'{' | b'}')
}

/// Returns `%` and the two hexadecimal digits of a byte.
pub(super) fn escape(byte: u8) -> [u8; 3] {
    let digit = |digit: u8| b"0123456789ABCDEF"[usize::from(digit)];
    [b'%', digit(byte >> 4), digit(byte & 15)]
}

/// Returns the byte whose escape `text` starts with.
pub(super) fn unescape(text: &[u8]) -> Option<u8> {
    let [b'%', high, low, ..] = *text else { return None };
    let [high, low] = [high, low].map(|digit| char::from(digit).to_digit(16));
    // Only escapes in upper case are written.
    let byte = (high? << 4 | low?) as u8;
    text.starts_with(&escape(byte)).then_some(byte)
}

/// The most bytes of a text that is not shortened.
pub(super) const MAX_TEXT: usize = 256;

/// The most bytes of a long text that its short text begins with.
const BEGINNING: usize = 128;

/// Separates the beginning of a long text from its hash.
const MARK: &[u8] = b"(sha256:";

/// The number of hexadecimal digits of a hash.
const DIGITS: usize = 64;

/// The text of a key, as [`KeyWriter`](super::KeyWriter) writes it. Only a long text allocates, until it is shortened.
pub(super) type KeyText = SmallVec<[u8; MAX_TEXT]>;

/// Shortens a text if it is long.
pub(super) fn shorten(text: &mut KeyText) {
    if text.len() <= MAX_TEXT {
        return;
    }
    let hash = Hash::hash(text);
    text.truncate(end_of_beginning(text));
    text.extend_from_slice(MARK);
    for byte in hash {
        text.extend([byte >> 4, byte & 15].map(|digit| b"0123456789abcdef"[usize::from(digit)]));
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

/// Hashes a key while it is written, see `fingerprint.rs`. To write its text first takes three times as long
/// (`benches/all -- embedded`).
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::OwnedKey;
    use crate::limit::Limit;

    fn bytes(key: &dyn Key) -> Vec<u8> {
        text_of(key).to_vec()
    }

    fn text(key: &dyn Key) -> String {
        String::from_utf8(bytes(key)).expect("UTF-8")
    }

    #[test]
    fn the_name_of_a_count_contains_algorithm_period_limit_and_key() {
        const LIMIT: Limit = Limit::fixed("app::login", 1, std::time::Duration::from_secs(1));
        let mut text = Vec::new();
        put_count_name(&mut text, LIMIT.terms(), &("a", 7));
        assert_eq!(text, b"fixed:1s:app::login{(a:7)}");

        // An empty text and `()` are different keys.
        for (key, expected) in [(&"" as &dyn Key, "a{(}"), (&(), "a%"), (&((),), "a{(%)}")] {
            let limit = Limit::fixed("a", 1, std::time::Duration::from_secs(1));
            let mut text = Vec::new();
            put_count_name(&mut text, limit.terms(), key);
            assert_eq!(text, [b"fixed:1s:", expected.as_bytes()].concat());

            // An `OwnedKey` gives the same name.
            let mut again = Vec::new();
            put_count_name(&mut again, limit.terms(), &OwnedKey::of(key));
            assert_eq!(again, text);
        }

        // The name of a limit cannot imitate another name with a key.
        let forged_limit = Limit::fixed("a{b}", 1, std::time::Duration::from_millis(1_500));
        let mut forged = Vec::new();
        put_count_name(&mut forged, forged_limit.terms(), &"c");
        assert_eq!(forged, b"fixed:1500ms:a%7Bb%7D{c}");
    }

    #[test]
    fn texts_are_as_documented() {
        assert_eq!(text(&"alice"), "alice");
        assert_eq!(text(&42_u8), text(&"42"));
        assert_eq!(text(&-1_i64), "-1");
        assert_eq!(text(&("a", 7)), "(a:7)");
        assert_eq!(text(&(("a", 7), "b")), "((a:7):b)");
        assert_eq!(text(&"{x}%(:)"), "%7Bx%7D%25%28%3A%29");
        assert_eq!(text(&()), "%");
        assert_eq!((text(&Some("a")), text(&None::<&str>)), ("a".into(), "%".into()));
        assert_eq!((text(&(7, Some(""))), text(&(7, None::<u8>))), ("(7:)".into(), "(7:%)".into()));
        assert_eq!(text(&std::net::Ipv6Addr::LOCALHOST), "%3A%3A1");
    }

    #[test]
    fn different_keys_have_different_texts() {
        let keys: &[&dyn Key] = &[
            &"",
            &(),
            &"()",
            &("",),
            &("", ""),
            &"(:)",
            &("a:b", "c"),
            &("a", "b:c"),
            &("a", "b", "c"),
            &(("a", "b"), "c"),
            &("a", ("b", "c")),
            &"a:b:c",
            &"%3A",
            &":",
            &"%253A",
            &"{a}",
            &"a",
            &b"\xff\x00".as_slice(),
            &"\u{fffd}\0",
        ];
        let mut texts: Vec<_> = keys.iter().map(|key| bytes(*key)).collect();
        texts.sort();
        texts.dedup();
        assert_eq!(texts.len(), keys.len());
    }

    #[test]
    fn values_are_escaped_wherever_they_are() {
        for length in [0, 1, 20, 64] {
            let key = "x:".repeat(length);
            assert_eq!(text(&key), "x%3A".repeat(length));
        }
    }
}

#[cfg(test)]
mod text_tests {
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
