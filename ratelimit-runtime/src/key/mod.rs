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
pub use self::format::{Format, FormatArgument, Formatted, ShownKey};
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

/// Implements `Key` for each type by what its keys write.
macro_rules! keys {
    ($(
        $(#[$attribute:meta])*
        [$($parameter:tt)*] $type:ty: |$key:ident, $out:ident| $write:expr;
    )*) => {$(
        $(#[$attribute])*
        impl<$($parameter)*> Key for $type {
            #[inline(always)]
            fn write(&self, $out: &mut KeyWriter<'_>) {
                let $key = self;
                $write;
            }
        }
    )*};
}

keys! {
    [T: Key + ?Sized] &T: |key, out| (**key).write(out);
    [T: Key + ?Sized] &mut T: |key, out| (**key).write(out);
    [T: Key + ?Sized] Box<T>: |key, out| (**key).write(out);
    [T: Key + ?Sized] Rc<T>: |key, out| (**key).write(out);
    [T: Key + ?Sized] Arc<T>: |key, out| (**key).write(out);
    [T: Key + ToOwned + ?Sized] Cow<'_, T>: |key, out| (**key).write(out);
    [] String: |text, out| text.as_str().write(out);
    [] Vec<u8>: |bytes, out| out.bytes(bytes);
    [] str: |text, out| out.bytes(text.as_bytes());
    [] [u8]: |bytes, out| out.bytes(bytes);
    [const N: usize] [u8; N]: |bytes, out| out.bytes(bytes);
    [] char: |character, out| out.bytes(character.encode_utf8(&mut [0; 4]).as_bytes());
    [] bool: |value, out| out.bytes(if *value { b"true" } else { b"false" });
    [] IpAddr: |address, out| out.display(address);
    [] Ipv4Addr: |address, out| out.display(address);
    [] Ipv6Addr: |address, out| out.display(address);
    /// Writes the hyphenated text of the identifier.
    #[cfg(feature = "uuid")]
    [] uuid::Uuid: |id, out| out.display(id);
    /// No key: one count for the whole limit.
    [] (): |_key, out| out.no_key();
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

macro_rules! integers {
    ($($integer:ty),*) => {$(
        impl Key for $integer {
            #[inline(always)]
            fn write(&self, out: &mut KeyWriter<'_>) {
                out.bytes(itoa::Buffer::new().format(*self).as_bytes());
            }
        }

        impl ShownKey for $integer {}
    )*};
}

integers!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize);

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
