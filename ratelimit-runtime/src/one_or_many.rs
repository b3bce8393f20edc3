//! A list that holds one value without an allocation.

use std::ops::{Deref, DerefMut};
use std::slice;

/// One value or several. Most decisions are about one limit, so most lists need no `Vec`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    /// Returns what `make` makes of each value of a list.
    pub(crate) fn of<U>(values: &[U], make: impl FnMut(&U) -> T) -> Self {
        let mut make = make;
        match values {
            [one] => Self::One(make(one)),
            many => Self::Many(many.iter().map(make).collect()),
        }
    }

    #[cfg(any(feature = "tower", feature = "actix"))]
    pub(crate) fn push(&mut self, value: T) {
        *self = match std::mem::take(self) {
            Self::Many(many) if many.is_empty() => Self::One(value),
            Self::Many(mut many) => {
                many.push(value);
                Self::Many(many)
            }
            Self::One(one) => Self::Many(vec![one, value]),
        };
    }

    pub(crate) fn map<U>(&self, change: impl FnMut(&T) -> U) -> OneOrMany<U> {
        OneOrMany::of(self, change)
    }

    pub(crate) fn into_map<U>(self, change: impl FnMut(T) -> U) -> OneOrMany<U> {
        let mut change = change;
        match self {
            Self::One(one) => OneOrMany::One(change(one)),
            Self::Many(many) => OneOrMany::Many(many.into_iter().map(change).collect()),
        }
    }
}

impl<T> Deref for OneOrMany<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::One(one) => slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}

impl<T> DerefMut for OneOrMany<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::One(one) => slice::from_mut(one),
            Self::Many(many) => many,
        }
    }
}

impl<T> Default for OneOrMany<T> {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

impl<T> From<Vec<T>> for OneOrMany<T> {
    fn from(many: Vec<T>) -> Self {
        match <[T; 1]>::try_from(many) {
            Ok([one]) => Self::One(one),
            Err(many) => Self::Many(many),
        }
    }
}
