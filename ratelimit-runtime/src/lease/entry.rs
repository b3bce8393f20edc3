//! The lease of one count: the units that the process holds, and the calls that wait for more.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::runtime::Id;
use tokio::sync::oneshot;

use super::LeaseReply;
use super::share::Share;
use crate::algorithm::{Outcome, Verdict};
use crate::background::JobSlot;
use crate::limit::{Policy, Terms};
use crate::reply::{Source, StoreError};
use crate::store::{Charge, Reply};

/// A process remembers a lease if at least so many of its units were spent.
const LEAST_SPENT: u32 = 4;

/// The count of a lease, and the settings of its limit.
pub(super) struct LeaseTarget {
    /// The charge of the call that created this target, under the terms of the lease. Other calls do not use its
    /// cost.
    pub(super) charge: Arc<Charge>,
    /// The amounts of the limit.
    pub(super) amounts: LeaseAmounts,
    pub(super) policy: Policy,
    /// The most units that the process may hold.
    pub(super) max_units: u32,
    /// The time after their charge in which units may be spent, in microseconds.
    pub(super) lifetime: u64,
}

/// The amounts of a limit that leases. Calls with the same key id and other amounts do not spend its units.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct LeaseAmounts {
    threshold: u32,
    capacity: u32,
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
    pub(super) fn charge_of(&self, units: u32) -> Arc<Charge> {
        self.charge.with_cost(units)
    }

    fn capacity(&self) -> u32 {
        self.charge.terms.capacity()
    }
}

pub(super) struct LeaseEntry {
    /// The target of the units that are held, and of the pending request.
    pub(super) target: Arc<LeaseTarget>,
    pub(super) held: HeldUnits,
    pub(super) share: Share,
    pub(super) waiters: VecDeque<LeaseWaiter>,
    /// The number of calls that have waited so far.
    pub(super) arrivals: u64,
    /// The number of waiters that the pending request includes.
    pub(super) included: usize,
    /// The task that requests leases for the waiters.
    pub(super) fetch: JobSlot,
    /// The runtime of that task. It may be blocked, so calls of other runtimes do not wait for it.
    pub(super) runtime: Option<Id>,
    /// Whether the count was reset while the request was pending.
    pub(super) reset: bool,
    /// The time until which no units are leased, because the store has rejected a lease.
    pub(super) paused: u64,
    /// The time at which the watch looks at this entry.
    pub(super) scheduled: Option<u64>,
}

/// The units of a charge that are not spent yet.
#[derive(Clone, Copy, Default)]
pub(super) struct HeldUnits {
    pub(super) units: u32,
    /// The number of units that were charged.
    pub(super) charged: u32,
    /// The time of the charge, by the clock of the store.
    pub(super) at: u64,
    /// The time that the count has recorded for the charge.
    pub(super) place: u64,
    /// The time of the request, by the clock of this process.
    pub(super) requested: u64,
    /// The time until which the units may be spent, by the clock of this process.
    pub(super) until: u64,
    /// From the reply of the store, as is `reset_us`.
    pub(super) remaining: u32,
    pub(super) reset_us: u64,
}

/// A call that waits for a lease.
pub(super) struct LeaseWaiter {
    pub(super) arrival: u64,
    pub(super) cost: u32,
    pub(super) reply_to: oneshot::Sender<LeaseReply>,
}

/// Units to give back.
pub(super) struct UnspentUnits {
    pub(super) target: Arc<LeaseTarget>,
    pub(super) units: u32,
    /// As in [`HeldUnits`].
    pub(super) at: u64,
    /// As in [`HeldUnits`].
    pub(super) place: u64,
}

/// A lease to request from the store.
pub(super) struct LeaseRequest {
    pub(super) target: Arc<LeaseTarget>,
    pub(super) units: u32,
    /// The units that were held before.
    pub(super) unspent: Option<UnspentUnits>,
}

/// A reply to a waiter, which is sent once the ledger is unlocked.
pub(super) struct Delivery {
    pub(super) to: oneshot::Sender<LeaseReply>,
    pub(super) content: DeliveryContent,
}

pub(super) enum DeliveryContent {
    Units { reply: Reply, units: UnspentUnits },
    Rejection(Reply),
    Failure(StoreError),
    NotLeased,
}

impl LeaseEntry {
    pub(super) fn new(target: Arc<LeaseTarget>) -> Self {
        let (held, waiters) = (HeldUnits::default(), VecDeque::new());
        let (fetch, runtime) = (JobSlot::default(), None);
        let (reset, paused, scheduled) = (false, 0, None);
        let share = Share::default();
        Self {
            target,
            held,
            share,
            waiters,
            arrivals: 0,
            included: 0,
            fetch,
            runtime,
            reset,
            paused,
            scheduled,
        }
    }

    /// Returns whether a task requests leases.
    pub(super) fn is_fetching(&self) -> bool {
        self.fetch.is_running()
    }

    /// Spends `cost` units if the process holds as many.
    pub(super) fn take(&mut self, cost: u32, now: u64) -> Option<Reply> {
        if cost > self.held.spendable(now) {
            return None;
        }
        self.held.units -= cost;
        Some(self.reply(now, Source::Lease))
    }

    /// Returns the reply to a call that has spent units.
    pub(super) fn reply(&self, now: u64, source: Source) -> Reply {
        let HeldUnits { units, at: clock, requested, remaining, reset_us, .. } = self.held;
        let outcome = Outcome {
            clock,
            verdict: Verdict::Admitted,
            remaining: remaining.saturating_add(units).min(self.target.capacity()),
            retry_us: 0,
            reset_us: reset_us.saturating_sub(now.saturating_sub(requested)),
        };
        Reply::one(outcome, source)
    }

    pub(super) fn deliver(&self, waiter: LeaseWaiter, reply: Reply) -> Delivery {
        let HeldUnits { at, place, .. } = self.held;
        let units =
            UnspentUnits { target: Arc::clone(&self.target), units: waiter.cost, at, place };
        Delivery { to: waiter.reply_to, content: DeliveryContent::Units { reply, units } }
    }

    /// Returns the next time after `now` at which the units must go back, or at which the process forgets this entry:
    /// if a number of units was spent, one lifetime after the end of the lease.
    pub(super) fn next_end(&self, now: u64) -> Option<u64> {
        let until = self.held.until;
        let is_busy = self.held.spent() >= LEAST_SPENT;
        let forgotten = if is_busy { until + self.target.lifetime } else { until };
        [until, forgotten.max(self.paused)].into_iter().find(|end| *end > now)
    }

    /// Schedules a look at this entry. Returns whether it is sooner than all others.
    pub(super) fn schedule(&mut self, at: u64) -> bool {
        let is_sooner = self.scheduled.is_none_or(|scheduled| at < scheduled);
        if is_sooner {
            self.scheduled = Some(at);
        }
        is_sooner
    }

    /// Takes all units that are held. The entry still knows the spent units.
    pub(super) fn take_unspent(&mut self) -> Option<UnspentUnits> {
        let HeldUnits { units, at, place, .. } = self.held;
        self.held = HeldUnits { units: 0, charged: self.held.spent(), at: 0, ..self.held };
        (UnspentUnits { target: Arc::clone(&self.target), units, at, place }).some()
    }

    /// Returns whether calls with these amounts can use this lease or the next one: no units are held or requested for
    /// calls with other amounts.
    pub(super) fn can_turn_to(&self, amounts: LeaseAmounts) -> bool {
        self.target.amounts == amounts || !self.is_fetching() && self.held.units == 0
    }

    /// Makes the next lease one of `target`. Returns whether it will be.
    pub(super) fn turn_to(&mut self, target: &Arc<LeaseTarget>) -> bool {
        let amounts_agree = self.target.amounts == target.amounts;
        if amounts_agree && self.target.max_units == target.max_units {
            return true;
        }
        if self.is_fetching() || !self.can_turn_to(target.amounts) {
            return false;
        }
        if !amounts_agree {
            self.held = HeldUnits { until: self.held.until, ..HeldUnits::default() };
        }
        (self.target, self.share) = (Arc::clone(target), Share::default());
        true
    }

    /// Prepares the next lease: the units that the waiters need; at least twice the units that were spent of the last
    /// lease, or as many as were spent if that lease has ended.
    pub(super) fn request(&mut self, now: u64) -> Option<LeaseRequest> {
        let first = self.waiters.front()?.cost;
        let (until, spent) = (self.held.until, self.held.spent());
        let most = self.target.max_units.min(self.share.most);
        let ahead = if now < until { spent.saturating_mul(2) } else { spent }.min(most);
        let needed = self.waiters.iter().filter(|waiter| waiter.is_present());
        let needed = needed.fold(0_u32, |sum, waiter| sum.saturating_add(waiter.cost));
        let units = needed.max(ahead).min(self.target.capacity()).max(first);
        self.included = self.waiters.len();
        // A reset before this request does not affect the units that it will charge.
        self.reset = false;
        let unspent = self.take_unspent();
        self.held = HeldUnits { until, ..HeldUnits::default() };
        Some(LeaseRequest { target: Arc::clone(&self.target), units, unspent })
    }
}

impl HeldUnits {
    fn spent(&self) -> u32 {
        self.charged.saturating_sub(self.units)
    }

    pub(super) fn spendable(&self, now: u64) -> u32 {
        if (self.requested..self.until).contains(&now) { self.units } else { 0 }
    }
}

impl UnspentUnits {
    /// Returns `None` for 0 units.
    pub(super) fn some(self) -> Option<Self> {
        (self.units > 0).then_some(self)
    }
}

impl LeaseWaiter {
    pub(super) fn is_present(&self) -> bool {
        !self.reply_to.is_closed()
    }
}
