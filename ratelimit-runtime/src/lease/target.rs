//! What a lease charges and gives back, and what it replies to the calls that wait.

use std::sync::Arc;

use crate::limit::{Policy, Terms};
use crate::reply::StoreError;
use crate::store::{Charge, Reply};

/// The count of a lease, and the settings of its limit.
pub(super) struct LeaseTarget {
    /// The charge of the call that created this target, under the terms of the lease. Other calls do not use its
    /// cost.
    pub(super) charge: Arc<Charge>,
    /// The amounts of the limit.
    pub(super) amounts: LeaseAmounts,
    pub(super) policy: Policy,
    /// The most units that the process may hold.
    pub(super) max_units: u64,
    /// The time after their charge in which units may be spent, in microseconds.
    pub(super) lifetime: u64,
}

/// The amounts of a limit that leases. Calls with the same key id and other amounts do not spend its units.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct LeaseAmounts {
    threshold: u64,
    capacity: u64,
}

impl LeaseAmounts {
    /// Returns the amounts in the terms of a limit, which are not those of its lease.
    #[inline]
    pub(super) const fn of(terms: &Terms) -> Self {
        Self { threshold: terms.threshold(), capacity: terms.capacity() }
    }
}

impl LeaseTarget {
    /// Returns the charge of `units` units.
    pub(super) fn charge_of(&self, units: u64) -> Arc<Charge> {
        self.charge.with_cost(units)
    }

    pub(super) fn capacity(&self) -> u64 {
        self.charge.terms.capacity()
    }
}

/// Units to give back.
pub(super) struct UnspentUnits {
    pub(super) target: Arc<LeaseTarget>,
    pub(super) units: u64,
    /// The time of the charge, by the clock of the store.
    pub(super) at: u64,
    /// The time that the count has recorded for the charge.
    pub(super) place: u64,
}

/// A lease to request from the store.
pub(super) struct LeaseRequest {
    pub(super) target: Arc<LeaseTarget>,
    pub(super) units: u64,
    /// The units that were held before.
    pub(super) unspent: Option<UnspentUnits>,
}

impl UnspentUnits {
    /// Returns `None` for 0 units.
    pub(super) fn some(self) -> Option<Self> {
        (self.units > 0).then_some(self)
    }
}

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
