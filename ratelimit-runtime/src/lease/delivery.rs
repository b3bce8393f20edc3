//! What the ledger replies to the calls that wait for units.

use super::entry::UnspentUnits;
use crate::reply::StoreError;
use crate::store::Reply;

/// A reply to a waiter, which is sent once the ledger is unlocked.
pub(super) struct Delivery<C> {
    pub(super) to: C,
    pub(super) content: DeliveryContent,
}

pub(super) enum DeliveryContent {
    Units { reply: Reply, units: UnspentUnits },
    Rejection(Reply),
    Failure(StoreError),
    NotLeased,
}

/// What follows from a lease that the store has charged.
pub(super) struct ChargedLease<C> {
    pub(super) deliveries: Vec<Delivery<C>>,
    /// The units that the process must not keep.
    pub(super) excess: Option<UnspentUnits>,
    /// The time at which the watch must look at the lease.
    pub(super) look_at: u64,
}
