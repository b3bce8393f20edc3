//! Keys from format strings. The attribute expands `key = "..."` to a [`Format`].
//!
//! Its function writes the parts one after the other. So a key is hashed without an intermediate text, as a tuple is
//! (`benches/all -- attribute`).

use std::fmt;
use std::ops::Deref;

use super::{Key, KeyWriter};

/// A key that a function writes: the parts of a format string.
pub struct Format<F>(pub F);

impl<F: Fn(&mut KeyWriter<'_>)> Key for Format<F> {
    #[inline(always)]
    fn write(&self, out: &mut KeyWriter<'_>) {
        (self.0)(out);
    }
}

/// An argument `{value}`, and what is formatted of it. Its method exists only if the text of the value as a key is its
/// `Display`, and writes it as a key, which takes less time (`benches/all -- attribute`). For other types, the compiler
/// takes the method of [`Formatted`].
pub struct FormatArgument<'a, T: ?Sized>(pub &'a T, pub Formatted<'a>);

impl<T: ShownKey + ?Sized> FormatArgument<'_, T> {
    /// Writes the value as a key.
    #[inline(always)]
    pub fn write_argument(&self, out: &mut KeyWriter<'_>) {
        out.group(|out| self.0.write(out));
    }
}

impl<'a, T: ?Sized> Deref for FormatArgument<'a, T> {
    type Target = Formatted<'a>;

    fn deref(&self) -> &Formatted<'a> {
        &self.1
    }
}

/// An argument with a format of its own, such as `{value:?}`.
pub struct Formatted<'a>(pub fmt::Arguments<'a>);

impl Formatted<'_> {
    /// Writes what is formatted.
    pub fn write_argument(&self, out: &mut KeyWriter<'_>) {
        out.group(|out| out.formatted(self.0));
    }
}

/// A key whose text is its `Display`.
pub trait ShownKey: Key + fmt::Display {}

impl ShownKey for str {}
impl ShownKey for String {}
impl<T: ShownKey + ?Sized> ShownKey for &T {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::OwnedKey;

    fn text(write: impl Fn(&mut KeyWriter<'_>)) -> String {
        OwnedKey::of(&Format(write)).to_string()
    }

    /// Its text as a key is not its `Display`.
    struct Other;

    impl fmt::Display for Other {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("displayed")
        }
    }

    impl Key for Other {
        fn write(&self, out: &mut KeyWriter<'_>) {
            out.bytes(b"key");
        }
    }

    #[test]
    fn arguments_do_not_merge_with_the_text_beside_them() {
        let pair = |one: &str, other: &str| {
            text(|out| {
                Formatted(format_args!("{one}")).write_argument(out);
                out.bytes(b"-");
                Formatted(format_args!("{other}")).write_argument(out);
            })
        };
        assert_eq!(pair("a-b", "c"), "(a-b)-(c)");
        assert_ne!(pair("a-b", "c"), pair("a", "b-c"));

        let user = text(|out| {
            out.bytes(b"user");
            out.separator();
            Formatted(format_args!("b:")).write_argument(out);
        });
        assert_eq!(user, "user:(b%3A)");
    }

    #[test]
    fn an_argument_is_written_as_it_is_displayed_whatever_its_type_is() {
        macro_rules! check {
            ($($value:expr),*) => {$(
                let value = $value;
                let formatted = text(|out| Formatted(format_args!("{value}")).write_argument(out));
                let written = text(|out| {
                    FormatArgument(&value, Formatted(format_args!("{value}"))).write_argument(out);
                });
                assert_eq!(written, formatted);
            )*};
        }
        fn unknown(value: impl fmt::Display) {
            check!(value);
        }
        check!(
            "a:{b}%",
            &&"",
            String::from("(size)"),
            'x',
            false,
            u8::MAX,
            u128::MAX,
            i8::MIN,
            i128::MIN,
            &0_usize
        );
        // The first has no key, and the second another text as a key.
        check!(1.5_f64, Other);
        unknown("a text whose type is not known");
    }
}
