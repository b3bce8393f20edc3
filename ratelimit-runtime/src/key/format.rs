//! Keys from format strings. The attribute expands `key = "..."` to a [`Format`].
//!
//! Each part of a format string has a type of its own. So a key is hashed without an intermediate text, as a tuple is
//! (`benches/all -- attribute`).

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use super::{Key, KeyWriter};

/// A key that consists of the parts of a format string, a tuple.
pub struct Format<P>(pub P);

/// A part of a format string, or several of them.
pub trait Piece {
    /// Writes the part.
    fn write(&self, out: &mut KeyWriter<'_>);
}

impl<P: Piece> Key for Format<P> {
    #[inline(always)]
    fn write(&self, out: &mut KeyWriter<'_>) {
        self.0.write(out);
    }
}

/// Text between arguments, without colons.
pub struct Text(pub &'static str);

impl Piece for Text {
    #[inline(always)]
    fn write(&self, out: &mut KeyWriter<'_>) {
        out.bytes(self.0.as_bytes());
    }
}

/// A colon between arguments.
pub struct Colon;

impl Piece for Colon {
    #[inline(always)]
    fn write(&self, out: &mut KeyWriter<'_>) {
        out.separator();
    }
}

/// An argument with a format. Written as a group, so that its text cannot merge with the text beside it.
pub struct Shown<'a>(pub fmt::Arguments<'a>);

impl Piece for Shown<'_> {
    fn write(&self, out: &mut KeyWriter<'_>) {
        out.group(|out| out.formatted(self.0));
    }
}

/// An argument whose text as a key is its `Display`: to write it as a key takes less time.
pub struct Plain<'a, T: ?Sized>(&'a T);

impl<T: PlainValue + ?Sized> Piece for Plain<'_, T> {
    #[inline(always)]
    fn write(&self, out: &mut KeyWriter<'_>) {
        out.group(|out| self.0.write(out));
    }
}

/// An argument of any type that is `Display`, written as a group. It holds `Display::fmt` of the type, so a type
/// without `Display` is one error, at the argument.
pub struct Displayed<'a, T: ?Sized> {
    value: &'a T,
    display: fn(&T, &mut fmt::Formatter<'_>) -> fmt::Result,
}

impl<T: ?Sized> fmt::Display for Displayed<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (self.display)(self.value, f)
    }
}

impl<T: ?Sized> Piece for Displayed<'_, T> {
    fn write(&self, out: &mut KeyWriter<'_>) {
        out.group(|out| out.display(self));
    }
}

/// An argument `{value}`, which is written by its type: `Hole(AnyHole(&value)).piece()` calls the method of `Hole` if
/// the value is a [`PlainValue`]. Otherwise that method does not exist, and the compiler calls the method of
/// [`AnyHole`], to which a `Hole` dereferences. A constructor and a method without arguments are checked faster than
/// functions and a `format_args!` (`benches/all -- attribute`, the compile time).
pub struct Hole<'a, T: ?Sized>(pub AnyHole<'a, T>);

/// An argument of any type.
pub struct AnyHole<'a, T: ?Sized>(pub &'a T);

impl<'a, T: PlainValue + ?Sized> Hole<'a, T> {
    /// Returns the part of the format string.
    #[inline(always)]
    #[must_use]
    pub fn piece(self) -> Plain<'a, T> {
        Plain(self.0.0)
    }
}

impl<'a, T: ?Sized> AnyHole<'a, T> {
    /// Returns the part of the format string.
    #[must_use]
    pub fn piece(&self) -> Displayed<'a, T>
    where
        T: DisplayedValue,
    {
        Displayed { value: self.0, display: T::fmt }
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

macro_rules! tuples {
    ($($($part:ident)*;)*) => {$(
        impl<$($part: Piece),*> Piece for ($($part,)*) {
            #[allow(non_snake_case, unused_variables, reason = "each variable has the name of its type parameter")]
            #[inline(always)]
            fn write(&self, out: &mut KeyWriter<'_>) {
                let ($($part,)*) = self;
                $($part.write(out);)*
            }
        }
    )*};
}

// A longer format string is a tuple of tuples.
tuples! {
    ;
    A;
    A B;
    A B C;
    A B C D;
    A B C D E;
    A B C D E F;
    A B C D E F G;
    A B C D E F G H;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(pieces: impl Piece) -> String {
        crate::key::OwnedKey::of(&Format(pieces)).to_string()
    }

    #[test]
    fn arguments_do_not_merge_with_the_text_beside_them() {
        let [ab, a, b, c, bc] = ["a-b", "a", "b", "c", "b-c"];
        let one = text((Shown(format_args!("{ab}")), Text("-"), Shown(format_args!("{c}"))));
        let two = text((Shown(format_args!("{a}")), Text("-"), Shown(format_args!("{bc}"))));
        assert_eq!(one, "(a-b)-(c)");
        assert_ne!(one, two);

        let user = text((Text("user"), Colon, (Shown(format_args!("{b}:")), ())));
        assert_eq!(user, "user:(b%3A)");
    }

    #[test]
    fn a_plain_value_is_written_as_fmt_writes_it() {
        trait IsPlain {
            const IS_PLAIN: bool;
        }
        impl<T: ?Sized> IsPlain for Plain<'_, T> {
            const IS_PLAIN: bool = true;
        }
        impl<T: ?Sized> IsPlain for Displayed<'_, T> {
            const IS_PLAIN: bool = false;
        }
        fn parts<P: Piece + IsPlain>(piece: P) -> (bool, String) {
            (P::IS_PLAIN, text(piece))
        }
        macro_rules! check {
            ($($value:expr, $is_plain:expr;)*) => {$(
                let value = $value;
                let (is_plain, written) = parts(Hole(AnyHole(&value)).piece());
                assert_eq!(is_plain, $is_plain, "{value}");
                assert_eq!(written, text(Shown(format_args!("{value}"))));
            )*};
        }
        fn displayed(value: impl fmt::Display) {
            check!(value, false;);
        }

        check! {
            "a:{b}%", true;
            String::from("(size)"), true;
            &&"", true;
            Cow::Borrowed("cow"), true;
            Box::<str>::from("box"), true;
            Arc::<str>::from("arc"), true;
            u8::MAX, true;
            u128::MAX, true;
            i8::MIN, true;
            i128::MIN, true;
            &0_usize, true;
            'x', true;
            false, true;
            Ipv6Addr::LOCALHOST, true;
            IpAddr::from([127, 0, 0, 1]), true;
            1.5_f64, false;
            std::num::NonZeroU8::MIN, false;
        }
        displayed("a text whose type is not known");
    }
}
