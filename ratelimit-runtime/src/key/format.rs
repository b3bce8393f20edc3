//! Keys from format strings. The attribute expands `key = "..."` to a [`Format`].
//!
//! Its function writes the parts one after the other. So a key is hashed without an intermediate text, as a tuple is
//! (`benches/all -- attribute`).

use std::fmt;

use super::{Key, KeyWriter};

/// A key that a function writes: the parts of a format string.
pub struct Format<F>(pub F);

impl<F: Fn(&mut KeyWriter<'_>)> Key for Format<F> {
    #[inline(always)]
    fn write(&self, out: &mut KeyWriter<'_>) {
        (self.0)(out);
    }
}

/// Writes an argument of the format string.
pub fn write_formatted(out: &mut KeyWriter<'_>, value: fmt::Arguments<'_>) {
    out.group(|out| out.formatted(value));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::OwnedKey;

    fn text(write: impl Fn(&mut KeyWriter<'_>)) -> String {
        OwnedKey::of(&Format(write)).to_string()
    }

    #[test]
    fn arguments_do_not_merge_with_the_text_beside_them() {
        let pair = |one: &str, other: &str| {
            text(|out| {
                write_formatted(out, format_args!("{one}"));
                out.bytes(b"-");
                write_formatted(out, format_args!("{other}"));
            })
        };
        assert_eq!(pair("a-b", "c"), "(a-b)-(c)");
        assert_ne!(pair("a-b", "c"), pair("a", "b-c"));

        let user = text(|out| {
            out.bytes(b"user");
            out.separator();
            write_formatted(out, format_args!("b:"));
        });
        assert_eq!(user, "user:(b%3A)");
    }
}
