//! Keys from format strings. The attribute expands `key = "..."` to a [`Format`].
//!
//! Its function writes the parts one after the other. So a key is hashed without an intermediate text, as a tuple is
//! (`benches/all -- attribute`).

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use super::{Key, KeyWriter};

/// A key that a function writes: the parts of a format string.
pub struct Format<F>(pub F);

impl<F: Fn(&mut KeyWriter<'_>)> Key for Format<F> {
    #[inline(always)]
    fn write(&self, out: &mut KeyWriter<'_>) {
        (self.0)(out);
    }
}

/// Writes an argument with a format of its own, such as `{value:?}`.
pub fn write_formatted(out: &mut KeyWriter<'_>, value: fmt::Arguments<'_>) {
    out.group(|out| out.formatted(value));
}

/// An argument `{value}`, which is written by its type: `Hole(AnyHole(&value)).write_to(out)` calls the method of
/// `Hole` if the value is a [`PlainValue`]. Otherwise that method does not exist, and the compiler calls the method of
/// [`AnyHole`], to which a `Hole` dereferences.
pub struct Hole<'a, T: ?Sized>(pub AnyHole<'a, T>);

/// An argument of any type.
pub struct AnyHole<'a, T: ?Sized>(pub &'a T);

impl<T: PlainValue + ?Sized> Hole<'_, T> {
    /// Writes a value whose text as a key is its `Display`: to write it as a key takes less time.
    #[inline(always)]
    pub fn write_to(self, out: &mut KeyWriter<'_>) {
        out.group(|out| self.0.0.write(out));
    }
}

impl<T: ?Sized> AnyHole<'_, T> {
    /// Writes a value of any type that is `Display`.
    pub fn write_to(&self, out: &mut KeyWriter<'_>)
    where
        T: DisplayedValue,
    {
        out.group(|out| out.display(self.0));
    }
}

impl<'a, T: ?Sized> Deref for Hole<'a, T> {
    type Target = AnyHole<'a, T>;

    fn deref(&self) -> &AnyHole<'a, T> {
        &self.0
    }
}

/// A value of a type that is `Display`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` doesn't implement `std::fmt::Display`",
    label = "`{Self}` cannot be formatted with the default formatter",
    note = "in the format string of a key, `{{value:?}}` formats a value whose type is `Debug`"
)]
pub trait DisplayedValue: fmt::Display {}

#[diagnostic::do_not_recommend]
impl<T: fmt::Display + ?Sized> DisplayedValue for T {}

/// A value whose text as a key is its `Display`.
pub trait PlainValue: Key {}

macro_rules! plain {
    ($($type:ty),*) => {$(
        impl PlainValue for $type {}
    )*};
}

plain!(str, String, Cow<'_, str>, Box<str>, Rc<str>, Arc<str>, bool, char);
plain!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize);
plain!(IpAddr, Ipv4Addr, Ipv6Addr);

impl<T: PlainValue + ?Sized> PlainValue for &T {}

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

    #[test]
    fn a_plain_value_is_written_as_fmt_writes_it() {
        macro_rules! check {
            ($($value:expr;)*) => {$(
                let value = $value;
                let written = text(|out| Hole(AnyHole(&value)).write_to(out));
                assert_eq!(written, text(|out| write_formatted(out, format_args!("{value}"))));
            )*};
        }
        fn is_plain(_: &(impl PlainValue + ?Sized)) {}
        macro_rules! check_plain {
            ($($value:expr;)*) => {$(
                is_plain(&$value);
                check!($value;);
            )*};
        }
        fn displayed(value: impl fmt::Display) {
            check!(value;);
        }

        check_plain! {
            "a:{b}%";
            String::from("(size)");
            &&"";
            Cow::Borrowed("cow");
            Box::<str>::from("box");
            Arc::<str>::from("arc");
            u8::MAX;
            u128::MAX;
            i8::MIN;
            i128::MIN;
            &0_usize;
            'x';
            false;
            Ipv6Addr::LOCALHOST;
            IpAddr::from([127, 0, 0, 1]);
        }
        check! {
            1.5_f64;
            std::num::NonZeroU8::MIN;
        }
        displayed("a text whose type is not known");
    }
}
