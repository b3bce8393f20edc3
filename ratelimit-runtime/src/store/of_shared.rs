//! What only a limiter with a shared store needs.

#[cfg(not(feature = "redis"))]
use std::marker::PhantomData;
use std::ops::Deref;

use super::SharedStore;

/// A value that only a limiter with a shared store has. In a build without such a store, this type has no values, so
/// the program does not contain the functions of a `T` (`benches/all -- footprint`).
#[derive(Clone)]
pub(crate) struct OfShared<T>(
    #[cfg(feature = "redis")] T,
    #[cfg(not(feature = "redis"))] (SharedStore, PhantomData<T>),
);

#[cfg(feature = "redis")]
impl<T> OfShared<T> {
    /// Creates the value of a limiter with this store.
    pub(crate) fn new(_: &SharedStore, value: impl FnOnce() -> T) -> Self {
        Self(value())
    }
}

#[cfg(not(feature = "redis"))]
impl<T> OfShared<T> {
    /// Creates no value: there is no store.
    pub(crate) fn new(store: &SharedStore, _: impl FnOnce() -> T) -> Self {
        match *store {}
    }
}

impl<T> Deref for OfShared<T> {
    type Target = T;

    #[cfg(feature = "redis")]
    fn deref(&self) -> &T {
        &self.0
    }

    #[cfg(not(feature = "redis"))]
    fn deref(&self) -> &T {
        match self.0.0 {}
    }
}
