//! A list that holds one value without an allocation.

/// One value or several. Most decisions are about one limit, so most lists need no `Vec`.
pub(crate) type OneOrMany<T> = smallvec::SmallVec<[T; 1]>;
