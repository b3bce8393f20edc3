//! The calls of a line, each at its stage. Only [`Waiters::replace`] moves a call to another stage, so the orders of
//! the calls always agree with their stages.

use std::collections::{BTreeSet, HashMap};
use std::mem;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use super::Grant;
use crate::limit::OnError;
use crate::one_or_many::OneOrMany;
use crate::owner::Agenda;
use crate::reply::StoreError;
use crate::store::Reply;
use crate::waiting::Ticket;

#[derive(Default)]
pub(super) struct Waiters {
    by_arrival: HashMap<u64, Waiter>,
    /// The calls without a grant that are polled, by arrival.
    pub(super) queued: BTreeSet<u64>,
    /// The moments of the calls with a grant, and the arrivals of these calls.
    pub(super) granted: BTreeSet<(u64, u64)>,
    /// When to look at each queued call: at the end of its wait, and when the store is late.
    pub(super) looks: Agenda<u64>,
}

/// A call in a line.
pub(in crate::waiting) struct Waiter {
    pub(in crate::waiting) ticket: Arc<Ticket>,
    pub(super) costs: OneOrMany<u64>,
    /// The end of the wait, by the clock of the limiter.
    pub(in crate::waiting) deadline: u64,
    /// Until when the store may still admit the call; `None` before its wait has ended in the queue.
    pub(super) late_at: Option<u64>,
    pub(super) on_error: OnError,
    pub(super) waker: Waker,
    /// The time of a wake-up after which the call was not polled yet.
    pub(super) pinged: Option<Instant>,
    /// Whether rules have changed after its turn had come. Without its grant, the call leaves the line.
    pub(super) has_old_rules: bool,
    stage: Stage,
}

#[derive(Debug)]
pub(super) enum Stage {
    /// It is part of the pending request, or of a later one.
    Queued,
    Granted(Grant),
    /// The call was not polled when its turn came. It queues again when it is polled.
    Asleep,
    Ended(Result<Reply, StoreError>),
}

impl Waiters {
    pub(super) fn len(&self) -> usize {
        self.by_arrival.len()
    }

    pub(super) fn get(&self, arrival: u64) -> Option<&Waiter> {
        self.by_arrival.get(&arrival)
    }

    pub(super) fn get_mut(&mut self, arrival: u64) -> Option<&mut Waiter> {
        self.by_arrival.get_mut(&arrival)
    }

    /// Returns the calls, by arrival, in any order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Waiter)> {
        self.by_arrival.iter().map(|(arrival, waiter)| (*arrival, waiter))
    }

    /// Returns the first queued call.
    pub(super) fn first(&self) -> Option<u64> {
        self.queued.first().copied()
    }

    /// Queues a call.
    pub(super) fn insert(&mut self, arrival: u64, waiter: Waiter) {
        self.by_arrival.insert(arrival, waiter);
        self.set(arrival, Stage::Queued);
    }

    /// Removes a call. Returns it, and the stage at which it was.
    pub(super) fn remove(&mut self, arrival: u64) -> Option<(Waiter, Stage)> {
        let stage = self.replace(arrival, Stage::Asleep)?;
        Some((self.by_arrival.remove(&arrival)?, stage))
    }

    /// Moves a call to a stage. Returns the grant that it had.
    pub(super) fn set(&mut self, arrival: u64, stage: Stage) -> Option<Grant> {
        self.replace(arrival, stage).and_then(Stage::into_grant)
    }

    /// Moves a call to a stage. Returns the one at which it was; `None` if it is not in the line.
    fn replace(&mut self, arrival: u64, stage: Stage) -> Option<Stage> {
        let waiter = self.by_arrival.get_mut(&arrival)?;
        let was_queued = waiter.is_queued();
        let was = mem::replace(&mut waiter.stage, stage);
        if let Stage::Granted(grant) = &was {
            self.granted.remove(&(grant.at, arrival));
        }
        if let Stage::Granted(grant) = &waiter.stage {
            self.granted.insert((grant.at, arrival));
        }
        match (was_queued, waiter.is_queued()) {
            (false, true) => {
                self.queued.insert(arrival);
                self.looks.plan(arrival, Some(waiter.deadline));
                waiter.late_at = None;
            }
            (true, false) => {
                self.queued.remove(&arrival);
                self.looks.plan(arrival, None);
            }
            _ => {}
        }
        Some(was)
    }

    pub(super) fn costs_of(&self, arrival: u64) -> Option<&OneOrMany<u64>> {
        self.get(arrival).map(|waiter| &waiter.costs)
    }
}

impl Waiter {
    pub(in crate::waiting) fn new(ticket: Arc<Ticket>, on_error: OnError) -> Self {
        Self {
            deadline: ticket.deadline,
            ticket,
            costs: Vec::new().into(),
            late_at: None,
            on_error,
            waker: Waker::noop().clone(),
            pinged: None,
            has_old_rules: false,
            stage: Stage::Asleep,
        }
    }

    pub(super) fn stage(&self) -> &Stage {
        &self.stage
    }

    pub(super) fn is_queued(&self) -> bool {
        matches!(self.stage, Stage::Queued)
    }

    pub(super) fn grant(&self) -> Option<&Grant> {
        match &self.stage {
            Stage::Granted(grant) => Some(grant),
            _ => None,
        }
    }

    pub(super) fn grant_mut(&mut self) -> Option<&mut Grant> {
        match &mut self.stage {
            Stage::Granted(grant) => Some(grant),
            _ => None,
        }
    }
}

impl Stage {
    pub(super) fn into_grant(self) -> Option<Grant> {
        match self {
            Self::Granted(grant) => Some(grant),
            _ => None,
        }
    }
}
