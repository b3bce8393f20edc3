//! The lease of one count: the units that the process holds, and the calls that wait for more.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::LeaseReply;
use super::share::Share;
use super::state::{LeaseCaller, LeaseState};
use crate::limit::{Policy, Terms};
use crate::store::Charge;

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

pub(super) struct LeaseEntry {
    /// The target of the units that are held, and of the pending request.
    pub(super) target: Arc<LeaseTarget>,
    pub(super) state: LeaseState<oneshot::Sender<LeaseReply>>,
    /// Whether a task requests leases for the waiters.
    pub(super) is_fetching: bool,
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

impl LeaseCaller for oneshot::Sender<LeaseReply> {
    fn is_present(&self) -> bool {
        !self.is_closed()
    }
}

impl LeaseEntry {
    pub(super) fn new(target: Arc<LeaseTarget>) -> Self {
        Self { target, state: LeaseState::default(), is_fetching: false }
    }

    /// Returns whether calls with these amounts can use this lease or the next one: no units are held or requested for
    /// calls with other amounts.
    pub(super) fn can_turn_to(&self, amounts: LeaseAmounts) -> bool {
        self.target.amounts == amounts || !self.is_fetching && self.state.held.units == 0
    }

    /// Makes the next lease one of `target`. Returns whether it will be.
    pub(super) fn turn_to(&mut self, target: &Arc<LeaseTarget>) -> bool {
        let amounts_agree = self.target.amounts == target.amounts;
        if amounts_agree && self.target.max_units == target.max_units {
            return true;
        }
        if self.is_fetching || !self.can_turn_to(target.amounts) {
            return false;
        }
        if !amounts_agree {
            self.state.held.forget();
        }
        (self.target, self.state.share) = (Arc::clone(target), Share::default());
        true
    }

    /// Takes all units that are held.
    pub(super) fn take_unspent(&mut self) -> Option<UnspentUnits> {
        self.state.take_unspent(&self.target)
    }
}

impl UnspentUnits {
    /// Returns `None` for 0 units.
    pub(super) fn some(self) -> Option<Self> {
        (self.units > 0).then_some(self)
    }
}
