//! The stores that processes share: their request and reply, the [`Store`] trait, and the Redis store.

#[cfg(feature = "redis")]
pub(crate) mod redis;
mod request;
#[cfg(feature = "rules")]
mod rules;
#[cfg(not(feature = "redis"))]
mod unshared;

use std::sync::Arc;

use tokio::sync::oneshot;

#[cfg(feature = "redis")]
pub(crate) use self::redis::Redis as SharedStore;
pub(crate) use self::request::{
    Calls, Charge, CorrectError, CorrectedCharge, EqualCalls, MAX_CORRECTED, MAX_RESERVED, Reply,
    Stated, Statement,
};
#[cfg(feature = "rules")]
pub(crate) use self::rules::{
    Announcement, MAX_ANNOUNCEMENT, MAX_PROCESS_ID, NewRules, RuleStore, ScanPosition, StoredRules,
};
#[cfg(not(feature = "redis"))]
pub(crate) use self::unshared::Unshared as SharedStore;
use crate::algorithm::{Charged, Outcome};
use crate::key::Key;
use crate::limit::Terms;
use crate::reply::StoreError;

/// Gives a charge of a call that is rolled back to its count. The receiver gets the result.
pub(crate) type RollbackHook = Box<dyn Fn(Arc<Charge>, Charged) -> GivenBack + Send + Sync>;

/// The result of giving units back.
pub(crate) type GivenBack = oneshot::Receiver<Result<Outcome, StoreError>>;

/// A store of counts that processes share. The trait is not public, so other crates cannot implement it.
///
/// Its futures are not boxed: the caller boxes one future for a whole check.
pub(crate) trait Store: Send + Sync {
    /// Decides calls atomically. If their keys are in several hash slots of a cluster, charges them hash slot by
    /// hash slot, and rolls back if one rejects.
    fn execute(&self, calls: Calls) -> impl Future<Output = Result<Reply, StoreError>> + Send;

    /// Corrects charges, each once at most: up to [`MAX_CORRECTED`] of one [hash slot](Self::slot). Returns a result
    /// for each, in their order: the outcome of a peek at the key as it was before. Of a reset, the outcome is admitted
    /// if there was a count; of one of calls in flight, it has the time of the reset in place of the remaining units.
    fn correct(
        &self,
        charges: &[CorrectedCharge],
    ) -> impl Future<Output = Vec<Result<Outcome, CorrectError>>> + Send;

    /// States what this process holds of counts of calls in flight: up to [`MAX_CORRECTED`] of one
    /// [hash slot](Self::slot). Returns a result for each.
    fn hold(
        &self,
        charges: &[Arc<Charge>],
    ) -> impl Future<Output = Vec<Result<Stated, StoreError>>> + Send;

    /// Returns the hash slot of a charge; 0 on one server.
    fn slot(&self, charge: &Charge) -> u16;

    /// Returns a number of the server of a hash slot, as far as it is known.
    fn server_of(&self, slot: u16) -> usize;

    /// Sets what gives back a charge of a call that is rolled back.
    fn on_rollback(&self, hook: RollbackHook);

    /// Succeeds if the store would decide now.
    fn ping(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Returns the name of a count in this store.
    fn count_name(&self, terms: &Terms, key: &dyn Key) -> Vec<u8>;

    /// Returns whether no decision is under way.
    fn is_idle(&self) -> bool;
}
