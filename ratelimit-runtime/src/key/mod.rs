//! Keys: calls with different keys are counted separately. The [`Key`] trait and its implementations for
//! standard types.

#![allow(
    clippy::inline_always,
    reason = "a short key is hashed in registers (`benches/all -- embedded`)"
)]

mod client;
mod fingerprint;
mod format;
mod hashed;
mod owned;
mod writer;

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;
use std::sync::Arc;

pub use self::client::Client;
pub(crate) use self::fingerprint::{KeyId, Secret};
pub use self::format::{Format, write_formatted};
pub use self::hashed::{HashedKey, KeySecret};
pub(crate) use self::owned::shown;
pub use self::owned::{OwnedKey, ParseKeyError};
pub use self::writer::KeyWriter;
pub(crate) use self::writer::lacks_secret;
pub(crate) use self::writer::put_count_name;

/// A value that a limit counts separately from other values: a user, an address, a tenant, or a tuple of these.
///
/// Two keys are equal if their texts are equal: `42` and `"42"` are one key, so a count continues when the type of the
/// key changes. Keys with different texts never share a count, whatever bytes they contain. The parts of a tuple stay
/// separate, also in nested tuples: `("a:b", "c")` and `("a", "b:c")` are two keys, and `("a", ("b", "c"))` and
/// `("a", "b", "c")` are two keys.
///
/// A text above 256 bytes is shortened to its beginning and its SHA-256. So a client that chooses its key does not
/// choose how much memory a count takes.
///
/// To use a type of your own as a key, implement this trait and write the parts of the key:
///
/// ```
/// use ratelimit_runtime::{Key, KeyWriter};
///
/// struct UserId(u64);
///
/// impl Key for UserId {
///     fn write(&self, out: &mut KeyWriter<'_>) {
///         self.0.write(out);
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a rate limit key",
    label = "not a key",
    note = "keys are `&str`, `String`, integers, `bool`, `char`, IP addresses, bytes, `Uuid` (feature `uuid`), \
            and tuples, `Option`s and references of these",
    note = "of a `SocketAddr`, take `ratelimit_runtime::web::Client`: the port changes with each connection, \
            and an IPv6 client has many addresses",
    note = "a format string takes any type that is `Display`: `key = \"{{value}}\"`",
    note = "for a type of your own, implement `ratelimit_runtime::Key`"
)]
pub trait Key {
    /// Writes this key.
    fn write(&self, out: &mut KeyWriter<'_>);
}

macro_rules! dereferenced {
    ($([$($parameter:tt)*] $pointer:ty;)*) => {$(
        impl<$($parameter)*> Key for $pointer {
            #[inline(always)]
            fn write(&self, out: &mut KeyWriter<'_>) {
                (**self).write(out);
            }
        }
    )*};
}

dereferenced! {
    [T: Key + ?Sized] &T;
    [T: Key + ?Sized] &mut T;
    [T: Key + ?Sized] Box<T>;
    [T: Key + ?Sized] Rc<T>;
    [T: Key + ?Sized] Arc<T>;
    [T: Key + ToOwned + ?Sized] Cow<'_, T>;
    [] String;
    [] Vec<u8>;
}

/// `Some(key)` is the same key as `key`. `None` is one key, different from every other: all calls without a value share
/// its count. Without a tuple around it, it is the key `()`.
impl<T: Key> Key for Option<T> {
    #[inline]
    fn write(&self, out: &mut KeyWriter<'_>) {
        match self {
            Some(key) => key.write(out),
            None => out.no_key(),
        }
    }
}

/// No key: one count for the whole limit.
impl Key for () {
    fn write(&self, out: &mut KeyWriter<'_>) {
        out.no_key();
    }
}

macro_rules! of_bytes {
    ($([$($parameter:tt)*] $type:ty: |$value:ident| $bytes:expr;)*) => {$(
        impl<$($parameter)*> Key for $type {
            #[inline(always)]
            fn write(&self, out: &mut KeyWriter<'_>) {
                let $value = self;
                out.bytes($bytes);
            }
        }
    )*};
}

of_bytes! {
    [] str: |text| text.as_bytes();
    [] [u8]: |bytes| bytes;
    [const N: usize] [u8; N]: |bytes| bytes;
    [] char: |character| character.encode_utf8(&mut [0; 4]).as_bytes();
    [] bool: |value| if *value { b"true" } else { b"false" };
}

macro_rules! integers {
    ($($integer:ty),*) => {$(
        impl Key for $integer {
            #[inline(always)]
            fn write(&self, out: &mut KeyWriter<'_>) {
                out.bytes(itoa::Buffer::new().format(*self).as_bytes());
            }
        }
    )*};
}

integers!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize);

macro_rules! displayed {
    ($($(#[$attribute:meta])* $type:ty),*) => {$(
        $(#[$attribute])*
        impl Key for $type {
            #[inline]
            fn write(&self, out: &mut KeyWriter<'_>) {
                out.display(self);
            }
        }
    )*};
}

displayed!(IpAddr, Ipv4Addr, Ipv6Addr);

#[cfg(feature = "uuid")]
displayed!(
    /// Writes the hyphenated text of the identifier.
    uuid::Uuid
);

macro_rules! tuples {
    ($($first:ident $($part:ident)*;)*) => {$(
        impl<$first: Key, $($part: Key),*> Key for ($first, $($part,)*) {
            #[allow(non_snake_case, reason = "each variable has the name of its type parameter")]
            #[inline(always)]
            fn write(&self, out: &mut KeyWriter<'_>) {
                let ($first, $($part,)*) = self;
                out.structure(b'(');
                $first.write(out);
                $(
                    out.separator();
                    $part.write(out);
                )*
                out.structure(b')');
            }
        }
    )*};
}

tuples! {
    A;
    A B;
    A B C;
    A B C D;
    A B C D E;
    A B C D E F;
    A B C D E F G;
    A B C D E F G H;
}
