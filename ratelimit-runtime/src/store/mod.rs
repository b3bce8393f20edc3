//! Where counts live: the [`Store`] trait, and the request and the reply of every store.

pub(crate) mod embedded;
mod one_or_many;
#[cfg(feature = "redis")]
pub(crate) mod redis;
mod request;
#[cfg(not(feature = "redis"))]
mod unshared;

use std::time::Duration;

pub(crate) use self::one_or_many::OneOrMany;
#[cfg(feature = "redis")]
pub(crate) use self::redis::Redis as SharedStore;
pub(crate) use self::request::{BucketCharge, Charge, Reply, Request};
#[cfg(not(feature = "redis"))]
pub(crate) use self::unshared::Unshared as SharedStore;
use crate::key::Key;
use crate::limit::Terms;
use crate::reply::{Source, StoreError};

/// A store of counts. The trait is not public, which seals it.
///
/// Its futures have no box of their own: the caller puts the whole way of a check into one.
pub(crate) trait Store: Send + Sync {
    /// Executes a request atomically. A cluster whose nodes hold different keys of it executes it node by
    /// node, and rolls back if one rejects.
    fn execute(&self, request: Request) -> impl Future<Output = Result<Reply, StoreError>> + Send;

    /// Removes the count of `charge`.
    fn reset(&self, charge: &Charge) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Succeeds if the store would decide now.
    fn ping(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Returns the name of a count in this store; empty if the store needs no more than the key id.
    fn count_name(&self, terms: &Terms, key: &dyn Key) -> Vec<u8>;

    fn source(&self) -> Source;

    /// Returns how long a reply may take.
    fn deadline(&self) -> Duration;
}
