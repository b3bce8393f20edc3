//! Keys that borrow nothing: the text of a key, as [`KeyWriter`] writes it, and as operators see it, in events and in
//! terminals.
//!
//! Clients choose keys, so a key must not be able to move the cursor, to reorder the text around it, or to look like
//! another key.

use std::fmt;
use std::str::FromStr;

use super::writer::{
    KeyText, NO_KEY, escape, is_escaped, shorten, split, text_of, unescape, written,
};
use super::{Key, KeyWriter};
use crate::printing::{debug_by_name, error_of_text};

/// A key that borrows nothing, such as one of [`key!`](crate::key!).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnedKey(Box<[u8]>);

/// The error of [`OwnedKey::parse`]. Its text says what is wrong, and what to write.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ParseKeyError(&'static str);

impl OwnedKey {
    /// Returns a copy of `key`.
    pub(crate) fn of(key: &dyn Key) -> Self {
        Self(text_of(key).as_slice().into())
    }

    /// Returns a copy of `key`, and whether the key [lacks a secret](super::lacks_secret), which the copy does not
    /// know.
    pub(crate) fn and_secret_of(key: &dyn Key) -> (Self, bool) {
        let (text, lacks_secret) = written(key);
        (Self(text.as_slice().into()), lacks_secret)
    }

    /// Returns the key in the name of a count: see [`put_count_name`](super::put_count_name).
    pub(crate) fn in_count_name(name: &[u8]) -> Self {
        // Neither the prefix nor the name of a limit has a brace.
        let text = match name.iter().position(|byte| *byte == b'{').map(|at| &name[at..]) {
            Some(b"{(}") => &b""[..],
            Some([_, text @ .., _]) => text,
            Some(_) | None => &[NO_KEY],
        };
        Self(text.into())
    }

    /// Reads a key as it is written into Redis and into logs: `alice`, the tuple `(alice:42)`, the format string
    /// `user:(42)`. In the parts of tuples and of format strings, `( ) : % { }` are `%28 %29 %3A %25 %7B %7D`; in a
    /// text without parentheses, only `( )` need to be. `%` is the key `()`, of a limit without `key`. A byte that is
    /// not ASCII, and a control, can be written as `%` and two hexadecimal digits, such as `%FF` and `%0A`. Of a key
    /// above 256 bytes, takes the whole text and the short one: its beginning and `(sha256:…`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ratelimit_runtime::{Limit, OwnedKey, RateLimiter};
    ///
    /// const EXPORTS: Limit = Limit::sliding("exports", 2, Duration::from_secs(3600));
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::embedded();
    /// limiter.check(&EXPORTS, ("alice", 42), 1).await?;
    /// let key = OwnedKey::parse("(alice:42)")?;
    /// assert_eq!(limiter.peek(&EXPORTS, key, 1).await?.remaining, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// On parentheses that do not match.
    pub fn parse(text: &str) -> Result<Self, ParseKeyError> {
        if text.as_bytes() == [NO_KEY] {
            return Ok(Self([NO_KEY].into()));
        }
        // The mark of a short text opens a parenthesis, and its beginning can open others.
        let (whole, (text, hash)) = (text, split(text).unwrap_or((text, "")));
        let (mut depth, mut written) = (0_usize, KeyText::new());
        let is_value = !whole.contains(['(', ')']);
        let mut at = 0;
        while let Some(&byte) = text.as_bytes().get(at) {
            let escaped = unescape(&text.as_bytes()[at..]);
            // As `shown` writes it.
            if let Some(byte) = escaped.filter(|byte| byte.is_ascii_control() || !byte.is_ascii()) {
                written.push(byte);
                at += 3;
                continue;
            }
            match byte {
                b'(' => depth += 1,
                b')' => depth = depth.checked_sub(1).ok_or(ParseKeyError::PARENTHESES)?,
                _ => {}
            }
            let is_structure = match byte {
                b'(' | b')' => true,
                b':' => !is_value,
                // An escaped byte, or the key `()` as a part of a tuple.
                b'%' => {
                    let (before, rest) = text.as_bytes().split_at(at);
                    let is_part = matches!(before.last(), Some(b'(' | b':'))
                        && matches!(rest.get(1), Some(b':' | b')'));
                    escaped.is_some_and(is_escaped) || is_part && !is_value
                }
                _ => false,
            };
            if is_escaped(byte) && !is_structure {
                written.extend(escape(byte));
            } else {
                written.push(byte);
            }
            at += 1;
        }
        if depth > 0 && hash.is_empty() {
            return Err(ParseKeyError::PARENTHESES);
        }
        written.extend_from_slice(hash.as_bytes());
        shorten(&mut written);
        Ok(Self(written.as_slice().into()))
    }
}

impl ParseKeyError {
    const PARENTHESES: Self = Self(
        "the parentheses of the key do not match: in a part of a key, write `%28` for `(` and `%29` for `)`",
    );
}

error_of_text!(ParseKeyError);

/// Reads a key as [`OwnedKey::parse`] does.
impl FromStr for OwnedKey {
    type Err = ParseKeyError;

    fn from_str(text: &str) -> Result<Self, ParseKeyError> {
        Self::parse(text)
    }
}

/// Writes the text of the key, which [`OwnedKey::parse`] reads. It has visible characters only: bytes that are not
/// UTF-8, controls, and characters that are invisible or change the direction of text are `%` and two hexadecimal
/// digits for each byte, so a terminal can print it. A key can be personal: `Debug` does not write it.
impl fmt::Display for OwnedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&shown(&self.0))
    }
}

debug_by_name!("OwnedKey" [] OwnedKey);

impl Key for OwnedKey {
    fn write(&self, out: &mut KeyWriter<'_>) {
        write_text(&self.0, out);
    }
}

/// Writes the key with this text.
pub(super) fn write_text(text: &[u8], out: &mut KeyWriter<'_>) {
    // A `%` alone is the text of `()`. In the text of a value, each `%` is escaped.
    if *text == [NO_KEY] {
        return out.no_key();
    }
    let mut rest = text;
    while let Some(at) = rest.iter().position(|byte| is_escaped(*byte)) {
        out.bytes(&rest[..at]);
        if let Some(byte) = unescape(&rest[at..]).filter(|byte| is_escaped(*byte)) {
            out.bytes(&[byte]);
            rest = &rest[at + 3..];
        } else {
            out.structure(rest[at]);
            rest = &rest[at + 1..];
        }
    }
    out.bytes(rest);
}

/// Returns the text of a key, as [`KeyWriter`](super::KeyWriter) writes it, with only visible characters. `%` and two
/// hexadecimal digits stand for each byte that is not UTF-8, and for each byte of a control or an invisible
/// character. [`OwnedKey::parse`](super::OwnedKey::parse) reads it.
pub(crate) fn shown(written: &[u8]) -> String {
    let mut text = String::with_capacity(written.len());
    let push = |text: &mut String, bytes: &[u8]| {
        text.extend(bytes.iter().flat_map(|byte| escape(*byte)).map(char::from));
    };
    for chunk in written.utf8_chunks() {
        for character in chunk.valid().chars() {
            if is_invisible(character) {
                push(&mut text, character.encode_utf8(&mut [0; 4]).as_bytes());
            } else {
                text.push(character);
            }
        }
        push(&mut text, chunk.invalid());
    }
    text
}

/// Returns whether a character is a control, or has no width, or changes the direction of the text.
fn is_invisible(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{Format, Formatted};

    #[test]
    fn a_key_is_read_as_it_is_written() {
        let format = |out: &mut KeyWriter<'_>| {
            out.bytes(b"user");
            out.separator();
            Formatted(format_args!("a:b")).write_argument(out);
        };
        let keys: [&dyn Key; 17] = [
            &b"\xff\xc3\xa4%\xc3(".as_slice(),
            &("\n\0\u{7f}\u{85}\u{202e}%0A", b"\xe2\x80".as_slice()),
            &"\u{e4}\u{fffd}",
            &"",
            &(),
            &"alice",
            &"100%",
            &"%",
            &"%3A",
            &"a(b)c",
            &"{x}",
            &std::net::Ipv6Addr::LOCALHOST,
            &("a", 7),
            &("a:b", ("c", "%")),
            &("a", None::<u8>, "b"),
            &((),),
            &Format(format),
        ];
        for key in keys {
            let key = OwnedKey::of(key);
            assert_eq!(key.to_string().parse().as_ref(), Ok(&key), "{key}");
        }
    }

    #[test]
    fn a_key_is_read_from_the_name_of_a_count() {
        let limit = crate::Limit::fixed("a{b}:c", 1, std::time::Duration::from_secs(60));
        let long = "x{".repeat(1_000);
        let keys: [&dyn Key; 7] = [&(), &"", &"alice", &"{x}", &("a", "{"), &b"\xff}", &long];
        for key in keys {
            let mut name = b"prefix:".to_vec();
            crate::key::put_count_name(&mut name, limit.terms(), key);
            assert_eq!(OwnedKey::in_count_name(&name), OwnedKey::of(key), "{name:?}");
        }
    }

    #[test]
    fn a_value_needs_no_escapes() {
        for value in ["::1", "100%", "{x}", "GET /a:b", "a%zz", "%:", "a%20b", "%f", "%ff"] {
            assert_eq!(OwnedKey::parse(value), Ok(OwnedKey::of(&value)), "{value}");
        }
        assert_eq!(OwnedKey::parse("(50%:{x})"), Ok(OwnedKey::of(&("50%", "{x}"))));
        for wrong in ["(a", "a)", ")(", "((a)"] {
            assert_eq!(OwnedKey::parse(wrong), Err(ParseKeyError::PARENTHESES), "{wrong}");
        }
    }
}
