//! The stores that processes share: their request and reply, the [`Store`] trait, and the Redis store.

pub(crate) mod holder;
#[cfg(feature = "redis")]
pub(crate) mod redis;
mod request;
#[cfg(feature = "rules")]
mod rules;
mod settle_error;
mod statement;
#[cfg(not(feature = "redis"))]
mod unshared;

pub(crate) use self::holder::{ChangedCounts, HeldSlot, Holder, TakingRequest};
#[cfg(feature = "redis")]
pub(crate) use self::redis::Redis as SharedStore;
pub(crate) use self::request::{
    BucketCharge, Calls, CancelledUnits, Charge, Counts, EqualCalls, MAX_RESERVED, MAX_SETTLED,
    Reply, Request, Reservations, SettledCharge,
};
#[cfg(feature = "rules")]
pub(crate) use self::rules::{
    Announcement, MAX_ANNOUNCEMENT, MAX_PROCESS_ID, NewRules, RuleStore, ScanPosition, StoredRules,
};
pub(crate) use self::settle_error::SettleError;
pub(crate) use self::statement::Statement;
#[cfg(not(feature = "redis"))]
pub(crate) use self::unshared::Unshared as SharedStore;
use std::sync::Arc;

use crate::algorithm::{Outcome, Receipt};
use crate::key::Key;
use crate::limit::Terms;
use crate::reply::{Source, StoreError};

/// A store of counts that processes share. The trait is not public, so other crates cannot implement it.
///
/// Its futures are not boxed: the caller boxes one future for a whole check.
pub(crate) trait Store: Send + Sync {
    /// Executes a request atomically. If its keys are in several hash slots of a cluster, charges them hash slot by
    /// hash slot, and rolls back if one rejects.
    fn execute(&self, request: Request) -> impl Future<Output = Result<Reply, StoreError>> + Send;

    /// Corrects charges that are independent of each other, each once at most: up to [`MAX_SETTLED`] of one
    /// [group](Self::settle_group). Returns a result for each, in their order.
    fn settle(
        &self,
        charges: &[SettledCharge],
    ) -> impl Future<Output = Vec<Result<Outcome, SettleError>>> + Send;

    /// States what this process holds of counts of calls in flight: up to [`MAX_SETTLED`] of one
    /// [group](Self::settle_group). Returns for each an outcome, which is rejected if the units were given to others,
    /// and the receipt of the count.
    fn hold(
        &self,
        charges: &[Arc<Charge>],
    ) -> impl Future<Output = Vec<Result<(Outcome, Receipt), StoreError>>> + Send;

    /// Returns the group of a charge. One request corrects charges of one group.
    fn settle_group(&self, charge: &Charge) -> u16;

    /// Removes the count of `charge`. Returns whether it was there, and of a count of calls in flight the receipt,
    /// whose birth is the time of the reset.
    fn reset(
        &self,
        charge: &Charge,
    ) -> impl Future<Output = Result<(bool, Receipt), StoreError>> + Send;

    /// Succeeds if the store would decide now.
    fn ping(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Returns the name of a count in this store.
    fn count_name(&self, terms: &Terms, key: &dyn Key) -> Vec<u8>;

    fn source(&self) -> Source;

    /// Returns whether no decision is under way.
    fn is_idle(&self) -> bool;
}
