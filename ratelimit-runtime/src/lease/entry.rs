//! The lease of one count: the units that the process holds, and the calls that wait for more.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::LeaseReply;
use super::share::Share;
use super::state::{LeaseCaller, LeaseState};
use super::target::{LeaseAmounts, LeaseTarget, UnspentUnits};

pub(super) struct LeaseEntry {
    /// The count and the settings of the units that are held, and of the pending request.
    pub(super) target: Arc<LeaseTarget>,
    pub(super) state: LeaseState<oneshot::Sender<LeaseReply>>,
    /// Whether a task requests leases for the waiters.
    pub(super) is_fetching: bool,
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
